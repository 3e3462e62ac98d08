"""The process from which a worker's children are forked, with the function and the imports of trials loaded."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from maggy_like.processes.channel import Channel, Disconnected
from maggy_like.processes.cores import use_share
from maggy_like.processes.fork_safety import SharingCheck, why_not_whole
from maggy_like.processes.garbage import no_collections
from maggy_like.processes.imports import import_ahead
from maggy_like.processes.system import adopt_orphans, die_with_parent, fork_sibling
from maggy_like.processes.titles import entitle
from maggy_like.protocol.task import WorkerTask
from maggy_like.train_function.load import load_train_fn
from maggy_like.worker.child.exits import TrialEnds, begin_process, end_process, flush_output, forget_exit_hooks
from maggy_like.worker.child.process import rehearse, serve

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/vmstat")


def oom_kills() -> int:
    """Return how many processes the kernel's OOM killer has ended so far.

    The number is that of this process's control group, with version 2 also of the groups below it, or else that of the
    machine; 0 if neither is available.
    """
    for counters in _places():
        with contextlib.suppress(OSError):
            if found := re.search(r"^oom_kill (\d+)$", counters.read_text(), re.MULTILINE):
                return int(found[1])
    return 0


def offer_as_victim() -> None:
    """Let the kernel end this process before others, so that a trial with too much memory does not cost its worker."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def resident() -> int:
    """Return the bytes of memory of this process, shared ones included; 0 if unknown."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _places() -> Iterator[Path]:
    """Yield the files that may count the kills, the most specific first."""
    for hierarchy, directory, name in (
        ("0:", "", "memory.events"),
        (r"\d+:[^:\n]*\bmemory\b[^:\n]*", "memory", "memory.oom_control"),
    ):
        root = _CGROUPS / directory
        with contextlib.suppress(OSError):
            if found := re.search(rf"^{hierarchy}:/(.*)$", _OWN.read_text(), re.MULTILINE):
                yield root / found[1] / name
        yield root / name  # a container's own group may stand there, by another name than outside
    yield _MACHINE


MAX_MEMORY = 1 << 30
"""Maximum bytes of memory for the imports of a template."""

HUNG_UP = 113
"""Exit status of a child that cannot reach its agent."""

REQUEST = struct.Struct("!cI")
"""Requests of an agent to its fork server, and of a fork server to a template: a kind, and a number.

========  ========================  ==============================================================
kind      number                    attachment
========  ========================  ==============================================================
``FORK``  0                         the descriptors of the child's channel and output
``KILL``  a process id              nothing
``LOAD``  the size of what follows  :class:`Load`; for a template, the socket of its successor
========  ========================  ==============================================================
"""
FORK, KILL, LOAD = b"f", b"k", b"l"

FORKED = struct.Struct("!i")
"""A template's answer to each request: the id of the process that it has forked, or the negative error number."""


class Load(msgspec.Struct, frozen=True):
    """Modules and function that a template loads in addition to the process that it was forked from."""

    modules: tuple[str, ...] = ()  # modules that trials have imported; an error means that a fork must not inherit them
    known: tuple[str, ...] = ()  # modules to import if possible, because the function's code uses them
    function: bool = False  # whether to load the function


class TemplateReady(msgspec.Struct, frozen=True, tag="ready"):
    """A template can serve."""

    seconds: float  # duration of loading
    megabytes: int  # memory of loading


class TemplateUnfit(msgspec.Struct, frozen=True, tag="unfit"):
    """A template must not serve, and has exited."""

    module: str  # module whose import is the reason; empty for the function
    why: str  # reason, such as ``starts a thread``; empty if the function cannot be loaded at all
    seconds: float  # time until this was known


class _UnfitError(Exception):
    """``module`` and reason."""


encode = msgspec.msgpack.Encoder().encode
decode_verdict = msgspec.msgpack.Decoder(TemplateReady | TemplateUnfit).decode
decode_load = msgspec.msgpack.Decoder(Load).decode


def read_request(control: socket.socket) -> tuple[bytes, int, bytes, list[int]] | None:
    """Wait for a request: its kind, its number, its data, and descriptors; None when the other end is gone."""
    try:
        head, descriptors, _, _ = socket.recv_fds(control, REQUEST.size, 2, socket.MSG_WAITALL)
    except ConnectionResetError:  # the other end is gone, and has not read the last message
        return None
    if len(head) < REQUEST.size:
        return None
    kind, number = REQUEST.unpack(head)
    payload = control.recv(number, socket.MSG_WAITALL) if kind == LOAD else b""
    return kind, number, payload, descriptors


def send_request(
    control: socket.socket, kind: bytes, number: int = 0, *, payload: bytes = b"", descriptors: Sequence[int] = ()
) -> None:
    """Send a request; raise OSError if the other end is gone."""
    head = REQUEST.pack(kind, len(payload) if kind == LOAD else number)
    socket.send_fds(control, [head], list(descriptors))
    if payload:
        control.sendall(payload)


