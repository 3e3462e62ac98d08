"""The worker's end of the communication: a DEALER socket, heartbeats, and one poll loop."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable

import msgspec
import zmq

from maggy_like.protocol.messages import (
    Beat,
    Hello,
    Refused,
    ToDriver,
    ToWorker,
    Welcome,
    awaits_answer,
    decode_to_worker,
    encode,
)
from maggy_like.protocol.task import KeyPair
from maggy_like.rpc.link import Arrival, Link, LinkError, body_of, new_session, read_header
from maggy_like.rpc.sockets import DEAD, WINDOW, limit_client, secure_client

HEARTBEAT = 1.0
"""Seconds between two heartbeats of a worker that sends nothing else."""

TALK = 2.0
"""Intervals for which any other message replaces a heartbeat: a report per interval, with a margin."""

HEARSAY = 3.0
"""Intervals without a message of the driver after which a worker sends a heartbeat in addition to other messages. The
answer shows that the driver is alive, and acknowledges what it has received."""


class Heartbeat:
    """Determines when a worker's next heartbeat is due, by the monotonic clock."""

    def __init__(self, now: float, interval: float = HEARTBEAT) -> None:
        self._interval = interval  # seconds between two heartbeats of a worker that sends nothing else
        self._beat = self._spoke = float("-inf")
        self.heard = now  # time of the driver's last message

    @property
    def due(self) -> float:
        """Time of the next heartbeat on the monotonic clock."""
        silent = min(self._spoke + TALK * self._interval, self.heard + HEARSAY * self._interval)
        return max(self._beat + self._interval, silent)

    def beat(self, now: float) -> None:
        """Record that the worker sends a heartbeat."""
        self._beat = now

    def spoke(self, now: float) -> None:
        """Record that the worker sends another message, over a connection that the driver knows."""
        self._spoke = now


Handler = Callable[[], None]
Source = int | zmq.Socket[bytes]


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message waits; takes a fifth of the time of a failed attempt to receive one."""
    return bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN)


class Poller:
    """A poller with a handler for each descriptor or socket."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._handlers: dict[Source, Handler] = {}
        self._writers: dict[Source, Handler] = {}
        self._paused: set[Source] = set()

    def __contains__(self, source: int) -> bool:
        return source in self._handlers

    def add(self, source: Source, handler: Handler) -> None:
        """Call ``handler`` whenever ``source`` can be read."""
        self._handlers[source] = handler
        self._register(source)

    def remove(self, source: int | None) -> None:
        """Stop watching a source, if it is watched."""
        if source is not None and self._handlers.pop(source, None) is not None:
            self._writers.pop(source, None)
            self._paused.discard(source)
            self._register(source)

    def pause(self, source: int, paused: bool) -> None:
        """Pause or resume reading from ``source``, if it is watched."""
        if source in self._handlers and paused is not (source in self._paused):
            (self._paused.add if paused else self._paused.discard)(source)
            self._register(source)

    def when_writable(self, source: int, handler: Handler | None) -> None:
        """Call ``handler`` whenever ``source`` can be written to, or stop that with None."""
        if source in self._handlers and (handler is None) is (source in self._writers):
            if handler is None:
                del self._writers[source]
            else:
                self._writers[source] = handler
            self._register(source)

    def poll(self, seconds: float) -> None:
        """Wait up to ``seconds``, and call the handlers that are due."""
        for source, events in self._poller.poll(math.ceil(seconds * 1000)):
            if (writer := self._writers.get(source)) is not None and events != zmq.POLLIN:
                writer()
            if (handler := self._handlers.get(source)) is None:  # another handler has removed it
                continue
            if source not in self._paused and events != zmq.POLLOUT:
                handler()

    def _register(self, source: Source) -> None:
        reads = source in self._handlers and source not in self._paused
        writes = source in self._writers
        self._poller.register(source, (zmq.POLLIN if reads else 0) | (zmq.POLLOUT if writes else 0))


CLOSE_PATIENCE = 1.0
"""Seconds within which the last messages must arrive."""

MAX_UNANSWERED = 2
"""Heartbeats without an answer after which the worker introduces itself again."""

_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_BEAT = encode(Beat())


