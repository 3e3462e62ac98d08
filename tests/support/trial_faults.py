"""Whatever a training function may do wrong, by name; in a module that the workers can import."""

from __future__ import annotations

import ctypes
import os
import resource
import secrets
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from maggy_like import Reporter
from maggy_like.worker.agent.log_file import MAX_END, MAX_FILE

SLEEP = os.environ.setdefault("MAGGY_TEST_SLEEP", f"98765.{secrets.randbelow(10**12):012d}")
"""Seconds that a left-behind process would sleep; nobody else's does, other tests on this machine included."""


def behave(how: str, reporter: Reporter) -> dict[str, float]:
    """Look whether the process is as new, report once, then do what ``how`` says.

    What was reported has left the process by then: else a trial that dies got further in some attempts than in others,
    as chance would have it.
    """
    check_clean(reporter)
    print(f"about to: {how}", flush=True)
    if how != "no value":
        reporter.report(score=0.5, step=1)
        assert reporter._sender is not None
        reporter._sender.flush()
    DEEDS[how.partition(": ")[0]](reporter)
    return {"score": 1.0, "agent": agent()} if how != "no value" else None  # type: ignore[return-value]


def check_clean(reporter: Reporter) -> None:
    """No trial before this one has left its mark on the process."""
    assert "LEFT_BEHIND" not in os.environ
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert os.getcwd() != "/"
    assert threading.active_count() <= 2  # the main thread, and the one that sends reports


def agent() -> float:
    """Process id of this worker's agent: the fork server's parent."""
    with open(f"/proc/{os.getppid()}/stat") as file:
        return float(file.read().rpartition(")")[2].split()[1])


def fail(reporter: Reporter) -> None:
    raise ValueError("the reason")


def fail_at_length(reporter: Reporter) -> None:
    raise ValueError(f"no file {os.fsdecode(bytes([0xE9]))}: " + "x" * (17 << 20))


def take_memory(reporter: Reporter) -> None:
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
    bytearray(256 << 20)


def take_all_memory(reporter: Reporter) -> None:
    taken = []
    while True:
        taken.append(b"x" * (32 << 20))


def hang(reporter: Reporter) -> None:
    threading.Event().wait()


def hang_deaf(reporter: Reporter) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue


def compute_for_ever(reporter: Reporter) -> None:
    while True:
        sum(range(1000))


def close_and_compute(reporter: Reporter) -> None:
    os.closerange(0, 4096)
    compute_for_ever(reporter)


def scribble(reporter: Reporter) -> None:
    for fd in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.write(fd, b"\0\0\0\4junk")
        except OSError:
            continue
    hang(reporter)


def fall_back(reporter: Reporter) -> None:
    reporter.report(score=0.5, step=3)
    reporter.report(score=0.5, step=2)


def leave_thread(reporter: Reporter) -> None:
    threading.Thread(target=threading.Event().wait).start()


def leave_grandchildren(reporter: Reporter) -> None:
    subprocess.Popen(["sleep", SLEEP])
    subprocess.Popen(["sleep", SLEEP], start_new_session=True)


def leave_daemons(reporter: Reporter) -> None:
    """Two that ignore SIGTERM, in sessions of their own, one the other's child, their parent gone."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
            os.execvp("sleep", ["sleep", SLEEP])
        os._exit(0)
    os.wait()


def raise_in_thread(reporter: Reporter) -> None:
    thread = threading.Thread(target=fail, args=(reporter,))
    thread.start()
    thread.join()


def return_twice(reporter: Reporter) -> None:
    """The fork returns through the training function, too."""
    child = os.fork()
    if child != 0:
        os.waitpid(child, 0)


def report_twice(reporter: Reporter) -> None:
    """The fork reports and saves, too."""
    child = os.fork()
    reporter.report(score=0.6 if child else 99.0, step=2)
    if child == 0:
        reporter.checkpoint("of the fork")
    os.waitpid(child, 0)


def make_a_mess(reporter: Reporter) -> None:
    os.environ["LEFT_BEHIND"] = "yes"
    os.chdir("/")
    for name in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(name, lambda *_: None)
    socket.setdefaulttimeout(0.001)
    socket.socket().close()
    threading.Thread(target=threading.Event().wait).start()
    sys.stdin.close()


def close_output(reporter: Reporter) -> None:
    os.closerange(1, 3)


def meet(mode: str) -> Callable[[Reporter], None]:
    """Wait until another trial opens the other end of the pipe that the configuration names."""

    def open_end(reporter: Reporter) -> None:
        path = reporter.config["how"].partition(": ")[2]
        opening = threading.Thread(target=lambda: open(path, mode).close())
        opening.start()
        while opening.is_alive():
            opening.join(0.2)
            reporter.checkpoint("waits")  # a sign of life

    return open_end


DEEDS: dict[str, Callable[[Reporter], object]] = {
    "behave": lambda reporter: None,
    "read": meet("rb"),
    "write": meet("wb"),
    "no value": lambda reporter: None,
    "raise": fail,
    "raise at length": fail_at_length,
    "exit": lambda reporter: sys.exit(3),
    "exit at once": lambda reporter: os._exit(7),
    "segfault": lambda reporter: ctypes.string_at(0),
    "kill itself": lambda reporter: os.kill(os.getpid(), signal.SIGKILL),
    "kill its group": lambda reporter: os.killpg(0, signal.SIGKILL),
    "kill its parent": lambda reporter: (os.kill(os.getppid(), signal.SIGKILL), hang(reporter)),
    "take memory": take_memory,
    "take all memory": take_all_memory,
    "hang": hang,
    "hang deaf": hang_deaf,
    "compute for ever": compute_for_ever,
    "close all and compute": close_and_compute,
    "close all and return": lambda reporter: os.closerange(0, 4096),
    "close all but stdin": lambda reporter: os.closerange(1, 4096),
    "scribble": scribble,
    "report text": lambda reporter: reporter.report(score="high"),  # type: ignore[arg-type]
    "fall back": fall_back,
    "leave a thread": leave_thread,
    "leave grandchildren": leave_grandchildren,
    "leave daemons": leave_daemons,
    "raise in a thread": raise_in_thread,
    "return twice": return_twice,
    "report twice": report_twice,
    "make a mess": make_a_mess,
    "close output": close_output,
}


def flood(x: float, reporter: Reporter) -> float:
    """Print at full speed for as long as it may; where x is 0, be quick and quiet.

    It falls silent once it has printed more than its log file takes, however long that took.
    """
    block = b"a line like many others\n" * 4096
    reporter.budget, size = sys.maxsize, 0
    while x:
        size += os.write(1, block)
        if size < MAX_FILE + MAX_END:
            reporter.report(score=0.0)
    return x


def save_and_be_slow(x: float, reporter: Reporter) -> float:
    """Save, and report nothing, for longer than a trial may be silent."""
    for step in range(5):
        reporter.checkpoint(step)
        time.sleep(0.4)
    return 1.0


def fail_at_first(marks: str, reporter: Reporter) -> None:
    """Fail after each second step, each time in the same way, and go on from the last checkpoint."""
    for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
        with open(f"{marks}/steps", "a") as file:
            file.write(f"{step} ")
        reporter.checkpoint(step)
        reporter.report(score=float(step), step=step)
        if step % 2 == 0 and step < reporter.budget:
            raise RuntimeError("not yet")
