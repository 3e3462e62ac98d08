"""The objects that have a concern of a search each: they check themselves, and the search does what they say."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maggy_like import FailurePolicy, Float, LocalEngine, Store, lagom
from maggy_like.ablation.checks import check_negligible
from maggy_like.api.run_settings import check_target
from maggy_like.errors import ConfigError, UserError
from maggy_like.storage.checkpoints import load_state
from maggy_like.storage.run_paths import read_store

OBJECTS: dict[str, tuple[Callable[[], Any], str]] = {
    "max_attempts=0": (lambda: FailurePolicy(0), "max_attempts must be an integer of at least 1, got 0"),
    "trial_timeout=-1": (
        lambda: FailurePolicy(trial_timeout=-1), "trial_timeout must be a positive number of seconds, got -1"),
    "report_timeout=0.5": (
        lambda: FailurePolicy(report_timeout=0.5),
        "report_timeout must be a number of seconds of at least 1, got 0.5; leave it out"),
    "trial_timeout=1e10": (
        lambda: FailurePolicy(trial_timeout=1e10), r"trial_timeout must be a positive .*, got 10+\.0; leave it out"),
    "min_workers=0": (
        lambda: FailurePolicy(min_workers=0), "min_workers must be an integer of at least 1, got 0"),
    "keep_checkpoints=0": (
        lambda: Store(keep_checkpoints=0), "keep_checkpoints must be an integer of at least 1, got 0"),
    "a store that is nowhere": (lambda: Store("nowhere://x"), "store='nowhere://x' cannot be opened"),
    "an unknown isolation": (
        lambda: LocalEngine(isolation="proces"), r"got 'proces' \(did you mean 'process'\?\)"),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("case", OBJECTS)
def test_an_object_of_a_concern_checks_itself(case: str) -> None:
    make, message = OBJECTS[case]
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, Fraction])
def test_numbers_of_any_kind_are_numbers(kind: Any) -> None:
    read = (
        FailurePolicy(trial_timeout=kind(1)).trial_timeout,
        Store(max_files_gb=kind(1)).max_files_gb,
        check_negligible(kind(1)),
        check_target(kind(1), ["loss"]),
    )
    assert [(type(number), number) for number in read] == [(float, 1.0)] * 4
    LocalEngine(gpu_fraction=kind(1))


@pytest.mark.slow
def test_a_path_or_url_is_the_store_of_it() -> None:
    assert read_store(None) == Store()
    assert read_store("s3://bucket/states/") == Store("s3://bucket/states")
    assert read_store(Path("states")) == Store("states")
    assert read_store(Store("states", 5)).keep_checkpoints == 5
    with pytest.raises(ConfigError, match="store must be the path or URL of a directory, or a Store, got 3"):
        read_store(3)


@pytest.mark.parametrize(("keep", "left"), [(1, {3, 6}), (2, {3, 5, 6}), (4, {3, 4, 5, 6})])
def test_the_last_states_and_the_best_are_kept_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int, left: set[int]
) -> None:
    monkeypatch.setattr("maggy_like.worker.child.saves.ANSWER_PATIENCE", 60.0)

    def train(x: float, reporter: Any) -> None:
        for step in range(1, 7):
            reporter.checkpoint(step)
            reporter.report(score=-abs(step - 3), step=step)

    lagom(train, {"x": Float(0, 1)}, engine="inline", n_trials=2, optimizer="random", max_budget=6, name="run",
          directory=tmp_path, store=Store(keep_checkpoints=keep), progress=False)  # fmt: skip
    for trial in (0, 1):
        states = (tmp_path / "run" / "checkpoints" / f"{trial:05d}").iterdir()
        assert {load_state(state.as_uri()) for state in states} == left
