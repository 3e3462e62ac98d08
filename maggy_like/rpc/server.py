"""The driver's end of the communication: frames in, typed messages out, each exactly once."""

from __future__ import annotations

import heapq
import itertools
import logging
import socket as sockets
import struct
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Container, Iterator, Sized
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import zmq

from maggy_like.errors import ConfigError
from maggy_like.protocol.messages import (
    PROTOCOL_VERSION,
    Beat,
    Goodbye,
    Hello,
    Refused,
    ToDriver,
    ToWorker,
    Welcome,
    decode_to_driver,
    encode,
    foreign_hello,
    foreign_protocol,
    misfit,
    own_versions,
)
from maggy_like.protocol.task import KeyPair, WorkerId
from maggy_like.rpc.endpoint import ANY_PORT, PortRange, bracketed, own_address, take_port
from maggy_like.rpc.link import Arrival, Header, Link, LinkError, bare_frame, body_of, is_urgent, read_header
from maggy_like.rpc.sockets import MAX_BACKLOG, MAX_FRAME, AllowList, limit_server, new_key_pair, secure_server

_Frame = TypeVar("_Frame", bound=Sized)

FRAME_COST = 1024
"""Cost of a frame in addition to its bytes, because many small ones take time and memory too."""

HEAD_START = 1 << 20
"""Maximum bytes of others that a frame overtakes if its connection has recently sent as much less."""

URGENT_START = 1 << 20
"""Further bytes of others that an urgent frame overtakes."""


class _Queue(msgspec.Struct, Generic[_Frame]):
    """The waiting frames of one connection."""

    # In order, each with its due time and its cost; None stands for one that was not kept.
    frames: deque[tuple[int, int, _Frame | None]]
    end: int  # due time of the last frame that arrived
    urgent: int = 0  # number of frames up to the last urgent one
    entry: int = -1  # valid entry of this connection among those that are due


class FairBacklog(Generic[_Frame]):
    """A queue that serves connections in turns, by bytes: one that sends little never waits for one that sends much.

    Each frame is due when its connection has had as many bytes as all others (self-clocked fair queueing, Golestani
    1994, equations 3 and 4, with equal shares). The frames of one connection stay in order. An urgent one is due
    sooner, and so are earlier ones of its connection. It costs as much as any other, so a connection that declares
    everything urgent soon waits for its share like the others.
    """

    def __init__(self) -> None:
        self.size = 0  # number of waiting bytes
        self._count = 0
        self._queues: dict[bytes, _Queue[_Frame]] = {}
        self._due: list[tuple[int, int, bytes]] = []  # of each connection the entry that it names; others are old
        self._many = 1000
        self._entries = itertools.count()
        self._clock = 0

    def __len__(self) -> int:
        return self._count

    def put(self, connection: bytes, frame: _Frame | None, *, urgent: bool = False) -> None:
        """Add a frame; None stands for one that was not kept."""
        cost = FRAME_COST + (0 if frame is None else len(frame))
        first = self._clock - HEAD_START
        queue = self._queues.get(connection)
        if queue is None:
            queue = self._queues[connection] = _Queue(deque(), first)
        elif queue.end < first:
            queue.end = first
        queue.end += cost
        queue.frames.append((queue.end, cost, frame))
        self.size += cost
        self._count += 1
        if urgent:
            queue.urgent = len(queue.frames)
        if urgent or len(queue.frames) == 1:
            self._enter(connection, queue)
        if len(self._queues) > self._many:
            self._forget()

    def take(self) -> tuple[bytes, _Frame | None]:
        """Return the next frame that is due, and its connection; the queue must not be empty."""
        while True:
            _, entry, connection = heapq.heappop(self._due)
            queue = self._queues.get(connection)
            if queue is not None and queue.entry == entry:
                break
        due, cost, frame = queue.frames.popleft()
        queue.urgent -= queue.urgent > 0
        self._clock = max(self._clock, due)
        self.size -= cost
        self._count -= 1
        if queue.frames:
            self._enter(connection, queue)
        else:
            queue.entry = -1
        if not self._count:  # nobody waits: all are equal again
            self._queues.clear()
            self._due.clear()
        return connection, frame

    def _enter(self, connection: bytes, queue: _Queue[_Frame]) -> None:
        """Enter a connection's first frame by its due time."""
        due = queue.frames[0][0]
        if queue.urgent:  # the frames before it go first, and must not keep it
            due = min(due, queue.frames[queue.urgent - 1][0] - URGENT_START)
        queue.entry = next(self._entries)
        heapq.heappush(self._due, (due, queue.entry, connection))

    def _forget(self) -> None:
        """Forget the connections whose advantage is complete again."""
        late = self._clock - HEAD_START
        self._queues = {name: queue for name, queue in self._queues.items() if queue.frames or queue.end > late}
        self._many = 1000 + 2 * len(self._queues)


