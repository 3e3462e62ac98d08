"""Children whose attempt has ended, until their processes are gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

from maggy_like.protocol.codec import encode
from maggy_like.protocol.messages import Shutdown
from maggy_like.worker.agent.child import Child
from maggy_like.worker.agent.launchers import ChildLauncher


class ExitingChildren:
    """Has them exit at a quiet moment, and kills those that do not.

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
        """A child is gone, one of these or not."""
        self._dismissed.discard(child)
        if child in self._children:
            self._children.remove(child)

    def attend(self, launcher: ChildLauncher) -> None:
        """Send a shutdown to those that have none yet; kill those that had one and their time."""
        for child in self._children:
            if child in self._dismissed:
                launcher.kill(child)
            child.channel.post(encode(Shutdown()))
        self._dismissed.update(self._children)
        self.due = time.monotonic() + self._grace if self._children else None
