"""An agent's child processes, and how they are made: forked from a warm server, or run by this very process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

import msgspec

from maggy_like.processes.channel import Channel, Disconnected
from maggy_like.processes.cores import OPENMP
from maggy_like.processes.imports import is_installation, is_standard, module_path
from maggy_like.processes.stacks import Stacks, descendants, open_file, read_stacks
from maggy_like.processes.system import address_space, adopt_orphans, children, end_orphans, kill_tree, too_small
from maggy_like.processes.zygote.client import BEFORE_IMPORTS, begin_imports, own_zygote, start_module
from maggy_like.protocol.messages import PYTHON, Assign, FailureKind, ToDriver, decode_to_driver
from maggy_like.protocol.task import WorkerContext, WorkerTask
from maggy_like.worker.advice import here
from maggy_like.worker.agent.fork_server import Exited, Forked, ImportedAhead, NotForked, NotShared
from maggy_like.worker.agent.template import FORK, HUNG_UP, KILL, LOAD, Load, encode, send_request
from maggy_like.worker.child.exits import flush_output
from maggy_like.worker.child.process import make_runner
from maggy_like.worker.child.sender import Sender
from maggy_like.worker.launch import encode_task, pass_on_spark_files, write_all, write_behind

DISCONNECTED = (
    FailureKind.DISCONNECTED,
    "closed the connection to its agent; train_fn must not close or use file descriptors that it did not open",
)
"""Kind and description for a child whose messages can no longer be read."""


class Child:
    """The agent's view of one child."""

    def __init__(self, channel: Channel, output: int | None) -> None:
        self.channel = channel
        self.output = output  # read end of its stdout and stderr; None if they are not captured
        self.pid: int | None = None  # None until it is known
        self.ready = False  # whether it has loaded the training function and waits for an assignment
        self.not_forked: str | None = None  # why it could not be made, if so
        self.status: int | None = None  # exit status once it has ended, or could not be made; negative for a signal
        self.oom = False  # whether the kernel killed it because memory was short
        self.killed = False  # whether the agent killed it before it had ended by itself
        self.has_hung_up = False  # whether it has closed its end of the channel while it ran an attempt
        self.is_dismissed = False  # whether it was asked to exit
        self.end_at: float | None = None  # when it is asked to exit, or killed; None while it may run
        self.is_spoiled = False  # whether it cannot run another trial
        self.unwinds = False  # whether it must clean up: its function was paused, or it has run trials

    @property
    def why_never_ready(self) -> str:
        """Return why it, and others like it, never became ready."""
        if self.not_forked is not None:
            return f"cannot be made: {self.not_forked}"
        return "die before they can load train_fn"

    @property
    def how_it_ended(self) -> tuple[FailureKind, str]:
        """Return kind and description for the exit status of a child that has reported no end."""
        status = self.status or 0
        if self.oom:
            return FailureKind.OOM, "ran out of memory and was killed by the kernel (SIGKILL)"
        if status == HUNG_UP:
            return DISCONNECTED
        if status >= 0:
            return FailureKind.EXIT, f"exited with status {status}"
        if status == -signal.SIGKILL:
            return FailureKind.SIGNAL, "was killed by SIGKILL, which did not come from its worker"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return FailureKind.SIGNAL, f"was killed by {name}"

    def read(self, frame: bytes) -> ToDriver | None:
        """Decode a message; None if it is invalid, because its trial wrote to a descriptor that it did not open."""
        try:
            return decode_to_driver(frame)
        except msgspec.DecodeError:
            self.is_spoiled = True
            return None

    def close(self) -> None:
        """Close the agent's ends."""
        self.channel.close()
        if self.output is not None:
            os.close(self.output)
            self.output = None


SERVER_PATIENCE = 5.0
"""Seconds within which a fork server must exit, and then the processes that it leaves behind."""

Reply = Forked | NotForked | Exited | ImportedAhead | NotShared

_REPLY: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class ChildLauncher(Protocol):
    """Makes children."""

    @property
    def descriptor(self) -> int | None:
        """Descriptor to be polled for :meth:`attend`, if any."""

    def spawn(self) -> Child:
        """Start a child; it sends ``Ready`` on its channel when it is warm."""

    def attend(self) -> bool:
        """Process what happened to the children; False if no more can be made."""

    def import_ahead(self, modules: Sequence[str]) -> None:
        """Let later children begin with modules that a trial has imported."""

    def news(self) -> list[ImportedAhead | NotShared]:
        """Return what :meth:`attend` has learned of later children since the last call."""

    def kill(self, child: Child) -> None:
        """Kill a child and all processes that it started."""

    def stacks(self, child: Child | None) -> list[Stacks]:
        """Return where a child is that is killed next, and its processes; or all processes that load the function."""

    @property
    def why_ended(self) -> str:
        """Return why no more children can be made, once :meth:`attend` has returned False."""

    def close(self) -> None:
        """Kill all."""


