"""The warm fork server: imports the heavy modules once, then forks a child per trial.

It has one thread, never touches a GPU and never runs the user's function, so a fork is safe and
takes milliseconds however heavy the modules are. It is the children's parent and reaper: it tells
the agent how each ended, kills what a child leaves behind, and kills all when the agent is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import traceback
from functools import partial
from typing import NoReturn

import msgspec

from maggy_like.processes.channel import Channel, Disconnected
from maggy_like.processes.lifeline import adopt_orphans, children, die_with_parent, kill_tree
from maggy_like.protocol.task import WorkerTask
from maggy_like.worker import spark_files
from maggy_like.worker.agent.memory import offer_as_victim, oom_kills
from maggy_like.worker.agent.trackers import kill_but_trackers, let_trackers_end
from maggy_like.worker.child.exits import begin_process, end_process, flush_output, remove_leftovers
from maggy_like.worker.child.process import serve
from maggy_like.worker.child.rehearsal import ROUNDS, rehearse


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    """Server to agent: the child of the oldest unanswered request to fork."""

    pid: int


class NotForked(msgspec.Struct, frozen=True, tag="not forked"):
    """Server to agent: the oldest unanswered request to fork has failed, and why."""

    reason: str


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Server to agent: a child has ended.

    Attributes:
        status: Negative for a signal.
        oom: Whether the kernel killed it for want of memory.
        killed: Whether the agent had it killed before it had ended by itself.
    """

    pid: int
    status: int
    oom: bool = False
    killed: bool = False


# A request has one size, since the descriptors of a fork travel beside its bytes.
REQUEST = struct.Struct("!ci")
FORK, KILL = b"f", b"k"

HUNG_UP = 113
"""Exit status of a child that cannot reach its agent."""

_encode = msgspec.msgpack.Encoder().encode


def main(control_fd: int, parent: int) -> None:
    """Serve the agent at the other end of ``control_fd`` until it is gone; the task comes on stdin."""
    die_with_parent(parent, signal.SIGTERM)
    task = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=WorkerTask)
    sys.path[:] = [*task.sys_path, *(entry for entry in sys.path if entry not in task.sys_path)]
    sys.argv[:] = task.argv
    for module in task.preload:
        with contextlib.suppress(Exception):  # if it was needed, the child fails of it
            importlib.import_module(module)
    spark_files.take_over()
    for _ in range(ROUNDS):
        rehearse(task)
    gc.collect()
    gc.freeze()  # so that a child's collector leaves the shared pages alone
    ForkServer(socket.socket(fileno=control_fd), task).run()


class ForkServer:
    """Forks on request and reaps."""

    def __init__(self, control: socket.socket, task: WorkerTask) -> None:
        self._control = control
        self._channel = Channel(control)
        self._task = task
        self._children: dict[int, int] = {}  # and the kernel's count of kills for want of memory at their start
        self._killed: set[int] = set()
        self._own = children()  # what the preloaded modules started
        self._wake, self._wake_write = os.pipe()
        self._poller = select.poll()
        for fd in (control.fileno(), self._wake):
            self._poller.register(fd, select.POLLIN)

    def run(self) -> None:
        """Serve until the agent is gone, then kill what is left."""
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        # Their numbers arrive at the pipe. An exception in a handler could part a child's end from the note of it.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: None)
        adopt_orphans()
        try:
            while self._serve_once():
                pass
        finally:
            self._kill_all()

    def _kill_all(self) -> None:
        """Kill every child, and what each leaves to us as it dies."""
        for pid in self._children:
            kill_but_trackers(pid)
        while self._children:
            pid = os.waitpid(-1, 0)[0]
            remove_leftovers(pid)
            self._children.pop(pid, None)
        let_trackers_end(self._orphans)
        while left := children():
            for pid in left:
                kill_tree(pid)
            os.waitpid(-1, 0)

    def _serve_once(self) -> bool:
        readable = {fd for fd, _ in self._poller.poll()}
        if self._wake in readable:
            if signal.SIGTERM in os.read(self._wake, 4096):
                return False
            self._reap()
        if self._control.fileno() in readable:
            return self._answer()
        return True

    def _answer(self) -> bool:
        try:
            request, descriptors, _, _ = socket.recv_fds(self._control, REQUEST.size, 2)
        except ConnectionResetError:  # the agent is gone, and has left unread what we told it last
            return False
        if len(request) < REQUEST.size:
            return False
        kind, pid = REQUEST.unpack(request)
        if kind == FORK:
            self._fork(descriptors)
        else:
            self._reap()  # whoever is dead by now was not killed by us
            if pid in self._children:
                self._killed.add(pid)
                kill_but_trackers(pid)
        return True

    def _fork(self, descriptors: list[int]) -> None:
        server, oom_before = os.getpid(), oom_kills()
        try:
            channel_fd, output_fd = descriptors  # fewer arrive where this process may open no more
            pid = os.fork()
        except (OSError, ValueError) as error:
            self._tell(NotForked(str(error)))
        else:
            if pid == 0:
                self._become_child(channel_fd, output_fd, server)
            self._children[pid] = oom_before
            self._tell(Forked(pid))
        for fd in descriptors:
            os.close(fd)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            oom_before = self._children.pop(pid, None)
            if oom_before is not None:
                let_trackers_end(self._orphans)
                kill_tree(pid)  # the rest of its process group
            self._kill_left_behind()
            if oom_before is not None:
                code = os.waitstatus_to_exitcode(status)
                if code != 0:
                    remove_leftovers(pid)
                killed = code == -signal.SIGKILL and pid in self._killed
                oom = code == -signal.SIGKILL and not killed and oom_kills() > oom_before
                self._killed.discard(pid)
                self._tell(Exited(pid, code, oom, killed))

    def _kill_left_behind(self) -> None:
        """Kill what ended trials started and did not end.

        Each child adopts the orphans among its descendants, and at its end we do. As those die, we adopt theirs.
        """
        for orphan in self._orphans():
            kill_tree(orphan)

    def _orphans(self) -> list[int]:
        """Those of ended trials, as process ids."""
        return [pid for pid in children() if pid not in self._children and pid not in self._own]

    def _tell(self, message: Forked | NotForked | Exited) -> None:
        with contextlib.suppress(OSError):  # the agent is gone: the next read says so
            self._channel.send(_encode(message))

    def _become_child(self, channel_fd: int, output_fd: int, server: int) -> NoReturn:
        status = 1
        try:
            os.setsid()
            die_with_parent(server)
            adopt_orphans()
            offer_as_victim()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for fd in (self._wake, self._wake_write, self._control.fileno()):
                os.close(fd)
            begin_process()
            redirect_output(output_fd)
            rehearse(self._task)
            reused = self._task.isolation == "worker"
            serve(
                Channel(socket.socket(fileno=channel_fd)),
                self._task,
                trials=None if reused else 1,
                before_end=(lambda _: flush_output()) if reused else partial(end_process, self._task.grace),
                on_orphaned=lambda: os._exit(HUNG_UP),
            )
            if reused:
                end_process(self._task.grace, lambda: None)
            status = 0
        except Disconnected:
            status = HUNG_UP
        except BaseException:
            traceback.print_exc()  # into the trial's log
            flush_output()
        finally:
            os._exit(status)


def redirect_output(fd: int) -> None:
    """Make ``fd`` the process's stdout and stderr, for Python and for C alike, line by line."""
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for name in ("stdout", "stderr"):
        fd = 1 if name == "stdout" else 2
        stream = open(fd, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    with contextlib.suppress(Exception):  # a C library without setvbuf on this symbol buffers by block
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
