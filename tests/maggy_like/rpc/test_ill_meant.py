"""Workers that hold a key and say whatever they want: what no honest one sends is no message, the driver goes on."""

from __future__ import annotations

import contextlib
import io
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast, get_args

import msgspec
import pytest
from hand import Hand
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from msgspec import inspect
from rich.console import Console

from maggy_like.display import notebook as html
from maggy_like.display import progress, text
from maggy_like.display.base import Snapshot
from maggy_like.display.terminal import TerminalDisplay
from maggy_like.driver.loop import Driver
from maggy_like.driver.state_machine.interface import Tick
from maggy_like.protocol.messages import (
    Beat,
    Broken,
    Decided,
    Finished,
    Hello,
    Logged,
    Reported,
    ToDriver,
    decode_to_driver,
    encode,
)
from maggy_like.protocol.task import WorkerId
from maggy_like.rpc.server import Received
from optimizers.core.base import Optimizer
from optimizers.core.events import AttemptEnded, Measured, from_json, to_json
from optimizers.core.study import Study
from optimizers.core.trial import Curve, TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import MedianRule

OF = {"trial": 1, "attempt": 1}
REPORT = {"type": "reported", **OF, "objective": "loss", "columns": {"loss": ([1, 2], [0.1, 0.2])}}
HELLO = {"type": "hello", "version": 1, "worker": 1, "incarnation": 0, "host": "h", "pid": 1, "accelerators": [],
         "store_unseen": None}  # fmt: skip
FINISHED = {"type": "finished", **OF, "outcome": "returned"}
LOGGED = {"type": "logged", **OF, "lines": ["a line"]}
OPENED = {"type": "opened", **OF, "host": "h", "port": 1234}


def nested(times: int) -> Any:
    value: Any = 1
    for _ in range(times):
        value = [value]
    return value


NO_MESSAGES: dict[str, dict[str, Any]] = {
    "fewer values than steps": {**REPORT, "columns": {"loss": ([1, 2], [0.1])}},
    "more values than steps": {**REPORT, "columns": {"loss": ([1], [0.1]), "other": ([1], [0.1, 0.2])}},
    "a step of 2**63": {**REPORT, "columns": {"loss": ([2**63], [0.1])}},
    "a step of -2**63": {**REPORT, "columns": {"loss": ([-(2**63)], [0.1])}},
    "no objective": {**REPORT, "objective": "accuracy"},
    "a long name": {**REPORT, "objective": "x" * 501, "columns": {"x" * 501: ([1], [0.1])}},
    "a trial below 0": {**REPORT, "trial": -1},
    "an attempt past all bounds": {**REPORT, "attempt": 2**40},
    "a place below 0": {**HELLO, "worker": -1},
    "an incarnation below 0": {**HELLO, "incarnation": -1},
    "a long host": {**HELLO, "host": "h" * 256},
    "too many GPUs": {**HELLO, "accelerators": ["0"] * 1001},
    "too many connections": {**HELLO, "connection": 2**60},
    "too many lines": {**LOGGED, "lines": [""] * 1001},
    "a long line": {**LOGGED, "lines": ["x" * 10_001]},
    "fewer than no lines left out": {**LOGGED, "dropped": -1},
    "a rank below 0": {**LOGGED, "rank": -1},
    "no port": {**OPENED, "port": 0},
    "a port past the last": {**OPENED, "port": 65536},
    "fewer than no reports": {"type": "held", **OF, "reports": -1},
    "a step that cannot be saved": {"type": "checkpointed", **OF, "step": 2**63, "name": "00001/1-1.pkl"},
    "a wait of no trial": {"type": "waiting", "trial": -1, "attempt": 1, "reason": "full"},
    "a reason without end": {"type": "waiting", **OF, "reason": "x" * 1_000_001},
    "nested without end": {**FINISHED, "returned": nested(51)},
    "keys that are no text": {**FINISHED, "returned": {1: 2}},
    "attributes nested without end": {**FINISHED, "attributes": {"a": nested(51)}},
    "a failure that is the driver's to tell": {**FINISHED, "outcome": "raised", "kind": "stage_lost"},
    "a long kind": {**FINISHED, "outcome": "raised", "kind": "x" * 51},
    "an unknown outcome": {**FINISHED, "outcome": "won"},
    "a text without end": {"type": "broken", "message": "x" * 1_000_001},
}


