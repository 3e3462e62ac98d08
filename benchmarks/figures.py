"""The arithmetic of the comparison: ranks, times and speed-ups from finished runs.

The mean rank of a method is 1 plus, summed over its rivals, the share of (table, seed) on which the rival is better;
a tie is half. Each share is taken where both have a run, every table weighing the same. Without gaps that is the
usual mean rank; with gaps it stays comparable. A rival is who has runs on all tables; others are ranked against
them, but move nobody.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.runs import Array, Kind, Run

BOOTSTRAPS = 1000
Score = Callable[[Run], float]


def regret(run: Run) -> float:
    """The regret at the end."""
    return run.regret


def area(run: Run) -> float:
    """The mean regret on the way."""
    return run.area


class Rank(NamedTuple):
    """A mean rank with a 95 % confidence interval: a bootstrap over the tables, and over the seeds of each."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Field:
    """The runs of one kind that are compared.

    Attributes:
        runs: By method, and by table and seed.
        tables: All that are asked for.
        seeds: All that are asked for.
    """

    kind: Kind
    runs: dict[str, dict[tuple[str, int], Run]]
    tables: tuple[str, ...]
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, runs: Iterable[Run], kind: Kind, tables: Sequence[str], seeds: Sequence[int]) -> Field:
        """Sort runs; those of other kinds, tables or seeds are left out."""
        found: dict[str, dict[tuple[str, int], Run]] = {}
        for run in runs:
            if run.kind == kind and run.table in tables and run.seed in seeds:
                found.setdefault(run.method, {})[run.table, run.seed] = run
        return cls(kind, found, tuple(tables), tuple(seeds))

    @property
    def rivals(self) -> list[str]:
        """The methods that have runs on all tables."""
        return [name for name, runs in self.runs.items() if {table for table, _ in runs} == set(self.tables)]

    def on(self, tables: Sequence[str]) -> Field:
        """The same on some of the tables."""
        runs = [run for of_method in self.runs.values() for run in of_method.values()]
        return Field.of(runs, self.kind, [table for table in self.tables if table in tables], self.seeds)

    def ranks(self, score: Score) -> dict[str, Rank]:
        """The mean rank of each method, 1 is best."""
        names = list(self.runs)
        scores = np.array([self._scores(name, score) for name in names])
        rivals = np.isin(names, self.rivals)
        means = _mean_ranks(scores, rivals)
        rng = np.random.default_rng(0)
        drawn = []
        for _ in range(BOOTSTRAPS):
            tables = rng.integers(len(self.tables), size=(len(self.tables), 1))
            seeds = rng.integers(len(self.seeds), size=(len(self.tables), len(self.seeds)))
            drawn.append(_mean_ranks(scores[:, tables, seeds], rivals))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a method with few runs may be in no draw
            low, high = np.nanpercentile(drawn, [2.5, 97.5], axis=0)
        return {name: Rank(float(means[i]), float(low[i]), float(high[i])) for i, name in enumerate(names)}

    def mean(self, method: str, score: Score) -> float:
        """Mean over the tables of the mean over the seeds."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # tables without a run do not count
            return float(np.nanmean(np.nanmean(self._scores(method, score), axis=1)))

    def worst(self, method: str, score: Score) -> float:
        """The largest of any table and seed."""
        return max(score(run) for run in self.runs[method].values())

    def curves(self, method: str, table: str, horizon: float) -> Array:
        """Regret at points in time, shape (seeds, GRID)."""
        return np.array([run.by_time(horizon) for (name, _), run in self.runs[method].items() if name == table])

    def share_of_time(self, method: str, goal: str, table: str) -> float:
        """The time until the mean regret of ``method`` is what ``goal`` has at the end, in parts of its time.

        A method that does not get there counts as if it did at the end.
        """
        horizon = max(run.end for (name, _), run in self.runs[goal].items() if name == table)
        aim = self.curves(goal, table, horizon).mean(axis=0)
        mine = self.curves(method, table, horizon).mean(axis=0)
        return _first(mine, aim[-1]) / _first(aim, aim[-1])

    def time_to(self, method: str, goal: str) -> float:
        """The geometric mean of :meth:`share_of_time` over the tables of ``method``; its inverse is a speed-up."""
        tables = {table for table, _ in self.runs[method]}
        return float(np.exp(np.mean([np.log(self.share_of_time(method, goal, table)) for table in sorted(tables)])))

    def worse(self, method: str, than: Sequence[str], *, by: float = 0.0) -> list[str]:
        """The tables on which the mean area of ``method`` is above the least one of ``than``, by more than ``by``."""
        mine, *others = (np.nanmean(self._scores(name, area), axis=1) for name in (method, *than))
        is_worse = mine > (1.0 + by) * np.min(others, axis=0)
        return [name for name, worse in zip(self.tables, is_worse, strict=True) if worse]

    def surely_worse(self, method: str, than: Sequence[str]) -> list[str]:
        """The tables on which the mean area of ``method`` is above one of ``than`` beyond the luck of the seeds.

        So it is where the 99 % interval of the ratio of the two means is above 1: a bootstrap over the seeds of each.
        """
        rng = np.random.default_rng(0)
        drawn = rng.integers(len(self.seeds), size=(2, 10 * BOOTSTRAPS, len(self.seeds)))  # the tail is looked at
        mine, others = self._scores(method, area), [self._scores(name, area) for name in than]
        return [
            name
            for row, name in enumerate(self.tables)
            if any(
                np.nanpercentile(np.nanmean(mine[row][drawn[0]], axis=1) / np.nanmean(its[row][drawn[1]], axis=1), 0.5)
                > 1.0
                for its in others
            )
        ]

    def _scores(self, method: str, score: Score) -> Array:
        """Shape (tables, seeds); NaN where there is no run."""
        runs = self.runs[method]
        return np.array(
            [
                [score(runs[table, seed]) if (table, seed) in runs else np.nan for seed in self.seeds]
                for table in self.tables
            ]
        )


def _mean_ranks(scores: Array, rivals: NDArray[np.bool_]) -> Array:
    """Mean ranks, shape (methods,), from scores of shape (methods, tables, seeds)."""
    mine, its = scores[:, None], scores[None]
    lost = np.where(np.isnan(mine + its), np.nan, (its < mine) + 0.5 * (its == mine))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # pairs without a cell in common stay NaN
        shares = np.nanmean(np.nanmean(lost, axis=3), axis=2)
    np.fill_diagonal(shares, 0.0)
    ranks: Array = 1.0 + shares[:, rivals].sum(axis=1)
    return ranks


def _first(curve: Array, goal: float) -> float:
    """The share of the time at which the curve is down at the goal."""
    there = np.flatnonzero(curve <= goal + 1e-9)
    return float((there[0] + 1) / curve.size) if there.size else 1.0
