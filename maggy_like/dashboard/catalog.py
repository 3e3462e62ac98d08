"""The runs that a dashboard shows: those in a directory, or a single one."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Any

from maggy_like.dashboard.followed_run import Answer, FollowedRun, NotFoundError, pack
from maggy_like.errors import MaggyError
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.values import encodable
from maggy_like.results.record import improvements
from maggy_like.results.run_tables import RunSummary
from maggy_like.results.runs import directory_of, names_in, read_each
from maggy_like.storage.file_systems import check_directory, name_of_directory
from maggy_like.storage.journal import RunTotals, backend_of, read_ends

IDLE = 60.0
"""Seconds after which a run that nobody has asked for is forgotten."""

_MOST_FOLLOWED = 12
"""Runs that are kept in memory, those that were asked for last."""

_REST = 20.0
"""The list is made again after a rest of this many times what it took."""

_SHORTEST = 1.0
"""Seconds between two lists."""

_POINTS = 40
"""Points of a small curve."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """What is known of a run that has ended or was killed, until the end of its journal changes."""

    ends: object
    summary: RunSummary


class Catalog:
    """Finds runs by name, and follows those that somebody looks at.

    Args:
        where: Path or URL of a directory of runs, or of one run. It may appear later.
    """

    def __init__(self, where: str) -> None:
        self.where = str(directory_of(check_directory("", where)))
        self._is_run = False
        self._lock = threading.Lock()
        self._list_lock = threading.Lock()
        self.followed: dict[str, FollowedRun] = {}
        self._ended: dict[str, _Ended] = {}
        self._curves: dict[str, tuple[object, list[list[float]]]] = {}
        self._list: Answer | None = None

    @property
    def is_run(self) -> bool:
        """Whether it is a single run."""
        self._is_run = self._is_run or _has_run(self.where)
        return self._is_run

    def names(self) -> list[str]:
        """Return the names of what may be runs."""
        return [name_of_directory(self.where)] if self.is_run else names_in(self.where)

    def run(self, name: str) -> FollowedRun:
        """Return the run of that name."""
        with self._lock:
            now = time.monotonic()
            if name not in self.followed:
                if name in (".", "..") or "/" in name or "\\" in name or name not in self.names():
                    raise NotFoundError(f"there is no run {name!r} in {self.where}; use a name of the list")
                where = self._place(name)
                if not _has_run(where):
                    raise NotFoundError(f"there is no run in {where}; use the directory of a run")
                self.followed[name] = FollowedRun(where)
            found = self.followed[name]
            found.asked = now
            by_age = sorted(self.followed, key=lambda each: -self.followed[each].asked)
            for place, each in enumerate(by_age):
                if place >= _MOST_FOLLOWED or now - self.followed[each].asked > IDLE:
                    del self.followed[each]
            return found

    def listed(self) -> Answer:
        """Return the list of runs, the newest first."""
        with self._list_lock:
            now = time.monotonic()
            if self._list is None or now >= self._list.due:
                rows = [] if self.is_run else read_each(self.where, self._row, self.names())
                runs = sorted(filter(None, rows), key=lambda row: -(row["created"] or 0.0))
                content = {
                    "directory": encodable(self.where),
                    "run": name_of_directory(self.where) if self.is_run else None,
                    "runs": runs,
                }
                ended = time.monotonic()
                self._list = pack(content, due=ended + max(_SHORTEST, _REST * (ended - now)))
            return self._list

    def curve(self, name: str) -> list[list[float]]:
        """Return how the best value of a run became better: seconds and values."""
        ends = read_ends(backend_of(self._place(name)))
        known = self._curves.get(name)
        if known is not None and known[0] == ends and ends is not None and ends.ended is not None:
            return known[1]
        run = self.run(name)
        with run.lock:
            run.look()
            found = [] if run.result.others else improvements(run.record.ended(), run.result.direction)
            points = [[at, value] for at, _, value in found]
            if points:
                points.append([run.record.clock.total, points[-1][1]])
            every = max(1, len(points) // _POINTS)
            curve = points[::every] + (points[-1:] if (len(points) - 1) % every else [])
            if not run.files.is_behind:
                self._curves[name] = ends, curve
            return curve

    def _place(self, name: str) -> str:
        return self.where if self.is_run else f"{self.where}/{name}"

    def _row(self, name: str) -> dict[str, Any] | None:
        """Return a run as the list shows it. None if there is no run."""
        try:
            summary, phase = self._summary(name)
        except MaggyError as error:
            return {"name": name, "created": None, "problem": str(error)}
        if summary is None:
            return None
        return {
            "name": summary.name,
            "created": summary.created,
            "state": phase,
            "is_over": summary.ending is not Ending.RUNNING,
            "seconds": summary.seconds,
            "is_longer": summary.is_longer,
            "optimizer": summary.optimizer,
            "trials": summary.trials,
            "failed": summary.failed,
            "training": summary.training,
            "objective": summary.objective,
            "direction": summary.direction,
            "best_value": summary.best_value,
            "best_config": summary.best_config,
            "problem": "",
        }

    def _summary(self, name: str) -> tuple[RunSummary | None, str]:
        """Return the summary of a run, and its phase or ending. A run that has not ended is followed."""
        where = self._place(name)
        ends = read_ends(backend_of(where))
        if ends is None:
            return None, ""
        known = self._ended.get(name)
        if known is None or known.ends != ends:
            if ends.header is not None and ends.ended is not None and ends.ended.totals is not None:
                made = RunSummary.of(name, where, ends.header, ends.ended.status, ends.ended.totals)
            else:
                made, phase = self._followed_summary(name, where)
                if made.ending is Ending.RUNNING or not ends.last:
                    return made, phase
            known = self._ended[name] = _Ended(ends, made)
        return known.summary, str(known.summary.ending)

    def _followed_summary(self, name: str, where: str) -> tuple[RunSummary, str]:
        run = self.run(name)
        with run.lock:
            run.look()
            contents, state = run.contents, run.state
            ending = state if isinstance(state, Ending) else Ending.RUNNING
            is_longer = bool(contents.unended) or ending is Ending.KILLED
            totals = RunTotals.of(
                run.study, run.clock.total, is_longer=is_longer, finds_best=contents.header.finds_best
            )
            phase = "reading" if run.files.is_behind else str(state)
            return RunSummary.of(name, where, contents.header, ending, totals), phase


def _has_run(where: str) -> bool:
    with contextlib.suppress(Exception):  # of any file system; reading it reports the reason
        return backend_of(where).exists()
    return False
