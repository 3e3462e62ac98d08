"""The fork server: the parent of a worker's child processes, one for each trial."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from maggy_like.processes.channel import Channel
from maggy_like.processes.cores import show_share
from maggy_like.processes.imports import import_ahead
from maggy_like.processes.stacks import write_at_signal
from maggy_like.processes.system import adopt_orphans, children, children_of, die_with_parent, is_supported, kill_tree
from maggy_like.processes.titles import belong_to, entitle
from maggy_like.protocol.task import WorkerTask
from maggy_like.worker.agent.template import (
    FORK,
    FORKED,
    LOAD,
    Load,
    Template,
    TemplateReady,
    TemplateUnfit,
    decode_load,
    decode_verdict,
    encode,
    oom_kills,
    read_request,
    run_child,
    send_request,
)
from maggy_like.worker.child.exits import forget_exit_hooks, remove_leftovers
from maggy_like.worker.child.process import ROUNDS, rehearse
from maggy_like.worker.launch import decode_task, take_over_spark_files

PATIENCE = 5.0
"""Seconds within which trackers must end; they take a few hundredths, but one may have just been started."""

_LOOK_MS = 10
_MARK = b"from multiprocessing.resource_tracker import main"


def kill_but_trackers(pid: int) -> None:
    """Kill a process and, if it leads one, its process group; if it has a tracker, only the process itself."""
    if any(map(_is_tracker, children_of(pid))):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    else:
        kill_tree(pid)


def let_trackers_end(orphans: Callable[[], list[int]]) -> None:
    """Kill orphans except the trackers among them, and wait for these to end (Linux).

    ``orphans`` returns the process ids of this process's children that are no longer needed.
    """
    trackers = [pid for pid in orphans() if _is_tracker(pid)]
    ends: list[int] = []
    poller = select.poll()
    for pid in trackers:
        with contextlib.suppress(OSError):  # this process may open no more: then it is killed with the others
            ends.append(os.pidfd_open(pid))
            poller.register(ends[-1], select.POLLIN)
    left, deadline = set(ends), time.monotonic() + PATIENCE
    while left and time.monotonic() < deadline:
        for pid in set(orphans()).difference(trackers):  # as one dies, those that it had started are ours
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for end, _ in poller.poll(_LOOK_MS):
            poller.unregister(end)
            left.discard(end)
    for end in ends:
        os.close(end)


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _MARK in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


TEMPLATE_PATIENCE = 20.0
"""Seconds within which a template must fork a process."""

IMPORT_PATIENCE = 120.0
"""Seconds within which a template must import what trials have imported."""

MAX_REFUSED = 8
"""Number of modules that templates may refuse before modules of trials are no longer imported in advance."""


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    """Server to agent: the child of the oldest unanswered request to fork."""

    pid: int


class NotForked(msgspec.Struct, frozen=True, tag="not forked"):
    """Server to agent: the oldest unanswered request to fork has failed, and why."""

    reason: str


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Server to agent: a child has ended."""

    pid: int
    status: int  # negative for a signal
    oom: bool = False  # whether the kernel killed it because memory was short
    killed: bool = False  # whether the agent killed it before it had ended by itself


class ImportedAhead(msgspec.Struct, frozen=True, tag="imported"):
    """Server to agent: children that are forked from now on have these modules."""

    modules: list[str]  # modules that trials have imported, without those that a template refused
    seconds: float  # duration of the imports
    megabytes: int  # memory of the imports
    refused: dict[str, str]  # modules that cannot be imported before a fork, each with the reason


class NotShared(msgspec.Struct, frozen=True, tag="not shared"):
    """Server to agent: each child loads the function itself."""

    why: str  # reason, such as ``starts a thread``
    seconds: float  # duration of loading it


