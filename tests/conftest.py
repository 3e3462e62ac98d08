"""Fixtures that several test files share, and the order of the tests."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import logging
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import java_archive
import memory_directory
import pytest
import warm_processes as warm
from hypothesis_profiles import load_profile
from warm_processes import WarmPopen, WarmServer

from maggy_like.processes import imports
from maggy_like.processes.system import is_supported

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from maggy_like import ConnectServer, StandaloneCluster

load_profile()
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as the Makefile says it: tests run beside each other

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]
RunProgram = Callable[..., tuple[str, str]]


STAGES = ("e2e", "browser", "notebook", "example", "spark")

_TORCH = r"torch|keras|lightning|transformers|maggy_like\.ml|maggy_like\.distributed"
_WITH_TORCH = [
    path.stem
    for path in (Path(__file__).parent / "support").glob("*.py")
    if re.search(rf"\b({_TORCH})\b", path.read_text())
]
_NEEDS_TORCH = re.compile(rf"\b({'|'.join([_TORCH, *_WITH_TORCH])})\b")

_MARKS_OF_ALL = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(\w+)", re.MULTILINE)

_HAS_RANKS = re.compile(r"\branks?\b|workers_per_trial|train_best")
"""Words of tests in which several workers train together, for which they import torch."""

_remembered = defaultdict[bool, dict[str, None]](dict)

TOGETHER = {
    "spark_local": "spark",
    "connect_server": "connect",
    "connect_port": "connect",
    "standalone_cluster": "cluster",
    "object_store": "store",
    "namespace": "network",
    "run_ranks": "ranks",
    "lightning": "lightning",
    "mlflow": "mlflow",
}
"""Fixtures of which a machine can have one at a time, or one costs too much to have several: the users of each run in
one process when the tests run in several beside each other (pytest-xdist), and users of several with the first."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the processes for ``-n auto``: one per core, or two if whole searches run too, since these mostly wait."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return min(8, cores if "not e2e" in config.option.markexpr else 2 * cores)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which ``-m`` leaves out all tests, and where torch is not installed, those that need it.

    Directories whose fixtures need torch are left out then, too.
    """
    read = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    if read.suffix != ".py" or not read.exists():
        return None
    text = read.read_text()
    needs_torch = find_spec("torch") is None and _NEEDS_TORCH.search(text)
    is_named = collection_path.name in [Path(it.partition("::")[0]).name for it in config.args]
    return True if needs_torch or (not is_named and _left_out(config) & set(_MARKS_OF_ALL.findall(text))) else None


def _left_out(config: pytest.Config) -> set[str]:
    """The marks in ``-m "not a and not b"``; none for a selection of another form."""
    selection = config.option.markexpr
    return set(re.findall(r"not (\w+)", selection)) if re.fullmatch(r"not \w+( and not \w+)*", selection) else set()


class FromItsPlace(pytest.Dir):
    """A directory that a process of pytest-xdist collects from its own place on, and then from the beginning.

    Compiling the tests takes longer than importing them. So each process compiles a part, and reads the other parts.
    """

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        found = list(super().collect())
        process = self.config.workerinput
        first = len(found) * int(process["workerid"].removeprefix("gw")) // process["workercount"]
        return found[first:] + found[:first]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return FromItsPlace.from_parent(parent, path=path) if hasattr(parent.config, "workerinput") else None


def pytest_configure(config: pytest.Config) -> None:
    # The tests that send a Ctrl-C start processes that must notice it; xdist and a shell's background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return
    if (directory := memory_directory.begin()) is not None:
        config.add_cleanup(lambda: shutil.rmtree(directory, ignore_errors=True))
    cache = getattr(config, "cache", None)  # which `-p no:cacheprovider` leaves out
    if cache is not None and (archive := java_archive.archive_in(cache.mkdir("java"))) is not None:
        java_archive.use(archive)
        has_children = getattr(config.option, "numprocesses", None)  # else a test would find it among what it left
        if has_children and not archive.exists() and "not spark" not in config.option.markexpr:
            config.add_cleanup(java_archive.begin(archive))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests.

    One after the other, fast tests run first, those with a JVM or a kernel last: what fails early explains what fails
    later. Beside each other they run the other way round, so that no slow one is left for the end, and in one order
    for all processes.
    """
    items.sort(key=lambda item: item.path)
    items.sort(key=order, reverse=hasattr(config, "workerinput"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare each test what the imports of all tests have left: torch, pandas and the like.

    Python's garbage collector does not look through it again. And pytest, which catches the logs of a test, need not
    add its handlers to each of torch's fifty loggers that pass nothing on.
    """
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True
    return result


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the group of a test, which pytest-xdist reads before the tests are ordered, and tests of properties."""
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        item.add_marker("thorough")
    if group := group_of(item):
        item.add_marker(pytest.mark.xdist_group(group))


def order(item: pytest.Item) -> tuple[int, bool]:
    """How much a test starts; those that share a session on the cluster stand together, so that it is made once."""
    stage = max([STAGES.index(name) + 1 for name in STAGES if item.get_closest_marker(name)], default=0)
    return stage, "cluster_script" in getattr(item, "fixturenames", ())


def group_of(item: pytest.Item) -> str | None:
    """With which others a test shares a fixture that there is once."""
    fixtures = item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}
    for name, group in TOGETHER.items():
        if name in fixtures:
            return group
    if "s3" in re.split(r"[\[\]-]", item.name):
        return TOGETHER["object_store"]  # which they ask for when they run
    if any(definitions[-1].scope == "module" for definitions in fixtures.values()):
        return item.path.stem
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session", autouse=True)
def working_directory() -> Iterator[None]:
    """An empty working directory, of which each worker of a search makes copies for its trials."""
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        yield


@pytest.fixture(scope="session")
def warm_optimizers() -> Iterator[WarmServer]:
    """A process that has imported the optimizers, to be forked."""
    with WarmServer(warm.OPTIMIZERS) as server:
        yield server


@pytest.fixture(scope="session")
def warm_workers() -> Iterator[WarmServer]:
    """A process that has imported what workers need, to be forked."""
    with WarmServer(warm.WORKERS) as server:
        yield server


@pytest.fixture(scope="session")
def warm_workers_with_torch() -> Iterator[WarmServer]:
    """A process that has imported what workers need and torch, to be forked."""
    with WarmServer(warm.WORKERS_WITH_TORCH) as server:
        yield server


@pytest.fixture(autouse=True)
def warm_processes(request: pytest.FixtureRequest) -> None:
    """Whole searches in the test's own process get workers that start with everything imported; ``cold`` ones do not.

    What starts Spark, and each script in a process of its own, starts cold anyway.
    """
    if request.node.get_closest_marker("e2e") and not request.node.get_closest_marker("cold") and is_supported():
        text = request.path.read_text()
        with_torch = bool(_NEEDS_TORCH.search(text) or _HAS_RANKS.search(text))
        workers = request.getfixturevalue("warm_workers_with_torch" if with_torch else "warm_workers")
        monkeypatch = request.getfixturevalue("monkeypatch")
        servers = {warm.ZYGOTE: workers, warm.PROPOSER: request.getfixturevalue("warm_optimizers")}
        monkeypatch.setattr(WarmPopen, "servers", servers, raising=False)
        # Each kind has its own zygote, and its own list of what trials have imported: else all would soon have torch.
        monkeypatch.setenv("TORCH_TESTS", str(with_torch))
        monkeypatch.setattr(imports, "_remembered", _remembered[with_torch])
        monkeypatch.setattr(subprocess, "Popen", WarmPopen)


@pytest.fixture(scope="session")
def spark_local() -> Iterator[SparkSession]:
    """A session on ``local[2]``: the only one of the test process, which can hold one SparkContext."""
    import warm_daemon_of_spark_workers as daemon

    from maggy_like import spark_session

    with daemon.found():
        session = spark_session("local[2]", conf=daemon.CONF)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def lightning() -> Any:
    """Lightning, which takes seconds to import."""
    return pytest.importorskip("lightning.pytorch")


@pytest.fixture(scope="session")
def mlflow() -> ModuleType:
    """MLflow, which takes seconds to import."""
    return importlib.import_module("mlflow.pyfunc")


@pytest.fixture(scope="session")
def standalone_cluster() -> Iterator[StandaloneCluster]:
    """Two workers of one core and one made-up GPU each; use it from a process of its own (``run_script``)."""
    from maggy_like import StandaloneCluster

    with StandaloneCluster(2, memory="1g", gpus=1) as cluster:
        yield cluster
        pids = cluster.pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.fixture(scope="session")
def connect_server() -> Iterator[ConnectServer]:
    """A Spark Connect server on ``local[2]``; connect to it from a process of its own (``run_script``)."""
    pytest.importorskip("grpc")
    import warm_daemon_of_spark_workers as daemon

    from maggy_like import ConnectServer

    with daemon.found():
        server = ConnectServer("local[2]", conf=daemon.CONF)
    with server:
        yield server


@pytest.fixture
def connect_port() -> Iterator[None]:
    """The right to start a Spark Connect server: pyspark gives each the same port, and others may test here too."""
    lock = Path("/tmp", f"maggy_like-connect-{os.getuid()}.lock")  # of all tests of this machine, whatever their TMPDIR
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@pytest.fixture
def run_script(tmp_path: Path) -> RunScript:
    """Run Python code, or a file, in a process of its own.

    ``run_script(code_or_path, *args, timeout=500, env=None)`` returns a ``CompletedProcess`` with its output
    as text. Code is a ``str`` and a file is a ``Path``. ``env`` is laid over this process's environment; None
    removes a name. The working directory is ``tmp_path``. Past ``timeout`` seconds the whole process group is
    killed, and the test fails with what was written until then. That is for what hangs: a script that starts Spark
    takes half a minute on an idle machine, and several on one that does other things too.
    """

    def run(
        code_or_path: str | Path,
        *args: object,
        timeout: float = 500,
        env: Mapping[str, str | None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        script = code_or_path if isinstance(code_or_path, Path) else tmp_path / "script.py"
        if isinstance(code_or_path, str):
            script.write_text(code_or_path)
        environment = {k: v for k, v in {**os.environ, **(env or {})}.items() if v is not None}
        with subprocess.Popen(
            [sys.executable, str(script), *map(str, args)],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                out, err = process.communicate()
                if isinstance(error, subprocess.TimeoutExpired):
                    pytest.fail(f"the script was not done after {timeout} s\n{out}\n{err}")
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return run


@pytest.fixture
def run_program(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> RunProgram:
    """Run a file as ``__main__`` of this process, which has imported already what the file needs.

    ``run_program(path, *args)`` returns what was written to standard output and to standard error. The working
    directory is ``tmp_path``, and warnings are shown as Python shows them. In a test that is marked ``e2e`` the workers
    are forks of a warm process. The file finds a Spark session only in a test that has ``spark_local``.
    """
    sessions = sys.modules.get("maggy_like.spark.session")
    if sessions is not None and "spark_local" not in request.fixturenames:
        monkeypatch.setattr(sessions, "active_session", lambda: None)  # of an earlier test of this process

    def run(path: Path, *args: object) -> tuple[str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, args)])
        with warnings.catch_warnings():
            warnings.resetwarnings()
            warnings.simplefilter("default")
            runpy.run_path(str(path), run_name="__main__")
        return capfd.readouterr()

    return run
