"""The driver's brain among workers that come, go, die and repeat themselves in any order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from maggy_like.experiment import Experiment
from maggy_like.experiment.commands import Append, AskOptimizer, Command, Send
from maggy_like.experiment.inputs import (
    Input,
    StopRequested,
    SuggestionReady,
    Tick,
    TrialCheckpointed,
    TrialFinished,
    TrialReported,
    WorkerGone,
    WorkerId,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
    WorkerSeen,
)
from maggy_like.experiment.workers import WorkerState
from maggy_like.messages import (
    Assign,
    Checkpointed,
    Decided,
    Finished,
    OutcomeKind,
    Refused,
    Reported,
    Shutdown,
    Stop,
    ToWorker,
)
from optimizers.asha import ASHA
from optimizers.base import Decision, Optimizer, Update
from optimizers.domains import Float
from optimizers.events import AttemptEnded, AttemptStarted, Event, TrialCreated, from_json, to_json
from optimizers.grid import Grid
from optimizers.random_search import RandomSearch
from optimizers.stopping import Patience
from optimizers.study import Study
from optimizers.trial import TrialState

T = TypeVar("T")

PLACES = 3
HEARTBEAT = 15.0
GRID = 8
OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "random": RandomSearch,
    "grid": lambda: Grid(GRID),
    "promotion": lambda: ASHA(eta=2),
    "stopping": lambda: ASHA(eta=2, mode="stopping"),
    "patience": lambda: Patience(ASHA(eta=2, min_budget=2), patience=1),
}
PICK = st.integers(0, 11)
VALUES = st.sampled_from([0.1, 0.2, 0.3, math.nan, math.inf])


def some(items: Iterable[T], pick: int) -> T:
    choices = list(items)
    return choices[pick % len(choices)]


def said(study: Study) -> str:
    """All that a study says of itself, as text: NaN equals nothing, not even itself."""
    best, promotion = study.best, study.next_promotion()
    numbers = (study.n_asks, best and best.id, promotion and promotion.id)
    return repr((study.trials, sorted(study.counts.elements()), numbers))


class Gang(RuleBasedStateMachine):
    """Plays the engine, the optimizer's thread, the journal and all workers, as badly as they may behave."""

    experiment: Experiment

    @initialize(
        name=st.sampled_from(sorted(OPTIMIZERS)),
        direction=st.sampled_from(["max", "min"]),
        n_trials=st.sampled_from([1, 2, 5, 12]),
        points=st.integers(0, 2),
        max_attempts=st.integers(1, 3),
        trial_timeout=st.sampled_from([None, 6.0]),
        workers=st.integers(0, PLACES),
        prompt=st.booleans(),
    )
    def begin(
        self,
        name: str,
        direction: Literal["max", "min"],
        n_trials: int,
        points: int,
        max_attempts: int,
        trial_timeout: float | None,
        workers: int,
        prompt: bool,
    ) -> None:
        self.new_study: Callable[[], Study] = lambda: Study(
            {"x": Float(0, 1)}, OPTIMIZERS[name](), direction=direction, max_budget=4, n_trials=n_trials
        )
        self.n_trials = min(n_trials, points + GRID) if name == "grid" else n_trials
        self.points = points
        self.max_attempts = max_attempts
        self.trial_timeout = trial_timeout
        self.prompt = prompt  # whether the optimizer answers at once
        self.journal: list[bytes] = []
        self.ledger = self.new_study()  # the journal's replay, as the journal grows
        self.updates: list[Update] = []  # what an optimizer must know by that ledger
        self.condemned: set[tuple[int, int]] = set()  # attempts that a rule has stopped
        self.now = 0.0
        self.boot()
        for index in range(workers):
            self.come(index, ready=True)

    def boot(self) -> None:
        """Start a driver on the journal as it is; it knows no worker."""
        self.experiment = Experiment(
            self.new_study(),
            points=[{"x": 0.5}] * self.points,
            workers=PLACES,
            max_attempts=self.max_attempts,
            trial_timeout=self.trial_timeout,
            heartbeat_timeout=HEARTBEAT,
        )
        self.epochs: dict[int, int] = {}
        self.unready: set[WorkerId] = set()
        self.holding: dict[WorkerId, Assign] = {}
        self.since: dict[WorkerId, float] = {}
        self.step: dict[WorkerId, int] = {}
        self.stopping: set[WorkerId] = set()
        self.overdue: set[tuple[int, int]] = set()  # attempts that ran out of time
        self.leaving: set[WorkerId] = set()
        self.past: list[Input] = []
        self.asked: AskOptimizer | None = None
        self.told: list[Update] = []
        self.proposals = 0  # that wait for a worker
        self.experiment.replay(map(from_json, self.journal))
        self.carry_out(self.experiment.start(self.now))
        self.suggest_if_prompt()

    # -- both ends of the wire --------------------------------------------------------------------

    def tell(self, event: Input) -> list[ToWorker]:
        """Hand an input over, and what was sent because of it; a stale one must change nothing."""
        stale = self.is_stale(event)
        before = (len(self.journal), said(self.experiment.study), self.experiment.stale + stale)
        sent = self.carry_out(self.experiment.handle(event, self.now))
        if stale:
            assert (len(self.journal), said(self.experiment.study), self.experiment.stale) == before
        if not isinstance(event, SuggestionReady | Tick | StopRequested | WorkerLost):
            self.past.append(event)
        self.suggest_if_prompt()
        return sent

    def is_stale(self, event: Input) -> bool:
        match event:
            case SuggestionReady() | Tick() | StopRequested() | WorkerLost():
                return False
            case WorkerJoined(worker=worker):
                return worker.epoch < self.epochs[worker.index] or self.past.count(event) > 0
            case TrialReported() | TrialCheckpointed() | TrialFinished():
                held = self.experiment.workers[event.worker.index].trial
                current = held == event.message.trial and self.ledger.trials[held].attempt == event.message.attempt
                return not (current and self.is_live(event.worker))
        return not self.is_live(event.worker)

    def carry_out(self, commands: list[Command]) -> list[ToWorker]:
        sent = []
        for command in commands:
            match command:
                case Append(event=event):
                    self.append(event)
                case Send(worker=worker, message=message):
                    self.receive(worker, message)
                    sent.append(message)
                case AskOptimizer():
                    assert self.asked is None
                    self.asked = command
                    self.told += command.updates
                    assert repr(self.told) == repr(self.updates)
        return sent

    def append(self, event: Event) -> None:
        """Every record fits the life of its trial: so none ends twice, and attempts rise by one."""
        if isinstance(event, TrialCreated):
            assert event.trial == len(self.ledger.trials) < self.n_trials
            self.proposals -= event.ask is not None
        else:
            trial = self.ledger.trials[event.trial]
            if isinstance(event, AttemptStarted):
                assert trial.state in (TrialState.PENDING, TrialState.PAUSED)
                assert event.attempt == trial.attempt + 1
            else:
                assert trial.state is TrialState.RUNNING
                assert event.attempt == trial.attempt
            if isinstance(event, AttemptEnded) and event.state in (TrialState.PENDING, TrialState.STOPPED):
                # A verdict stands, also for one that was lost; and none but a rule's verdict stops a trial.
                run = (event.trial, event.attempt)
                assert (run in self.condemned) == (event.state is TrialState.STOPPED)
                assert run not in self.overdue - self.condemned
        self.journal.append(to_json(event))
        if self.ledger.apply(from_json(self.journal[-1])) is Decision.STOP:
            self.condemned.add((event.trial, self.ledger.trials[event.trial].attempt))
        self.updates += self.ledger.take_updates()

    def receive(self, worker: WorkerId, message: ToWorker) -> None:
        """Whatever is sent rests on what the journal already holds."""
        match message:
            case Assign(trial=number, attempt=attempt, budget=budget, checkpoint=url):
                trial = self.ledger.trials[number]
                assert (trial.state, trial.worker) == (TrialState.RUNNING, worker.index)
                assert (trial.attempt, trial.budget) == (attempt, budget)
                assert url == (trial.checkpoint and trial.checkpoint.url)
                assert self.is_live(worker)
                assert worker not in self.holding | dict.fromkeys(self.unready | self.leaving)
                self.holding[worker] = message
                self.since[worker] = self.now
                self.step[worker] = trial.checkpoint.step if trial.checkpoint else 0
                self.stopping.discard(worker)
            case Decided(stop=True) | Stop():
                held = self.holding[worker]
                assert (held.trial, held.attempt) == (message.trial, message.attempt)
                assert isinstance(message, Decided) or worker not in self.stopping
                self.stopping.add(worker)
                if (held.trial, held.attempt) not in self.condemned:
                    assert self.is_late(worker)
                    self.overdue.add((held.trial, held.attempt))
            case Shutdown():
                assert self.experiment.ending is not None
                self.leaving.add(worker)
            case Refused():
                assert not self.is_live(worker) or any(e == WorkerJoined(worker, "host") for e in self.past)

    def is_live(self, worker: WorkerId) -> bool:
        known = self.experiment.workers.get(worker.index)
        return known is not None and known.id == worker and known.is_live

    def is_late(self, worker: WorkerId) -> bool:
        return self.trial_timeout is not None and self.now - self.since[worker] > self.trial_timeout

    @property
    def live(self) -> list[WorkerId]:
        return [worker.id for worker in self.experiment.workers.values() if worker.is_live]

    @property
    def busy(self) -> list[WorkerId]:
        return [worker for worker in self.live if worker in self.holding]

    # -- what happens -----------------------------------------------------------------------------

    @rule(pick=PICK, ready=st.booleans())
    def join(self, pick: int, ready: bool) -> None:
        """A worker comes to an empty place, or takes that of a live one if there is none."""
        places = set(range(PLACES))
        self.come(some(places - {worker.index for worker in self.live} or places, pick), ready)

    def come(self, index: int, ready: bool) -> None:
        self.epochs[index] = self.epochs.get(index, -1) + 1
        worker = WorkerId(index, self.epochs[index])
        self.unready.add(worker)
        self.tell(WorkerJoined(worker, "host"))
        if ready:
            self.become_ready(worker)

    def become_ready(self, worker: WorkerId) -> None:
        self.unready.discard(worker)
        self.tell(WorkerReady(worker))

    @precondition(lambda self: self.unready)
    @rule(pick=PICK)
    def ready(self, pick: int) -> None:
        self.become_ready(some(sorted(self.unready, key=repr), pick))

    @precondition(lambda self: self.busy)
    @rule(pick=PICK, n=st.integers(1, 3), value=VALUES)
    def report(self, pick: int, n: int, value: float) -> None:
        self.report_steps(some(self.busy, pick), n, value)

    def report_steps(self, worker: WorkerId, n: int, value: float) -> None:
        """Report the next ``n`` steps, or those up to where the trial must wait for a verdict."""
        assign = self.holding[worker]
        first = self.step[worker] + 1
        last = min([first + n - 1, assign.budget, *(step for step in assign.milestones if step >= first)])
        steps = list(range(first, last + 1))
        awaiting = last in assign.milestones
        message = Reported(assign.trial, assign.attempt, "loss", {"loss": (steps, [value] * len(steps))}, awaiting)
        sent = self.tell(TrialReported(worker, message))
        assert sum(isinstance(answer, Decided) for answer in sent) == awaiting
        self.step[worker] = last

    @precondition(lambda self: self.busy)
    @rule(pick=PICK, value=VALUES)
    def train(self, pick: int, value: float) -> None:
        """An attempt as it should be."""
        worker = some(self.busy, pick)
        while self.step[worker] < self.holding[worker].budget and worker not in self.stopping:
            self.report_steps(worker, 1, value)
        self.finish(list(self.holding).index(worker), "stopped" if worker in self.stopping else "returned", value)

    @precondition(lambda self: self.busy)
    @rule(pick=PICK)
    def save(self, pick: int) -> None:
        worker = some(self.busy, pick)
        assign, step = self.holding[worker], self.step[worker]
        message = Checkpointed(assign.trial, assign.attempt, step, f"file:///{assign.trial}-{step}")
        self.tell(TrialCheckpointed(worker, message))

    @precondition(lambda self: self.holding)
    @rule(pick=PICK, outcome=st.sampled_from(["returned", "returned", "raised", "died", "stopped"]), value=VALUES)
    def finish(self, pick: int, outcome: OutcomeKind, value: float) -> None:
        """End an attempt: of a live worker, or of one that does not know that it was given up."""
        worker = some(self.holding, pick)
        assign = self.holding.pop(worker)
        if outcome == "stopped" and worker not in self.stopping | self.leaving:
            outcome = "returned"
        returned = value if outcome == "returned" else None
        self.tell(TrialFinished(worker, Finished(assign.trial, assign.attempt, outcome, returned)))

    @precondition(lambda self: self.live)
    @rule(pick=PICK, goodbye=st.booleans())
    def go(self, pick: int, goodbye: bool) -> None:
        worker = some(self.live, pick)
        self.tell(WorkerGone(worker) if goodbye else WorkerLost(worker, "kill -9"))

    @rule(seconds=st.sampled_from([1.0, 7.0, 20.0]), silent=st.booleans())
    def wait(self, seconds: float, silent: bool) -> None:
        self.now += seconds
        for worker in [] if silent else self.live:
            self.tell(WorkerSeen(worker))
        self.tell(Tick())
        for worker in self.live:
            assert self.now - self.experiment.workers[worker.index].seen <= HEARTBEAT
        assert all(worker in self.stopping for worker in self.busy if self.is_late(worker))

    @precondition(lambda self: self.asked)
    @rule()
    def suggest(self) -> None:
        asked, study = self.asked, self.experiment.study
        assert asked is not None
        self.asked = None
        for update in asked.updates:
            study.history.apply(update)
        config = study.optimizer.ask(asked.index, study.history)
        self.proposals += config is not None
        self.tell(SuggestionReady(asked.index, config))

    def suggest_if_prompt(self) -> None:
        if self.prompt and self.asked is not None:
            self.suggest()

    @precondition(lambda self: self.past)
    @rule(pick=PICK)
    def repeat(self, pick: int) -> None:
        """A message comes twice, or after the fact."""
        self.tell(some(self.past[-8:], pick))

    @precondition(lambda self: len(self.journal) > 6 and self.experiment.ending is None)
    @rule()
    def stop(self) -> None:
        self.tell(StopRequested("interrupted"))
        assert self.leaving >= set(self.live)

    @precondition(lambda self: len(self.journal) > 6)
    @rule()
    def restart(self) -> None:
        """The driver dies at any moment, and the run is resumed."""
        self.boot()
        assert not self.experiment.study.counts[TrialState.RUNNING]

    # -- what always holds ------------------------------------------------------------------------

    @invariant()
    def the_journal_is_the_study(self) -> None:
        assert said(self.ledger) == said(self.experiment.study)

    @invariant()
    def each_running_trial_has_one_live_worker(self) -> None:
        held = [worker.trial for worker in self.experiment.workers.values() if worker.trial is not None]
        running = [trial.id for trial in self.ledger.trials if trial.state is TrialState.RUNNING]
        assert sorted(held) == running
        assert {self.holding[worker].trial for worker in self.busy} == set(running)

    @invariant()
    def each_step_is_entered_once(self) -> None:
        for trial in self.ledger.trials:
            steps = trial.curve.steps.tolist()
            assert steps == sorted(set(steps))

    @invariant()
    def no_trial_is_lost_too_often(self) -> None:
        assert all(trial.losses < self.max_attempts for trial in self.ledger.trials)

    @invariant()
    def a_worker_is_idle_only_if_nothing_is_due(self) -> None:
        states = [worker.state for worker in self.experiment.workers.values()]
        if self.experiment.ending is None and WorkerState.IDLE in states:
            n_given = len(self.ledger.trials) - self.ledger.n_asks
            assert not self.ledger.counts[TrialState.PENDING]
            assert self.ledger.next_promotion() is None
            assert len(self.ledger.trials) == self.n_trials or (n_given >= self.points and not self.proposals)

    @invariant()
    def a_completed_search_left_nothing(self) -> None:
        if self.experiment.ending == "completed":
            assert len(self.ledger.trials) == self.n_trials
            assert all(trial.is_over or trial.state is TrialState.PAUSED for trial in self.ledger.trials)

    def teardown(self) -> None:
        """From wherever it is, the search ends once the workers behave."""
        if "experiment" not in vars(self):
            return
        if self.experiment.ending not in (None, "completed"):
            self.restart()
        for _ in range(60):
            if self.experiment.is_over:
                break
            if self.asked is not None:
                self.suggest()
            if not self.live and self.experiment.ending is None:
                self.join(pick=0, ready=True)
            for worker in self.live:
                if worker in self.holding:
                    self.train(self.busy.index(worker), 0.5)
                elif worker in self.leaving:
                    self.tell(WorkerGone(worker))
                elif worker in self.unready:
                    self.become_ready(worker)
        assert self.experiment.is_over
        assert self.experiment.ending == "completed"
        self.the_journal_is_the_study()
        self.a_completed_search_left_nothing()