class ForkServerLauncher:
    """Children forked from a warm server process."""

    def __init__(self, task: WorkerTask, context: WorkerContext) -> None:
        self._others = children()  # of the process that the agent is a guest in
        adopt_orphans()  # where the server dies first, what its trials have started comes to us
        self._stacks = open_file()  # to which its forks write their stacks
        mine, theirs = socket.socketpair()
        environment = {**BEFORE_IMPORTS, **os.environ}
        if OPENMP in context.share:  # Spark has set it
            environment[OPENMP] = BEFORE_IMPORTS[OPENMP]
        task = msgspec.structs.replace(with_own_path(task), share=context.share)
        pass_on_spark_files(environment)
        if context.accelerators:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(context.accelerators)
        self._process = start_module(
            "maggy_like.worker.agent.fork_server",
            environment,
            task.sys_path,
            arguments=[str(theirs.fileno()), str(os.getpid()), str(self._stacks), str(context.index)],
            pass_fds=[theirs.fileno(), self._stacks],
            preload=task.preload,
        )
        theirs.close()
        self._control = mine
        self._channel = Channel(mine)
        self._forking: deque[Child] = deque()
        self._living: dict[int, Child] = {}
        self._news: list[ImportedAhead | NotShared] = []
        self._imported: list[str] = []
        self._environment, self._path = environment, task.sys_path
        self._sources = task.sources
        assert self._process.stdin is not None
        with self._process.stdin as stdin:
            write_behind(stdin, partial(write_all, data=encode_task(task)))

    @property
    def descriptor(self) -> int | None:
        return self._control.fileno()

    def spawn(self) -> Child:
        channel, theirs = Channel.pair()
        output, output_write = os.pipe()
        child = Child(channel, output)
        try:
            send_request(self._control, FORK, descriptors=[theirs.fileno(), output_write])
            self._forking.append(child)
        except OSError:
            pass  # the server is gone; attend() says so
        finally:
            theirs.close()
            os.close(output_write)
        return child

    def attend(self) -> bool:
        frames, alive = self._channel.drain()
        for frame in frames:
            match _REPLY.decode(frame):
                case Forked(pid=pid):
                    child = self._forking.popleft()
                    child.pid = pid
                    self._living[pid] = child
                case NotForked(reason=reason):
                    child = self._forking.popleft()
                    child.status, child.not_forked = 0, reason
                case Exited(pid=pid, status=status, oom=oom, killed=killed):
                    child = self._living.pop(pid)
                    child.status, child.oom, child.killed = status, oom, killed
                case ImportedAhead() | NotShared() as news:
                    self._news.append(news)
        return alive

    def import_ahead(self, modules: Sequence[str]) -> None:
        with contextlib.suppress(OSError):
            send_request(self._control, LOAD, payload=encode(Load(tuple(modules))))

    def news(self) -> list[ImportedAhead | NotShared]:
        news, self._news = self._news, []
        self._imported += (module for each in news if isinstance(each, ImportedAhead) for module in each.modules)
        return news

    def kill(self, child: Child) -> None:
        if child.pid is not None and child.status is None:
            with contextlib.suppress(OSError):  # the server is gone, and its children with it
                send_request(self._control, KILL, child.pid)

    def stacks(self, child: Child | None) -> list[Stacks]:
        pid = self._process.pid if child is None else child.pid
        if pid is None:
            return []
        return read_stacks(self._stacks, descendants(pid), self._sources, before_kill=child is not None)

    @property
    def why_ended(self) -> str:
        try:
            status = self._process.wait(SERVER_PATIENCE)
            how = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
        except subprocess.TimeoutExpired:
            how = "hung up"
        limit = address_space()
        small = f"; it may have {limit >> 20} MB of address space, {too_small()}" if limit is not None else ""
        return f"the fork server ({here()}) {how} before a child was ready; see the worker's own log{small}"

    def close(self) -> None:
        self._control.close()  # the server sees the end, kills its children and leaves
        os.close(self._stacks)
        try:
            self._process.wait(SERVER_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode != 0:  # it has not ended them
            for pid in self._living:
                kill_tree(pid)  # its process group: the child itself died with its parent
        if self._imported:
            begin_imports(self._imported, self._environment, self._path)
        end_orphans([*self._others, *own_zygote()], SERVER_PATIENCE)  # the next search of this process is warm, too
        adopt_orphans(False)


class InlineLauncher:
    """One child for all trials, run by a thread of this very process, so that a debugger works.

    The agent runs in another thread. Everything about trials belongs to the one thread that runs them.
    """

    descriptor = None

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._spawned: SimpleQueue[socket.socket] = SimpleQueue()
        self._is_closed = False
        self._child: InlineChild | None = None
        self._refuses = False

    def spawn(self) -> Child:
        channel, theirs = Channel.pair()
        self._spawned.put(theirs)
        return Child(channel, None)

    def await_trial(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for a trial or another message of the agent; False if there will be none."""
        if self._child is not None:
            self._child.await_trial(seconds)
        elif not self._is_closed:
            self._take_child(seconds)
        return self._child is not None or not self._is_closed

    def run_trial(self) -> None:
        """Run a trial, if one is assigned by now.

        A KeyboardInterrupt in its function is raised, and no function is called after that.
        """
        if self._child is None:
            self._take_child(0.0)
        if self._child is None:
            return
        self._child.refuses |= self._refuses
        self._child.run_trial()
        if self._child.is_over:
            self._child.close()
            self._child = None

    def _take_child(self, seconds: float) -> None:
        """Begin to serve the child that the agent waits for, if it has made one."""
        with contextlib.suppress(Empty):
            self._child = InlineChild(Channel(self._spawned.get(timeout=seconds)), self._task)

    @property
    def is_in_function(self) -> bool:
        """Whether a trial's function is running."""
        return self._child is not None and self._child.is_in_function

    def refuse(self) -> None:
        """Call no further function: an assigned trial ends once it is stopped."""
        self._refuses = True

    def abandon(self) -> None:
        """Discard all children; call this once the agent has left."""
        if self._child is not None:
            self._child.close()
            self._child = None
        with contextlib.suppress(Empty):
            while True:
                self._spawned.get_nowait().close()

    def attend(self) -> bool:
        return True

    def import_ahead(self, modules: Sequence[str]) -> None:
        """Do nothing: what one trial imports stays imported in this process."""

    def news(self) -> list[ImportedAhead | NotShared]:
        return []

    why_ended = ""

    def kill(self, child: Child) -> None:
        """Do nothing: a thread cannot be killed, and its trial ends at its next report."""

    def stacks(self, child: Child | None) -> list[Stacks]:
        return []

    def close(self) -> None:
        """Do nothing: there is no process to kill."""
        self._is_closed = True


def with_own_path(task: WorkerTask) -> WorkerTask:
    """Return the task for a worker's child processes, with their ``sys_path``."""
    if task.driver is None:  # the worker was started with the driver's path
        return task
    drivers = [os.path.join(task.driver.directory, entry) for entry in task.sys_path]
    return msgspec.structs.replace(task, sys_path=worker_path(module_path(), drivers, task.driver.python))


def worker_path(
    own: Sequence[str], drivers: Sequence[str], python: str, exists: Callable[[str], bool] = os.path.exists
) -> tuple[str, ...]:
    """Return the module search path of a worker's processes.

    The worker's own entries come first and in their order: what Spark has distributed (``--py-files``), and its own
    packages. An empty entry is its working directory. The driver's directories (in absolute paths) are added if they
    exist here, so that a shared directory can be used without sending it. Those that the driver searches before its own
    packages are placed before the worker's packages, the others at the end. If the driver's minor version, ``python``,
    differs, its directories are useless. A driver on this machine and interpreter has no other directories, and its
    order is kept.
    """
    # Spark gives relative entries, and a trial may change its working directory.
    mine = list(dict.fromkeys(os.path.abspath(entry) if entry else "" for entry in own))
    if python != PYTHON:
        return tuple(mine)
    first = next((at for at, entry in enumerate(drivers) if is_installation(entry)), len(drivers))
    before, after = _useful(drivers[:first], mine, exists), _useful(drivers[first:], mine, exists)
    middle = next((at for at, entry in enumerate(mine) if is_installation(entry)), len(mine))
    return tuple(dict.fromkeys((*mine[:middle], *before, *mine[middle:], *after)))


def _useful(drivers: Sequence[str], own: Sequence[str], exists: Callable[[str], bool]) -> list[str]:
    """Return the driver's directories that a worker can use; a standard library belongs to the interpreter."""
    return [entry for entry in drivers if entry not in own and not is_standard(entry) and exists(entry)]


class InlineChild:
    """Runs one trial per call. No wait is unlimited, because the caller has other work in between."""

    def __init__(self, channel: Channel, task: WorkerTask) -> None:
        self.refuses = False  # whether the function is no longer called, because the run ends
        self._channel = channel
        self._cut: tuple[Assign, Sender] | None = None  # ends as soon as it is known to be stopped
        try:
            self._runner = make_runner(channel, task, lambda _: flush_output(), lambda: None)
        except Disconnected:
            self._runner = None

    @property
    def is_over(self) -> bool:
        """Whether no further trial will come."""
        return self._runner is None or self._runner.service.is_over

    @property
    def is_in_function(self) -> bool:
        """Whether the function is running."""
        return self._runner is not None and self._runner.is_in_function

    def await_trial(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a trial or another message."""
        if self._runner is not None:
            self._runner.service.await_assignment(seconds)

    def run_trial(self) -> None:
        """Run a trial, if one is assigned.

        A KeyboardInterrupt in its function is raised, and no function is called after that.
        """
        try:
            self._run_trial()
        except Disconnected:
            self._runner = None

    def _run_trial(self) -> None:
        if self._runner is None:
            return
        if self._cut is None and (assigned := self._runner.service.take_assignment()) is not None:
            if not self.refuses:
                try:
                    self._runner.run(*assigned)
                except KeyboardInterrupt:
                    self.refuses, self._cut = True, assigned
                    raise
                return
            self._cut = assigned
        # Not before: the driver would take it for an end that the function has come to by itself.
        if self._cut is not None and self._cut[1].stop.is_requested:
            self._runner.cut(*self._cut)
            self._cut = None

    def close(self) -> None:
        """Close the connection to the agent."""
        self._channel.close()
