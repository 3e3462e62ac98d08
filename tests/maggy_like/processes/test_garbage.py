"""When the garbage collector runs, and that it is left as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from maggy_like.processes.garbage import MANY_WORKERS, no_collections, short_collections

pytestmark = pytest.mark.slow


@pytest.fixture
def collector() -> Iterator[None]:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.unfreeze()  # the tests' own process may have frozen what it has imported
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    if frozen:
        gc.freeze()


@pytest.mark.usefixtures("collector")
def test_what_was_there_before_is_left_out_while_a_large_gang_runs_and_looked_at_again_afterwards() -> None:
    before = gc.get_threshold()
    with short_collections(MANY_WORKERS):
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold() > before
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before


@pytest.mark.usefixtures("collector")
def test_a_run_that_fails_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), short_collections(MANY_WORKERS):
        raise KeyError
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)


@pytest.mark.usefixtures("collector")
def test_a_small_gang_and_a_caller_who_froze_objects_change_nothing() -> None:
    before = gc.get_threshold()
    with short_collections(MANY_WORKERS - 1):
        assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)
    gc.freeze()
    frozen = gc.get_freeze_count()
    with short_collections(MANY_WORKERS):
        assert gc.get_threshold() == before
    assert 0 < gc.get_freeze_count() <= frozen  # a frozen object may die at any time, and is then counted no more


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("was_enabled", [True, False])
def test_nothing_is_collected_meanwhile_and_the_collector_is_left_as_it_was(was_enabled: bool) -> None:
    if not was_enabled:
        gc.disable()
    try:
        with no_collections():
            assert not gc.isenabled()
            with no_collections():
                pass
            assert not gc.isenabled()
        assert gc.isenabled() is was_enabled
        with pytest.raises(KeyError), no_collections():
            raise KeyError
        assert (gc.isenabled(), gc.get_freeze_count()) == (was_enabled, 0)
    finally:
        gc.enable()


@pytest.mark.usefixtures("collector")
def test_what_was_made_meanwhile_can_be_frozen() -> None:
    with no_collections(freeze=True):
        made = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    assert gc.get_freeze_count() > len(made)
