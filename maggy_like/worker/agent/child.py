"""One child process of an agent, as the agent sees it."""

from __future__ import annotations

import os
import signal

import msgspec

from maggy_like.processes.channel import Channel
from maggy_like.protocol.messages import FailureKind, ToDriver, decode_to_driver
from maggy_like.worker.agent.template import HUNG_UP

DISCONNECTED = (
    FailureKind.DISCONNECTED,
    "closed the connection to its agent; train_fn must leave file descriptors alone that it did not open",
)
"""Kind and words for a child whose messages cannot be read any more."""


class Child:
    """The agent's view of one child.

    Attributes:
        channel: For messages.
        output: Read end of its stdout and stderr, or None when they are not captured.
        pid: Once known.
        ready: Whether it holds the training function and waits for an assignment.
        not_forked: Why it could not be made, if so.
        status: Exit status once it has ended, or could not be made; negative for a signal.
        oom: Whether the kernel killed it for want of memory.
        killed: Whether the agent had it killed before it had ended by itself.
        is_spoiled: Whether it is not fit for another trial.
    """

    def __init__(self, channel: Channel, output: int | None) -> None:
        self.channel = channel
        self.output = output
        self.pid: int | None = None
        self.ready = False
        self.not_forked: str | None = None
        self.status: int | None = None
        self.oom = False
        self.killed = False
        self.is_spoiled = False

    @property
    def why_never_ready(self) -> str:
        """Why it, and others like it, never got ready; for a message."""
        if self.not_forked is not None:
            return f"cannot be made: {self.not_forked}"
        return "die before they can load train_fn"

    @property
    def how_it_ended(self) -> tuple[FailureKind, str]:
        """Kind and words for the exit status of a child that has reported no end."""
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
        """What it sent; None for what is no message, since its trial wrote to what it did not open."""
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
