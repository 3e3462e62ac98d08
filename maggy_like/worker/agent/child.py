"""One child process of an agent, from the agent's side."""

from __future__ import annotations

import os
import signal

import msgspec

from maggy_like.processes.channel import Channel
from maggy_like.protocol.messages import FailureKind, ToDriver, decode_to_driver
from maggy_like.worker.agent.template import HUNG_UP

DISCONNECTED = (
    FailureKind.DISCONNECTED,
    "closed the connection to its agent; train_fn must not close or use file descriptors that it did not open",
)
"""Kind and description for a child whose messages can no longer be read."""


class Child:
    """The agent's view of one child.

    Attributes:
        channel: Channel for messages.
        output: Read end of its stdout and stderr, or None if they are not captured.
        pid: Process id, once known.
        ready: Whether it has loaded the training function and waits for an assignment.
        not_forked: Why it could not be made, if so.
        status: Exit status once it has ended, or could not be made; negative for a signal.
        oom: Whether the kernel killed it because memory was short.
        killed: Whether the agent killed it before it had ended by itself.
        is_spoiled: Whether it cannot run another trial.
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
