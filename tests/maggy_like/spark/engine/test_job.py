"""The job of a search, without Spark: what the UI says of it, how it is cancelled, and what its tasks run."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from maggy_like.driver.supervisor import GOODBYE_PATIENCE, Supervisor
from maggy_like.errors import EngineError
from maggy_like.protocol.messages import own_versions
from maggy_like.protocol.task import WorkerId, WorkerTask
from maggy_like.spark import session
from maggy_like.spark.engine.job import SparkRun, describe, job_group, unfit_worker
from maggy_like.spark.engine.task import Sent, check_gpus, context_of, entry

TASK: Any = SimpleNamespace(name="august", about="search of 50 trials")


def test_a_job_is_described_in_words() -> None:
    assert describe(TASK, 8, 0) == "maggy_like august: search of 50 trials, 8 workers, incarnation 0"
    one = SimpleNamespace(name="august", about="search of 50 trials, 12 done")
    assert describe(one, 1, 3) == "maggy_like august: search of 50 trials, 12 done, 1 worker, incarnation 3"  # type: ignore[arg-type]


def test_a_group_s_name_can_be_typed_and_is_a_tag_too() -> None:
    assert job_group("august") == "maggy_like-august"
    assert job_group("a, b") == "maggy_like-a__b"


def test_the_ui_is_off_for_local_masters_alone() -> None:
    assert "spark.ui.enabled" not in session.LONG_TASK_DEFAULTS
    assert session._LOCAL_DEFAULTS["spark.ui.enabled"] == "false"


class Leaving:
    """A run whose end is waited for."""

    def __init__(self, index: int) -> None:
        self.indexes, self.incarnation, self.waited, self.cancelled, self.has_come = (index,), 0, [0.0], False, True
        self.given_up: set[int] = set()

    def wait(self, timeout: float) -> bool:
        self.waited.append(timeout)
        return self.cancelled

    def cancel(self) -> None:
        self.cancelled = True


def test_workers_that_said_goodbye_get_the_time_to_end_by_themselves() -> None:
    said, silent = Leaving(0), Leaving(1)
    engine, task = SimpleNamespace(launch=lambda *_: [said, silent]), WorkerTask("", b"", "", b"", (), (), (), "", "")
    gang = Supervisor(SimpleNamespace(), engine, task, lambda _: (b"", b""), 2, 2, "")  # type: ignore[arg-type]
    gang.leave({WorkerId(0, 0)}, timeout=0.0)
    assert said.waited[1] == pytest.approx(GOODBYE_PATIENCE, abs=5.0)
    assert silent.waited[1] == 0.0


# -- cancels -----------------------------------------------------------------------------------------


class Deaf:
    """A Spark Connect session whose server is gone: each call is tried again for minutes."""

    def __init__(self) -> None:
        self.called, self.over = threading.Event(), threading.Event()
        self.calls = 0

    def interruptTag(self, tag: str) -> None:  # pyspark's name
        self.calls += 1
        self.called.set()
        self.over.wait()
        raise ConnectionError("the server is gone")


class Dead:
    """A classic session whose JVM is gone."""

    _sc = None

    @property
    def sparkContext(self) -> None:  # pyspark's name
        raise ConnectionRefusedError("the JVM is gone")


def running(session: object, thread: threading.Thread) -> SparkRun:
    run = SparkRun.__new__(SparkRun)
    run._session, run._thread, run.tag, run._canceller = session, thread, "tag", None  # type: ignore[assignment]
    return run


@pytest.mark.parametrize("session", [Deaf(), Dead()], ids=["connect", "classic"])
def test_it_returns_at_once(session: Deaf | Dead) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    run = running(session, thread)
    run.cancel()
    run.cancel()
    if isinstance(session, Deaf):
        assert session.called.wait(20)
        assert session.calls == 1
        session.over.set()
        assert run._canceller is not None
        run._canceller.join()
    end.set()
    thread.join()


# -- the function that Spark carries to a task -------------------------------------------------------


RUN = """
import pickle, sys
{first}
function = pickle.load(sys.stdin.buffer)
try:
    print(list(function(iter([1, 2]))))
except ImportError as error:
    print(error)