def main(control_fd: int, parent: int, stacks: int, worker: int) -> None:
    """Serve the agent at the other end of ``control_fd`` until it is gone; the task comes on stdin.

    This process and all its forks write their stacks to the file ``stacks`` when the agent asks them to.
    """
    die_with_parent(parent, signal.SIGTERM)
    write_at_signal(stacks)
    task = decode_task(sys.stdin.buffer.read())
    belong_to(worker, task.name)
    entitle("forks")
    sys.path[:] = task.sys_path  # in the user's order
    sys.argv[:] = task.argv
    write_by_line()
    show_share(task.share)
    take_over_spark_files()
    for _ in range(ROUNDS):
        rehearse(task)
    gc.collect()
    gc.freeze()  # so that a child's collector does not write to the shared pages
    ForkServer(socket.socket(fileno=control_fd), task).run()


def write_by_line() -> None:
    """Let Python and C write their output line by line, here and in all forks."""
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = open(fd, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    with contextlib.suppress(Exception):  # a C library without setvbuf on this symbol buffers by block
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)


class _OfTemplate:
    """A template, from the side of the fork server."""

    def __init__(self, control: socket.socket, pid: int, load: Load) -> None:
        self.control = control
        self.channel = Channel(control)
        self.pid = pid
        self.load = load
        # When it counts as hung; None if children wait for it, because nothing works without it.
        self.due = time.monotonic() + IMPORT_PATIENCE if load.modules else None


