"""The engines that need no cluster."""

from __future__ import annotations

import ctypes
import functools
import io
import itertools
import operator
import os
import pdb
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import noted
import pytest
from msgspec.structs import replace

from maggy_like import Float, LocalEngine, Result, lagom
from maggy_like.display import LogLine, SilentDisplay, Snapshot
from maggy_like.engines.base import EngineRun
from maggy_like.engines.inline import InlineEngine
from maggy_like.errors import ConfigError, EngineError
from maggy_like.processes import cores
from maggy_like.processes.imports import module_path
from maggy_like.processes.system import is_supported
from maggy_like.processes.zygote import client
from maggy_like.processes.zygote.client import own_zygote, start_module
from maggy_like.protocol.task import WorkerTask
from maggy_like.worker.agent.children import InlineLauncher
from optimizers.core.events import AttemptEnded, Event, TrialCreated

TASK = WorkerTask(
    address="", server_key=b"", run_id="", train_fn=b"", preload=(), sys_path=(), argv=(), store="", logs=""
)

# -- processes of this machine ----------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "workers"), [(1, 2), (0.5, 4), (0.3, 6), (1 / 3, 6), (0.125, 16)])
def test_workers_share_gpus_in_the_fraction_that_each_needs(fraction: float, workers: int) -> None:
    assert LocalEngine(["0", "1"], gpu_fraction=fraction).default_workers() == workers


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("0,1", 2),
        ("GPU-8932f937, MIG-d5fa0b1a", 2),
        ("0,-1,1", 1),
        ("0,", 1),
        ("NoDevFiles", 0),  # of Slurm, for a job without GPUs
        ("none", 0),
        ("", 0),
    ],
)
def test_a_worker_runs_for_each_gpu_that_cuda_sees_or_for_each_core_if_it_sees_none(
    visible: str, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maggy_like.engines.local.usable_cores", lambda: 64)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert LocalEngine().default_workers() == (gpus or 64)


@pytest.mark.parametrize("fraction", [0, -1, 1.5, True, "half"])
def test_a_fraction_that_is_none_is_told(fraction: object) -> None:
    with pytest.raises(ConfigError, match="gpu_fraction must be above 0 and at most 1"):
        LocalEngine([], gpu_fraction=fraction)  # type: ignore[arg-type]


@pytest.mark.skipif(not is_supported(), reason="this system has no way to fork for another process")
def test_a_launch_does_not_wait_for_a_process_that_reads_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The function has more bytes than a pipe takes, and the zygote forks no process that could read them."""
    monkeypatch.setattr(client, "_owned", None)  # the zygote of this test is its own
    first = start_module("colorsys", os.environ, module_path())
    assert first.stdin is not None
    first.stdin.close()
    assert first.wait(300) == 0
    os.kill(zygote := own_zygote()[0], signal.SIGSTOP)
    try:
        task = replace(TASK, train_fn=bytes(1 << 20), sys_path=module_path())
        (run,) = LocalEngine([]).launch(task, [0], 0, [(b"", b"")], str(tmp_path))
        assert run.poll() is None
        run.cancel()
        assert run.wait(300)
    finally:
        os.kill(zygote, signal.SIGKILL)
        client._close()


def test_more_workers_than_there_are_descriptors_for_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.engines.local.open_descriptors", lambda: [*range(10)])
    monkeypatch.setattr("maggy_like.engines.local.descriptor_limit", lambda: 60)
    LocalEngine([]).require(16)
    message = "a search with workers=17 needs about 62 open files, and this process may have 60; raise the limit "
    with pytest.raises(EngineError, match=re.escape(f"{message}(ulimit -n 124), or pass workers=16")):
        LocalEngine([]).require(17)


def test_a_gang_that_cannot_be_launched_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = WorkerTask("tcp://127.0.0.1:9", bytes(40), "run", b"", (), (), (), "", "")
    launch, launched = LocalEngine._launch_one, list[EngineRun]()

    def launch_two(engine: LocalEngine, task: WorkerTask, index: int, *where: Any) -> EngineRun:
        if len(launched) == 2:
            raise BlockingIOError("no more processes")
        launched.append(run := launch(engine, task, index, *where))
        return run

    monkeypatch.setattr(LocalEngine, "_launch_one", launch_two)
    with pytest.raises(BlockingIOError):
        LocalEngine([]).launch(task, range(3), 0, [(bytes(40), bytes(40))] * 3, str(tmp_path))
    assert [run.poll() is not None for run in launched] == [True, True]


# -- how many workers the local engine starts by itself, and what it says of too many -------------
V2 = "0::/jobs/7\n"
V1 = "4:cpu,cpuacct:/jobs/7\n3:cpuset:/else\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (V2, {}, 8),
        (V2, {"jobs/7/cpu.max": "200000 100000\n"}, 2),
        (V2, {"jobs/7/cpu.max": "max 100000\n"}, 8),
        (V2, {"jobs/7/cpu.max": "max 100000\n", "jobs/cpu.max": "300000 100000\n"}, 3),  # of all its parents the least
        (V2, {"jobs/7/cpu.max": "150000 100000\n"}, 2),
        (V2, {"jobs/7/cpu.max": "1000 100000\n"}, 1),
        (V2, {"cpu.max": "400000 100000\n"}, 4),  # in a container that sees its group as the root
        (V1, {"cpu/jobs/7/cpu.cfs_quota_us": "300000\n", "cpu/jobs/7/cpu.cfs_period_us": "100000\n"}, 3),
        (V1, {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "10000\n"}, 5),
        (V1, {"cpu/jobs/7/cpu.cfs_quota_us": "-1\n", "cpu/jobs/7/cpu.cfs_period_us": "100000\n"}, 8),
        (V2, {"jobs/7/cpu.max": "9900000 100000\n"}, 8),  # the affinity is less
        (V2, {"jobs/7/cpu.max": "garbage"}, 8),
        (None, {}, 8),
    ],
)
def test_a_quota_bounds_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str | None, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if groups is not None:
        (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path)
    monkeypatch.setattr(cores, "_OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert cores.usable_cores() == LocalEngine([]).default_workers() == expected


def test_cores_per_worker_set_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.engines.local.usable_cores", lambda: 8)
    assert [LocalEngine([], cores=cores).default_workers() for cores in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]
    assert LocalEngine(["0", "1"], cores=3).default_workers() == 2


@pytest.mark.parametrize("cores", [0, -1, 1.5, "2", True])
def test_a_number_of_cores_that_is_none_is_rejected(cores: Any) -> None:
    with pytest.raises(ConfigError, match=r"^cores must be .*got"):
        LocalEngine([], cores=cores)


def cores_of_a_trial(x: float) -> dict[str, Any]:
    import joblib

    return {
        "value": x,
        "os": os.cpu_count(),
        "joblib": joblib.cpu_count(),
        "numba": int(os.environ["NUMBA_NUM_THREADS"]),
    }


@pytest.mark.e2e
@pytest.mark.parametrize(("cores", "workers", "share"), [(None, 2, 4), (None, 3, 2), (1, 2, 1), (3, 1, 3)])
def test_a_trial_sees_the_share_of_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int | None, workers: int, share: int
) -> None:
    monkeypatch.setattr("maggy_like.engines.local.usable_cores", lambda: 8)
    result = lagom(
        cores_of_a_trial,
        {"x": Float(0, 1)},
        engine=LocalEngine([], cores=cores),
        workers=workers,
        optimizer="random",
        metric="value",
        direction="max",
        n_trials=workers,
        directory=str(tmp_path),
        progress=False,
    )
    of_joblib = min(share, len(os.sched_getaffinity(0)))
    for trial in result.trials:
        assert (trial.metrics["os"], trial.metrics["joblib"], trial.metrics["numba"]) == (share, of_joblib, share)


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_the_affinity_bounds_the_workers() -> None:
    core = min(os.sched_getaffinity(0))
    script = "from maggy_like import LocalEngine; print(LocalEngine([]).default_workers())"
    done = subprocess.run(
        ["taskset", "-c", str(core), sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"


@pytest.mark.parametrize(("share", "expected"), [("3", 3), ("12", 8), ("default", 8)])
def test_a_search_in_a_trial_takes_no_more_than_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str, expected: int
) -> None:
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setenv("PYTHON_CPU_COUNT", share)
    assert LocalEngine([]).default_workers() == expected


def test_workers_that_share_few_cores_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.engines.local.usable_cores", lambda: 2)
    assert LocalEngine([]).hints(2) == []
    assert LocalEngine([]).hints(64) == ["64 workers share 2 cores of this machine; with workers=2 each has its own"]
    assert LocalEngine([], cores=2).hints(1) == []
    assert LocalEngine([], cores=2).hints(3) == [
        "3 workers with cores=2 share 2 cores of this machine; with workers=1 each has its own"
    ]
    assert LocalEngine(["0"]).hints(1) == []
    assert InlineEngine().hints(1) == []


# -- trials in the calling thread: between two of them the search is as on any other engine ---------


Search = Callable[..., Result]


@pytest.fixture
def search(tmp_path: Path) -> Search:
    noted.NOTES.clear()

    def run(train_fn: Callable[..., Any], **options: Any) -> Result:
        given = {"optimizer": "random", "n_trials": 3, "progress": False, "directory": tmp_path, **options}
        return lagom(train_fn, {"x": Float(0, 1)}, engine="inline", **given)

    return run


def test_callbacks_hear_of_a_trial_before_the_next_one_runs(search: Search) -> None:
    def train(x: float, reporter: Any) -> float:
        noted.NOTES.append(f"run {reporter.trial}")
        return x

    def note(event: Event) -> None:
        if isinstance(event, TrialCreated | AttemptEnded):
            noted.NOTES.append(f"{'created' if isinstance(event, TrialCreated) else 'ended'} {event.trial}")

    search(train, callbacks=[note])
    assert [f"{what} {trial}" for trial in range(3) for what in ("created", "run", "ended")] == noted.NOTES


def test_the_display_is_drawn_between_two_trials(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts(SilentDisplay):
        def update(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> None:
            noted.NOTES.append("drawn")

    monkeypatch.setattr("maggy_like.api.run_settings.make_display", lambda *given, **options: Counts())

    def train(x: float) -> float:
        noted.NOTES.append("run")
        return x

    search(train)
    runs = [number for number, what in enumerate(noted.NOTES) if what == "run"]
    assert all("drawn" in noted.NOTES[first:then] for first, then in itertools.pairwise(runs))
    assert len(runs) == 3


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM])
def test_a_callback_that_ends_the_search_is_followed_by_no_trial(search: Search, number: signal.Signals | None) -> None:
    """Also by a signal that comes while it runs: that belongs to the search, and the callback goes on."""
    through = []

    def train(x: float, reporter: Any) -> float:
        noted.NOTES.append(reporter.trial)
        return x

    def enough(event: Event) -> None:
        if isinstance(event, AttemptEnded) and event.state.is_final:
            if number is None:
                raise KeyboardInterrupt
            signal.raise_signal(number)
            through.append(event.trial)

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    result = search(train, callbacks=[enough], n_trials=10)
    assert (noted.NOTES, through) == ([0], [0] * (number is not None))
    assert (result.ending, result.best_trial and result.best_trial.id) == ("interrupted", 0)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_function_ends_the_search_with_what_it_had_reported(
    search: Search, number: signal.Signals
) -> None:
    def train(x: float, reporter: Any) -> None:
        noted.NOTES.append(reporter.trial)
        reporter.report(float(reporter.trial), step=1)
        if reporter.trial == 1:
            signal.raise_signal(number)
            pytest.fail("the function went on")

    result = search(train, n_trials=10, metric="score", direction="max", name="run")
    assert (noted.NOTES, result.ending) == ([0, 1], "interrupted")
    assert (result.best_value, [trial.is_over for trial in result.trials]) == (1.0, [True, False])
    assert not [thread for thread in threading.enumerate() if thread.name == "maggy-agent"]
    noted.NOTES.clear()
    search(lambda x, reporter: noted.NOTES.append(reporter.trial) or x, metric="score", direction="max", n_trials=3,
           name="run", resume=True)  # fmt: skip
    assert noted.NOTES == [1, 2]


def test_a_signal_that_comes_just_before_a_function_waits_without_an_end_ends_the_search(search: Search) -> None:
    """Nothing handles the signal between the two calls: both are C, and so is what makes them."""

    def train(x: float, reporter: Any) -> None:
        reporter.report(score=x)
        came = functools.partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGTERM)
        lock = threading.Lock()
        lock.acquire()
        deque(map(operator.call, [came, lock.acquire]))

    assert search(train).ending == "interrupted"


def test_whoever_quits_the_debugger_ends_the_search(search: Search) -> None:
    def train(x: float, reporter: Any) -> float:
        noted.NOTES.append(reporter.trial)
        if reporter.trial == 1:
            pdb.Pdb(stdin=io.StringIO("q\n"), stdout=io.StringIO(), nosigint=True, readrc=False).set_trace()
        return x

    before = sys.gettrace()
    try:
        result = search(train, n_trials=10)
    finally:
        sys.settrace(before)  # which a coverage tool has set
    assert (noted.NOTES, result.ending) == ([0, 1], "interrupted")
    assert [trial.is_over for trial in result.trials] == [True, False]


def test_a_function_may_eat_the_first_signal_and_not_the_search_the_second(search: Search) -> None:
    """The second one comes between two trials, and is the first that the search gets."""

    def train(x: float) -> float:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return x

    def press(event: Event) -> None:
        if isinstance(event, AttemptEnded):
            signal.raise_signal(signal.SIGINT)

    result = search(train, callbacks=[press], n_trials=10)
    assert (result.ending, result.trials[0].state) == ("interrupted", "completed")


def test_without_a_trial_nothing_waits_without_an_end() -> None:
    launcher = InlineLauncher(TASK)
    launcher.run_trial()
    assert launcher.await_trial(0.0)
    child = launcher.spawn()
    launcher.close()
    child.close()
    launcher.abandon()
    assert not launcher.await_trial(1e6)
