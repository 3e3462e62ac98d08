"""One search by one method on one table with one seed, and the file that keeps what was run.

Regret is normalised by the task (:meth:`benchmarks.tasks.Task.regret`) and counted as at most :data:`CAP`, also
while nothing has been reported.
"""

from __future__ import annotations

import fcntl
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.drive import Reports
from benchmarks.tasks import Task

Array = NDArray[np.float64]
Kind = Literal["sf", "mf"]
Key = tuple[str, str, str, int]

CAP = 3.0
GRID = 200
"""Points in time at which a curve is looked at."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a search came to.

    Attributes:
        kind: ``sf``: full trainings alone; ``mf``: every step is reported and counts.
        method: A name of :mod:`benchmarks.methods`.
        code: What made this run: the version of the library, or what an optimizer of ours does, as a hash.
        cpu: Seconds of one core, for the whole search.
        count: Reports that came.
        end: Virtual seconds at the end.
        points: Where the lowest loss so far fell: reports until then, virtual seconds, normalised regret.
    """

    kind: Kind
    method: str
    table: str
    seed: int
    code: str
    cpu: float
    count: int
    end: float
    points: tuple[tuple[int, float, float], ...]

    @property
    def key(self) -> Key:
        """What tells a run from the others."""
        return (self.kind, self.method, self.table, self.seed)

    @property
    def regret(self) -> float:
        """At the end."""
        return min(self.points[-1][2], CAP) if self.points else CAP

    @property
    def area(self) -> float:
        """Mean regret over the reports (``sf``) or over the time (``mf``)."""
        return float(np.mean(self.by_report() if self.kind == "sf" else self.by_time(self.end)))

    def by_report(self) -> Array:
        """The regret after each report, shape (count,)."""
        counts = [count for count, _, _ in self.points]
        return self._at(counts, range(1, self.count + 1))

    def by_time(self, horizon: float) -> Array:
        """The regret at :data:`GRID` points up to ``horizon`` seconds, shape (GRID,)."""
        times = [time for _, time, _ in self.points]
        return self._at(times, grid(horizon))

    def _at(self, marks: list[Any], wanted: Iterable[float]) -> Array:
        regrets = [CAP, *(min(regret, CAP) for _, _, regret in self.points)]
        return np.array([regrets[bisect_right(marks, at)] for at in wanted])


def grid(horizon: float) -> Array:
    """The points in time, without 0, with ``horizon``; shape (GRID,)."""
    points: Array = np.linspace(0.0, horizon, GRID + 1)[1:]
    return points


def improvements(reports: Reports, task: Task) -> tuple[tuple[int, float, float], ...]:
    """The points of a :class:`Run`, rounded: 6 digits of the time, 6 decimals of the regret."""
    best = np.inf
    points: list[tuple[int, float, float]] = []
    for count, (time, loss) in enumerate(reports, 1):
        if loss < best:
            best = loss
            points.append((count, float(f"{time:.6g}"), round(float(task.regret(loss)), 6)))
    return tuple(points)


class Store:
    """Finished runs in a file of JSON lines; of those with the same key the last one counts.

    Several processes may append to one file.

    Args:
        path: The file, or None to keep nothing.

    Example:
        >>> Store(tmp_path / "runs.jsonl").add(run)
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._runs: dict[Key, Run] = {}
        if path is not None and path.exists():
            self._runs = {run.key: run for run in _read(path)}

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def get(self, key: Key) -> Run | None:
        """The run with this key, if it was made."""
        return self._runs.get(key)

    def add(self, run: Run) -> None:
        """Keep a run."""
        self._runs[run.key] = run
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write(_line(run))

    def tidy(self) -> None:
        """Drop from the file what a later run replaced, and sort it, so that its changes are easy to read."""
        if self._path is None or not self._path.exists():
            return
        with self._path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            newest = {run.key: run for run in _read(self._path)}
            file.writelines(_line(newest[key]) for key in sorted(newest))
            file.truncate()


def _line(run: Run) -> str:
    return json.dumps(asdict(run), separators=(",", ":")) + "\n"


def _read(path: Path) -> Iterator[Run]:
    for line in path.read_text().splitlines():
        entry: Mapping[str, Any] = json.loads(line)
        yield Run(**{**entry, "points": tuple(map(tuple, entry["points"]))})