Gang.TestCase.settings = settings(max_examples=150, stateful_step_count=40, derandomize=True, deadline=None)
TestGang = pytest.mark.timeout(60)(Gang.TestCase)


# -- what it found ----------------------------------------------------------------------------------


def scripted(name: str, *, n_trials: int, workers: int) -> Gang:
    """The machine in the hands of a test: with an optimizer that answers at once, and patient limits."""
    gang = Gang()
    gang.begin(name, "max", n_trials, points=0, max_attempts=3, trial_timeout=None, workers=workers, prompt=True)
    return gang


def test_a_trial_is_not_handed_from_one_silent_worker_to_another() -> None:
    gang = scripted("random", n_trials=1, workers=3)
    gang.wait(20.0, silent=True)
    (trial,) = gang.ledger.trials
    assert (trial.state, trial.losses) == (TrialState.PENDING, 1)
    gang.teardown()


def test_a_parked_worker_is_called_by_the_result_that_makes_a_promotion_due() -> None:
    gang = scripted("promotion", n_trials=2, workers=2)
    gang.finish(0, "returned", 0.2)
    gang.a_worker_is_idle_only_if_nothing_is_due()
    gang.report(0, 1, 0.1)
    assert gang.holding[WorkerId(0, 0)] == Assign(0, 2, gang.ledger.trials[0].config, 2, (), "loss")
    gang.teardown()


def test_a_verdict_that_came_too_late_does_not_stop_the_next_attempt_of_a_resumed_run() -> None:
    gang = scripted("patience", n_trials=2, workers=1)
    gang.report(0, 2, 0.2)
    assert gang.stopping == {WorkerId(0, 0)}
    gang.finish(0, "returned", 0.2)
    gang.finish(0, "returned", 0.1)
    promoted = gang.ledger.trials[0]
    assert (promoted.state, promoted.attempt) == (TrialState.RUNNING, 2)
    gang.restart()
    assert gang.experiment.study.trials[0].state is TrialState.PENDING
    gang.teardown()
