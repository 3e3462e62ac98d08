"""Plays both ends of a state machine's commands, and holds each one against the journal."""

from __future__ import annotations

from collections.abc import Iterable

from watched_search import Search

from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.interface import (
    Append,
    AskOptimizer,
    Command,
    Input,
    Send,
    StopRequested,
    SuggestionReady,
    Tick,
    TrialSaid,
    WorkerGone,
    WorkerJoined,
    WorkerLost,
    WorkerReady,
)
from maggy_like.protocol.messages import (
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
from maggy_like.protocol.state_names import StateName
from maggy_like.protocol.task import WorkerId
from optimizers.core.base import Decision, History, Proposal
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, TrialCreated, from_json, to_json
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.space import Config


def said(study: Study) -> str:
    """All that a study says of itself, as text: NaN equals nothing, not even itself."""
    best, promotion = study.best, study.next_promotion()
    numbers = (study.n_asks, best and best.id, promotion and promotion.id)
    return repr((study.trials, sorted(study.counts.elements()), numbers))


class Witness:
    """The engine, the optimizer's thread, the journal and the workers of a search.

    Whatever the workers do, each command is held against the journal as it is carried out.
    """

    machine: StateMachine

    def begin(self, search: Search) -> None:
        """Start a search of its own, with its first workers."""
        self.search = search
        self.journal: list[bytes] = []
        self.ledger = search.study()  # the journal's replay, as the journal grows
        self.known = History(self.ledger.problem)  # what an optimizer must know by that ledger
        self.condemned: set[tuple[int, int]] = set()  # attempts that a rule has stopped
        self.saved: dict[tuple[int, int], list[str]] = {}  # states in the store by attempt, the newest two
        self.removed: set[str] = set()  # from the store
        self.now = 0.0
        self.boot()
        for index in range(search.workers):
            self.come(index, ready=True)

    def boot(self) -> None:
        """Start a driver on the journal as it is; it knows no worker."""
        self.machine = self.search.machine()
        self.incarnations: dict[int, int] = {}
        self.unready: set[WorkerId] = set()
        self.holding: dict[WorkerId, Assign] = {}
        self.since: dict[WorkerId, float] = {}
        self.step: dict[WorkerId, int] = {}
        self.stopping: set[WorkerId] = set()
        self.overdue: set[tuple[int, int]] = set()  # attempts that ran out of time
        self.leaving: set[WorkerId] = set()
        self.past: list[Input] = []
        self.asked: AskOptimizer | None = None
        left = self.search.points - (len(self.ledger.trials) - self.ledger.n_asks)
        self.waiting: dict[int, Config] = {}  # for a worker, by the number that each will have
        self.waiting.update((len(self.ledger.trials) + n, {"x": 0.5}) for n in range(left))
        self.booted = len(self.journal)
        self.machine.replay(map(from_json, self.journal))
        self.carry_out(self.machine.start(self.now))
        self.answer_if_prompt()

    # -- both ends of the wire --------------------------------------------------------------------

    def tell(self, event: Input) -> list[ToWorker]:
        """Hand an input over, and what was sent because of it; a stale one must change nothing."""
        self.stale = self.is_stale(event)
        before = (len(self.journal), said(self.machine.study), self.machine.stale + 1)
        sent = self.carry_out(self.machine.handle(event, self.now))
        if self.stale:
            assert (len(self.journal), said(self.machine.study), self.machine.stale) == before
        if not isinstance(event, SuggestionReady | Tick | StopRequested | WorkerLost):
            self.past.append(event)
        self.answer_if_prompt()
        return sent

    def is_stale(self, event: Input) -> bool:
        match event:
            case SuggestionReady() | Tick() | StopRequested() | WorkerLost():
                return False
            case WorkerJoined(worker=worker):
                return worker.incarnation < self.incarnations[worker.index] or self.past.count(event) > 0
            case TrialSaid():
                held = self.machine.workers[event.worker.index].trial
                current = held == event.message.trial and self.ledger.trials[held].attempt == event.message.attempt
                repeated = isinstance(event.message, Checkpointed) and event in self.past
                return repeated or not (current and self.is_live(event.worker))
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
                    history = self.machine.study.history
                    for update in command.updates:
                        history.apply(update)
                    assert repr(history.observations) == repr(self.known.observations)
                    assert history.pending == self.known.pending | self.waiting
        return sent

    def append(self, event: Event) -> None:
        """Every record fits the life of its trial: so none ends twice, and attempts rise by one."""
        if isinstance(event, TrialCreated):
            assert event.trial == len(self.ledger.trials) < self.search.size
            assert event.config == self.waiting.pop(event.trial)
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
                if run in self.overdue - self.condemned:
                    assert event.failure is not None
                    assert event.failure.kind == "timeout"
        self.journal.append(to_json(event))
        if self.ledger.apply(from_json(self.journal[-1])) is Decision.STOP:
            self.condemned.add((event.trial, self.ledger.trials[event.trial].attempt))
        for update in self.ledger.take_updates():
            self.known.apply(update)

    def receive(self, worker: WorkerId, message: ToWorker) -> None:
        """Whatever is sent rests on what the journal already holds."""
        match message:
            case Assign(trial=number, attempt=attempt, budget=budget, checkpoint=name, discard=discard):
                trial = self.ledger.trials[number]
                assert (trial.state, trial.worker) == (TrialState.RUNNING, worker.index)
                assert (trial.attempt, trial.budget) == (attempt, budget)
                assert name == (trial.checkpoint and trial.checkpoint.name)
                self.remove(discard)
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
                assert self.machine.ending is not None
                self.leaving.add(worker)
            case Refused():
                assert self.stale or not self.is_live(worker)

    def remove(self, names: Iterable[str]) -> None:
        """A worker removes states; nobody may need them any more."""
        self.removed.update(names)
        for trial in self.ledger.trials:
            assert not self.removed & {state.name for state in (trial.checkpoint, trial.rest) if state is not None}

    def is_live(self, worker: WorkerId) -> bool:
        known = self.machine.workers.get(worker.index)
        return known is not None and known.id == worker and known.is_live

    def is_late(self, worker: WorkerId) -> bool:
        return self.search.trial_timeout is not None and self.now - self.since[worker] > self.search.trial_timeout

    @property
    def live(self) -> list[WorkerId]:
        return [worker.id for worker in self.machine.workers.values() if worker.is_live]

    @property
    def busy(self) -> list[WorkerId]:
        return [worker for worker in self.live if worker in self.holding]

    # -- what the optimizer's thread and the workers do -------------------------------------------

    def answer_if_prompt(self) -> None:
        if self.search.prompt and self.asked is not None:
            self.answer()

    def answer(self) -> None:
        """Answer the question that waits for the optimizer."""
        asked, study = self.asked, self.machine.study
        assert asked is not None
        self.asked = None
        answer = study.checked(study.optimizer.ask(asked.index, study.history))
        if isinstance(answer, Proposal):
            self.waiting[len(self.ledger.trials) + len(self.waiting)] = answer.config
        self.tell(SuggestionReady(asked.index, answer))

    def come(self, index: int, ready: bool) -> None:
        self.incarnations[index] = self.incarnations.get(index, -1) + 1
        worker = WorkerId(index, self.incarnations[index])
        self.unready.add(worker)
        self.tell(WorkerJoined(worker, "host"))
        if ready:
            self.become_ready(worker)

    def become_ready(self, worker: WorkerId) -> None:
        self.unready.discard(worker)
        self.tell(WorkerReady(worker))

    def report(self, worker: WorkerId, n: int, value: float) -> TrialSaid:
        """Report the next ``n`` steps, or those up to where the trial must wait for a verdict; what was said."""
        assign = self.holding[worker]
        first = self.step[worker] + 1
        last = min([first + n - 1, assign.budget, *(step for step in assign.milestones if step >= first)])
        steps = list(range(first, last + 1))
        awaiting = last in assign.milestones
        columns = {"loss": (steps, [value] * len(steps))}
        event = TrialSaid(worker, Reported(assign.trial, assign.attempt, "loss", columns, awaiting))
        assert sum(isinstance(answer, Decided) for answer in self.tell(event)) == awaiting
        self.step[worker] = last
        return event

    def save(self, worker: WorkerId) -> None:
        """Save a state, and remove all but the newest two of the attempt that the driver was told of."""
        held = self.holding[worker]
        states = self.saved.setdefault((held.trial, held.attempt), [])
        states.append(str(StateName(held.trial, held.attempt, len(states) + 1)))
        self.tell(TrialSaid(worker, Checkpointed(held.trial, held.attempt, self.step[worker], states[-1])))
        self.remove(states[:-2])

    def finish(self, worker: WorkerId, outcome: OutcomeKind, value: float) -> TrialSaid:
        """End an attempt; what was said of it. None says that it was stopped if it was not told to stop."""
        assign = self.holding.pop(worker)
        if outcome == "stopped" and worker not in self.stopping | self.leaving:
            outcome = "returned"
        returned = value if outcome == "returned" else None
        event = TrialSaid(worker, Finished(assign.trial, assign.attempt, outcome, returned))
        self.tell(event)
        return event

    def train(self, worker: WorkerId, value: float) -> None:
        """An attempt as it should be."""
        while self.step[worker] < self.holding[worker].budget and worker not in self.stopping:
            self.report(worker, 1, value)
        self.finish(worker, "stopped" if worker in self.stopping else "returned", value)

    def settle(self) -> None:
        """From wherever it is, the search ends once the workers behave."""
        if self.machine.ending not in (None, "completed"):
            self.boot()
        for _ in range(200):
            if self.machine.is_over:
                break
            if self.asked is not None:
                self.answer()
            if not self.live and self.machine.ending is None:
                self.come(0, ready=True)
            for worker in self.live:
                if worker in self.holding:
                    self.train(worker, 0.5)
                elif worker in self.leaving:
                    self.tell(WorkerGone(worker))
                elif worker in self.unready:
                    self.become_ready(worker)
        assert self.machine.is_over
        assert self.machine.ending == "completed"
        assert said(self.ledger) == said(self.machine.study)
        assert len(self.ledger.trials) == self.search.size or self.search.name == "pbt"
        assert all(trial.is_over or trial.state is TrialState.PAUSED for trial in self.ledger.trials)
