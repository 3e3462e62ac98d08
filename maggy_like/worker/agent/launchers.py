"""How an agent's child processes are made: forked from a warm server, or run by this very process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

import msgspec

from maggy_like.processes.channel import Channel
from maggy_like.processes.imports import is_installation, is_standard, module_path, python_path
from maggy_like.processes.lifeline import adopt_orphans, children, end_orphans, kill_tree
from maggy_like.processes.resources import address_space, too_small
from maggy_like.processes.zygote.client import ONE_THREAD, begin_imports, own_zygote, start_module
from maggy_like.protocol.task import WorkerContext, WorkerTask
from maggy_like.protocol.versions import PYTHON
from maggy_like.worker import spark_files
from maggy_like.worker.agent.child import Child
from maggy_like.worker.agent.fork_server import Exited, Forked, ImportedAhead, NotForked, NotShared
from maggy_like.worker.agent.template import FORK, KILL, LOAD, Load, encode, send_request
from maggy_like.worker.child.inline import InlineChild
from maggy_like.worker.import_advice import here
from maggy_like.worker.launch import encode_task, write_all


def with_own_path(task: WorkerTask) -> WorkerTask:
    """The task for a worker's child processes: its ``sys_path`` is theirs."""
    if task.driver is None:  # the worker was started with the driver's path
        return task
    drivers = [os.path.join(task.driver.folder, entry) for entry in task.sys_path]
    return msgspec.structs.replace(task, sys_path=worker_path(module_path(), drivers, task.driver.python))


def worker_path(
    own: Sequence[str], drivers: Sequence[str], python: str, exists: Callable[[str], bool] = os.path.exists
) -> tuple[str, ...]:
    """The module search path of a worker's processes.

    What the worker itself has comes first and in its order: what Spark has shipped (``--py-files``), and its own
    packages. Of the driver's folders those are used that exist here, so that a folder that all machines share serves
    without being shipped: those that the driver looks into before its own packages stand before the worker's packages
    too, the others last. A driver on this machine and interpreter has no others, and its order is kept.

    Args:
        own: The ``sys.path`` of the worker; an empty entry is whatever folder it works in.
        drivers: That of the driver, in absolute paths.
        python: The driver's minor version; the folders of another Python are of no use.
        exists: Whether there is such a folder or archive.

    Example:
        >>> worker_path(["/app/deps.zip", "/w/lib/python3.11"], ["/home/me", "/d/lib/python3.11"], PYTHON,
        ...             exists=lambda path: True)
        ('/app/deps.zip', '/home/me', '/w/lib/python3.11')
    """
    # Spark gives relative entries, and a trial may change its working folder.
    mine = list(dict.fromkeys(os.path.abspath(entry) if entry else "" for entry in own))
    if python != PYTHON:
        return tuple(mine)
    first = next((at for at, entry in enumerate(drivers) if is_installation(entry)), len(drivers))
    before, after = _useful(drivers[:first], mine, exists), _useful(drivers[first:], mine, exists)
    middle = next((at for at, entry in enumerate(mine) if is_installation(entry)), len(mine))
    return tuple(dict.fromkeys((*mine[:middle], *before, *mine[middle:], *after)))


def _useful(drivers: Sequence[str], own: Sequence[str], exists: Callable[[str], bool]) -> list[str]:
    """The driver's folders that a worker can use; a standard library is the interpreter's own."""
    return [entry for entry in drivers if entry not in own and not is_standard(entry) and exists(entry)]


SERVER_PATIENCE = 5.0
"""Seconds that a fork server gets to leave, and then what it leaves behind to die."""

Reply = Forked | NotForked | Exited | ImportedAhead | NotShared

_REPLY: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


