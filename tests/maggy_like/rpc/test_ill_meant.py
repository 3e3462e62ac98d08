"""Workers that hold a key and say whatever its types admit: the driver goes on, and honest trials come out as told."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hand import Hand
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from ill_meant import Liar
from rich.console import Console

from maggy_like.display import notebook as html
from maggy_like.display import progress, text
from maggy_like.display.base import Snapshot
from maggy_like.display.terminal import TerminalDisplay
from maggy_like.driver.loop import Driver
from maggy_like.driver.state_machine.interface import Tick
from maggy_like.protocol.messages import (
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
        base = Snapshot("run", "folder", "random", "max", "starting", 0.0)
        fake = cast(Any, SimpleNamespace(send=lambda worker, message: None, folder="folder", last=0))
        self.driver = Driver(self.machine, fake, fake, fake, base, 4, keep=None, timeout=None)
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
