"""A run that is followed for the dashboard, and what was made of it for browsers."""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from maggy_like.cluster_driver.follow import RunFiles
from maggy_like.display.base import Snapshot
from maggy_like.driver.stream import Entry
from maggy_like.errors import UserError
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.results.record import AttemptLog, Clock, DecisionLog, Record, clock_of
from maggy_like.results.result import Result
from maggy_like.results.runs import recorded_result, status_of
from maggy_like.storage.journal import Contents
from optimizers.core.study import Study

REST = 20.0
"""What has changed is made again after a rest of this many times what it took: no more than a 20th of a core."""

LONG_REST = 40.0
"""The same for plots and for what is fitted to all trials."""

_MOST_KEPT = 48
"""Answers that are kept for each run."""

_SMALL = 1000
"""Answers of up to this many bytes are not compressed."""


class NotFoundError(UserError):
    """There is no such run, trial or plot."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request, ready to be sent."""

    body: bytes
    is_compressed: bool
    tag: str  # identifies the body, so that a browser does not fetch it again
    version: str  # of the run when it was made
    due: float  # monotonic time from which it may be made again


def pack(content: object, version: str = "", due: float = 0.0) -> Answer:
    """Return text, bytes or an object as an answer. Objects become JSON."""
    if isinstance(content, str):
        content = content.encode(errors="replace")
    body = content if isinstance(content, bytes) else msgspec.json.encode(content, enc_hook=repr)
    tag = hashlib.blake2b(body, digest_size=12).hexdigest()
    is_large = len(body) > _SMALL
    return Answer(gzip.compress(body, 1, mtime=0) if is_large else body, is_large, f'"{tag}"', version, due)


class FollowedRun:
    """A run that is read as far as its driver has written it, whenever somebody asks.

    Nothing runs while nobody asks. All requests use one study, so they hold ``lock``.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.lock = threading.RLock()
        self.attempts, self.decisions = AttemptLog(), DecisionLog()
        self.asked = time.monotonic()  # when the last request came
        self.files = RunFiles(where, take=self._take)
        self.state: Phase | Ending = Phase.STARTING
        self.version = ""
        self._result: tuple[str, Result] | None = None
        self._record: tuple[str, Record] | None = None
        self._kept: OrderedDict[str, Answer] = OrderedDict()

    def _take(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.attempts.take(entry.event)
            self.decisions.take(entry.event)

    @property
    def study(self) -> Study:
        """The study as of the last look."""
        return self.files.study

    @property
    def contents(self) -> Contents:
        """What the journal has beyond the events."""
        return self.files.reader.contents

    @property
    def clock(self) -> Clock:
        """The run's clock, until now if the run has not ended."""
        return clock_of(self.contents, is_live=not self.state.is_over)

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot, as displays show it."""
        return self.files.snapshot

    def look(self) -> None:
        """Read what is new."""
        self.asked = time.monotonic()
        self.files.look()
        ended = self.files.ended
        is_killed = ended is None and not self.files.is_behind and self.files.is_over()
        self.state = ended.status if ended else Ending.KILLED if is_killed else self.files.snapshot.phase
        lines = self.files.lines.dropped + len(self.files.lines)
        self.version = f"{self.contents.last} {self.state} {lines} {self.files.is_behind}"

    @property
    def result(self) -> Result:
        """The result so far."""
        if self._result is None or self._result[0] != self.version:
            status = status_of(self.contents, Ending.KILLED if self.state is Ending.KILLED else Ending.RUNNING)
            self._result = self.version, recorded_result(self.where, self.contents, self.study, status, None)
        return self._result[1]

    @property
    def record(self) -> Record:
        """The result with its attempts."""
        if self._record is None or self._record[0] != self.version:
            attempts = self.attempts.attempts(clock_of(self.contents))
            self._record = self.version, Record(self.result, self.contents, attempts)
        return self._record[1]

    def answer(
        self, key: str, make: Callable[[FollowedRun], Any], *, rests_long: bool = False, is_of_run: bool = True
    ) -> Answer:
        """Return what ``make`` makes of the run. It is kept until the run changes, and for its rest.

        Args:
            key: Identifies the request.
            make: Makes the answer: an object, text or bytes.
            rests_long: Whether it rests for :data:`LONG_REST` instead of :data:`REST`.
            is_of_run: Whether it depends only on the run's journal. Otherwise it is made again until the run has ended.
        """
        with self.lock:
            self.look()
            kept, now, spent = self._kept.get(key), time.monotonic(), time.thread_time()
            is_old = kept is None or kept.version != self.version or (not is_of_run and not self.state.is_over)
            if kept is None or (is_old and now >= kept.due):
                content = make(self)
                rest = (LONG_REST if rests_long else REST) * (time.thread_time() - spent)
                kept = self._kept[key] = pack(content, self.version, time.monotonic() + rest)
                if len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return kept