class ChildLauncher(Protocol):
    """Makes children."""

    @property
    def descriptor(self) -> int | None:
        """To be polled for :meth:`attend`, if any."""

    def spawn(self) -> Child:
        """Start a child; it says ``Ready`` on its channel when it is warm."""

    def attend(self) -> bool:
        """Take in what happened to the children; False when no more can be made."""

    def import_ahead(self, modules: Sequence[str]) -> None:
        """Have later children begin with modules that a trial has imported."""

    def news(self) -> list[ImportedAhead | NotShared]:
        """What :meth:`attend` has learned of later children since the last call."""

    def kill(self, child: Child) -> None:
        """Kill a child and all that it started."""

    @property
    def why_ended(self) -> str:
        """Why no more children can be made, once :meth:`attend` has said so."""

    def close(self) -> None:
        """Kill all."""


class ForkServerLauncher:
    """Children forked from a warm server process."""

    def __init__(self, task: WorkerTask, context: WorkerContext) -> None:
        self._others = children()  # of the process that the agent is a guest in
        adopt_orphans()  # where the server dies first, what its trials have started comes to us
        mine, theirs = socket.socketpair()
        environment = {**ONE_THREAD, **os.environ}
        task = with_own_path(task)
        environment["PYTHONPATH"] = python_path(task.sys_path)
        spark_files.pass_on(environment)
        if context.accelerators:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(context.accelerators)
        self._process = start_module(
            "maggy_like.worker.agent.fork_server",
            environment,
            arguments=[str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            preload=task.preload,
            safe_path=True,  # nothing is imported from the working folder, unless the path names it
        )
        theirs.close()
        self._control = mine
        self._channel = Channel(mine)
        self._forking: deque[Child] = deque()
        self._living: dict[int, Child] = {}
        self._news: list[ImportedAhead | NotShared] = []
        self._imported: list[str] = []
        self._environment = environment
        assert self._process.stdin is not None
        try:
            write_all(self._process.stdin, encode_task(task))
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it died at once; attend() says so

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

    @property
    def why_ended(self) -> str:
        try:
            status = self._process.wait(SERVER_PATIENCE)
            how = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
        except subprocess.TimeoutExpired:
            how = "hung up"
        limit = address_space()
        small = f"; it may have {limit >> 20} MB of address space, {too_small()}" if limit is not None else ""
        return f"the fork server ({here()}) {how} before a child was ready; see the worker's own log for why{small}"

    def close(self) -> None:
        self._control.close()  # the server sees the end, kills its children and leaves
        try:
            self._process.wait(SERVER_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode != 0:  # it has not ended them
            for pid in self._living:
                kill_tree(pid)  # its process group: the child itself died with its parent
        if self._imported:
            begin_imports(self._imported, self._environment)
        end_orphans([*self._others, *own_zygote()], SERVER_PATIENCE)  # the next search of this process is warm, too
        adopt_orphans(False)


class InlineLauncher:
    """One child for all trials, run by a thread of this very process, so that a debugger works.

    The agent lives in a thread of its own. What has to do with trials is for the one thread that runs them.
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
        """Wait for a trial, or other news of the agent, for ``seconds`` at most; False where there will be none."""
        if self._child is not None:
            self._child.await_trial(seconds)
        elif not self._is_closed:
            self._take_child(seconds)
        return self._child is not None or not self._is_closed

    def run_trial(self) -> None:
        """Run a trial, if one is assigned by now.

        Raises:
            KeyboardInterrupt: In its function. No function is called any more then.
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
        """Whether a trial's function is being called just now."""
        return self._child is not None and self._child.is_in_function

    def refuse(self) -> None:
        """Call no function any more: a trial that is assigned ends once it has been told to stop."""
        self._refuses = True

    def abandon(self) -> None:
        """Let go of all children; call once the agent has left."""
        if self._child is not None:
            self._child.close()
            self._child = None
        with contextlib.suppress(Empty):
            while True:
                self._spawned.get_nowait().close()

    def attend(self) -> bool:
        return True

    def import_ahead(self, modules: Sequence[str]) -> None:
        """What one trial imports stays imported in this process."""

    def news(self) -> list[ImportedAhead | NotShared]:
        return []

    why_ended = ""

    def kill(self, child: Child) -> None:
        """A thread cannot be killed; its trial ends at its next report."""

    def close(self) -> None:
        """Nothing to kill."""
        self._is_closed = True
