"""Random and mutated frames at the live server, while honest workers go on.

A peer that has the keys of many workers sends frames that reach the decoder: random bytes, real messages with bits
flipped, cut short or of wrong types, wild numbers, repeated ones; on ever new connections, since one that sends
nonsense is soon not read any more (some go on all the same). Strangers throw random bytes at the port meanwhile. Two
honest workers ask and are answered all the time; their pace is compared with that of the same run before the first bad
frame.

    python -m benchmarks.fuzz [--quick] [--json PATH]
"""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import socket
import statistics
import struct
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event

import zmq

from benchmarks.common import parser, publish
from maggy_like.protocol.messages import (
    PROTOCOL_VERSION,
    Beat,
    Decided,
    Finished,
    Hello,
    Logged,
    Ready,
    Reported,
    ToDriver,
    encode,
)
from maggy_like.protocol.task import KeyPair, WorkerId
from maggy_like.rpc.client import Client
from maggy_like.rpc.link import new_session
from maggy_like.rpc.server import Server
from maggy_like.rpc.sockets import secure_client

HONEST = 2
PLACES = 100
"""Of the workers; the bad peer speaks for all but the honest ones, from one connection after the other."""

FEW, MANY = 25, 1000
"""Frames on most connections of the bad peer, and on one in 40: past 20 that are refused it is not read any more."""

SAMPLES: list[ToDriver] = [
    Ready(),
    Beat(),
    Reported(1, 1, "loss", {"loss": ([1, 2, 3], [0.1, 0.2, 0.3])}, True),
    Logged(1, 1, ["a line", "another"]),
    Finished(1, 1, "returned", 0.5, {"loss": 0.5}),
]


def honest(address: str, server_key: bytes, keys: KeyPair, index: int, end: Event, rounds: Connection) -> None:
    """Ask and wait for the answer, again and again; send the seconds of each round."""
    client = Client(address, server_key, keys)
    client.introduce(Hello(PROTOCOL_VERSION, index, 0, "host", 1, [], None))
    poller = zmq.Poller()
    for watched in client.sockets:
        poller.register(watched, zmq.POLLIN)
    number, beat_at = 0, time.monotonic() + 1.0
    while not end.is_set():
        start = time.monotonic()
        number += 1
        client.send(Reported(1, number, "loss", {"loss": ([number], [0.5])}, True))
        while not any(isinstance(m, Decided) and m.attempt == number for m in client.receive()):
            poller.poll(200)
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + 1.0
                client.beat()
            if end.is_set():
                break
        else:
            rounds.send(time.monotonic() - start)
        time.sleep(0.002)  # a worker also works
    client.close()


def mutate(frame: bytes, rng: random.Random) -> bytes:
    """A frame with a few bytes changed, cut off, doubled or put in."""
    data = bytearray(frame)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case _:
                data += data[at : at + 50]
    return bytes(data)


def bad_frames(session: bytes, rng: random.Random) -> Callable[[], bytes]:
    """A source of frames that look more or less like those of a worker."""
    wild = [0, 1, 2, 3, 1 << 20, (1 << 63) - 1, (1 << 64) - 1]

    def frame() -> bytes:
        kind = rng.randrange(4)
        if kind == 0:
            return rng.randbytes(rng.choice([0, 1, 24, 25, 26, 100, 5000]))
        numbers = rng.choice(wild), 0 if rng.random() < 0.8 else rng.choice(wild), rng.randrange(4)
        body = encode(rng.choice(SAMPLES)) if rng.random() < 0.9 else rng.randbytes(40)
        made = struct.pack("!8sQQB", session, *numbers) + body
        return made if kind == 1 else mutate(made, rng)

    return frame


def insider(address: str, server_key: bytes, keys: dict[int, KeyPair], count: int, seed: int, sent: Connection) -> None:
    """Send ``count`` bad frames, on many connections, as the workers whose keys are given."""
    os.nice(10)  # a stranger has a machine of its own: what is compared is the server, not how cores are shared
    rng = random.Random(seed)
    done = connections = 0
    sessions = {index: new_session() for index in keys}
    with zmq.Context() as context:
        while done < count:
            connections += 1
            with context.socket(zmq.DEALER) as dealer:
                dealer.setsockopt(zmq.LINGER, 10_000)  # all that was sent arrives before the context ends
                dealer.setsockopt(zmq.SNDHWM, 1000)
                index = rng.choice(list(keys))
                secure_client(dealer, server_key, keys[index])
                dealer.connect(address)
                hello = encode(Hello(PROTOCOL_VERSION, index, 0, "host", 1, [], None, connection=connections))
                dealer.send(struct.pack("!8sQQB", sessions[index], 0, 0, 0) + hello)
                frame = bad_frames(sessions[index], rng)
                for _ in range(min(FEW if connections % 40 else MANY, count - done)):
                    dealer.send(frame())
                    done += 1
    sent.send(done)


