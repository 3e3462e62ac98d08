"""How a trial's reports reach its agent, and how the driver's answers reach the trial."""

from __future__ import annotations

import contextlib
import difflib
import operator
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sized
from numbers import Complex, Real
from queue import SimpleQueue
from typing import SupportsFloat

from maggy_like.processes.channel import Disconnected
from maggy_like.protocol.messages import MAX_NAME, MAX_STEP, Assign, Columns, Reported, ToDriver, encode
from maggy_like.protocol.values import ReportError, is_encodable, shortened
from maggy_like.worker.child.stop_state import StopState, StoreWait

_COUNTERS = frozenset({"batch", "epoch", "iter", "iteration", "it", "round", "steps"})
"""Names under which other libraries count steps."""


_SETS = {
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "cv", "oof", "holdout", "heldout"), 0),
    "test": 1,
    **dict.fromkeys(("train", "training", "fit"), 3),
}
"""Words in the names of metrics that name the rows they are computed on, the best to select by first."""


_TIMES = frozenset({"time", "times", "seconds", "secs", "duration", "runtime", "elapsed", "timestamp"})
"""Words in the names of values that are measured beside an objective."""


def _preference(name: str) -> tuple[bool, int, int, str]:
    """Return a key that puts metrics of validation rows first, then those of the training rows, and times last.

    XGBoost and LightGBM number the sets that they evaluate. Usually the first of several is the training set.
    """
    words = re.findall(r"[a-z]+|\d+", name.lower())
    is_time = not _TIMES.isdisjoint(words)
    sets = [place for place, word in enumerate(words) if word in _SETS]
    if not sets:
        return is_time, 2, 0, name
    number = next(iter(words[sets[0] + 1 :]), "")
    return is_time, _SETS[words[sets[0]]], -int(number) if number.isdigit() else 0, name


def pick_objective(metrics: Mapping[str, object], wanted: str | None, *, is_search: bool = True) -> str:
    """Return the name of the objective among ``metrics``, which is ``wanted`` if that is known.

    If nothing is optimized (not ``is_search``), it is the first metric. Raise ReportError if it is missing, or if there
    are several metrics and none was chosen.
    """
    if not metrics:
        named = wanted or "accuracy"
        raise ReportError(f"report() must have a metric, got none; use report({named}={named}, step=step)")
    given = ", ".join(sorted(metrics))
    if wanted is not None:
        if wanted in metrics:
            return wanted
        near = difflib.get_close_matches(wanted, list(metrics), 1)
        near = near or sorted((name for name in metrics if wanted in name), key=_preference)  # auc is in valid_0_auc
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        remedy = (
            f"use metric={(near or list(metrics))[0]!r}"
            if near or len(metrics) == 1
            else "pass one of these as metric="
        )
        raise ReportError(f"the metric {wanted!r} must be given, got {given}{meant}; report or return it, or {remedy}")
    if len(metrics) == 1 or not is_search:
        return next(iter(metrics))
    counters = sorted(name for name in metrics if name.lower() in _COUNTERS)
    rest = set(metrics).difference(counters) or metrics
    wanted = min(rest, key=lambda name: (isinstance(metrics[name], Sized), _preference(name)))  # no array if possible
    steps = f", and pass the count of steps as step={counters[0]}" if counters else ""
    raise ReportError(
        f"metric must be the name of the optimized metric, got None for {given}; pass metric={wanted!r}{steps}"
    )


def as_number(what: str, value: object, remedy: str = "") -> float:
    """Return a metric as a float; numpy scalars and tensors of one element are converted.

    Raise ReportError if it is not a number. ``what`` describes the value in the message. ``remedy`` follows from the
    value by default.
    """
    is_complex = isinstance(value, Complex) and not isinstance(value, Real)  # numpy's lose their imaginary part
    if isinstance(value, float | int | SupportsFloat) and not isinstance(value, str | bytes) and not is_complex:
        detach = getattr(value, "detach", None)  # torch warns of a loss that is turned into a float as it is
        try:
            return float(value if detach is None else detach())
        except (TypeError, ValueError, OverflowError, RuntimeError):
            pass
    remedy = remedy or _how_to_number(what, value)
    given = f"{what} must be a number, got {shortened(value)} of type {type(value).__name__}"
    raise ReportError(f"{given}; {remedy}" if remedy else given)


def _how_to_number(what: str, value: object) -> str:
    """Return what to report instead of a value. Empty if that is unknown."""
    method = what.partition("(")[0]
    if what == "report(checkpoint=...)":  # as Ray takes it
        return "use reporter.checkpoint(state) before the report"
    if isinstance(value, Mapping):
        return f"use {method}(**metrics)" if method in ("report", "average") else ""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return f"use {float(value):.6g}"
    if isinstance(value, Sized) and not isinstance(value, str | bytes):
        return "use one number, such as the mean"
    return f"call it: {getattr(value, '__name__', 'metric')}(...)" if callable(value) else ""


def as_step(step: object) -> int:
    """Return a step as an int; raise ReportError if it is not an integer, or too large to be sent."""
    try:
        number = operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        whole = int(step) if isinstance(step, float) and step.is_integer() else None
        remedy = "; count the reports: 1, 2, 3" if whole is None else f"; use {whole}"
        raise ReportError(f"step must be an integer, got {shortened(step)}{remedy}") from None
    if not -MAX_STEP <= number <= MAX_STEP:
        raise ReportError(f"step must be below 2**63, got {shortened(number)}; count epochs, batches or samples")
    return number


