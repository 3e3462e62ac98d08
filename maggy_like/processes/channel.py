"""Whole messages over a local stream socket: four bytes of length, then the bytes.

Between an agent and its fork server and children. A Unix stream socket, not a datagram one, since
macOS has no SOCK_SEQPACKET and the pickled function may be large.
"""

from __future__ import annotations

import socket
import struct
import threading

_LENGTH = struct.Struct("!I")

MAX_MESSAGE = 1 << 28
"""Bytes of a message; a peer that announces a longer one is disconnected."""


class Disconnected(OSError):
    """The other end is gone, or this one is no longer what it was."""


class Channel:
    """One end of a socket pair. ``send`` may be called from several threads, all else from one.

    An end either sends or posts: only so does a message never begin inside another.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._unsent = bytearray()

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A channel, and the raw socket of its other end to hand to another process."""
        mine, theirs = socket.socketpair()
        return cls(mine), theirs

    def fileno(self) -> int:
        """For pollers."""
        return self._sock.fileno()

    def send(self, message: bytes) -> None:
        """Send one message whole.

        Raises:
            Disconnected: It cannot be sent.
        """
        try:
            with self._lock:
                self._sock.sendall(_LENGTH.pack(len(message)) + message)
        except OSError as error:
            raise Disconnected(*error.args) from None

    def post(self, message: bytes) -> None:
        """Send one message whole, and never wait: what does not go out now is kept for :meth:`flush`."""
        self._unsent += _LENGTH.pack(len(message)) + message
        self.flush()

    def flush(self) -> None:
        """Send what of the posted messages the other end takes now; where it is gone, they are dropped."""
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except OSError:  # reading tells of it
            self._unsent.clear()

    @property
    def has_unsent(self) -> bool:
        """Whether something that was posted has not gone out."""
        return bool(self._unsent)

    def receive(self) -> bytes | None:
        """Wait for one message; None when the other end is gone."""
        while (message := self._next()) is None:
            if not self._fill():
                return None
        return message

    def drain(self) -> tuple[list[bytes], bool]:
        """All whole messages that have arrived; does not wait.

        Returns:
            The messages, and whether the other end is still there.
        """
        alive = self._fill(socket.MSG_DONTWAIT)
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        too_long = len(self._buffer) >= _LENGTH.size and _LENGTH.unpack_from(self._buffer)[0] > MAX_MESSAGE
        return messages, alive and not too_long

    def close(self) -> None:
        """Close this end."""
        self._sock.close()

    def _fill(self, flags: int = 0) -> bool:
        """Read once; False when the other end is gone."""
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
