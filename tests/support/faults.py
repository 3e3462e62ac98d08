"""Real faults of workers, and how long a search takes to recover.

``python tests/support/faults.py`` prints seconds from each fault until its trial reports again.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Self

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))  # as a script

from maggy_like import StandaloneCluster
from optimizers.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    Event,
    Measured,
    TrialCreated,
    from_json,
)
from optimizers.core.trial import TrialState

ROLES = ("child", "fork server", "agent", "daemon", "executor", "worker")
"""From the trial's process up; on the local engine the agent's parent is the driver."""

BUDGET = 6

Fault = Callable[[list[psutil.Process]], None]


def kill(role: str) -> Fault:
    """Kill -9 of the process in that role."""
    return lambda line: line[ROLES.index(role)].kill()


def freeze(line: list[psutil.Process]) -> None:
    """SIGSTOP of the agent."""
    line[ROLES.index("agent")].suspend()


class Host:
    """``faulted.py`` in a process of its own: runs one search after another, on one Spark session if there is one.

    Args:
        master: Of the Spark session; the local engine if empty.
        conf: Its settings.
        roots: Gives the processes that start workers for it just now, beside itself.
    """

    def __init__(
        self, master: str = "", conf: Mapping[str, str] | None = None, roots: Callable[[], Sequence[int]] = tuple
    ) -> None:
        self._roots = roots
        script = Path(__file__).with_name("faulted.py")
        read, write = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(write), master, json.dumps(dict(conf or {}))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=(write,),
            start_new_session=True,
        )
        os.close(write)
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read_answers, args=(read,), daemon=True),
            threading.Thread(target=self._read_output, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        """Have it end; nothing of it is left."""
        if failed:  # a search may stand at its gate for ever
            self.process.kill()
        family = self.family()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(300)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            for reader in self._readers:
                reader.join()
            self.process.stdout.close()
        assert not survivors(family)

    def start(self, directory: Path, **options: Any) -> Search:
        """Begin a search."""
        assert self.process.stdin is not None
        search = Search(self, directory)
        self.process.stdin.write(json.dumps({"directory": str(directory), **options}) + "\n")
        self.process.stdin.flush()
        return search

    def family(self) -> list[psutil.Process]:
        """All processes below it and the other roots."""
        found = []
        for root in (self.process.pid, *self._roots()):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += psutil.Process(root).children(recursive=True)
        return found

    def _read_answers(self, descriptor: int) -> None:
        with open(descriptor) as answers:
            for line in answers:
                self.lines.put(line)
        self.lines.put(None)

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)


class Search:
    """One search; both trials under way stand at the gate, half done.

    Args:
        host: Runs it.
        directory: An empty one, for all files.

    Attributes:
        events: All so far.
        lines: What else was printed.
        victim: The trial that the fault will hit.
        lineage: The processes above it, its own first.
        outcome: Why the search ended, once it has.
    """

    def __init__(self, host: Host, directory: Path) -> None:
        self.events: list[Event] = []
        self.lines: list[str] = []
        self.result: list[Any] = []
        self.outcome: str | None = None
        self._host = host
        self._directory = directory
        self._seen: set[psutil.Process] = set()
        (directory / "pids").mkdir()
        for gate in ("gate", "again"):
            os.mkfifo(directory / gate)

    def until(self, reached: Callable[[], bool], patience: float = 300.0) -> None:
        """Read on until something is so."""
        deadline = time.monotonic() + patience
        while not reached():
            assert time.monotonic() < deadline, f"not reached after {patience} s:\n{self.story}"
            try:
                line = self._host.lines.get(timeout=0.1)
            except queue.Empty:
                continue
            assert line is not None, f"the search ended early:\n{self.story}"
            kind, _, rest = line.partition(" ")
            if kind == "event":
                self.events.append(from_json(rest.encode()))
            elif kind == "result":
                self.outcome, *self.result = json.loads(rest)
            else:
                self.lines.append(line.rstrip())

    def begin(self) -> None:
        """Wait until two trials stand at the gate, and all that they said is known."""
        half = BUDGET // 2
        self.until(lambda: sum(steps[half] for steps in self.measured().values()) == 2 and len(self.saved(half)) == 2)
        self.victim = min(event.trial for event in self.events if isinstance(event, AttemptStarted))
        (mark,) = (
            mark for mark in (self._directory / "pids").iterdir() if float(mark.read_text()) == self.x(self.victim)
        )
        trial = psutil.Process(int(mark.name))
        self.lineage = [trial, *trial.parents()]
        self._note()

    def hurt(self, fault: Fault) -> float:
        """Do it harm; seconds until the victim has reported again."""
        struck = time.monotonic()
        fault(self.lineage)
        self.open("again")
        self.until(lambda: self.measured()[self.victim][BUDGET // 2 + 1] > 0)
        seconds = time.monotonic() - struck
        self._note()
        return seconds

    def end(self) -> None:
        """Let all trials run to their end; no process of theirs is left."""
        self.open("again")
        self.open("gate")
        self.until(lambda: self.outcome is not None)
        self._note()
        left = survivors(self._seen)
        assert not left, f"still there: {left}\n{self.story}"

    def _note(self) -> None:
        """Remember the workers' processes, to see later whether they are gone."""
        self._seen.update(process for process in self._host.family() if "maggy_like.worker" in " ".join(words(process)))

    def open(self, gate: str) -> None:
        """Let trials pass, now and later."""
        os.open(self._directory / gate, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def check(self, n_trials: int = 4) -> None:
        """Every trial ended once, every measurement is there once, and lost attempts went on where they were."""
        assert self.outcome == "completed", self.story
        assert len(self.result) == n_trials
        ends = [event for event in self.events if isinstance(event, AttemptEnded)]
        finals = [event.trial for event in ends if event.state is not TrialState.PENDING]
        assert sorted(finals) == list(range(n_trials)), self.story
        for number, trial in enumerate(self.result):
            assert trial["state"] == "completed", trial
            lost = sum(end.trial == number for end in self.lost())
            assert trial["attempt"] == lost + 1
            assert trial["start"] == (BUDGET // 2 if lost else 0), trial
            assert trial["steps"] == list(range(1, BUDGET + 1))
            assert trial["values"] == [trial["x"] * step for step in trial["steps"]]
            assert self.measured()[number] == dict.fromkeys(trial["steps"], 1), self.story

    def has_told(self, text: str) -> bool:
        """Whether the reader was told this."""
        return any(text in line for line in self.lines)

    def x(self, number: int) -> float:
        """The parameter of a trial."""
        return next(e.config["x"] for e in self.events if isinstance(e, TrialCreated) and e.trial == number)

    def lost(self) -> list[AttemptEnded]:
        """Attempts that were cut off so far."""
        return [e for e in self.events if isinstance(e, AttemptEnded) and e.state is TrialState.PENDING]

    def measured(self) -> dict[int, dict[int, int]]:
        """How often each step of each trial was measured."""
        counts: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for event in self.events:
            if isinstance(event, Measured):
                for step in event.columns["score"][0]:
                    counts[event.trial][step] += 1
        return counts

    def saved(self, step: int) -> set[int]:
        """Trials with a checkpoint of that step."""
        return {e.trial for e in self.events if isinstance(e, CheckpointSaved) and e.step == step}

    @property
    def story(self) -> str:
        """All that happened."""
        return "\n".join([*self.lines, *map(str, self.events)])


def words(process: psutil.Process) -> list[str]:
    """Its command line; empty once it is gone."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def survivors(processes: Iterable[psutil.Process], patience: float = 300.0) -> list[list[str]]:
    """The command lines of those that still run after a while (the dead may not be waited for yet)."""
    deadline = time.monotonic() + patience
    left = list(processes)
    while left and time.monotonic() < deadline:
        left = [process for process in psutil.wait_procs(left, timeout=0.2)[1] if words(process)]
    return [command for command in map(words, left) if command]


def measure(host: Host, fault: Fault, **options: Any) -> float:
    """Seconds from the fault to the next report, in a search of its own."""
    with tempfile.TemporaryDirectory() as directory:
        search = host.start(Path(directory), **options)
        search.begin()
        seconds = search.hurt(fault)
        search.end()
        search.check()
        return seconds


def main(repeats: int = 3) -> None:
    """Print medians."""
    with Host() as host:
        for role in ROLES[:3]:
            print(f"local, {role}: {median(measure(host, kill(role)) for _ in range(repeats)):.2f} s", flush=True)
    with StandaloneCluster(2, memory="1g") as cluster, Host(cluster.master_url, cluster.conf, cluster.pids) as host:
        for barrier in (True, False):
            for role in ROLES[:3] + ROLES[4:5]:
                seconds = [measure(host, kill(role), barrier=barrier) for _ in range(repeats)]
                print(f"spark, barrier={barrier}, {role}: {median(seconds):.2f} s", flush=True)


if __name__ == "__main__":
    main()