@pytest.mark.parametrize("fields", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_what_no_honest_worker_sends_is_no_message(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_to_driver(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    "message",
    [
        Reported(1, 1, "loss", {"loss": ([-(2**63) + 1, 2**63 - 1], [float("nan"), float("inf")])}),
        Reported(1, 1, "loss", {}, awaiting=True),
        Finished(1, 1, "returned", returned=nested(50)),
        Hello(1, 2**31 - 1, 0, "h" * 255, 1, ["0"] * 1000, None),
    ],
)
def test_what_is_just_within_the_bounds_arrives(message: Reported | Finished | Hello) -> None:
    assert encode(decode_to_driver(encode(message))) == encode(message)


# -- well-formed and ill-meant: any value that the type of each field admits ------------------------


MESSAGES: tuple[type[msgspec.Struct], ...] = get_args(ToDriver)
"""Whatever a worker may send."""


_FIELDS = {kind: cast(inspect.StructType, inspect.type_info(kind)).fields for kind in MESSAGES}
_FLOATS = (0.0, -0.0, 1.0, -1e308, 1e308, 5e-324, math.nan, math.inf, -math.inf)
_TEXTS = ("", "x", "loss", "../../../etc/passwd", "\x1b[2J\x00\r\n", "\u202e", "nan", "[red]", "<b>&", "é" * 40)
_MAX_ITEMS = 4


class Liar:
    """Draws messages.

    Args:
        rng: Source of all that is drawn.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def message(self, kind: type[msgspec.Struct] | None = None, **truths: Any) -> ToDriver:
        """A message that decodes.

        Args:
            kind: Its type; any if not given.
            **truths: Values of fields that are not drawn, where the type has such fields.
        """
        kind = kind or self._rng.choice(MESSAGES)
        for _ in range(20):
            fields = {it.name: truths[it.name] if it.name in truths else self.value(it.type) for it in _FIELDS[kind]}
            if "columns" in fields and "columns" not in truths:
                fields["columns"] = self._columns(fields["objective"])
            if "name" in fields and "name" not in truths:
                fields["name"] = f"{fields['trial']:05d}/{fields['attempt']}-{self._rng.randrange(1, 9)}.pkl"
            with contextlib.suppress(ValueError):  # fields that do not go together
                return cast(ToDriver, kind(**fields))
        return Beat()

    def value(self, kind: inspect.Type) -> Any:
        """A value of a type, more often at the borders of what it admits than within."""
        rng = self._rng
        match kind:
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.IntType(ge=ge, le=le):
                least, most = -(2**63) if ge is None else ge, 2**63 - 1 if le is None else le
                return max(least, min(most, rng.choice([least, most, 0, 1, 2, rng.randint(0, 100)])))
            case inspect.FloatType():
                return rng.choice(_FLOATS)
            case inspect.StrType(max_length=max_length):
                return rng.choice([*_TEXTS, "y" * min(1000, max_length or 1000)])[:max_length]
            case inspect.LiteralType(values=values):
                return rng.choice(values)
            case inspect.EnumType(cls=words):
                return rng.choice(list(words))
            case inspect.ListType(item_type=item):
                return [self.value(item) for _ in range(rng.randrange(_MAX_ITEMS))]
            case inspect.DictType(key_type=key, value_type=item):
                return {self.value(key): self.value(item) for _ in range(rng.randrange(_MAX_ITEMS))}
            case inspect.TupleType(item_types=items):
                return tuple(self.value(item) for item in items)
            case inspect.StructType(cls=cls, fields=fields):
                return cls(**{it.name: self.value(it.type) for it in fields})
            case inspect.UnionType(types=types):
                return self.value(rng.choice(types))
            case inspect.NoneType():
                return None
            case inspect.AnyType():
                return rng.choice([None, 1, "x", [[]], {"a": [math.nan, {"b": "c"}]}])
        raise TypeError(f"no values of {kind!r} are known")

    def _columns(self, objective: str) -> dict[str, tuple[list[int], list[float]]]:
        """Columns of equal length; the steps rise or not."""
        rng = self._rng
        steps = [rng.choice([-(2**63) + 1, 2**63 - 1, -1, 0, 1, 2, 3, 9, 10]) for _ in range(rng.randrange(5))]
        if rng.random() < 0.5:
            steps.sort()
        names = [objective, *(rng.choice(_TEXTS) for _ in range(rng.randrange(3)))]
        return {name: (steps, [rng.choice(_FLOATS) for _ in steps]) for name in names if rng.random() < 0.9 or steps}


OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "random": RandomSearch,
    "promotion": lambda: ASHA(sampler="random", eta=3, mode="promotion"),
    "stopping": lambda: ASHA(sampler="random", eta=3, mode="stopping"),
    "median": lambda: MedianRule(RandomSearch()),
    "pbt": lambda: PBT(population=3, interval=1, quantile=0.4),
}
HONEST, HOSTILE = (0, 1), (2, 3)


class Played(Hand):
    """A search of two honest workers and two hostile ones, behind the driver's own hands."""

    def __init__(self, optimizer: Optimizer, rng: random.Random, **options: Any) -> None:
        super().__init__(optimizer, n_trials=12, workers=4, metrics=("loss",), max_attempts=2, **options)
        self.rng = rng
        self.liar = Liar(rng)
        base = Snapshot("run", "directory", "random", "max", "starting", 0.0)
        fake = cast(Any, SimpleNamespace(send=lambda worker, message: None, directory="directory", last=0))
        self.driver = Driver(self.machine, fake, fake, fake, base, 4, keep=None, timeout=None, began=0.0)
        self.start()
        self.told: dict[tuple[int, int], list[tuple[int, float]]] = {}  # what honest workers reported, by attempt
        self.ended: dict[tuple[int, int], float] = {}
        for index in (*HONEST, *HOSTILE):
            self.join(index)

    def hear(self, worker: WorkerId, message: ToDriver) -> None:
        """Let a message of a worker in as the driver does."""
        before = len(self.replaced)
        self.tell(self.driver._take(Received(worker, decode_to_driver(encode(message)))))
        for lost in self.replaced[before:]:
            assert lost.index in HOSTILE
            self.join(lost.index, lost.incarnation + 1)

    def lie(self) -> None:
        """A hostile worker says anything, most often of the trial that it runs."""
        index = self.rng.choice(HOSTILE)
        worker = self.machine.workers[index]
        truths: dict[str, Any] = {}
        if worker.attempt is not None and self.rng.random() < 0.8:
            truths = {"trial": worker.attempt.trial, "attempt": worker.attempt.number}
        elif self.rng.random() < 0.5:
            busy = [it.attempt for it in self.machine.workers.values() if it.attempt is not None]
            if busy:
                victim = self.rng.choice(busy)
                truths = {"trial": victim.trial, "attempt": victim.number}
        if self.rng.random() < 0.5:
            truths["objective"] = "loss"
        incarnation = worker.id.incarnation if self.rng.random() < 0.95 else self.rng.choice([0, 10**6])
        message = self.liar.message(**truths)
        if not isinstance(message, Hello):  # which the server takes of a new incarnation alone
            self.hear(WorkerId(index, incarnation), message)

    def work(self) -> None:
        """An honest worker takes its trial one step further, or ends it."""
        worker = self.machine.workers[self.rng.choice(HONEST)]
        if worker.attempt is None or worker.id.incarnation:
            return
        assign = self.assigned(worker.id)
        key = (assign.trial, assign.attempt)
        told = self.told.setdefault(key, [])
        before = self.study.trials[assign.trial].curves.get("loss", Curve())  # of an attempt elsewhere, perhaps
        step = max(before.last_step, told[-1][0] if told else 0) + 1
        value = self.rng.random()
        if step <= assign.budget:
            told.append((step, value))
            report = Reported(*key, "loss", {"loss": ([step], [value])}, awaiting=step in assign.milestones)
            said = len(self.sent)
            self.hear(worker.id, report)
            if not any(isinstance(m, Decided) and m.stop for who, m in self.sent[said:] if who == worker.id):
                return
            self.hear(worker.id, Finished(*key, "stopped"))
        elif worker.attempt.stop_reason:
            self.hear(worker.id, Finished(*key, "stopped"))
        else:
            self.ended[key] = value
            self.hear(worker.id, Finished(*key, "returned", value, {"loss": value}))

    def draw(self) -> None:
        """Draw what all displays show."""
        snapshot = self.driver._draw()
        lines = text.readable(self.driver.lines)
        progress.status(snapshot, snapshot)
        progress.summary(snapshot)
        html.page(snapshot, snapshot, [(0.0, 0.5)], lines, 0)
        console = Console(file=io.StringIO(), width=100, force_terminal=True)
        display = TerminalDisplay(console)
        display._first = snapshot
        console.print(display._region(snapshot))

    def check(self) -> None:
        """Honest trials came out as their workers said, and the journal says the same of the whole study."""
        measured: dict[tuple[int, int], list[tuple[int, float]]] = {}
        ends: dict[tuple[int, int], AttemptEnded] = {}
        for event in self.events:
            match event:
                case Measured(columns=columns):
                    steps, values = columns.get("loss", ([], []))
                    measured.setdefault((event.trial, event.attempt), []).extend(zip(steps, values, strict=True))
                case AttemptEnded():
                    ends[event.trial, event.attempt] = event
        for key, told in self.told.items():
            assert measured.get(key, [])[: len(told)] == told
        for key, value in self.ended.items():
            assert ends[key].state in (TrialState.COMPLETED, TrialState.PAUSED)
            assert ends[key].metrics == {"loss": value}
        lines = [to_json(event) for event in self.events]
        replayed = Study(self.study.problem.space, self.study.optimizer, max_budget=9, n_trials=12)
        for line in lines:
            replayed.apply(from_json(line))
        assert [[to_json(it) for it in states(replayed)]] == [[to_json(it) for it in states(self.study)]]


def states(study: Study) -> list[Measured]:
    """What a study knows of each trial, in a form that NaN equals itself in."""
    return [
        Measured(trial.id, trial.attempt, trial.state.value,
                 {name: (list(curve.steps), list(curve.values)) for name, curve in trial.curves.items()}
                 | {"value": ([0], [math.nan if trial.value is None else trial.value])})
        for trial in study.trials
    ]  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_whatever_a_hostile_worker_says_the_driver_goes_on_and_honest_trials_are_unchanged(
    optimizer: str, seed: int
) -> None:
    rng = random.Random(seed)
    run = Played(OPTIMIZERS[optimizer](), rng)
    for turn in range(80):
        run.lie()
        if rng.random() < 0.5:
            run.work()
        if turn % 20 == 0:
            run.now += 1.0
            run.tell(Tick())
            run.draw()
        if run.machine.ending is not None:
            break
    assert run.machine.ending in (None, "completed")
    run.draw()
    run.check()


def test_a_worker_that_ran_trials_and_says_that_it_cannot_is_replaced_and_the_search_goes_on() -> None:
    run = Played(RandomSearch(), random.Random(0))
    run.hear(WorkerId(2, 0), Broken("no trial can run anywhere"))
    assert run.machine.ending is None
    assert run.replaced == [WorkerId(2, 0)]
    assert any("no trial can run anywhere" in line for line in run.shown)


def test_nobody_prints_in_the_name_of_another_workers_trial() -> None:
    run = Played(RandomSearch(), random.Random(0))
    honest, hostile = (run.assigned(WorkerId(index, 0)) for index in (0, 2))
    for assign in (honest, hostile):
        for rank in (None, 0, 7):
            run.hear(WorkerId(2, 0), Logged(assign.trial, assign.attempt, ["a line"], 3, rank))
    assert {(line.trial, line.rank) for line in run.driver.lines} == {(hostile.trial, None)}


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_ranks_that_say_anything_to_each_other_end_nothing_but_their_trial(seed: int) -> None:
    run = Played(RandomSearch(), random.Random(seed), workers_per_trial=2)
    for _ in range(60):
        run.lie()
    run.draw()
    assert run.machine.ending in (None, "completed")
