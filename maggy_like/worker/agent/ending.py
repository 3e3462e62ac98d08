"""Why an attempt must end, and when its process is killed for it: all that the agent knows of a stop."""

from __future__ import annotations

import time

from maggy_like.protocol.failure_kinds import FailureKind
from maggy_like.protocol.messages import Abort, Decided, Halt, Kept, Meet, Stop

OfAttempt = Meet | Decided | Kept | Halt | Stop | Abort
"""What the driver says of an attempt that runs."""

HANGUP_PATIENCE = 1.0
"""Seconds in which a child whose connection has ended must have exited, else it is killed."""


ABORT_PATIENCE = 0.3
"""Seconds in which the process of an attempt that another rank has ended may still end by itself, else it is killed.

The kernel closes a dying process's connections one after the other: the other ranks' may be closed, and the attempt be
aborted for it, before ours is. Then this process is the cause, and its own end must be told.
"""


class Ending:
    """What ends an attempt before its function returns. Each transition sets a time at which its process is killed.

    ==================  =============================================  ======================================
    transition          made when                                      what the driver hears of the attempt
    ==================  =============================================  ======================================
    ``request_stop``    the driver, or the leaving worker, stops it    ``stopped``, whatever else has happened
    ``abort``           another rank has ended the attempt             ``stopped``, if it has to be killed
    ``fail``            the agent ends it for a fault of its own       ``died`` of the first fault
    ``hang_up``         its child has closed the connection            ``died`` of what the process died of
    ==================  =============================================  ======================================

    Args:
        grace: Seconds between a stop of the driver's and the kill.

    Attributes:
        kill_at: When the process is to be killed; None while the attempt may run.
        is_stop_requested: Whether somebody has asked for its end.
        is_aborted: Whether another rank has ended the attempt.
        has_hung_up: Whether its child has closed the connection.
        fault: Kind and words of the fault that the agent ends it for, if there is one.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self.kill_at: float | None = None
        self.is_stop_requested = False
        self.is_aborted = False
        self.has_hung_up = False
        self.fault: tuple[FailureKind, str] | None = None

    def obey(self, message: OfAttempt) -> None:
        """Take in what the driver says, if it stops the attempt."""
        if isinstance(message, Halt | Stop):
            self.request_stop(self._grace)
        elif isinstance(message, Abort) and not self.has_hung_up:  # else it died before, and its own end tells how
            self.abort()

    def request_stop(self, grace: float) -> None:
        """It is to stop, and is killed if it has not in ``grace`` seconds."""
        self.is_stop_requested = True
        self._kill_by(time.monotonic() + grace)

    def abort(self) -> None:
        """It is killed if it does not end by itself just now."""
        self.is_aborted = True
        self._kill_by(time.monotonic() + ABORT_PATIENCE)

    def fail(self, kind: FailureKind, how: str, *, kill_in: float = 0.0) -> None:
        """End it for a fault of its own; the first fault stands."""
        self.fault = self.fault or (kind, how)
        self._kill_by(time.monotonic() + kill_in)

    def hang_up(self) -> None:
        """The child's end of the channel is closed; most often since the process has just died."""
        self.has_hung_up = True
        self._kill_by(time.monotonic() + HANGUP_PATIENCE)

    def kill_again(self) -> None:
        """It was killed just now; try once more in a while, should that not help."""
        self.kill_at = time.monotonic() + self._grace

    def _kill_by(self, due: float) -> None:
        self.kill_at = due if self.kill_at is None else min(self.kill_at, due)
