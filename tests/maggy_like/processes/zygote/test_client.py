"""Modules that are started as forks: to themselves and to others they are what ``python -m`` would start."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from module_time import patch_time

from maggy_like import warm_up
from maggy_like.errors import ConfigError
from maggy_like.processes.imports import start_path
from maggy_like.processes.system import is_supported, open_descriptors
from maggy_like.processes.zygote import client
from maggy_like.processes.zygote.become import BEGUN, STARTED
from maggy_like.processes.zygote.client import ForkedProcess, Process, keep_no_zygote, key_of, own_zygote, start_module

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_supported(), reason="this system has no way to fork for another process"),
]

PATIENCE = 300.0
PATH = [*sys.path, str(Path(__file__).parents[3] / "support")]
SEPARATE = "this" if "this" not in sys.modules else "antigravity"  # no test imports it


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """An environment for processes; the zygote of this test is its own, and gone after it."""
    monkeypatch.setattr(client, "_owned", None)
    yield dict(os.environ)
    client._close()


def start(environment: dict[str, str], *arguments: str, path: Sequence[str] = PATH, **options: Any) -> Process:
    """A process whose standard input is at its end."""
    process = start_module("zygote_entry", environment, path, arguments=arguments, **options)
    assert process.stdin is not None
    process.stdin.close()
    return process


def told(
    environment: dict[str, str], *arguments: str, tmp_path: Path, path: Sequence[str] = PATH, **options: Any
) -> dict[str, Any]:
    """What a process says of itself."""
    with open(tmp_path / "out", "w+b") as out:
        process = start_module(
            "zygote_entry", environment, path, arguments=["tell", *arguments], output=out.fileno(), **options
        )
        assert process.stdin is not None
        process.stdin.write(b"hello")
        process.stdin.close()
        assert process.wait(PATIENCE) == 0, (tmp_path / "out").read_text()
    found: dict[str, Any] = json.loads((tmp_path / "out").read_text())
    return found


def with_a_thread(tmp_path: Path) -> list[str]:
    """A path with an installed module ``with_a_thread``, which begins one as it is imported."""
    installed = tmp_path / "site-packages"
    installed.mkdir()
    waits = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (installed / "with_a_thread.py").write_text(waits)
    return [*PATH, str(installed)]


@pytest.mark.parametrize("is_warm", [True, False])
def test_a_process_is_what_it_was_started_as(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_warm: bool
) -> None:
    if not is_warm:
        monkeypatch.setattr(client, "is_supported", lambda: False)
    monkeypatch.chdir(tmp_path)
    path = [str(tmp_path), *PATH, "a:b"]
    found = told({**environment, "TOLD": "x", "PYTHONPATH": "/other"}, "a", "json", tmp_path=tmp_path, path=path)
    assert bool(own_zygote()) is is_warm
    assert found["arguments"] == ["a", "json"]
    assert (found["environment"], found["directory"], found["stdin"]) == ("x", str(tmp_path), "hello")
    assert (found["is_main"], found["leads"], found["parent"]) == (True, True, os.getpid())
    assert found["path"] == start_path(path)
    assert found["pythonpath"] == "/other"


def test_how_it_ends_is_told(environment: dict[str, str], tmp_path: Path) -> None:
    assert start(environment, "exit", "3").wait(PATIENCE) == 3
    with open(tmp_path / "out", "w+b") as out:
        assert start(environment, "fail", output=out.fileno()).wait(PATIENCE) == 1
    assert "ValueError: no" in (tmp_path / "out").read_text()
    waiting = start_module("zygote_entry", environment, PATH, arguments=["tell"])
    assert waiting.stdin is not None  # for whose end it waits
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.01)
    assert waiting.poll() is None
    assert isinstance(waiting, ForkedProcess)
    while waiting._pid is None:
        waiting.poll()
    waiting.kill()
    assert waiting.wait(PATIENCE) == -signal.SIGKILL
    waiting.kill()  # which does nothing more
    waiting.stdin.close()


@pytest.mark.parametrize("imported", ["json", "with_a_thread"], ids=["a fork", "a fresh process"])
def test_an_error_before_it_has_streams_is_in_its_output(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imported: str
) -> None:
    path = with_a_thread(tmp_path)
    monkeypatch.setattr(client, "current_directory", lambda: str(tmp_path / "gone"))
    with open(tmp_path / "out", "w+b") as out:
        process = start(environment, "exit", "0", path=path, output=out.fileno(), preload=[imported])
        assert process.wait(PATIENCE) == 1
    assert f"No such file or directory: '{tmp_path / 'gone'}'" in (tmp_path / "out").read_text()


def test_descriptors_are_passed_under_their_numbers(environment: dict[str, str]) -> None:
    ours, theirs = os.pipe()
    try:
        assert start(environment, "write", str(theirs), pass_fds=[theirs]).wait(PATIENCE) == 0
        assert os.read(ours, 100) == b"written"
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_process_for_which_descriptors_are_missing_leaves_none_open(environment: dict[str, str]) -> None:
    begun = []
    start(environment, "exit", "0").wait(PATIENCE)
    for free in range(6):
        with only_so_many_more_files(free):
            before = open_descriptors()
            with contextlib.suppress(OSError):
                start(environment, "exit", "0").wait(PATIENCE)
                begun.append(free)
            assert open_descriptors() == before, free
    assert begun == [4, 5]


@contextlib.contextmanager
def only_so_many_more_files(free: int) -> Iterator[None]:
    """Let this process open only so many files more; one of them is for the list of those that are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = max(open_descriptors())
    taken = [os.dup(0)]
    while taken[-1] < last:
        taken.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1] + 1 + free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def test_what_was_imported_once_stays(environment: dict[str, str], tmp_path: Path) -> None:
    assert told(environment, SEPARATE, tmp_path=tmp_path)["loaded"] == []
    first = own_zygote()
    assert told(environment, SEPARATE, preload=[SEPARATE], tmp_path=tmp_path)["loaded"] == [SEPARATE]
    assert told(environment, SEPARATE, tmp_path=tmp_path)["loaded"] == [SEPARATE]
    assert own_zygote() == first