class Template:
    """Runs in the template's own process."""

    def __init__(
        self, control: socket.socket, task: WorkerTask, server: int, function: Callable[..., Any] | None = None
    ) -> None:
        self._control = control
        self._task = task
        self._server = server  # the fork server's process id. It is the parent of all templates, and of all children
        self._function = function  # the training function, if the template that this one was forked from has loaded it

    def run(self, load: Load) -> NoReturn:
        """Load, report it, and fork on request of the fork server; called in a process that was just forked."""
        status = 1
        try:
            die_with_parent(self._server)
            entitle("template")
            leave_signals()
            verdict = self._prepare(load)
            Channel(self._control).send(encode(verdict))
            if isinstance(verdict, TemplateReady):
                self._serve()
            status = 0
        except Disconnected:
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            flush_output()
            os._exit(status)

    def _prepare(self, load: Load) -> TemplateReady | TemplateUnfit:
        began, before = time.monotonic(), resident()
        check = SharingCheck()
        try:
            with no_collections(freeze=True):
                for module in load.known:
                    with contextlib.suppress(Exception):  # if it is needed, its import fails again in the trial
                        self._import(module)
                    _check_fork(module)
                for module in load.modules:
                    try:
                        self._import(module)
                    except BaseException as error:
                        raise _UnfitError(module, f"cannot be imported there ({type(error).__name__})") from error
                    _check_fork(module)
            if load.modules and resident() - before > MAX_MEMORY:
                raise _UnfitError(load.modules[0], f"takes more than {MAX_MEMORY >> 20} MB of memory")
            if load.function:
                with check:
                    self._function = load_train_fn(self._task)
                if check.reason:
                    raise _UnfitError("", check.reason)
            import_ahead(())  # what has been imported may import more once it is used
            _check_fork((*load.modules, *load.known, "")[0])
        except _UnfitError as error:
            module, why = error.args
            return TemplateUnfit(module, why, time.monotonic() - began)
        except BaseException:  # each child that loads the function itself says what is wrong
            return TemplateUnfit("", "", time.monotonic() - began)
        flush_output()
        forget_exit_hooks()
        rehearse(self._task)  # the imports have emptied caches of abstract classes
        gc.freeze()  # so that a child's collector does not write to the shared pages
        return TemplateReady(time.monotonic() - began, max(0, resident() - before) >> 20)

    def _import(self, module: str) -> None:
        if module not in sys.modules:
            importlib.import_module(module)

    def _serve(self) -> None:
        known = frozenset(sys.modules)
        while (request := read_request(self._control)) is not None:
            kind, _, payload, descriptors = request
            try:
                pid = fork_sibling()
            except OSError as error:
                pid = -(error.errno or 1)
            if pid == 0:
                self._control.close()
                if kind == FORK:
                    run_child(self._task, self._server, descriptors, self._function, known)
                (control,) = descriptors
                successor = Template(socket.socket(fileno=control), self._task, self._server, self._function)
                successor.run(decode_load(payload))
            self._control.sendall(FORKED.pack(pid))
            for fd in descriptors:
                os.close(fd)


def _check_fork(module: str) -> None:
    """Raise _UnfitError if this process can no longer be forked, because of a module's import."""
    if why := why_not_whole():
        raise _UnfitError(module, why)


def leave_signals() -> None:
    """Remove the fork server's signal handlers."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def run_child(
    task: WorkerTask,
    server: int,
    descriptors: Sequence[int],
    function: Callable[..., Any] | None,
    known: frozenset[str],
) -> NoReturn:
    """Run the trials that the agent assigns, and exit. Called in a process that was just forked.

    ``server`` is the process id of the fork server, its parent. ``descriptors`` are those of its channel and of its
    output. ``function`` is given if it is loaded already. Trials need not import the modules in ``known``.
    """
    status = 1
    try:
        channel_fd, output_fd = descriptors
        os.setsid()
        die_with_parent(server)
        adopt_orphans()
        offer_as_victim()
        leave_signals()
        begin_process()
        entitle("standby")
        use_share(task.share)
        redirect_output(output_fd)
        rehearse(task)
        reused = task.isolation == "worker"
        before_end = TrialEnds(task.grace).end if reused else partial(end_process, task.grace)
        serve(
            Channel(socket.socket(fileno=channel_fd)),
            task,
            train_fn=function,
            known=None if reused else known,
            trials=None if reused else 1,
            before_end=before_end,
            on_orphaned=lambda: os._exit(HUNG_UP),
        )
        if reused:
            end_process(task.grace, lambda: None)
        status = 0
    except Disconnected:
        status = HUNG_UP
    except BaseException:
        traceback.print_exc()  # into the trial's log
        flush_output()
    finally:
        os._exit(status)


def redirect_output(fd: int) -> None:
    """Make ``fd`` the process's output, and close its input; Python's streams are not changed."""
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
