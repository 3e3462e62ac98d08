"""A ROUTER socket that listens at one address of this machine."""

from __future__ import annotations

import zmq

from maggy_like.rpc.endpoint import take_port
from maggy_like.rpc.ports import PortRange, bracketed


def listen(socket: zmq.Socket[bytes], address: str, ports: PortRange) -> int:
    """Listen at the first free port of a range; gives the port.

    Raises:
        EngineError: None is free, or may be taken.
    """

    def bind(port: int) -> int:
        try:
            socket.bind(f"tcp://{bracketed(address)}:{port or '*'}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, str(error)) from None
        return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    return take_port(address, ports, bind)