_log = logging.getLogger(__name__)

MAX_ANSWERS = 3
"""Number of answers to one connection with the reason why it is refused."""

MAX_STRIKES = 20
"""Number of refused frames of one connection after which it is no longer read."""

_MAX_CONNECTIONS = 10_000


@dataclass(frozen=True, slots=True)
class Unfit:
    """A launched worker that cannot serve this driver, and was refused."""

    host: str
    why: str  # how it differs from the driver, and the remedy


class Refusals:
    """Counts refusals, in bounded memory and log lines."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # number by reason. The reasons are our own texts, never the peer's
        self._strikes: OrderedDict[bytes, int] = OrderedDict()  # by connection; the oldest are forgotten first

    def is_muted(self, identity: bytes) -> bool:
        """Whether a connection sent so many invalid frames that it is no longer read."""
        return self._strikes.get(identity, 0) >= MAX_STRIKES

    def count(self, reason: str) -> None:
        """Count an event that correct peers also cause, after a reset connection."""
        self.counts[reason] += 1
        if self.counts[reason] == 1:  # once a kind: a flood must not become a flood of log lines
            _log.warning("refused a peer or message: %s (logged once)", reason)

    def strike(self, identity: bytes, reason: str) -> bool:
        """Count an invalid frame of a connection; whether to answer it."""
        self.count(reason)
        strikes = self._strikes[identity] = self._strikes.pop(identity, 0) + 1
        if len(self._strikes) > _MAX_CONNECTIONS:
            self._strikes.popitem(last=False)
        return strikes <= MAX_ANSWERS


HANDSHAKE_PATIENCE = 30.0
"""Seconds within which a connection must complete its handshake.

Thousands of workers that connect at once wait for each other's cryptography. One that is disconnected meanwhile begins
again, so a short limit increases the load.
"""

_EVENT = struct.Struct("=HI")
_FAILURES = {
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "no handshake in time",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "handshake without our key",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "key not on the list",
}
_WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | sum(_FAILURES)
_ROUND = 2000


class Handshakes:
    """Admits peers of the run to a ROUTER socket, and counts the others."""

    def __init__(self, socket: zmq.Socket[bytes], allowed: AllowList, refusals: Refusals) -> None:
        socket.setsockopt(zmq.HANDSHAKE_IVL, int(HANDSHAKE_PATIENCE * 1000))
        self._socket = socket
        self._allowed = allowed
        self._refusals = refusals
        self._monitor = _monitor(socket)
        self._open: deque[float] = deque()  # when connections came whose handshake has not ended
        self._attended = time.monotonic()
        self.sockets = (allowed.socket, self._monitor)  # sockets to be polled for :meth:`attend`

    def attend(self, ready: Container[object]) -> None:
        """Process what happened; bounded, never waits.

        ``ready`` holds those of :attr:`sockets` that can be read, because trying the others takes time from each
        message.
        """
        for _ in range(_ROUND if self._allowed.socket in ready else 0):
            if not self._allowed.answer():
                break
        for _ in range(_ROUND if self._monitor in ready else 0):
            try:
                event, _ = _EVENT.unpack(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                break
            if event == zmq.EVENT_ACCEPTED:
                self._open.append(time.monotonic())
            elif self._open:
                self._open.pop()
            if event in _FAILURES:
                self._refusals.count(_FAILURES[event])
        # What speaks another protocol is cut off at once, and ZeroMQ tells of no failure: only that no end came.
        now = time.monotonic()
        if (stood_still := now - self._attended) > HANDSHAKE_PATIENCE / 2:  # so may ZeroMQ have, and tell in a moment
            self._open = deque(came + stood_still for came in self._open)
        self._attended = now
        late = now - 2 * HANDSHAKE_PATIENCE
        while self._open and self._open[0] < late:
            self._open.popleft()
            self._refusals.count("not ZeroMQ")

    def close(self) -> None:
        """Close, before the socket itself."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._allowed.socket.close(0)


