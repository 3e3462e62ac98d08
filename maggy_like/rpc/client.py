"""The worker's end of the wire."""

from __future__ import annotations

import msgspec
import zmq

from maggy_like.messages import ToDriver, ToWorker, decode_to_worker, encode
from maggy_like.rpc.security import secure_client


class Client:
    """A DEALER socket to the driver; used from one thread.

    Args:
        address: ZeroMQ address of the driver.
        server_key: The driver's public CURVE key.
    """

    def __init__(self, address: str, server_key: bytes) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 1000)
        secure_client(self.socket, server_key)
        self.socket.connect(address)

    def send(self, message: ToDriver) -> None:
        """Send a message; waits when the driver is far behind, so that nothing is dropped."""
        self.socket.send(encode(message))

    def forward(self, frame: bytes) -> None:
        """Send a message that is encoded already."""
        self.socket.send(frame)

    def receive(self) -> list[ToWorker]:
        """All messages that have arrived; unreadable ones are left out."""
        messages: list[ToWorker] = []
        while True:
            try:
                frame = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append(decode_to_worker(frame))
            except msgspec.DecodeError:
                continue

    def close(self) -> None:
        """Send what is left for up to a second, then close."""
        self.socket.close()
        self._context.term()
