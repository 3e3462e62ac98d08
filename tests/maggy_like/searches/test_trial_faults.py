"""Faults of trials in real processes: each costs only its own attempt, and the search says what it was."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import trial_faults
from family import family
from trial_faults import SLEEP

from maggy_like import FailurePolicy, LocalEngine, Result, lagom
from maggy_like.driver import runner as job
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.interface import Command, Input, TrialSaid
from maggy_like.protocol.messages import Reported
from maggy_like.protocol.task import WorkerTask
from maggy_like.storage.journal import backend_of, read_journal
from maggy_like.worker.agent.log_file import MAX_END, MAX_FILE
from optimizers.core.events import AttemptEnded, Event
from optimizers.core.trial import Trial, TrialState

pytestmark = pytest.mark.e2e

CLOSED = "closed the connection to its agent"

FAULTS = {  # how: (kind, words, attempts)
    "raise": ("exception", r"^ValueError: the reason \(attempt 2, just as the one before\)$", 2),
    "raise at length": ("exception", r"^ValueError: no file \\udce9: x+\n\.\.\. \d+ characters left out ", 2),
    "exit": ("exit", r"\w+ called sys.exit\(3\)", 2),
    "exit at once": ("exit", "the trial's process exited with status 7", 2),
    "segfault": ("signal", "the trial's process was killed by SIGSEGV", 2),
    "kill itself": ("signal", "was killed by SIGKILL, which did not come from its worker", 2),
    "kill its group": ("signal", "was killed by SIGKILL, which did not come from its worker", 2),
    "kill its parent": ("signal", "died with the fork server, its parent", 2),
    "take memory": ("exception", "MemoryError", 2),
    "close all and compute": ("disconnected", CLOSED, 2),
    "close all and return": ("disconnected", CLOSED, 2),
    "close all but stdin": ("disconnected", CLOSED, 2),
    "scribble": ("disconnected", CLOSED, 2),
    "report text": ("report", "report.score=.... must be a number, got 'high'", 1),
    "fall back": ("report", "greater than the last one, which is 3, got 2", 1),
    "no value": ("no_value", "returned no number and reported nothing", 1),
}
SILENCE = ("timeout", "reported nothing for report_timeout=3 s", 2)
SILENT = {"hang": SILENCE, "hang deaf": SILENCE}
HARMLESS = [
    "leave a thread",
    "leave grandchildren",
    "leave daemons",
    "raise in a thread",
    "return twice",
    "report twice",
    "make a mess",
    "close output",
]
ONE_PROCESS_A_WORKER = ["raise", "exit", "segfault", "kill its parent", "close all and return", "scribble"]


@pytest.fixture
def events() -> list[Event]:
    """What the search recorded."""
    return []


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[Event]) -> Iterator[Any]:
    """lagom on two local workers, with little patience; nothing may be left behind."""
    monkeypatch.setattr("maggy_like.driver.runner.WorkerTask", partial(WorkerTask, grace=0.3))

    def run(train_fn: Any, space: Any, points: list[dict[str, Any]], **options: Any) -> Result:
        defaults = {"engine": "local", "workers": 2, "max_budget": 6, "optimizer": "random", "metric": "score"}
        given = {**defaults, "n_trials": len(points), "points_to_evaluate": points, **options}
        return lagom(train_fn, space, directory=tmp_path, progress=False, callbacks=[events.append], **given)

    before = {process.pid for process in family()}
    yield run
    assert not [p for p in family() if p.pid not in before]
    left = [p for p in psutil.process_iter(["cmdline"]) if SLEEP in (p.info["cmdline"] or ())]
    assert not psutil.wait_procs(left, timeout=300)[1]  # what was killed takes a moment


@pytest.mark.parametrize("isolation", ["process", "worker"])
def test_each_fault_costs_only_its_attempt_and_is_named(
    search: Any, events: list[Event], tmp_path: Path, isolation: str
) -> None:
    faults = list(FAULTS) if isolation == "process" else ONE_PROCESS_A_WORKER
    harmless = HARMLESS if isolation == "process" else []
    check_all(search, events, [*faults, *harmless], tmp_path / "meeting", engine=LocalEngine(isolation=isolation))


@pytest.mark.parametrize("isolation", ["process", "worker"])
def test_a_trial_that_stops_reporting_costs_only_its_attempt(
    search: Any, events: list[Event], tmp_path: Path, isolation: str
) -> None:
    hows = list(SILENT) if isolation == "process" else ["hang"]
    check_all(
        search,
        events,
        hows,
        tmp_path / "meeting",
        engine=LocalEngine(isolation=isolation),
        failures=FailurePolicy(report_timeout=3.0),
    )


def check_all(search: Any, events: list[Event], odd: list[str], meeting: Path, **options: Any) -> None:
    """Run trials of which every other one is faulty, and the last two must run at the same time; check each end."""
    os.mkfifo(meeting)
    hows = [how for pair in zip(odd, ["behave"] * 99, strict=False) for how in pair]
    hows += [f"read: {meeting}", f"write: {meeting}"]
    result = search(trial_faults.behave, {"how": list(dict.fromkeys(hows))}, [{"how": how} for how in hows], **options)
    assert result.ending == "completed"
    for trial in result.trials:
        how = trial.config["how"]
        if (fault := {**FAULTS, **SILENT}.get(how)) is not None:
            check_fault(result, trial, *fault)
        else:
            assert (how, trial.state, trial.last_value, trial.attempt) == (how, TrialState.COMPLETED, 1.0, 1)
            assert list(trial.curve.values) in ([0.5], [0.5, 0.6])
    # No worker was lost or replaced, and both worked to the end.
    ended = [event for event in events if isinstance(event, AttemptEnded)]
    assert not [event for event in ended if event.failure is not None and event.failure.kind == "worker_lost"]
    assert len({trial.metrics["agent"] for trial in result.trials if trial.state is TrialState.COMPLETED}) == 2


def check_fault(result: Result, trial: Trial, kind: str, words: str, attempts: int) -> None:
    how, failure = trial.config["how"], trial.failure
    assert failure is not None, how
    assert (how, trial.state, failure.kind, trial.attempt) == (how, TrialState.FAILED, kind, attempts)
    assert re.search(words, failure.message)
    assert result.log(trial.id).count(f"about to: {how}\n") == attempts
    if kind in ("signal", "timeout", "disconnected"):
        assert f"about to: {how}" in failure.traceback  # the last lines of its output
    if how == "raise":
        assert 'raise ValueError("the reason")' in failure.traceback
        assert "worker/child.py" not in failure.traceback


def test_the_journal_has_the_failure_of_every_attempt_and_the_table_their_number(search: Any) -> None:
    result = search(trial_faults.behave, {"how": ["raise"]}, [{"how": "raise"}])
    contents = read_journal(backend_of(str(result.directory)))
    ended = [event for event in contents.events if isinstance(event, AttemptEnded)]
    assert [(event.attempt, event.state.value) for event in ended] == [(1, "pending"), (2, "failed")]
    assert all(event.failure is not None and "the reason" in event.failure.traceback for event in ended)
    assert list(result.to_pandas()["attempts"]) == [2]


def test_a_trial_that_gets_further_each_time_has_another_attempt(search: Any, tmp_path: Path) -> None:
    result = search(trial_faults.fail_at_first, {"marks": str(tmp_path)}, [{"marks": str(tmp_path)}])
    (trial,) = result.trials
    assert (trial.state, trial.attempt, trial.losses) == (TrialState.COMPLETED, 3, 2)
    assert list(trial.curve.steps) == [1, 2, 3, 4, 5, 6]
    assert (tmp_path / "steps").read_text() == "1 2 3 4 5 6 "
    assert trial.failure is None


class Patient(StateMachine):
    """The time of an attempt begins with its first report, however long a busy machine takes until then."""

    def handle(self, event: Input, now: float) -> list[Command]:
        for attempt in filter(None, (worker.attempt for worker in self.workers.values())):
            if attempt.number not in self._reported.setdefault(attempt.trial, set()):
                attempt.since = now
        if isinstance(event, TrialSaid) and isinstance(event.message, Reported):
            self._reported.setdefault(event.message.trial, set()).add(event.message.attempt)
        return super().handle(event, now)

    @cached_property
    def _reported(self) -> dict[int, set[int]]:
        """The attempts that have reported, by trial."""
        return {}


def test_a_trial_that_takes_too_long_runs_again_and_keeps_its_last_lines(
    search: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "StateMachine", Patient)
    result = search(
        trial_faults.behave,
        {"how": ["compute for ever"]},
        [{"how": "compute for ever"}],
        failures=FailurePolicy(trial_timeout=0.5),
    )
    check_fault(result, result.trials[0], "timeout", "took longer than trial_timeout=0.5 s", 2)


def test_a_checkpoint_counts_as_a_report_for_the_report_timeout(search: Any) -> None:
    result = search(
        trial_faults.save_and_be_slow, {"x": [0.0]}, [{"x": 0.0}], failures=FailurePolicy(report_timeout=1.0)
    )
    assert result.counts == {TrialState.COMPLETED: 1}


def test_a_flood_of_output_fills_no_disk_and_its_trial_can_be_stopped(search: Any) -> None:
    points = [{"x": 1.0}, {"x": 0.0}, {"x": 0.0}]
    result = search(trial_faults.flood, {"x": [0.0, 1.0]}, points, failures=FailurePolicy(2, report_timeout=1.0))
    flooded, *others = result.trials
    assert flooded.failure is not None
    assert "reported nothing for report_timeout=1 s; it was at trial_faults.py" in flooded.failure.message
    assert " in flood (" in flooded.failure.message
    assert flooded.failure.message.endswith("(attempt 2 of 2)")
    assert [trial.state for trial in others] == [TrialState.COMPLETED] * 2
    log = result.directory / "logs" / "00000.log"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - MAX_END - 1000))
        end = file.read()
    assert log.stat().st_size < MAX_FILE + 3 * MAX_END
    assert b" bytes left out ...\na line like" in end
    assert b"a line like" in end[-50:]  # whatever was cut off as it was killed
    log.unlink()  # it is large


MEMORY = 700 << 20


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group of limited memory, which a process can join."""
    root = Path("/sys/fs/cgroup")
    first, limits = root / "memory", ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    if not first.is_dir():
        first, limits = root, ("memory.max", "memory.swap.max")
    group = first / f"maggy-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (group / limits[0]).write_text(str(MEMORY))
        except OSError as error:
            pytest.skip(f"no control group can be given a memory limit here: {error}")
        with contextlib.suppress(OSError):  # a kernel without swap accounting
            (group / limits[1]).write_text(str(MEMORY) if "limit" in limits[1] else "0")
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(int(pid)).wait(300)
        group.rmdir()