def _monitor(socket: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Return a monitor of a socket's handshakes with an unbounded queue.

    With a bound, libzmq's I/O thread would stop until somebody reads, and with it every connection.
    """
    address = f"inproc://handshakes-{id(socket)}"
    socket.monitor(address, _WATCHED)
    monitor: zmq.Socket[bytes] = socket.context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(address)
    return monitor


MAX_BEATS = 10.0
"""Heartbeats per second and worker that are passed on; as many may arrive at once after a pause. More are only
counted."""

REMINDER = 1.0
"""Seconds after which a message is announced again to a worker that sends messages but does not acknowledge it, because
it may have been lost."""

MIN_RESEND = 0.02
"""Minimum seconds between two requests of a worker to send everything again."""


@dataclass(slots=True)
class Peer:
    """A worker's session, and its present connection."""

    worker: WorkerId  # worker of the session
    link: Link  # numbers and acknowledges what is sent in it
    route: bytes  # ZeroMQ's name of the connection
    connection: int  # number of connections that the worker has made
    leaves: bool = False  # whether it has sent its goodbye
    _beat_at: float = 0.0
    _beats: float = MAX_BEATS
    _resent_at: float = 0.0
    _sent_at: float = 0.0

    def may_beat(self, now: float) -> bool:
        """Whether a heartbeat that arrives now is passed on."""
        left = min(MAX_BEATS, self._beats + (now - self._beat_at) * MAX_BEATS)
        allowed = left >= 1
        self._beat_at, self._beats = now, left - 1 if allowed else left
        return allowed

    def was_sent(self, now: float) -> None:
        """Record that the worker is sent something that it must acknowledge."""
        self._sent_at = now

    def must_be_reminded(self, now: float) -> bool:
        """Whether a worker that has just sent something should have acknowledged earlier messages by now."""
        if self.link.is_empty or now - self._sent_at < REMINDER:
            return False
        self._sent_at = now
        return True

    def may_resend(self, now: float) -> bool:
        """Whether all unacknowledged messages may be sent again now."""
        if now - self._resent_at < MIN_RESEND:
            return False
        self._resent_at = now
        return True


def listen(socket: zmq.Socket[bytes], address: str, ports: PortRange) -> int:
    """Listen at the first free port of a range, and return the port."""

    def bind(port: int) -> int:
        try:
            socket.bind(f"tcp://{bracketed(address)}:{port or '*'}")
        except zmq.ZMQError as error:
            raise OSError(error.errno, str(error)) from None
        return int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    return take_port(address, ports, bind)


FETCH = 1000
"""Maximum number of parts of messages that are fetched at once; a message should be one."""

FETCH_SECONDS = 0.002
"""Seconds of work after which :meth:`Server.poll` checks for new messages, which may be more urgent."""

ROUND_SECONDS = 0.01
"""Seconds for which one :meth:`Server.poll` yields messages, the work of its caller included. The rest waits, and so do
the answers, which are sent at the end of the round, once its events are in the journal."""

ROUND_BYTES = 4 << 20
"""Maximum bytes that it yields; the last message is yielded completely."""

IMPOSTOR = "speaks for another worker"

_NO_SESSION = bytes(8)

_MORE = zmq.NOBLOCK | zmq.SNDMORE
_NEXT, _EARLY, _REPEATED = Arrival.NEXT, Arrival.EARLY, Arrival.REPEATED
"""Members of enumerations, looked up once, because Python 3.11 takes as long for one as for a call."""


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message of an introduced worker, or of one that is unfit."""

    worker: WorkerId
    message: ToDriver | Unfit


class Server:
    """A ROUTER socket. Used from the driver's thread, except :meth:`wake` and :meth:`admit`.

    It accepts only the workers that were admitted, each with its own key, and each only for itself. It binds to
    ``bind``, a name or address of this machine, or to ``host`` by default.
    """

    def __init__(self, host: str, *, bind: str = "", ports: PortRange = ANY_PORT, keys: KeyPair | None = None) -> None:
        bound = own_address(bind or host)
        self._refusals = Refusals()
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 500)
        limit_server(self._socket)
        self.is_ipv6 = ":" in bound  # whether workers must choose an IPv6 address among those of ``host``
        self._socket.setsockopt(zmq.IPV6, int(self.is_ipv6))
        keys = keys or new_key_pair()
        self.public_key = keys[0]  # key by which workers recognize the driver
        secure_server(self._socket, keys)
        self._allowed = AllowList(self._context)
        self._handshakes = Handshakes(self._socket, self._allowed, self._refusals)
        try:
            port = listen(self._socket, bound, ports)
        except BaseException:
            self._handshakes.close()
            self._socket.close(0)
            self._context.term()
            raise
        self.address = f"tcp://{bracketed(host)}:{port}"  # address to which workers connect
        self._versions = own_versions()
        self._sessions: dict[bytes, Peer] = {}
        self._places: dict[int, Peer] = {}  # the newest incarnation of each
        self._identity = b""  # of the message that is being fetched
        self._excess = 0  # parts of it but for the last
        self._backlog: FairBacklog[zmq.Frame] = FairBacklog()
        self._heard: dict[bytes, Peer] = {}  # by session: peers with messages that are not acknowledged
        self._wake_read, self._wake_write = sockets.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._poller = zmq.Poller()
        for watched in (self._socket, *self._handshakes.sockets, self._wake_read.fileno()):
            self._poller.register(watched, zmq.POLLIN)

    @property
    def refused(self) -> Counter[str]:
        """Number of refusals by reason."""
        return self._refusals.counts

    def admit(self, worker: WorkerId) -> KeyPair:
        """Accept an incarnation of a worker from now on, but no older one of its place, and return its key pair."""
        return self._allowed.admit(worker)

    def expect(self, worker: WorkerId, public: bytes) -> None:
        """Accept an incarnation with a key pair that was created before the run; call before :meth:`poll`."""
        self._allowed.expect(worker, public)

    def wake(self) -> None:
        """Make :meth:`poll` return soon; from any thread."""
        try:
            self._wake_write.send(b"w")
        except OSError:  # full: it is awake anyway; closed: nothing waits
            return

    def poll(self, timeout: float) -> Iterator[Received]:
        """Wait up to ``timeout`` seconds, then yield what has arrived, for a bounded time and fairly between workers.

        Only :meth:`acknowledge` acknowledges it.
        """
        ready = dict(self._poller.poll(0 if self._backlog else int(timeout * 1000)))
        if self._wake_read.fileno() in ready:
            self._wake_read.recv(4096)
        self._handshakes.attend(ready)
        if self._socket in ready:
            self._fetch()
        fetched = time.monotonic()
        until, room = fetched + ROUND_SECONDS, ROUND_BYTES
        while self._backlog and room > 0 and (now := time.monotonic()) < until:
            if now - fetched > FETCH_SECONDS:
                self._fetch()
                fetched = time.monotonic()
            identity, frame = self._backlog.take()
            room -= len(frame) if frame is not None else 0
            if (received := self._read(identity, frame)) is not None:
                yield received

    def acknowledge(self) -> None:
        """Acknowledge all messages yielded so far, so that workers may drop them."""
        for peer in self._heard.values():
            peer.link.settle()
            if peer.link.owes_ack or peer.leaves:
                self._put(peer.route, peer.link.bare(_BEAT))
        self._heard.clear()

    def send(self, worker: WorkerId, message: ToWorker) -> None:
        """Send to a worker, unless it never introduced itself or was replaced. Never waits."""
        peer = self._places.get(worker.index)
        if peer is None or peer.worker != worker:
            return
        body = encode(message)
        if len(body) > MAX_FRAME:
            raise ConfigError(
                f"a configuration must have less than {MAX_FRAME} bytes, got {len(body)}; pass large values by path "
                "or URL"
            )
        if isinstance(message, Beat):
            self._put(peer.route, peer.link.bare(body))
        elif peer.link.is_full:  # it beats, but never acknowledges: no worker of ours
            self._refusals.count("acknowledges nothing")
            self._sessions.pop(peer.link.session, None)
        else:
            peer.was_sent(time.monotonic())
            self._put(peer.route, peer.link.number(body))

    def close(self) -> None:
        """Send the rest for up to half a second, then close the port; a second call does nothing."""
        if self._socket.closed:
            return
        self._handshakes.close()
        self._socket.close()
        self._context.term()
        self._wake_read.close()
        self._wake_write.close()

    def _fetch(self) -> None:
        """Take messages from ZeroMQ, up to a bound; it serves all connections in turns, message by message."""
        for _ in range(FETCH):
            if self._backlog.size >= MAX_BACKLOG:
                return
            try:
                if not self._identity:  # of the connection: ZeroMQ puts it before each message
                    self._identity = self._socket.recv(zmq.NOBLOCK)
                part = self._socket.recv(zmq.NOBLOCK, copy=False)  # a frame, which knows whose key brought it
            except zmq.Again:
                return
            # A message of a million frames must neither fill the memory nor stop the loop.
            self._excess += part.more
            if not part.more:
                if self._excess or len(part) > MAX_FRAME:
                    self._backlog.put(self._identity, None)
                else:
                    self._backlog.put(self._identity, part, urgent=is_urgent(part.bytes))
                self._identity, self._excess = b"", 0

    def _read(self, identity: bytes, part: zmq.Frame | None) -> Received | None:
        if self._refusals.is_muted(identity):
            self._refusals.count("muted")
            return None
        try:
            if part is None:
                raise LinkError("several frames at once, or one that is too large")
            frame, sender = part.bytes, self._allowed.owner(part)
            header = read_header(frame)
            peer = self._sessions.get(header.session)
            if peer is None:
                return self._meet(identity, sender, header, frame)
            if peer.worker != sender:
                self._refuse(identity, IMPOSTOR)
                return None
            return self._hear(identity, peer, header, frame)
        except (msgspec.DecodeError, LinkError):
            self._refuse(identity, "malformed")
            return None

    def _hear(self, identity: bytes, peer: Peer, header: Header, frame: bytes) -> Received | None:
        """Process a frame of a known session."""
        arrival = peer.link.take(header, len(frame))
        if header.again:
            self._resend(peer)
        if arrival is _REPEATED:
            self._refusals.count("repeated")
            return None
        if arrival is _EARLY:
            if peer.link.should_ask(header):
                self._put(peer.route, peer.link.bare(_BEAT, again=True))
            return None
        if arrival is _NEXT:
            self._heard[header.session] = peer
            if not peer.link.is_empty and peer.must_be_reminded(time.monotonic()):
                self._put(peer.route, peer.link.bare(_BEAT))  # it says how much was sent
        message = decode_to_driver(body_of(frame))
        if isinstance(message, _BARE) is (arrival is _NEXT):
            raise LinkError("a number where none belongs, or none")
        if isinstance(message, Hello):
            return self._meet_again(identity, peer, message)
        if isinstance(message, Beat):
            return self._feel(peer, header, message)
        peer.leaves = isinstance(message, Goodbye)
        return Received(peer.worker, message)

    def _feel(self, peer: Peer, header: Header, beat: Beat) -> Received | None:
        if not peer.may_beat(time.monotonic()):
            self._refusals.count("too many beats")
            return None
        if peer.link.should_ask(header):
            self._put(peer.route, peer.link.bare(_BEAT, again=True))
        # A demand has been answered with what is missing; a beat would show the gap again, and so on without end.
        return None if header.again else Received(peer.worker, beat)

    def _meet(self, identity: bytes, sender: WorkerId, header: Header, frame: bytes) -> Received | None:
        """Process a frame of an unknown session, which must be a hello."""
        before = self._places.get(sender.index)
        is_due = self._allowed.is_newest(sender) and (before is None or before.worker != sender)
        if (foreign := foreign_hello(body_of(frame))) is not None and is_due:
            why = foreign_protocol(foreign, PROTOCOL_VERSION, self._versions)
            self._refuse(identity, "foreign protocol version", header.session, why)
            return Received(sender, Unfit(str(foreign.get("host"))[:255], why))
        hello = decode_to_driver(body_of(frame))
        if not isinstance(hello, Hello) or header.is_numbered or header.session == _NO_SESSION:
            reason = "unknown peer"
        elif (hello.worker, hello.incarnation) != (sender.index, sender.incarnation):
            reason = IMPOSTOR
        elif not is_due:
            reason = "stale incarnation"
        elif hello.versions is not None and (why := misfit(hello.versions, self._versions)):
            self._refuse(identity, "foreign version", header.session, why)
            return Received(sender, Unfit(hello.host, why))
        else:
            return self._welcome(identity, sender, header, hello)
        self._refuse(identity, reason, header.session)
        return None

    def _welcome(self, identity: bytes, worker: WorkerId, header: Header, hello: Hello) -> Received:
        """Accept a launched worker that connects for the first time."""
        before = self._places.get(worker.index)
        if before is not None:
            self._sessions.pop(before.link.session, None)
        peer = Peer(worker, Link(header.session), identity, hello.connection)
        self._places[worker.index] = self._sessions[header.session] = peer
        self._allowed.has_come(worker)
        self._put(identity, peer.link.bare(_WELCOME))
        return Received(worker, hello)

    def _meet_again(self, identity: bytes, peer: Peer, hello: Hello) -> Received | None:
        """Accept a known worker on a new connection, which is a sign of life."""
        if hello.connection <= peer.connection:
            self._refusals.count("repeated")
            return None
        peer.route, peer.connection = identity, hello.connection
        self._put(identity, peer.link.bare(_WELCOME))
        self._resend(peer)
        return Received(peer.worker, Beat())

    def _resend(self, peer: Peer) -> None:
        if peer.may_resend(time.monotonic()):
            for frame in peer.link.unacknowledged():
                self._put(peer.route, frame)

    def _put(self, route: bytes, frame: bytes) -> None:
        """Pass a frame to ZeroMQ; what it does not accept is still in the link."""
        try:  # send_multipart takes three times as long
            self._socket.send(route, _MORE)
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.ZMQError:
            return

    def _refuse(self, identity: bytes, reason: str, session: bytes = _NO_SESSION, why: str = "") -> None:
        if self._refusals.strike(identity, reason):
            self._put(identity, bare_frame(session, encode(Refused(why or reason))))


_BEAT = encode(Beat())
_WELCOME = encode(Welcome())
_BARE = Hello, Beat
"""Messages without a number."""
