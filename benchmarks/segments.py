"""Where the time between two trials goes: marks that a run's processes leave, and the medians of what lies between.

The marks are put from outside around the functions that a message passes: in the driver by this process, in the
workers as they start, by a ``sitecustomize`` module. Each costs some microseconds, so turnarounds are measured without.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from maggy_like.processes.zygote import client
from optimizers import Trial

FILE = "MAGGY_LIKE_BENCHMARK_MARKS"
"""The environment variable that names the file of marks."""

SEGMENTS = (
    "child_winds_up",
    "child_to_agent",
    "agent_passes_end",
    "agent_to_driver",
    "driver_decides",
    "driver_journals",
    "driver_sends",
    "driver_to_agent",
    "agent_tells_child",
    "agent_to_child",
    "child_starts",
)
"""From the last line of a trial to the first line of the next one on the same worker."""

Marks = dict[tuple[str, int], list[float]]
"""When something happened to a trial's message, in seconds of the monotonic clock, in each process that it passed."""


@contextmanager
def marked() -> Iterator[Marks]:
    """Have the runs within the block leave marks; they are there after it."""
    marks: Marks = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as undo:
        file = Path(folder, "marks")
        file.touch()
        Path(folder, "sitecustomize.py").write_text("from benchmarks.segments import mark_worker\n\nmark_worker()\n")
        undo.enter_context(mock.patch.dict(os.environ, {FILE: str(file)}))
        undo.enter_context(mock.patch.object(sys, "path", [folder, *sys.path]))
        undo.enter_context(mock.patch.object(client, "is_supported", return_value=False))  # forks run no sitecustomize
        for patch in _driver_patches(_writer(file)):
            undo.enter_context(patch)
        yield marks
        undo.close()
        for line in file.read_text().splitlines():
            name, trial, at = line.split()
            marks[name, int(trial)].append(float(at))


def segments(trials: Iterable[Trial], marks: Marks) -> dict[str, float]:
    """The median microseconds of each segment, over all turnarounds."""
    by_worker = defaultdict(list)
    for trial in trials:
        by_worker[trial.worker].append((trial.metrics["start"], trial.metrics["end"], trial.id))
    found = defaultdict(list)
    for spans in by_worker.values():
        for (_, end, ended), (start, _, begun) in pairwise(sorted(spans)):
            read = sorted(marks["assignment_read", begun])  # by the agent, then by its child
            times = [
                end,
                min(marks["end_encoded", ended]),
                *(marks[name, ended][0] for name in ("end_read", "end_passed", "end_taken", "decided", "journaled")),
                marks["assignment_sent", begun][0],
                read[0],
                marks["assignment_told", begun][0],
                read[-1],
                start,
            ]
            for segment, (earlier, later) in zip(SEGMENTS, pairwise(times), strict=True):
                found[segment].append((later - earlier) * 1e6)
    return {segment: statistics.median(found[segment]) for segment in SEGMENTS}


def mark_worker() -> None:
    """Put the marks of an agent, a fork server and its children; called in their interpreters before all else."""
    from maggy_like.protocol import messages as codec
    from maggy_like.protocol.messages import Assign, Finished

    client.is_supported = lambda: False  # type: ignore[attr-defined]  # taken by name
    write = _writer(Path(os.environ[FILE]))
    at_hand = [-1, -1]  # the trial whose end, and whose assignment, this process has read last

    def marking(name: str, kind: type[Assign | Finished], which: int, function: Callable[..., Any]) -> Any:
        def mark(message: Any, read: Any) -> None:
            for candidate in (message, read):
                if isinstance(candidate, kind):
                    at_hand[which] = candidate.trial
                    write(name, candidate.trial)

        return _after(function, lambda arguments, result: mark(arguments[0], result))

    def passed(name: str, which: int) -> Callable[..., None]:
        def mark(*_: Any) -> None:
            if at_hand[which] >= 0:
                write(name, at_hand[which])
                at_hand[which] = -1

        return mark

    for function, name, kind, which in (
        ("encode", "end_encoded", Finished, 0),
        ("decode_to_driver", "end_read", Finished, 0),
        ("decode_to_worker", "assignment_read", Assign, 1),
    ):
        setattr(codec, function, marking(name, kind, which, getattr(codec, function)))
    from maggy_like.processes.channel import Channel
    from maggy_like.rpc.client import Client  # only now: it takes the codec's functions by name

    for owner, function, name, which in ((Client, "forward", "end_passed", 0), (Channel, "post", "assignment_told", 1)):
        setattr(owner, function, _after(getattr(owner, function), passed(name, which)))


def _driver_patches(write: Callable[[str, int], None]) -> list[Any]:
    from maggy_like.driver.state_machine import StateMachine
    from maggy_like.driver.state_machine.inputs import TrialSaid
    from maggy_like.protocol.messages import Assign, Finished
    from maggy_like.rpc.server import Server
    from maggy_like.storage.journal import Journal

    ended: list[int] = []
    handle, append, send = StateMachine.handle, Journal.append, Server.send

    def handled(self: StateMachine, event: Any, now: float) -> Any:
        if not (isinstance(event, TrialSaid) and isinstance(event.message, Finished)):
            return handle(self, event, now)
        write("end_taken", event.message.trial)
        commands = handle(self, event, now)
        write("decided", event.message.trial)
        ended.append(event.message.trial)
        return commands

    def appended(self: Journal, events: Any) -> None:
        append(self, events)
        for trial in ended:
            write("journaled", trial)
        ended.clear()

    def sent(self: Server, worker: Any, message: Any) -> None:
        send(self, worker, message)
        if isinstance(message, Assign):
            write("assignment_sent", message.trial)

    return [
        mock.patch.object(StateMachine, "handle", handled),
        mock.patch.object(Journal, "append", appended),
        mock.patch.object(Server, "send", sent),
    ]


def _after(function: Callable[..., Any], mark: Callable[..., None]) -> Callable[..., Any]:
    """The function, with a mark after it."""

    @wraps(function)
    def marked(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        mark(arguments, result)
        return result

    return marked


def _writer(file: Path) -> Callable[[str, int], None]:
    """Writes marks, each in one piece, from whatever process."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)

    def write(name: str, trial: int) -> None:
        os.write(descriptor, f"{name} {trial} {time.monotonic()!r}\n".encode())

    return write
