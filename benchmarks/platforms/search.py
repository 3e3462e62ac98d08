"""The search that every setting runs, and what must have come of it.

Twenty configurations of a logistic regression on made-up data, three reports and three checkpoints each. All of it is
drawn by seeds, so what each trial must have measured is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maggy_like import Float, Reporter, Result, lagom

TRIALS, STEPS = 20, 3


def make_train(pace: float = 0.0, gate: Path | None = None) -> Callable[..., None]:
    """The training; a function of its own travels by value, so that workers need no file of this benchmark.

    Args:
        pace: Seconds to wait in each step, for those who have to come in between.
        gate: A file that later trials wait for, two minutes at most.
    """
    early = TRIALS // 2

    def train(rate: float, decay: float, reporter: Reporter) -> None:
        import numpy as np

        rng = np.random.default_rng(0)
        x = rng.normal(size=(200, 5))
        y = x @ np.arange(1.0, 6.0) > rng.normal(size=200)
        state = reporter.restore() or {"step": 0, "weights": np.zeros(5)}
        weights, begun = state["weights"], time.time()
        while gate is not None and reporter.trial >= early and not gate.exists() and time.time() < begun + 120.0:
            time.sleep(0.1)
        for step in range(state["step"] + 1, reporter.budget + 1):
            time.sleep(pace)
            for _ in range(20):
                guess = 1.0 / (1.0 + np.exp(-(x @ weights)))
                weights = (1.0 - decay) * weights - rate * x.T @ (guess - y) / len(y)
            reporter.checkpoint({"step": step, "weights": weights})
            reporter.report(loss=float(np.mean((guess - y) ** 2)), begun=begun, step=step)

    return train


@dataclass(frozen=True)
class Searched:
    """A search that returned.

    Attributes:
        result: What ``lagom`` returned.
        first: Seconds from the call to the beginning of the first trial.
        total: Seconds from the call to its return.
    """

    result: Result
    first: float
    total: float


def search(
    folder: Path | str, *, train: Callable[..., None] | None = None, pace: float = 0.0, **settings: Any
) -> Searched:
    """Run it; ``settings`` are those of ``lagom``, and ``train`` is that of :func:`make_train` or does the same."""
    called = time.time()
    arguments: dict[str, Any] = {
        "optimizer": "random",
        "metric": "loss",
        "direction": "min",
        "max_budget": STEPS,
        "n_trials": TRIALS,
    }
    space = {"rate": Float(0.01, 10.0, log=True), "decay": Float(1e-5, 1e-1, log=True)}
    result = lagom(train or make_train(pace), space, directory=folder, progress="plain", **(arguments | settings))
    total = time.time() - called
    begun = [trial.curves["begun"].values[0] for trial in result.trials if "begun" in trial.curves]
    return Searched(result, min(begun, default=float("nan")) - called, total)


class Plain:
    """A reporter for a training outside of any search; it keeps what is reported."""

    budget = STEPS

    def __init__(self) -> None:
        self.losses: list[float] = []

    def restore(self) -> None:
        """Nothing was saved."""

    def checkpoint(self, state: Any) -> None:
        """Save nothing."""

    def report(self, loss: float, **_: float) -> None:
        """Keep it."""
        self.losses.append(loss)


def wrong(result: Result) -> Iterator[str]:
    """What is not as it must be in a search that nobody ended: every trial has every measurement."""
    if result.ending != "completed":
        yield f"the search ended as {result.ending!r}"
    if len(result.trials) != TRIALS:
        yield f"{len(result.trials)} trials"
    train = make_train()
    for trial in result.trials:
        plain = Plain()
        train(**trial.config, reporter=plain)
        measured = dict(zip(trial.curve.steps, trial.curve.values, strict=True))
        expected = dict(enumerate(plain.losses, 1))
        same = measured.keys() == expected.keys() and all(abs(measured[n] - expected[n]) < 1e-9 for n in expected)
        if trial.state != "completed":
            yield f"trial {trial.id} is {trial.state}: {trial.failure}"
        elif not same:
            yield f"trial {trial.id} measured {measured} and not {expected}"


def lost(result: Result) -> int:
    """The attempts that were held against its trials."""
    return sum(trial.losses + trial.stage_losses for trial in result.trials)