"""


def run_elsewhere(first: str) -> str:
    """What comes of the function in another process, where something was done first."""

    def member(batches: Iterator[Any]) -> Iterator[Any]:
        import maggy_like.worker.agent.agent  # noqa: F401

        yield from batches

    code = RUN.format(first=first)
    sent = cloudpickle.dumps(entry(member))
    ran = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True)
    return (ran.stdout + ran.stderr).decode()


def test_it_runs_where_all_is_there() -> None:
    assert run_elsewhere("") == "[1, 2]\n"


def test_what_a_machine_lacks_is_named_with_the_machine_and_its_python() -> None:
    said = run_elsewhere("sys.modules['maggy_like'] = None")
    assert said.startswith(f"{sys.executable} on {socket.gethostname()} cannot serve this search: ModuleNotFoundError")
    assert "it looks for modules in " in said
    assert "--py-files" in said
    assert unfit_worker(f"ImportError: {said}") == ""  # another launch would end so too, and all is said


def test_another_maggy_like_there_is_told_with_both_versions_before_it_reads_the_task(tmp_path: Path) -> None:
    (tmp_path / "maggy_like").mkdir()
    (tmp_path / "maggy_like" / "__init__.py").write_text("__version__ = '0.0.9'\n")
    said = run_elsewhere(f"sys.path.insert(0, {str(tmp_path)!r})")
    own = own_versions()
    assert f"the driver has maggy_like {own.package} ({own.home}) and the worker 0.0.9 ({tmp_path}" in said


def test_a_library_that_does_not_fit_there_is_told_with_the_setting() -> None:
    cause = "ImportError: /a.so: failed to map segment from shared object"
    assert "raise spark.executor.pyspark.memory" in (unfit_worker(cause) or "")
    assert unfit_worker("OSError: [Errno 12] Cannot allocate memory") is None  # of a fork, say: it may pass


def test_a_function_that_is_sent_arrives_as_itself_or_says_what_the_machine_lacks() -> None:
    def doubled(batches: Iterator[int]) -> list[int]:
        import maggy_like.worker.agent.agent  # noqa: F401

        return [2 * number for number in batches]

    sent = Sent(doubled, "cannot compute predictions")
    assert sent(iter([1])) == [2]
    assert type(cloudpickle.loads(cloudpickle.dumps(sent))) is type(doubled)

    code = "import pickle, sys\nsys.modules['maggy_like'] = None\npickle.load(sys.stdin.buffer)"
    ran = subprocess.run([sys.executable, "-c", code], input=cloudpickle.dumps(sent), capture_output=True)
    last = ran.stderr.decode().splitlines()[-1]
    assert f"{sys.executable} on {socket.gethostname()} cannot compute predictions: ModuleNotFoundError" in last
    assert f"set PYSPARK_PYTHON to a Python that has it (the driver runs {sys.executable})" in last


LISTED = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5a1e0c0e-0000)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-77b2ac11-0000)
  MIG 1g.10gb     Device  0: (UUID: MIG-9f00-1)
"""


@pytest.mark.parametrize("given", [("0",), ("0", "1"), ("GPU-77b2ac11-0000",), ("GPU-77b2",), ("MIG-9f00-1",), ()])
def test_gpus_of_this_machine_pass(given: tuple[str, ...]) -> None:
    check_gpus(given, LISTED)


def test_a_machine_that_lists_none_may_have_made_up_ones() -> None:
    check_gpus(("7",), "")


@pytest.mark.parametrize("wrong", ["2", "10", "GPU-6", "MIG-9f00-2"])
def test_a_gpu_that_the_trial_would_not_see_ends_the_search_with_the_script_to_correct(wrong: str) -> None:
    with pytest.raises(EngineError, match=rf"gave a task GPU {wrong}, and nvidia-smi lists 0, 1, .*script") as error:
        check_gpus(("0", wrong), LISTED)
    assert unfit_worker(str(error.value)) == ""  # another launch would end in the same way


@pytest.mark.parametrize(
    ("own", "cpus", "share"),
    [
        ("", 4, {"cores": 4, "openmp": "4"}),
        ("2", 4, {"cores": 4, "openmp": "2"}),
        ("", 99, {"cores": 8, "openmp": "8"}),
    ],
)
def test_a_task_has_the_cores_that_spark_gives_it(
    monkeypatch: pytest.MonkeyPatch, own: str, cpus: int, share: dict[str, Any]
) -> None:
    monkeypatch.setattr("maggy_like.spark.engine.task.usable_cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # Spark's, from spark.task.cpus: a profile may give the task more
    task = WorkerTask("", b"", "", b"", (), (), (), "", "", threads=own)
    context: Any = SimpleNamespace(cpus=lambda: cpus, resources=dict)
    found = context_of(task, context, 3, 1, (b"public", b"secret"))
    assert (found.index, found.incarnation, found.cores) == (3, 1, share["cores"])
    assert found.share["OMP_NUM_THREADS"] == share["openmp"]
    assert found.share["LOKY_MAX_CPU_COUNT"] == str(share["cores"])
