"""One incarnation of a worker, as the server knows it."""

from __future__ import annotations

from dataclasses import dataclass

from maggy_like.protocol.identity import WorkerId
from maggy_like.rpc.link import Link

MAX_BEATS = 10.0
"""Beats of a worker a second that are passed on; as many may come at once after a pause. More are counted only."""

REMINDER = 1.0
"""Seconds after which a worker that says something, and does not acknowledge what it was sent, is shown what that was:
it may have been lost."""

MIN_RESEND = 0.02
"""Seconds between two times that a worker may have everything sent again."""


@dataclass(slots=True)
class Peer:
    """A worker's session, and the connection that it has now.

    Attributes:
        worker: Whose session it is.
        link: Numbers and acknowledges what is sent in it.
        route: ZeroMQ's name of the connection.
        connection: How many the worker has made.
        leaves: Whether it has said goodbye.
    """

    worker: WorkerId
    link: Link
    route: bytes
    connection: int
    leaves: bool = False
    _beat_at: float = 0.0
    _beats: float = MAX_BEATS
    _resent_at: float = 0.0
    _sent_at: float = 0.0

    def may_beat(self, now: float) -> bool:
        """Whether a beat that comes now is passed on."""
        left = min(MAX_BEATS, self._beats + (now - self._beat_at) * MAX_BEATS)
        allowed = left >= 1
        self._beat_at, self._beats = now, left - 1 if allowed else left
        return allowed

    def was_sent(self, now: float) -> None:
        """Take in that the worker is sent something that it must acknowledge."""
        self._sent_at = now

    def must_be_reminded(self, now: float) -> bool:
        """Whether a worker that has just said something should have acknowledged by now what it was sent."""
        if self.link.is_empty or now - self._sent_at < REMINDER:
            return False
        self._sent_at = now
        return True

    def may_resend(self, now: float) -> bool:
        """Whether all that is not acknowledged may be sent again now."""
        if now - self._resent_at < MIN_RESEND:
            return False
        self._resent_at = now
        return True
