"""A holder of one worker's key against a live search with honest workers.

The gang has three places. In the last, instead of a worker, is a peer that holds that place's key and nothing else. It
sends messages drawn at random from what their types admit, names of saved states that climb out of the store, hellos
for other places and incarnations, and messages in the sessions and under the names of others; it leaves and comes
again, and goes on with the keys of its former incarnations.

An escape is anything beyond false results for the trials that were given to it: an honest worker's trial that came out
other than its function says, an honest worker that was replaced, a file outside the trials' own folders that was
loaded or is gone.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import random
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import zmq

from benchmarks.ill_meant import Liar
from maggy_like import Float, LocalEngine, Reporter, Result, lagom
from maggy_like.engines.base import EngineRun
from maggy_like.protocol.messages import (
    PROTOCOL_VERSION,
    Assign,
    Beat,
    Broken,
    Finished,
    Goodbye,
    Hello,
    Ready,
    Refused,
    Shutdown,
    encode,
)
from maggy_like.protocol.task import KeyPair, WorkerTask
from maggy_like.rpc.client import Client
from maggy_like.rpc.link import bare_frame, new_session
from maggy_like.rpc.security import secure_client
from maggy_like.rpc.server import MAX_STRIKES
from optimizers import AttemptStarted, Event, TrialState

PLACES = 3
HOSTILE = PLACES - 1
STEPS = 5
SELDOM: dict[type, float] = {Hello: 0.0, Beat: 0.0, Goodbye: 0.0005, Broken: 0.0005, Finished: 0.02}
"""How often what ends an incarnation or a trial is sent when it is drawn."""

CLIMBING = (
    "../../canary.pkl",
    "../canary.pkl",
    "canary.pkl",
    "/etc/hostname",
    "file:///etc/hostname",
    "00000/1-1.pkl",
    "00000/../../canary.pkl",
    "00000/1-1.pkl/../../canary.pkl",
    "..\\canary.pkl",
    "",
)


class Loaded:
    """Leaves a file where it is loaded from a pickle."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._path,)


def honest(x: float, reporter: Reporter) -> float:
    """A training whose result is known."""
    done = reporter.restore() or 0
    for step in range(done + 1, STEPS + 1):
        time.sleep(0.01)
        reporter.checkpoint(step)
        reporter.report(loss=x * step, step=step)
    return x * STEPS


def attack(orders: Connection, frames: Any, seed: int) -> None:
    """Be hostile, with one incarnation after the other, until there are no more orders."""
    rng = random.Random(seed)
    former: list[KeyPair] = []
    with zmq.Context() as context:
        orders.send(None)  # all is loaded
        while (order := orders.recv()) is not None:
            task, index, incarnation, keys = order
            Attack(task, index, incarnation, keys, rng, frames).run(context, former, orders)
            former.append(keys)
            orders.send(incarnation)


class Untiring(Client):
    """Takes a new connection where the driver would soon read nothing more of this one."""

    def reconnect(self) -> None:
        """Go on, in the same session, on another connection."""
        self._socket.disconnect(self._address)
        self._socket.connect(self._address)


class Attack:
    """One incarnation of the hostile peer."""

    def __init__(
        self, task: WorkerTask, index: int, incarnation: int, keys: KeyPair, rng: random.Random, frames: Any
    ) -> None:
        self._task = task
        self._keys = keys
        self._hello = Hello(PROTOCOL_VERSION, index, incarnation, "hostile", 1, [], None)
        self._rng = rng
        self._liar = Liar(rng)
        self._frames = frames
        self._trial: tuple[int, int] = 0, 1
        self._refused = 0  # on this connection

    def run(self, context: zmq.Context[zmq.Socket[bytes]], former: Sequence[KeyPair], orders: Connection) -> None:
        """Send until the driver refuses it, or the search is over."""
        client = Untiring(self._task.address, self._task.server_key, self._keys)
        client.introduce(self._hello)
        client.send(Ready())
        poller = zmq.Poller()
        for socket in client.sockets:
            poller.register(socket, zmq.POLLIN)
        others = time.monotonic()
        while not orders.poll():
            poller.poll(50 if client.is_full else 0)
            for message in client.receive():
                if isinstance(message, Refused | Shutdown):
                    client.close()
                    return
                if isinstance(message, Assign):
                    self._trial = message.trial, message.attempt
            if time.monotonic() >= client.due:
                client.beat()
            if time.monotonic() >= others:
                others = time.monotonic() + 0.05
                self._speak_for_others(context, [self._keys, *former[-2:]])
            if self._refused >= MAX_STRIKES - 5:
                self._refused = 0
                client.reconnect()
            for _ in range(0 if client.is_full else 100):
                client.forward(self._body())
                self._frames.value += 1
        client.close()

    def _body(self) -> bytes:
        """One message, of its own trial or of any."""
        rng = self._rng
        trial, attempt = self._trial if rng.random() < 0.8 else (rng.randrange(50), rng.randrange(1, 3))
        if rng.random() < 0.02:
            self._refused += 1
            name = rng.choice(CLIMBING)
            plain = {"type": "checkpointed", "trial": trial, "attempt": attempt, "step": 1, "name": name}
            return msgspec.msgpack.encode(plain)
        message = self._liar.message(trial=trial, attempt=attempt)
        while rng.random() >= SELDOM.get(type(message), 1.0):
            message = self._liar.message(trial=trial, attempt=attempt)
        return encode(message)

    def _speak_for_others(self, context: zmq.Context[zmq.Socket[bytes]], keys: Sequence[KeyPair]) -> None:
        """Hellos for all places and incarnations, on a connection of its own."""
        rng = self._rng
        with context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 1000)
            secure_client(dealer, self._task.server_key, rng.choice(keys))
            dealer.connect(self._task.address)
            for _ in range(15):
                place, incarnation = rng.randrange(PLACES), rng.choice([0, 1, 2, 3, 10**6])
                hello = msgspec.structs.replace(self._hello, worker=place, incarnation=incarnation)
                dealer.send(bare_frame(new_session(), encode(hello)))
                self._frames.value += 1


