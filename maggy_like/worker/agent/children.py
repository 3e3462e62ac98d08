"""All child processes of an agent: one runs the attempt, the next is on standby, earlier ones exit."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from maggy_like.protocol.messages import Shutdown, encode
from maggy_like.protocol.task import WorkerContext, WorkerTask
from maggy_like.rpc.client import Poller
from maggy_like.worker.agent.child import Child
from maggy_like.worker.agent.fork_server import ImportedAhead, NotShared
from maggy_like.worker.agent.launchers import ChildLauncher, ForkServerLauncher

MAX_NEVER_READY = 3
"""Number of consecutive children that may die before they are ready."""

FORK_DELAY = 1.0
"""Seconds until another try if no child could be forked."""


class Standby:
    """Makes one child after the other.

    Attributes:
        child: The next one, ready or not, if there is one.
        due: When to begin with the next one, if ever.
    """

    def __init__(self) -> None:
        self.child: Child | None = None
        self.due: float | None = None
        self._never_ready = 0

    def spawn(self, launcher: ChildLauncher) -> Child | None:
        """Begin to make a child; None where there is one already."""
        self.due = None
        if self.child is not None:
            return None
        self.child = launcher.spawn()
        return self.child

    def take(self) -> None:
        """Record that the child runs a trial, or exits, from now on."""
        self.child = None

    def is_ready(self, child: Child) -> None:
        """Record that a child has loaded what it needs."""
        child.ready = True
        self._never_ready = 0

    def lose(self, child: Child, *, is_idle: bool) -> None:
        """Record that a child's process is gone, or was never made; does nothing for another child.

        Args:
            is_idle: Whether no trial runs. A running one continues while no other child can be made.
        """
        if child is not self.child:
            return
        self.child = None
        if child.not_forked is not None:
            self.due = time.monotonic() + FORK_DELAY
        if not child.ready and (is_idle or child.not_forked is None):
            self._never_ready += 1

    @property
    def is_hopeless(self) -> bool:
        """Whether children have stopped becoming ready."""
        return self._never_ready >= MAX_NEVER_READY


class ExitingChildren:
    """Ends children at a quiet moment, and kills those that do not exit.

    Args:
        grace: Seconds to exit in.

    Attributes:
        due: When :meth:`attend` has something to do, if ever.
    """

    def __init__(self, grace: float) -> None:
        self.due: float | None = None
        self._grace = grace
        self._children: list[Child] = []
        self._dismissed: set[Child] = set()

    def __iter__(self) -> Iterator[Child]:
        return iter(self._children)

    def __len__(self) -> int:
        return len(self._children)

    def add(self, child: Child, delay: float = 0.0) -> None:
        """Let a child exit, in ``delay`` seconds."""
        self._children.append(child)
        self.due = time.monotonic() + delay

    def discard(self, child: Child) -> None:
        """Record that a child is gone; it need not be one of these."""
        self._dismissed.discard(child)
        if child in self._children:
            self._children.remove(child)

    def attend(self, launcher: ChildLauncher) -> None:
        """Send a shutdown to those that have none yet, and kill those whose time is over."""
        for child in self._children:
            if child in self._dismissed:
                launcher.kill(child)
            child.channel.post(encode(Shutdown()))
        self._dismissed.update(self._children)
        self.due = time.monotonic() + self._grace if self._children else None


class Owner(Protocol):
    """Receives what children send and do."""

    @property
    def is_serving(self) -> bool:
        """Whether further children are needed."""

    def child_said(self, child: Child, frame: bytes) -> None:
        """A child has sent a frame."""

    def child_hung_up(self) -> None:
        """The child that runs the attempt has closed its end of the channel."""

    def child_exited(self, child: Child) -> None:
        """A child's process is gone, and all its messages were processed; the next is not begun yet."""

    def child_was_replaced(self) -> None:
        """A child's process is gone, and the next is begun if one is needed."""

    def children_changed(self, news: ImportedAhead | NotShared) -> None:
        """Children that are forked from now on have more modules, or load the function themselves."""

    def fork_server_died(self) -> None:
        """The fork server is gone, and its children with it; it is replaced."""

    def no_child_possible(self, message: str) -> None:
        """Children have stopped becoming ready, for this reason."""


