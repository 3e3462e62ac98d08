"""Where a process is, whatever it does, without its cooperation."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from maggy_like.processes.stacks import Stacks, descendants, open_file, read_stacks, write_at_signal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc"),
]


@contextmanager
def forked(function: Callable[[], Any]) -> Iterator[tuple[int, int]]:
    """Run a function in a fork that writes its stacks; yield the file and the process id once it has begun."""
    file = open_file()
    begun, write = os.pipe()
    if (pid := os.fork()) == 0:
        os.setpgid(0, 0)  # with its children
        write_at_signal(file)
        os.write(write, b".")
        function()
        os._exit(0)
    try:
        os.read(begun, 1)
        yield file, pid
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for fd in (file, begun, write):
            os.close(fd)


def sleep() -> None:
    time.sleep(600)  # here


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # here


def wait_for_a_peer() -> None:
    ours, _theirs = socket.socketpair()
    ours.recv(1)  # here


def wait_for_a_child() -> None:
    subprocess.run(["sleep", "600"], check=True)  # here


def compute() -> None:
    while True:
        sum(range(1000))  # here


def join_a_thread() -> None:
    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    thread.join()  # here


HANGS = [sleep, wait_for_a_lock, wait_for_a_peer, wait_for_a_child, compute, join_a_thread]


def start_threads() -> None:
    while True:
        thread = threading.Thread(target=sum, args=(range(3),))
        thread.start()  # here
        thread.join()


def wait_while_threads_start() -> None:
    threading.Thread(target=start_threads, daemon=True).start()
    wait_for_a_lock()


def looked_at(file: int, pid: int, mark: str) -> Stacks:
    """Return the stacks once the process has come to its line."""
    while True:
        (stacks,) = read_stacks(file, [pid])
        if mark in stacks.place():
            return stacks


@pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.__name__)
def test_a_process_that_hangs_shows_the_user_s_line(hang: Callable[[], None]) -> None:
    with forked(hang) as (file, pid):
        stacks = looked_at(file, pid, "# here")
        (before_kill,) = read_stacks(file, [pid], before_kill=True)
    assert f"in {hang.__name__} (" in stacks.place()
    assert stacks.place().startswith("test_stacks.py:")
    assert not stacks.is_in_collective()
    assert before_kill.place() == stacks.place()
    assert "stacks.py" not in stacks.text.replace("test_stacks.py", "")


@pytest.mark.parametrize("busy", [start_threads, wait_while_threads_start], ids=lambda busy: busy.__name__)
def test_a_process_goes_on_however_often_it_is_asked(busy: Callable[[], None]) -> None:
    with forked(busy) as (file, pid):
        for _ in range(40 if busy is start_threads else 3):
            assert [stacks.pid for stacks in read_stacks(file, [pid])] == [pid]
        looked_at(file, pid, "# here")


def test_a_process_that_has_ended_is_not_asked() -> None:
    with forked(lambda: None) as (file, pid):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert read_stacks(file, [pid]) == read_stacks(file, [pid], before_kill=True) == []


def test_a_process_that_was_asked_in_vain_writes_nothing_later() -> None:
    ours, theirs = socket.socketpair()

    def echo() -> None:
        while True:
            theirs.send(theirs.recv(1))  # here

    with ours, theirs, forked(echo) as (file, pid):
        assert "# here" in looked_at(file, pid, "# here").place()  # by its main thread: recv does not return
        size = os.fstat(file).st_size
        ours.send(b".")
        assert ours.recv(1) == b"."
        assert os.fstat(file).st_size == size


def test_processes_that_would_die_of_the_question_are_not_asked() -> None:
    with forked(wait_for_a_child) as (file, pid):
        looked_at(file, pid, "# here")
        parent, child = descendants(pid)
        assert [stacks.pid for stacks in read_stacks(file, [parent, child])] == [parent]
        assert Path(f"/proc/{child}/comm").read_text() == "sleep\n"


def test_a_frozen_process_costs_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with forked(sleep) as (file, pid):
        os.kill(pid, signal.SIGSTOP)
        assert [stacks.text for stacks in read_stacks(file, [pid] * 3)] == ["", "", ""]


def test_a_notebook_s_line_is_read_from_the_text_that_was_sent() -> None:
    text = 'Current thread 0x0 (most recent call first):\n  File "<cell>", line 2 in train\n'
    assert Stacks(1, text, {"<cell>": "def train():\n    fit()  # now\n"}).place() == "<cell>:2 in train (fit()  # now)"


def test_a_wait_for_other_ranks_is_recognized() -> None:
    torch = "/env/lib/python3.11/site-packages/torch"
    frames = [f'  File "{torch}/distributed/distributed_c10d.py", line 1 in all_reduce', '  File "a.py", line 1 in f']
    waits = Stacks(1, "\n".join(("Current thread 0x0 (most recent call first):", *frames)), {})
    assert waits.is_in_collective()
    assert waits.place() == "a.py:1 in f"