class Client:
    """A DEALER socket to the driver, used from one thread. Only :meth:`close` waits.

    Messages reach the driver once and in order, even if the connection breaks: each is kept until the driver has
    acknowledged it, and sent again on the next connection. A name in ``address`` is resolved again for each connection;
    ``ipv6`` means that the driver listens at an IPv6 address.
    """

    def __init__(self, address: str, server_key: bytes, keys: KeyPair, *, ipv6: bool = False) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IPV6, int(ipv6 or "[" in address))
        limit_client(self._socket)
        secure_client(self._socket, server_key, keys)
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(_WATCHED)
        self.sockets = (self._socket, self._monitor)  # sockets to be polled for :meth:`receive`
        self._heartbeat = Heartbeat(time.monotonic())
        self.was_answered = False  # whether the driver has ever sent a message
        self._link = Link(new_session(), max_bytes=WINDOW)
        self._hello: Hello | None = None
        self._connected = False
        self._connected_at = 0.0
        self._welcome = False  # whether the driver knows this connection
        self._refused = False
        self._connections = 0
        self._unanswered = 0
        self._address = address

    @property
    def heard(self) -> float:
        """Time of the driver's last message on the monotonic clock."""
        return self._heartbeat.heard

    @property
    def due(self) -> float:
        """Time of the next :meth:`beat`, which other messages postpone."""
        return self._heartbeat.due

    @property
    def is_full(self) -> bool:
        """Whether too much waits for the driver to read more from the trial."""
        return self._link.is_full

    @property
    def is_crowded(self) -> bool:
        """Whether messages that may be dropped should be."""
        return self._link.fullness > 0.5

    def introduce(self, hello: Hello) -> None:
        """Connect, and say hello on this and on each later connection."""
        self._hello = hello
        self._socket.connect(self._address)

    def send(self, message: ToDriver) -> None:
        """Send a message."""
        self.forward(encode(message), urgent=awaits_answer(message))

    def forward(self, body: bytes, *, urgent: bool = False) -> None:
        """Send an encoded message; the driver reads an urgent one before others."""
        frame = self._link.number(body, urgent=urgent)
        if self._welcome:
            self._heartbeat.spoke(time.monotonic())
            self._put(frame)

    def beat(self) -> None:
        """Send a heartbeat, which the driver answers."""
        now = time.monotonic()
        self._heartbeat.beat(now)
        self._unanswered += 1
        if self._connected and now - max(self._heartbeat.heard, self._connected_at) > DEAD:
            self._connect_anew()
        elif self._connected and self._unanswered > MAX_UNANSWERED:
            self._say_hello()
        elif self._welcome:
            self._put(self._link.bare(_BEAT))

    def receive(self) -> list[ToWorker]:
        """Return all messages that have arrived, except unreadable ones."""
        if is_readable(self._monitor):
            self._watch_connection()
        messages: list[ToWorker] = []
        while is_readable(self._socket):
            frame = self._socket.recv(zmq.NOBLOCK)
            with contextlib.suppress(LinkError, msgspec.DecodeError):
                messages += self._take(frame)
        if self._link.owes_ack and self._welcome:
            self._put(self._link.bare(_BEAT))
        return messages

    def close(self) -> None:
        """Wait up to a second until the driver has everything, then close."""
        deadline = time.monotonic() + CLOSE_PATIENCE
        poller = zmq.Poller()
        for socket in self.sockets:
            poller.register(socket, zmq.POLLIN)
        while not (self._link.is_empty or self._refused) and (left := deadline - time.monotonic()) > 0:
            poller.poll(math.ceil(left * 1000))
            self.receive()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)
        self._context.term()

    def _take(self, frame: bytes) -> list[ToWorker]:
        header = read_header(frame)
        if header.session != self._link.session:
            return []
        message = decode_to_worker(body_of(frame))
        self.was_answered = True
        if isinstance(message, Refused):
            self._refused = True
            return [message]
        self._heartbeat.heard, self._unanswered = time.monotonic(), 0
        arrival = self._link.take(header, len(frame))
        self._link.settle()
        if isinstance(message, Welcome):
            self._welcome = True
            self._resend()
            return []
        if header.again:
            self._resend()
        if arrival in (Arrival.EARLY, Arrival.BARE) and self._link.should_ask(header):
            self._put(self._link.bare(_BEAT, again=True))
        return [message] if arrival is Arrival.NEXT else []

    def _watch_connection(self) -> None:
        while True:
            try:
                event = int.from_bytes(self._monitor.recv_multipart(zmq.NOBLOCK)[0][:2], "little")
            except zmq.Again:
                return
            self._connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            self._welcome = False
            if self._connected:
                self._connected_at = time.monotonic()
                self._say_hello()

    def _connect_anew(self) -> None:
        """Leave a connection without answers, which something between here and the driver may keep open."""
        self._connected = self._welcome = False
        with contextlib.suppress(zmq.ZMQError):  # it was closed a moment ago, and is opened again anyway
            self._socket.disconnect(self._address)
        self._socket.connect(self._address)

    def _say_hello(self) -> None:
        if self._hello is not None:
            self._connections += 1
            self._unanswered = 0
            self._put(self._link.bare(encode(msgspec.structs.replace(self._hello, connection=self._connections))))

    def _resend(self) -> None:
        for frame in self._link.unacknowledged():
            self._put(frame)

    def _put(self, frame: bytes) -> None:
        """Pass a frame to ZeroMQ; what it does not accept now is still in the link."""
        with contextlib.suppress(zmq.Again):
            self._socket.send(frame, zmq.NOBLOCK)