def stranger(port: int, seed: int, end: Event, sent: Connection) -> None:
    """Throw random bytes at the port, from one connection after the other."""
    os.nice(10)
    rng = random.Random(seed)
    done = 0
    while not end.is_set():
        with socket.socket() as raw:
            raw.settimeout(1.0)
            try:
                raw.connect(("127.0.0.1", port))
                for _ in range(rng.randint(1, 20)):
                    greeting = b"\xff" + bytes(8) + b"\x7f\x03"  # of ZeroMQ
                    raw.sendall(rng.choice([rng.randbytes(100), greeting, b"GET / HTTP/1.1\r\n"]))
                    done += 1
            except OSError:
                pass
        time.sleep(0.005)
    sent.send(done)


class Serving:
    """The server in a thread, as in a driver: answers reports and beats."""

    def __init__(self) -> None:
        self.server = Server("127.0.0.1")
        self.crashes = 0
        self.taken = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._end.is_set():
            try:
                for received in self.server.poll(0.1):
                    self.taken += 1
                    match received.message:
                        case Reported(trial=trial, attempt=attempt, awaiting=True):
                            self.server.send(received.worker, Decided(trial, attempt, False))
                        case Beat():
                            self.server.send(received.worker, Beat())
                self.server.acknowledge()
            except Exception:
                traceback.print_exc()
                self.crashes += 1

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self.server.close()


def collect(rounds: list[Connection]) -> list[float]:
    """The seconds of the rounds of honest workers since the last time."""
    found = []
    for pipe in rounds:
        while pipe.poll():
            found.append(pipe.recv())
    return found


def measure(count: int, calm_seconds: float) -> dict[str, float]:
    """Serve honest workers, first alone, then beside the others."""
    serving = Serving()
    address, server_key = serving.server.address, serving.server.public_key
    keys = {index: serving.server.admit(WorkerId(index, 0)) for index in range(PLACES)}
    honest_keys = [keys.pop(index) for index in range(HONEST)]
    context = mp.get_context("spawn")
    end = context.Event()
    processes: list[BaseProcess] = []

    def start(target: Callable[..., None], *arguments: object) -> Connection:
        receiver, sender = context.Pipe(duplex=False)
        processes.append(context.Process(target=target, args=(*arguments, sender), daemon=True))
        processes[-1].start()
        return receiver

    rounds = [start(honest, address, server_key, pair, index, end) for index, pair in enumerate(honest_keys)]
    while serving.taken < HONEST * 50:  # both are there, and warm
        time.sleep(0.05)
    collect(rounds)
    time.sleep(calm_seconds)
    calm = collect(rounds)
    disturbed: list[float] = []
    thrown = start(stranger, int(address.rpartition(":")[2]), 1, end)
    sent = start(insider, address, server_key, keys, count, 0)
    while not sent.poll(0.1):
        disturbed += collect(rounds)
        if not processes[-1].is_alive():
            raise RuntimeError("the fuzzing process died")
    end.set()
    frames = sent.recv() + thrown.recv()
    for process in processes:
        process.join(30)
    serving.close()
    return {
        "frames": frames,
        "crashes": serving.crashes + sum(process.exitcode != 0 for process in processes),
        "slowdown": statistics.median(disturbed) / statistics.median(calm),
        "honest.round_ms.calm": statistics.median(calm) * 1e3,
        "honest.round_ms.disturbed": statistics.median(disturbed) * 1e3,
        **{f"refused.{reason}": number for reason, number in sorted(serving.server.refused.items())},
    }


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    count, calm_seconds = (50_000, 2.0) if arguments.quick else (1_000_000, 5.0)
    publish(measure(count, calm_seconds), arguments.json)


if __name__ == "__main__":
    main()