def check_name(name: str) -> None:
    """Raise ReportError if a metric's name cannot be sent."""
    if len(name) > MAX_NAME:
        raise ReportError(
            f"a metric's name must have at most {MAX_NAME} characters, got {len(name)}: {shortened(name)}; shorten it"
        )
    if not is_encodable(name):
        raise ReportError(f"a metric's name must be valid Unicode text, got {shortened(name)}; rename it")


FRAME = 20_000
"""Approximate number of values per message, which is a quarter of a megabyte."""

ROOM = 500_000
"""Values that may wait in the trial's process, about 50 MB; with more, ``report`` waits too."""

ROOM_POLL = 0.1
"""Seconds between two checks whether a trial that waits for room was stopped."""

REPORT_COST = 4
"""Cost of a report in addition to its values."""

SLOWED = 1.0
"""Seconds of waiting in ``report`` after which a message mentions it."""


_FORKED = "a forked process cannot report or save; report and save in the trial's main process"

_senders: weakref.WeakSet[Sender] = weakref.WeakSet()


def _silence_child() -> None:
    """Let reports fail in a process that the trial forked, in which no thread sends them."""
    for sender in list(_senders):
        sender.fault = sender.fault or ReportError(_FORKED)


os.register_at_fork(after_in_child=_silence_child)


class Sender:
    """Carries a trial's reports to the agent. One per attempt, shared with the service thread."""

    def __init__(self, assign: Assign, send: Callable[[bytes], None]) -> None:
        # Reports that are not sent yet. Appending to a list and cutting it are atomic, so ``report`` takes no lock.
        self.buffer: list[tuple[int, dict[str, float]]] = []
        self.fault: Exception | None = None  # why the service thread could not send them, for the trial to raise
        self.stop = StopState(is_multi_worker=assign.rank_info is not None)
        self.store = StoreWait(assign.trial, assign.attempt, self.send)
        # For each state in the journal, the names of states that may be removed now.
        self.kept: SimpleQueue[tuple[str, ...]] = SimpleQueue()
        # Whether this worker is the one of the attempt that reports.
        self.is_main = assign.rank_info is None or assign.rank_info.rank == 0
        self._assign = assign
        self._send = send
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._room = threading.Condition()
        self._waited = 0.0
        self._is_slowness_sent = False  # that it had to wait
        self._objective = assign.objective
        _senders.add(self)

    def send(self, message: ToDriver) -> None:
        """Send one message now.

        Raise ReportError in a process that the trial forked: the two would send different things.
        """
        self._check_process()
        self._send(encode(message))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise ReportError(_FORKED)

    def flush(self, *, awaiting: bool = False) -> None:
        """Send the buffered reports. Others stay in the buffer."""
        with self._lock:
            while self.buffer or awaiting:
                if self._send_some(awaiting=awaiting):
                    break

    def _send_some(self, *, awaiting: bool) -> bool:
        """Send one message with the oldest reports; whether the trial awaits the answer and has no others."""
        count = max(1, FRAME // len(self.buffer[0][1])) if self.buffer else 0
        reports = self.buffer[:count]
        if self._objective is None:  # the first report says, as it does in the trial: later ones may hold more
            self._objective = pick_objective(reports[0][1], None, is_search=self._assign.is_search)
        last = awaiting and len(self.buffer) == len(reports)
        slowed = self._waited > SLOWED and not self._is_slowness_sent
        trial, attempt = self._assign.trial, self._assign.attempt
        self.send(Reported(trial, attempt, self._objective, to_columns(reports), last, slowed))
        self._is_slowness_sent = self._is_slowness_sent or slowed
        with self._room:
            del self.buffer[: len(reports)]
            self._room.notify_all()
        return last

    @property
    def is_behind(self) -> bool:
        """Whether a full message is buffered and can be sent."""
        try:
            return self.fault is None and len(self.buffer) * len(self.buffer[0][1]) >= FRAME
        except IndexError:  # the other thread has just sent it
            return False

    def wait_for_room(self) -> None:
        """Wait until enough of the reports are sent, or the trial is stopped.

        Raise ReportError in a process that the trial forked, in which no thread sends them.
        """
        self._check_process()
        began = time.monotonic()
        with self._room:
            while self._is_crowded() and not self.stop.is_requested and self.fault is None:
                self._room.wait(ROOM_POLL)
        self._waited += time.monotonic() - began

    def _is_crowded(self) -> bool:
        return bool(self.buffer) and len(self.buffer) * (len(self.buffer[-1][1]) + REPORT_COST) > ROOM

    def flush_behind(self) -> None:
        """Send one message of buffered reports outside the trial's calls.

        Raise Disconnected if the agent cannot be reached. If the message cannot be sent for another reason, the trial's
        next report raises that.
        """
        if self.fault is not None:
            return
        try:
            with self._lock:
                if self.buffer:
                    self._send_some(awaiting=False)
        except Disconnected:
            raise
        except Exception as error:
            self.fault = error

    def wait_for_verdict(self) -> bool:
        """Send all reports, the last one with a request for a verdict; True if the trial must stop."""
        if self.is_main:
            self.flush(awaiting=True)
        return self.stop.wait_for_verdict()


def to_columns(reports: list[tuple[int, dict[str, float]]]) -> dict[str, Columns]:
    """Turn reports by step into steps and values by metric."""
    names = list(reports[0][1]) if reports else []
    if len(names) > len(reports) and all(list(metrics) == names for _, metrics in reports):
        steps = [step for step, _ in reports]
        by_name = zip(*(metrics.values() for _, metrics in reports), strict=True)
        return {name: (steps, list(values)) for name, values in zip(names, by_name, strict=True)}
    columns: dict[str, Columns] = {}
    for step, metrics in reports:
        for name, value in metrics.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = ([], [])
            column[0].append(step)
            column[1].append(value)
    return columns