class Children:
    """Makes children, receives their messages, and ends them.

    Args:
        task: Description of the run.
        context: The worker's place.
        launcher: Makes the children.
        poller: Calls back when one of them has sent something.
        owner: Receives what they send and do.

    Attributes:
        running: The child that runs the attempt.
        standby: The next one.
        exiting: Earlier ones, until their processes are gone.
    """

    def __init__(
        self, task: WorkerTask, context: WorkerContext, launcher: ChildLauncher, poller: Poller, owner: Owner
    ) -> None:
        self._task = task
        self._context = context
        self._launcher = launcher
        self._poller = poller
        self._owner = owner
        self.running: Child | None = None
        self.standby = Standby()
        self.exiting = ExitingChildren(task.grace)
        self._was_one_ready = False

    def __iter__(self) -> Iterator[Child]:
        found = (self.running, self.standby.child, *self.exiting)
        return iter([child for child in found if child is not None])

    @property
    def due(self) -> float | None:
        """Return when :meth:`attend` has something to do, if ever."""
        return min((at for at in (self.standby.due, self.exiting.due) if at is not None), default=None)

    @property
    def are_processes(self) -> bool:
        """Whether they can be killed, and their exit is noticed; an inline child is this very process."""
        return self._launcher.descriptor is not None

    def watch_launcher(self) -> None:
        """Watch the children's processes from now on."""
        if self._launcher.descriptor is not None:
            self._poller.add(self._launcher.descriptor, self._attend_launcher)

    def spawn(self) -> None:
        """Begin to make the next child, unless there is one or none is needed."""
        if not self._owner.is_serving:
            self.standby.due = None
        elif (child := self.standby.spawn(self._launcher)) is not None:
            self._poller.add(child.channel.fileno(), lambda: self._hear(child))

    def is_ready(self, child: Child) -> bool:
        """Record that a child is ready; whether it is the first of all."""
        self.standby.is_ready(child)
        is_first, self._was_one_ready = not self._was_one_ready, True
        return is_first

    def kill(self, child: Child) -> None:
        """Kill a child and all processes that it started."""
        self._launcher.kill(child)

    def import_ahead(self, modules: Sequence[str]) -> None:
        """Let later children begin with modules that a trial has imported."""
        self._launcher.import_ahead(modules)

    def let_exit(self, child: Child, delay: float = 0.0) -> None:
        """End a child in ``delay`` seconds."""
        self.exiting.add(child, delay)

    def run_standby(self) -> None:
        """Give the standby child an assignment."""
        self.running = self.standby.child
        self.standby.take()

    def drop_standby(self) -> None:
        """Discard a standby child that does not become ready."""
        if (child := self.standby.child) is not None:
            self.standby.take()
            self.exiting.add(child)
            self._launcher.kill(child)

    def attend(self, now: float) -> None:
        """Make, end or kill children if it is time to."""
        if self.standby.due is not None and now >= self.standby.due:
            self.spawn()
        if self.exiting.due is not None and now >= self.exiting.due:
            self.exiting.attend(self._launcher)

    def watch_unsent(self) -> None:
        """Send the rest when a child reads again, without waiting, because it may wait for us."""
        for child in self:
            channel = child.channel
            self._poller.when_writable(channel.fileno(), channel.flush if channel.has_unsent else None)

    def hear_out(self, child: Child) -> None:
        """Process all messages of a child up to now."""
        if child.channel.fileno() in self._poller:
            self._hear(child)

    def close(self) -> None:
        """Kill all."""
        self._launcher.close()
        for child in self:
            child.close()

    def _hear(self, child: Child) -> None:
        frames, alive = child.channel.drain()
        for frame in frames:
            self._owner.child_said(child, frame)
        if alive:
            return
        self._poller.remove(child.channel.fileno())
        if not self.are_processes:  # there is no exit that would tell
            child.status = 0
            self._take_exit(child)
        elif child is self.running:
            self._owner.child_hung_up()
        elif child is self.standby.child:
            self._launcher.kill(child)

    def _attend_launcher(self) -> None:
        if not self._launcher.attend():
            self._replace_launcher()
            return
        for child in self:
            if child.status is not None:
                self._take_exit(child)
        for news in self._launcher.news():
            if isinstance(news, ImportedAhead):
                self._renew_standby()
            self._owner.children_changed(news)

    def _renew_standby(self) -> None:
        """Let the next child begin with what was imported since it was forked."""
        if (child := self.standby.child) is not None and self._task.isolation == "process":
            self.standby.take()
            self.exiting.add(child)
            self.spawn()

    def _replace_launcher(self) -> None:
        """Start another fork server; a trial may have killed this one."""
        self._poller.remove(self._launcher.descriptor)
        if not self._was_one_ready:
            self._owner.no_child_possible(self._launcher.why_ended)
            return
        self._launcher.close()
        self._launcher = ForkServerLauncher(self._task, self._context)
        self.watch_launcher()
        self._owner.fork_server_died()
        for child in self:
            child.status = -signal.SIGKILL
            self._take_exit(child)

    def _take_exit(self, child: Child) -> None:
        """Record that a child's process is gone; its earlier messages still count."""
        if child.channel.fileno() in self._poller:
            self._poller.remove(child.channel.fileno())
            for frame in child.channel.drain()[0]:
                self._owner.child_said(child, frame)
        self._owner.child_exited(child)
        self.standby.lose(child, is_idle=self.running is None)
        self.exiting.discard(child)
        child.close()
        if self.standby.is_hopeless:
            self._owner.no_child_possible(f"its child processes {child.why_never_ready}")
        elif child.not_forked is None:
            self.spawn()
        self._owner.child_was_replaced()