class ForkServer:
    """Forks on request, and reaps."""

    def __init__(self, control: socket.socket, task: WorkerTask) -> None:
        self._control = control
        self._channel = Channel(control)
        self._task = task
        self._children: dict[int, int] = {}  # and the kernel's count of kills for want of memory at their start
        self._killed: set[int] = set()
        self._own = children()  # what the preloaded modules started
        self._known = frozenset(sys.modules)
        self._template: _OfTemplate | None = None  # serves; without one, this process forks
        self._next: _OfTemplate | None = None  # gets ready
        self._templates: set[int] = set()
        self._is_opening = is_supported()  # until the function is loaded, or known to be no template's
        self._waiting: deque[list[int]] = deque()  # requests to fork that wait for that
        self._wanted: list[str] = []  # modules that trials have imported, for the template after the next
        self._asked: set[str] = set()
        self._refused: dict[str, str] = {}
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
            if self._is_opening:
                known = tuple(name for name in self._task.preload if name not in sys.modules)
                self._prepare(Load(known=known) if known else Load(function=True))
            else:
                import_ahead(self._task.preload)
                self._known = frozenset(sys.modules)
            while self._serve_once():
                pass
        finally:
            self._kill_all()

    def _kill_all(self) -> None:
        """Kill every child, and the processes that each leaves to us when it dies."""
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
        readable = {fd for fd, _ in self._poller.poll(self._patience_ms())}
        if self._wake in readable:
            if signal.SIGTERM in os.read(self._wake, 4096):
                return False
            self._reap()
        if self._next is not None:
            if self._next.control.fileno() in readable:
                self._hear_template(self._next)
            elif self._next.due is not None and time.monotonic() >= self._next.due:
                kill_tree(self._next.pid)
                self._refuse(self._next.load.modules, f"takes longer than {IMPORT_PATIENCE:g} s to import")
        if self._control.fileno() in readable:
            return self._answer()
        return True

    def _patience_ms(self) -> float | None:
        if self._next is None or self._next.due is None:
            return None
        return max(0.0, 1e3 * (self._next.due - time.monotonic()))

    def _answer(self) -> bool:
        if (request := read_request(self._control)) is None:
            return False
        kind, pid, payload, descriptors = request
        if kind == FORK:
            self._waiting.append(descriptors)
            self._fork_waiting()
        elif kind == LOAD:
            self._want(decode_load(payload).modules)
        else:
            self._reap()  # whoever is dead by now was not killed by us
            if pid in self._children:
                self._killed.add(pid)
                kill_but_trackers(pid)
        return True

    # -- children -----------------------------------------------------------------------------

    def _fork_waiting(self) -> None:
        """Fork the requested children, unless the function is about to be loaded for them."""
        while self._waiting and not self._is_opening:
            self._fork(self._waiting.popleft())

    def _fork(self, descriptors: list[int]) -> None:
        oom_before = oom_kills()
        try:
            if len(descriptors) < 2:  # the others could not be opened here
                raise OSError("the process that forks them can open no more files; raise the limit (ulimit -n)")
            pid = self._fork_of_template(descriptors) or self._fork_here(descriptors)
        except OSError as error:
            self._tell(NotForked(str(error)))
        else:
            self._children[pid] = oom_before
            self._tell(Forked(pid))
        for fd in descriptors:
            os.close(fd)

    def _fork_of_template(self, descriptors: list[int]) -> int:
        """Fork the template, and return the process id; 0 if there is no template.

        Raise OSError if no further process is possible.
        """
        if (template := self._template) is None:
            return 0
        pid = self._ask(template, FORK, descriptors)
        if -pid in (errno.EAGAIN, errno.ENOMEM):
            raise OSError(-pid, os.strerror(-pid))
        if pid < 0:  # this system forks for no other process
            self._end_template(template)
        return max(0, pid)

    def _fork_here(self, descriptors: list[int]) -> int:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._leave_to_fork()
            forget_exit_hooks()
            run_child(self._task, server, descriptors, None, self._known)
        return pid

    def _leave_to_fork(self) -> None:
        """Close what belongs to this process in a fork."""
        for fd in (self._wake, self._wake_write, self._control.fileno()):
            os.close(fd)
        for template in (self._template, self._next):
            if template is not None:
                template.control.close()
        for descriptors in self._waiting:
            for fd in descriptors:
                os.close(fd)

    def _reap(self) -> None:
        while (ended := _next_ended()) is not None:
            pid, reap = ended
            if pid in self._children:
                let_trackers_end(self._orphans)
                kill_tree(pid)  # the rest of its process group
            self._kill_left_behind()
            code = reap()
            self._templates.discard(pid)
            oom_before = self._children.pop(pid, None)
            if oom_before is not None:
                if code != 0:
                    remove_leftovers(pid)
                killed = code == -signal.SIGKILL and pid in self._killed
                oom = code == -signal.SIGKILL and not killed and oom_kills() > oom_before
                self._killed.discard(pid)
                self._tell(Exited(pid, code, oom, killed))

    def _kill_left_behind(self) -> None:
        """Kill processes that ended trials have left behind.

        Each child adopts the orphans among its descendants, and at its end we do. When those die, we adopt theirs.
        """
        for orphan in self._orphans():
            kill_tree(orphan)

    def _orphans(self) -> list[int]:
        """Return the processes left behind by ended trials."""
        ours = {*self._children, *self._own, *self._templates}
        return [pid for pid in children() if pid not in ours]

    def _tell(self, message: Forked | NotForked | Exited | ImportedAhead | NotShared) -> None:
        with contextlib.suppress(OSError):  # the agent is gone: the next read says so
            self._channel.send(encode(message))

    # -- templates ----------------------------------------------------------------------------

    def _prepare(self, load: Load) -> None:
        """Start a template: a fork of the serving one, with more loaded."""
        try:
            ours, theirs = socket.socketpair()
        except OSError:  # this process may open no more
            self._serve_without()
            return
        server, pid = os.getpid(), 0
        with theirs:
            if self._template is not None:
                pid = self._ask(self._template, LOAD, [theirs.fileno()], encode(load))
            else:
                with contextlib.suppress(OSError):
                    pid = os.fork()
                    if pid == 0:
                        ours.close()
                        self._leave_to_fork()
                        Template(theirs, self._task, server).run(load)
        if pid <= 0:
            ours.close()
            self._serve_without()
            return
        self._templates.add(pid)
        self._next = _OfTemplate(ours, pid, load)
        self._poller.register(ours.fileno(), select.POLLIN)

    def _serve_without(self) -> None:
        """Fork with what is loaded, because no further template can be made."""
        self._is_opening = False
        self._fork_waiting()

    def _ask(self, template: _OfTemplate, kind: bytes, descriptors: list[int], payload: bytes = b"") -> int:
        """Return the process that a template has forked, or the negative error number; 0 if it is gone, or hangs."""
        template.control.settimeout(TEMPLATE_PATIENCE)
        with contextlib.suppress(OSError):
            send_request(template.control, kind, payload=payload, descriptors=descriptors)
            answer = template.control.recv(FORKED.size, socket.MSG_WAITALL)
            if len(answer) == FORKED.size:
                return int(FORKED.unpack(answer)[0])
        self._end_template(template)
        return 0

    def _end_template(self, template: _OfTemplate) -> None:
        """Fork without the template from now on, and kill it.

        If it only hangs, it would later fork a second child for a request that was served without it, and its answer
        would be taken for that to the next request.
        """
        template.control.close()
        self._template = None
        if template.pid in self._templates:  # else it was reaped, and its number may be another process's
            os.kill(template.pid, signal.SIGKILL)

    def _hear_template(self, template: _OfTemplate) -> None:
        """Process a template's result."""
        frames, alive = template.channel.drain()
        if frames:
            verdict = decode_verdict(frames[0])
        elif not alive:
            verdict = TemplateUnfit("", "ends the process that imports it", 0.0)
        else:
            return
        match verdict:
            case TemplateUnfit(why=why, seconds=seconds) if template.load.function:
                self._drop_next(template)
                self._tell(NotShared(why, seconds))
                self._open()
            case TemplateUnfit(module=module, why=why):
                self._refuse((module,) if module else (*template.load.modules, *template.load.known), why)
            case TemplateReady(seconds=seconds, megabytes=megabytes):
                self._poller.unregister(template.control.fileno())
                if self._template is not None:
                    self._template.control.close()  # it ends as its connection does
                self._template, self._next = template, None
                if template.load.modules:
                    self._tell(ImportedAhead(list(template.load.modules), seconds, megabytes, self._refused))
                if template.load.known:
                    self._prepare(Load(function=True))
                elif template.load.function:
                    self._open()
                else:
                    self._import_wanted()

    def _open(self) -> None:
        """Serve the children that wait for the function."""
        self._is_opening = False
        self._fork_waiting()
        self._import_wanted()

    def _refuse(self, modules: tuple[str, ...], why: str) -> None:
        """Try again without modules that must not be imported in advance."""
        template = self._next
        assert template is not None
        self._drop_next(template)
        self._refused |= dict.fromkeys(modules[:1], why)
        is_hopeless = len(self._refused) > MAX_REFUSED
        learned, known = (
            tuple(name for name in names if not (is_hopeless or _is_within(name, modules)))
            for names in (template.load.modules, template.load.known)
        )
        if learned or known:
            self._prepare(Load(learned, known))
        elif self._is_opening:
            self._prepare(Load(function=True))
        else:
            self._import_wanted()

    def _drop_next(self, template: _OfTemplate) -> None:
        self._poller.unregister(template.control.fileno())
        template.control.close()
        self._next = None

    def _want(self, modules: tuple[str, ...]) -> None:
        """Record what a trial has imported."""
        new = [name for name in modules if name not in self._asked and not _is_within(name, tuple(self._refused))]
        self._asked.update(new)
        self._wanted += new
        if self._next is None:
            self._import_wanted()

    def _import_wanted(self) -> None:
        """Let a template import what trials have imported meanwhile."""
        if self._wanted and is_supported():
            wanted, self._wanted = tuple(self._wanted), []
            self._prepare(Load(wanted))


def _next_ended() -> tuple[int, Callable[[], int]] | None:
    """Return a child that has ended, and what reaps it and returns its exit status; None if there is no such child.

    Until it is reaped, no other process can get its number.
    """
    with contextlib.suppress(ChildProcessError):  # there is no child
        if not hasattr(os, "waitid"):  # macOS, before Python 3.13
            pid, status = os.waitpid(-1, os.WNOHANG)
            return (pid, lambda: os.waitstatus_to_exitcode(status)) if pid else None
        if (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            return found.si_pid, lambda: os.waitstatus_to_exitcode(os.waitpid(found.si_pid, 0)[1])
    return None


def _is_within(name: str, modules: tuple[str, ...]) -> bool:
    """Whether a module is one of ``modules``, or a submodule of one."""
    return any(name == module or name.startswith(module + ".") for module in modules)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]))