class HostileRun(EngineRun):
    """An incarnation of the hostile peer, as the gang sees it."""

    def __init__(self, incarnation: int, process: Any, orders: Connection) -> None:
        super().__init__([HOSTILE], incarnation)
        self._process = process
        self._orders = orders
        self._left = False

    def poll(self) -> str | None:
        while not self._left and self._orders.poll():
            self._left = self._orders.recv() >= self.incarnation
        return "it left" if self._left else None

    def cancel(self) -> None:
        """It goes where the driver refuses it."""

    def wait(self, timeout: float) -> bool:
        return True


class Infiltrated(LocalEngine):
    """Processes of this machine, of which the last is hostile.

    Attributes:
        replaced: How many honest workers had to be launched again.
    """

    def __init__(self, process: Any, orders: Connection) -> None:
        super().__init__([])
        self.replaced = 0
        self._process = process
        self._orders = orders

    def launch(
        self, task: WorkerTask, indexes: Sequence[int], incarnation: int, keys: Sequence[KeyPair], logs: str
    ) -> list[EngineRun]:
        runs: list[EngineRun] = []
        for index, pair in zip(indexes, keys, strict=True):
            if index == HOSTILE:
                self._orders.send((task, index, incarnation, pair))
                runs.append(HostileRun(incarnation, self._process, self._orders))
            else:
                self.replaced += incarnation > 0
                runs += super().launch(task, [index], incarnation, [pair], logs)
        return runs


def measure(quick: bool) -> dict[str, float]:
    """Run a search beside a hostile key holder."""
    context = mp.get_context("spawn")
    frames = context.Value("q", 0)
    orders, theirs = context.Pipe()
    process = context.Process(target=attack, args=(theirs, frames, 0), daemon=True)
    process.start()
    orders.recv()
    engine = Infiltrated(process, orders)
    touched: set[int] = set()

    def watch(event: Event) -> None:
        if isinstance(event, AttemptStarted) and event.worker == HOSTILE:
            touched.add(event.trial)

    try:
        with tempfile.TemporaryDirectory() as folder:
            runs, loaded = Path(folder, "runs"), Path(folder, "loaded")
            canaries = [runs / "canary.pkl", runs / "run" / "canary.pkl", runs / "run" / "checkpoints" / "canary.pkl"]

            def lay_out(event: Event) -> None:
                if not canaries[-1].exists() and canaries[-1].parent.is_dir():
                    for canary in canaries:
                        canary.write_bytes(pickle.dumps(Loaded(str(loaded))))

            result: Result | None = None
            try:
                result = lagom(honest, {"x": Float(0, 1)}, optimizer="random", metric="loss", direction="min",
                               max_budget=STEPS, timeout=7.0 if quick else 60.0, workers=PLACES, engine=engine,
                               directory=runs, name="run", progress=False, callbacks=[lay_out, watch])  # fmt: skip
            except Exception as error:  # whatever it is, a search was ended by who holds one key
                print(f"the driver ended: {error!r}")
            escapes = engine.replaced + loaded.exists() + sum(not canary.exists() for canary in canaries)
            own = [trial for trial in (result.trials if result is not None else ()) if trial.id not in touched]
            ended = [trial for trial in own if trial.is_over]
            wrong = [trial for trial in ended if trial.state is not TrialState.COMPLETED]
            wrong += [trial for trial in ended if trial.metrics or trial.last_value != trial.config["x"] * STEPS]
    finally:
        orders.send(None)
        process.join(10)
        process.kill()
    return {
        "hostile.frames": frames.value,
        "hostile.driver_ended": float(result is None),
        "hostile.escapes": escapes + len({trial.id for trial in wrong}),
        "hostile.honest_trials": len(ended),
    }
