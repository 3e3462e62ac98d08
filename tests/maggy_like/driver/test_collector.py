"""A large gang is not kept waiting by the garbage collector, and the caller's process is afterwards as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from maggy_like.driver.runner import MANY_WORKERS, short_collections


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    gc.unfreeze()  # the tests' own process may have frozen what it has imported
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    if frozen:
        gc.freeze()


def test_what_was_there_before_is_left_out_while_a_large_gang_runs_and_looked_at_again_afterwards() -> None:
    before = gc.get_threshold()
    with short_collections(MANY_WORKERS):
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold() > before
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before


def test_a_run_that_fails_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), short_collections(MANY_WORKERS):
        raise KeyError
    assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)


def test_a_small_gang_and_a_caller_who_froze_objects_change_nothing() -> None:
    before = gc.get_threshold()
    with short_collections(MANY_WORKERS - 1):
        assert (gc.get_freeze_count(), gc.get_threshold()) == (0, before)
    gc.freeze()
    frozen = gc.get_freeze_count()
    with short_collections(MANY_WORKERS):
        assert gc.get_threshold() == before
    assert 0 < gc.get_freeze_count() <= frozen  # a frozen object may die at any time, and is then counted no more
