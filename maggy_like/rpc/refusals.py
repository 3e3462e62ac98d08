"""Refused peers and messages: counted by reason, logged once a reason, answered a few times, then not even read."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass

_log = logging.getLogger(__name__)

MAX_ANSWERS = 3
"""Times that one connection gets an answer that says why it is refused."""

MAX_STRIKES = 20
"""Refused frames of one connection after which nothing that it sends is read."""

_MAX_CONNECTIONS = 10_000


@dataclass(frozen=True, slots=True)
class Unfit:
    """A worker that was launched cannot serve this driver, and was refused.

    Attributes:
        host: Its machine.
        why: How it differs from the driver, and what to do.
    """

    host: str
    why: str


class Refusals:
    """Keeps count of what was refused, in bounded memory and log lines.

    Attributes:
        counts: How often, by reason. The reasons are our own words, never the peer's.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._strikes: OrderedDict[bytes, int] = OrderedDict()  # by connection; the oldest are forgotten first

    def is_muted(self, identity: bytes) -> bool:
        """Whether a connection sent so much nonsense that it is not read any more."""
        return self._strikes.get(identity, 0) >= MAX_STRIKES

    def count(self, reason: str) -> None:
        """Count something that speaks against nobody: honest peers do it too, after a reset connection."""
        self.counts[reason] += 1
        if self.counts[reason] == 1:  # once a kind: a flood must not become a flood of log lines
            _log.warning("refused a peer or message: %s (told once)", reason)

    def strike(self, identity: bytes, reason: str) -> bool:
        """Count nonsense against its connection; whether it is worth an answer."""
        self.count(reason)
        strikes = self._strikes[identity] = self._strikes.pop(identity, 0) + 1
        if len(self._strikes) > _MAX_CONNECTIONS:
            self._strikes.popitem(last=False)
        return strikes <= MAX_ANSWERS