def test_a_trial_that_runs_out_of_memory_costs_no_other_trial(run_script: Any, memory_group: Path) -> None:
    script = """
import json, os, pathlib, sys
group, tests, directory = sys.argv[1:]
pathlib.Path(group, "cgroup.procs").write_text(str(os.getpid()))
sys.path.insert(0, tests)
from maggy_like import lagom
import trial_faults
if __name__ == "__main__":
    trials = []
    # One after the other: while the kernel kills a process that is out of memory, any other kill looks the same.
    for how in ("take all memory", "kill itself"):
        result = lagom(trial_faults.behave, {"how": [how, "behave"]}, optimizer="random", metric="score", n_trials=2,
                       points_to_evaluate=[{"how": how}, {"how": "behave"}], workers=2, engine="local",
                       progress=False, directory=directory)
        trials += result.trials
    failures = [trial.failure and (trial.failure.kind, trial.failure.message) for trial in trials]
    print(json.dumps([failures, [trial.attempt for trial in trials]]))
"""
    ended = run_script(script, memory_group, Path(__file__).parents[2] / "support", "runs")
    assert ended.returncode == 0, ended.stderr
    (taken, well, killed, also_well), attempts = json.loads(ended.stdout)
    assert (taken[0], well, killed[0], also_well) == ("oom", None, "signal", None)
    assert "ran out of memory and was killed by the kernel (SIGKILL)" in taken[1]
    assert attempts == [2, 1, 2, 1]
