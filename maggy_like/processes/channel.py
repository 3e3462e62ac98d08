"""Complete messages over a local stream socket: four bytes of length, then the bytes.

They connect an agent with its fork server and children. The socket is a stream, since macOS has no SOCK_SEQPACKET and
the pickled function may be larger than a datagram.
"""

from __future__ import annotations

import socket
import struct
import threading

_LENGTH = struct.Struct("!I")

MAX_MESSAGE = 1 << 28
"""Maximum bytes of a message; a peer that announces a longer one is disconnected."""


class Disconnected(OSError):
    """The other end is closed, or this one is."""


class Channel:
    """One end of a socket pair. ``send`` may be called from several threads, all other methods from one.

    An end must use either ``send`` or ``post``, so that no message begins inside another.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._unsent = bytearray()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return a channel, and the raw socket of its other end for another process."""
        mine, theirs = socket.socketpair()
        return cls(mine), theirs

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: bytes) -> None:
        """Send one message; raise ``Disconnected`` if it cannot be sent."""
        try:
            with self._lock:
                self._sock.sendall(_LENGTH.pack(len(message)) + message)
        except OSError as error:
            raise Disconnected(*error.args) from None

    def post(self, message: bytes) -> None:
        """Send one message without waiting: bytes that cannot be sent now are kept for :meth:`flush`."""
        self._unsent += _LENGTH.pack(len(message)) + message
        self.flush()

    def flush(self) -> None:
        """Send the bytes of posted messages that the other end takes now; drop them if it is closed."""
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except OSError:  # reading notices it
            self._unsent.clear()

    @property
    def has_unsent(self) -> bool:
        """Whether posted bytes are not sent yet."""
        return bool(self._unsent)

    def receive(self) -> bytes | None:
        """Wait for one message; return None when the other end is closed."""
        while (message := self._next()) is None:
            if not self._fill():
                return None
        return message

    def drain(self) -> tuple[list[bytes], bool]:
        """Return all complete messages that have arrived, without waiting, and whether the other end is still open."""
        alive = self._fill(socket.MSG_DONTWAIT)
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        too_long = len(self._buffer) >= _LENGTH.size and _LENGTH.unpack_from(self._buffer)[0] > MAX_MESSAGE
        return messages, alive and not too_long

    def close(self) -> None:
        self._sock.close()

    def _fill(self, flags: int = 0) -> bool:
        """Read once; return False when the other end is closed."""
        try:
            chunk = self._sock.recv(1 << 18, flags)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._buffer += chunk
        return bool(chunk)

    def _next(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        message = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return message
