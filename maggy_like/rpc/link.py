"""Delivery exactly once and in order over connections that may break: numbers, acknowledgements, resending.

A link is one end of the communication between one incarnation of a worker and the driver. It does no I/O: it turns
bodies into frames, and determines for each frame that arrived whether its body is the next. Each frame begins with a
header of 25 bytes: the session, a number, the last number that arrived from the other end and is safe here (settled),
and flags. Numbered bodies are kept until the other end has acknowledged them. A bare one (a hello, a welcome, a
heartbeat) is not kept, and carries the number of the last numbered one instead, by which the other end sees whether it
misses any. A flag marks a body as urgent: its sender waits for the answer.
"""

from __future__ import annotations

import enum
import secrets
import struct
from collections import deque

import msgspec

SESSION_SIZE = 8
"""Length of a session's name in bytes."""

ACK_BYTES = 1 << 19
"""Bytes that may arrive before an acknowledgement is sent by itself, without waiting for another frame."""

ACK_COUNT = 100
"""The same as a number of frames."""

_HEADER = struct.Struct(f"!{SESSION_SIZE}sQQB")
_NUMBERED, _AGAIN, _URGENT = 1, 2, 4
_FLAGS_AT = _HEADER.size - 1


class LinkError(ValueError):
    """A frame that no correct peer sends."""


class Arrival(enum.Enum):
    """The result of a frame for its link."""

    NEXT = "next"
    """Its body is the next one, to be processed now."""
    REPEATED = "repeated"
    """It was processed before."""
    EARLY = "early"
    """One before it is missing; it will come again."""
    BARE = "bare"
    """It has no number: hello, welcome or beat."""


class Header(msgspec.Struct, frozen=True, gc=False):
    """The header of a frame."""

    session: bytes  # incarnation of a worker; chosen at random by the worker
    number: int  # number of this body; for a bare one, that of the last numbered body that was sent
    ack: int  # last number that arrived from the other end and is safe here
    is_numbered: bool  # whether the body has its own number
    again: bool  # whether the sender misses bodies after ``ack``


def new_session() -> bytes:
    """Return an unpredictable name for a session."""
    return secrets.token_bytes(SESSION_SIZE)


def read_header(frame: bytes) -> Header:
    """The header of a frame."""
    if len(frame) < _HEADER.size:
        raise LinkError(f"a frame of {len(frame)} bytes has no header of {_HEADER.size}")
    session, number, ack, flags = _HEADER.unpack_from(frame)
    if flags & ~(_NUMBERED | _AGAIN | _URGENT):
        raise LinkError(f"unknown flags {flags:#x}")
    return Header(session, number, ack, bool(flags & _NUMBERED), bool(flags & _AGAIN))


def is_urgent(frame: bytes) -> bool:
    """Whether the sender of a frame waits for an answer, so that it should be read before others; accepts any bytes."""
    return len(frame) > _FLAGS_AT and bool(frame[_FLAGS_AT] & _URGENT)


def body_of(frame: bytes) -> memoryview:
    """Return a frame without its header."""
    return memoryview(frame)[_HEADER.size :]


def bare_frame(session: bytes, body: bytes) -> bytes:
    """Return a frame for a peer without a link."""
    return _HEADER.pack(session, 0, 0, 0) + body


class Link:
    """One end of a session."""

    def __init__(self, session: bytes, max_bytes: int = 16 << 20, max_count: int = 1000) -> None:
        self.session = session
        self._max_bytes = max_bytes  # maximum size of unacknowledged bodies before :attr:`is_full`, in bytes
        self._max_count = max_count
        self._kept: deque[tuple[int, bytes, int]] = deque()  # number, body and flags
        self._size = 0
        self._sent = 0
        self._received = 0
        self._gap_after = -1  # the last number before a gap that was asked for
        self._settled = 0  # the last number that may be acknowledged
        self._acknowledged = 0  # the last number that was
        self._unsettled_bytes = self._owed_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether all numbered bodies have arrived."""
        return not self._kept

    @property
    def fullness(self) -> float:
        """Fraction of the capacity in use; above 1 after the last body, which is accepted completely."""
        return max(self._size / self._max_bytes, len(self._kept) / self._max_count)

    @property
    def is_full(self) -> bool:
        """Whether nothing should be numbered until more is acknowledged."""
        return self.fullness >= 1

    @property
    def owes_ack(self) -> bool:
        """Whether so much has arrived since the last outgoing frame that the other end's capacity may run short."""
        return self._settled - self._acknowledged >= ACK_COUNT or self._owed_bytes >= ACK_BYTES

    def number(self, body: bytes, *, urgent: bool = False) -> bytes:
        """Number a body, keep it, and return its frame, which carries whether it is urgent."""
        self._sent += 1
        flags = _NUMBERED | (_URGENT if urgent else 0)
        self._kept.append((self._sent, body, flags))
        self._size += len(body)
        return self._frame(self._sent, body, flags)

    def bare(self, body: bytes, *, again: bool = False) -> bytes:
        """Return the frame of a body that may be lost; with ``again`` it also requests what is missing."""
        return self._frame(self._sent, body, _AGAIN if again else 0)

    def unacknowledged(self) -> list[bytes]:
        """Return the frames of all kept bodies, to be sent again in this order."""
        return [self._frame(number, body, flags) for number, body, flags in self._kept]

    def take(self, header: Header, size: int) -> Arrival:
        """Process a frame of this session; it is acknowledged once it is settled."""
        if header.ack > self._sent:
            raise LinkError(f"acknowledges {header.ack} where {self._sent} were sent")
        while self._kept and self._kept[0][0] <= header.ack:
            self._size -= len(self._kept.popleft()[1])
        if not header.is_numbered:
            return Arrival.BARE
        if header.number <= self._received:
            return Arrival.REPEATED
        if header.number > self._received + 1:
            return Arrival.EARLY
        self._received += 1
        self._unsettled_bytes += size
        return Arrival.NEXT

    def settle(self) -> None:
        """Acknowledge in later frames everything that was processed, because it is safe in the journal."""
        self._settled = self._received
        self._owed_bytes += self._unsettled_bytes
        self._unsettled_bytes = 0

    def should_ask(self, header: Header) -> bool:
        """Whether a frame reveals a gap to be requested: once per gap, and again with each heartbeat while it lasts."""
        if header.number <= self._received + header.is_numbered:
            return False
        if header.is_numbered and self._gap_after == self._received:
            return False
        self._gap_after = self._received
        return True

    def _frame(self, number: int, body: bytes, flags: int) -> bytes:
        self._acknowledged, self._owed_bytes = self._settled, 0
        return _HEADER.pack(self.session, number, self._settled, flags) + body
