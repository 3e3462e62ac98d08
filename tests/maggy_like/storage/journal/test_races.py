"""Two drivers that want one name at the same time."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
import train_functions as fns

from maggy_like import Float, Result, lagom
from maggy_like.driver import recovery as module
from maggy_like.errors import ConfigError, JournalError, MaggyError
from maggy_like.storage.journal import Journal, JournalBackend
from optimizers.core.trial import TrialState

pytestmark = pytest.mark.e2e


@pytest.fixture(params=["local", "memory"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    directory = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else tmp_path
    return {
        "optimizer": "random", "n_trials": 3, "max_budget": 3, "engine": "inline", "directory": directory,
        "store": tmp_path / "states", "name": "run", "progress": False,
    }  # fmt: skip


class Rivals:
    """A driver that pauses at its journal's lock, and the other one, which runs meanwhile.

    Args:
        options: Of both.
        behind: Whether the first pauses once it has the lock.
    """

    def __init__(self, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, behind: bool) -> None:
        self.options = options
        self.other: Result | MaggyError | None = None
        self._behind = behind
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(module, "Journal", self.lock)

    def lock(self, backend: JournalBackend, run: str) -> Journal:
        self._monkeypatch.setattr(module, "Journal", Journal)
        journal = Journal(backend, run) if self._behind else None
        try:
            self.other = self.run()
        except MaggyError as error:
            self.other = error
        return journal or Journal(backend, run)

    def run(self, **more: Any) -> Result:
        return lagom(fns.climb_on, {"x": Float(0, 1)}, **{**self.options, **more})


def check_whole(rivals: Rivals, result: Result) -> None:
    """All of the winner's states are there, and its run goes on."""
    assert result.counts == {TrialState.COMPLETED: 3}
    again = rivals.run(resume=True, n_trials=4)
    assert again.counts == {TrialState.COMPLETED: 4}
    states = {path.parent.name for path in (rivals.options["store"] / "run").rglob("*.pkl")}
    assert len(states) == 4


def test_who_comes_while_a_run_is_being_started_is_told_by_whom(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals = Rivals(options, monkeypatch, behind=True)
    result = rivals.run()
    assert isinstance(rivals.other, JournalError)
    assert "is in use by" in str(rivals.other)
    assert "process" in str(rivals.other)
    assert "remove" not in str(rivals.other)
    check_whole(rivals, result)


def test_who_finds_at_the_lock_that_the_name_was_taken_touches_nothing(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals = Rivals(options, monkeypatch, behind=False)
    with pytest.raises(ConfigError, match=r"there is a run named .run. in .* already; pass resume=True"):
        rivals.run()
    assert isinstance(rivals.other, Result)
    check_whole(rivals, rivals.other)


def test_a_run_that_could_not_begin_does_not_keep_its_name(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(journal: Journal, header: Any) -> None:
        raise JournalError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "begin", refuse)
        with pytest.raises(JournalError, match="no room"):
            lagom(fns.climb_on, {"x": Float(0, 1)}, **options)
    assert lagom(fns.climb_on, {"x": Float(0, 1)}, **options).counts == {TrialState.COMPLETED: 3}