def test_a_warm_up_imports_ahead(environment: dict[str, str], tmp_path: Path) -> None:
    warm_up(SEPARATE)
    assert told(environment, SEPARATE, tmp_path=tmp_path)["loaded"] == [SEPARATE]


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (["torch"], r"names of modules, got \['torch'\]; use"),
        (3, "names of modules, got 3; use"),
        ("", "names of modules, got ''; use"),
        (".torch", "names of modules, got '.torch'; use"),
        ("tourch.nn", "cannot import 'tourch.nn': no such package is installed"),
    ],
)
def test_a_warm_up_of_what_is_no_module_is_told(environment: dict[str, str], module: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        warm_up(module)
    assert not own_zygote()


def test_a_module_of_the_user_s_own_is_imported_anew(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    path = [str(tmp_path), *PATH]
    assert told(environment, "mine", preload=["mine"], tmp_path=tmp_path, path=path)["loaded"] == []


def test_a_module_of_this_package_is_imported_once_in_a_checkout_too(
    environment: dict[str, str], tmp_path: Path
) -> None:
    ours = "maggy_like.results.tables"
    assert told(environment, ours, preload=[ours], tmp_path=tmp_path)["loaded"] == [ours]


def test_after_an_import_that_begins_a_thread_processes_are_fresh(environment: dict[str, str], tmp_path: Path) -> None:
    path = with_a_thread(tmp_path)
    assert told(environment, "json", tmp_path=tmp_path, path=path)["loaded"] == ["json"]
    first = own_zygote()
    found = told(environment, "with_a_thread", "a", preload=["with_a_thread"], tmp_path=tmp_path, path=path)
    assert (found["loaded"], found["arguments"], found["stdin"]) == ([], ["with_a_thread", "a"], "hello")
    assert (found["leads"], found["parent"]) == (True, os.getpid())
    assert own_zygote() == first


def test_arrow_begins_no_thread(environment: dict[str, str], tmp_path: Path) -> None:
    """Else whoever imports pandas would have no use of a zygote."""
    assert told(environment, "pyarrow", preload=["pyarrow"], tmp_path=tmp_path)["loaded"] == ["pyarrow"]


def test_a_process_that_ends_soon_keeps_none(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_keeps_one", True)
    keep_no_zygote()
    fresh = start(environment, "exit", "3")
    assert isinstance(fresh, subprocess.Popen)
    assert fresh.wait(PATIENCE) == 3
    assert not own_zygote()


def test_what_libraries_read_as_they_are_imported_makes_another(environment: dict[str, str]) -> None:
    assert start(environment, "exit", "0").wait(PATIENCE) == 0
    first = own_zygote()
    assert start({**environment, "MINE": "1"}, "exit", "0").wait(PATIENCE) == 0
    assert own_zygote() == first
    assert start({**environment, "OMP_NUM_THREADS": "7"}, "exit", "0").wait(PATIENCE) == 0
    assert own_zygote() != first
    assert not psutil.pid_exists(first[0])
    _, read = key_of({"CUDA_VISIBLE_DEVICES": "1", "PATH": "/", "PYTHONPATH": "/"})
    assert read == {"CUDA_VISIBLE_DEVICES": "1"}


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.cold
def test_what_libraries_set_as_they_are_imported_makes_no_other(environment: dict[str, str]) -> None:
    code = """
import os
from maggy_like.processes.zygote.client import key_of
before = key_of(os.environ)
import joblib, keras, lightgbm, lightning, sklearn, torch._dynamo, xgboost
assert key_of(os.environ) == before, (before, key_of(os.environ))
"""
    clean = {name: value for name, value in environment.items() if not name.startswith(("KMP", "PYTORCH", "TF_"))}
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env={**clean, "KERAS_BACKEND": "torch"}, check=True)


def test_another_python_makes_another(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start(environment, "exit", "0").wait(PATIENCE) == 0
    first = own_zygote()
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(other))
    assert start(environment, "exit", "3").wait(PATIENCE) == 3
    assert own_zygote() != first
    other.write_text("#!/bin/sh\nexit 7\n")
    monkeypatch.setattr(sys, "executable", str(other.rename(tmp_path / "broken")))
    assert start(environment, "exit", "3").wait(PATIENCE) == 7


def test_one_that_was_only_warmed_up_leaves_nothing(environment: dict[str, str]) -> None:
    before = set(psutil.Process().children())
    warm_up(SEPARATE)
    assert set(psutil.Process().children()) > before
    client._close()
    assert set(psutil.Process().children()) <= before


def test_one_that_was_killed_is_replaced(environment: dict[str, str]) -> None:
    assert start(environment, "exit", "0").wait(PATIENCE) == 0
    first = own_zygote()
    os.kill(first[0], signal.SIGKILL)
    psutil.wait_procs([psutil.Process(first[0])], PATIENCE)
    assert start(environment, "exit", "0").wait(PATIENCE) == 0
    assert own_zygote() != first


def test_where_no_zygote_can_fork_processes_are_fresh(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent("""
        from maggy_like.processes import system

        def fork_sibling():
            raise OSError("not here")

        system.fork_sibling = fork_sibling
        """)
    )
    fresh = start({**environment, "PYTHONPATH": os.pathsep.join([str(tmp_path), *PATH])}, "exit", "3")
    assert isinstance(fresh, subprocess.Popen)
    assert fresh.wait(PATIENCE) == 3


def test_a_process_that_never_began_can_be_given_up(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start(environment, "exit", "0").wait(PATIENCE) == 0
    first = own_zygote()
    os.kill(first[0], signal.SIGSTOP)  # as if an import hung
    frozen = start(environment, "exit", "0")
    assert frozen.poll() is None
    frozen.kill()
    assert frozen.wait(PATIENCE) == -signal.SIGKILL
    os.kill(first[0], signal.SIGCONT)  # it passes over what nobody wants
    assert start(environment, "exit", "4").wait(PATIENCE) == 4
    assert own_zygote() == first
    os.kill(first[0], signal.SIGSTOP)
    frozen = start(environment, "exit", "0")
    monkeypatch.setattr(client, "PATIENCE", 0.0)
    frozen.kill()
    assert start(environment, "exit", "5").wait(PATIENCE) == 5  # by another one
    assert own_zygote() != first


def test_a_process_that_is_killed_while_it_is_forked_is_not_left(environment: dict[str, str]) -> None:
    assert start(environment, "exit", "0").wait(PATIENCE) == 0
    before = psutil.Process().children()
    for n in range(100):
        process = start_module("zygote_entry", environment, PATH, arguments=["tell"])
        for _ in range(100 * n):  # from before the fork until after it
            pass
        process.kill()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == -signal.SIGKILL
        assert not set(psutil.Process().children()).difference(before)


def test_a_fork_that_has_begun_is_waited_for_before_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FORK_PATIENCE", PATIENCE)
    answer, zygote = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with zygote, subprocess.Popen(["sleep", "300"]) as child, open(os.devnull, "wb", 0) as stdin:
        process = ForkedProcess(stdin, answer)
        zygote.settimeout(PATIENCE)
        zygote.send(BEGUN)

        def fork() -> None:
            assert zygote.recv(1) == b""  # given up, and too late
            zygote.send(STARTED.pack(child.pid))

        with ThreadPoolExecutor(1) as pool:
            forking = pool.submit(fork)
            process.kill()
            forking.result(PATIENCE)
        assert process.wait(PATIENCE) == -signal.SIGKILL
        assert not psutil.pid_exists(child.pid)


def test_a_zygote_that_dies_ends_those_that_wait_for_it(environment: dict[str, str]) -> None:
    assert start(environment, "exit", "0").wait(PATIENCE) == 0
    os.kill(own_zygote()[0], signal.SIGSTOP)
    waiting = start(environment, "exit", "0")
    os.kill(own_zygote()[0], signal.SIGKILL)
    assert waiting.wait(PATIENCE) == -signal.SIGKILL


def test_it_ends_with_its_owner(environment: dict[str, str]) -> None:
    code = """
        import os, sys
        from maggy_like.processes.zygote import client
        process = client.start_module("zygote_entry", os.environ, sys.path, arguments=["exit", "0"])
        process.stdin.close()
        process.wait(300)
        print(*client.own_zygote(), flush=True)
        input()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    path = {"PYTHONPATH": os.pathsep.join(PATH)}
    owner = subprocess.Popen(
        command, env={**environment, **path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        zygote = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
    assert not psutil.wait_procs([zygote], PATIENCE)[1]


def test_a_zygote_that_is_stopped_is_replaced(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert start(environment, "exit", "0").wait(PATIENCE) == 0
    first = own_zygote()
    os.kill(first[0], signal.SIGSTOP)
    monkeypatch.setattr(client, "FROZEN_PATIENCE", 0.0)
    waiting = start(environment, "exit", "0")
    assert waiting.wait(PATIENCE) == -signal.SIGKILL  # by itself
    assert isinstance(waiting, ForkedProcess)
    assert "did nothing for too long, and was killed" in waiting.why
    monkeypatch.setattr(client, "FROZEN_PATIENCE", PATIENCE)
    assert start(environment, "exit", "5").wait(PATIENCE) == 5
    assert own_zygote() != first


def test_a_zygote_that_imports_for_long_does_not_hang(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zygote = client._zygote(environment, PATH)
    states = iter([("R", 1), ("S", 2), ("D", 2), ("S", 2), ("S", 3), ("", 0), ("T", 3)])
    times = iter(range(0, 700, 15))
    monkeypatch.setattr(client, "_activity", lambda pid: next(states))
    patch_time(monkeypatch, client, monotonic=lambda: next(times))
    assert [zygote.hangs(0.0) for _ in range(7)] == [False] * 7
    monkeypatch.setattr(client, "_activity", lambda pid: ("T", 3))
    assert [zygote.hangs(0.0) for _ in range(3)] == [False, True, True]
    assert not zygote.hangs(140.0)  # it was asked just now
