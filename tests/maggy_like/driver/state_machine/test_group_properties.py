"""Attempts whose ranks report, wait, fail and vanish in any order, with every message late by as much as may be."""

from __future__ import annotations

from hand import settings_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis_profiles import examples
from rank import Rank, study
from witness import said

from maggy_like.driver.settings import TrainingSettings
from maggy_like.driver.state_machine import StateMachine, phases
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
    WorkerSeen,
)
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.messages import (
    Abort,
    Assign,
    Checkpointed,
    Decided,
    Halt,
    Held,
    OutcomeKind,
    Reported,
    Shutdown,
    Stop,
)
from maggy_like.protocol.state_names import StateName
from maggy_like.protocol.task import WorkerId
from optimizers.core.events import AttemptEnded, AttemptStarted, from_json, to_json
from optimizers.core.trial import FailureKind, TrialState

SLOTS = 4
PICK = st.integers(0, 11)


class Ranks(RuleBasedStateMachine):
    """Both ends of every wire; the wires keep order and lose nothing while their worker lives."""

    @initialize(width=st.integers(1, 3), n_trials=st.integers(1, 4), least=st.integers(1, SLOTS), train=st.booleans())
    def begin(self, width: int, n_trials: int, least: int, train: bool) -> None:
        self.n_trials = n_trials
        self.journal: list[bytes] = []
        self.n_saved = 0
        self.ledger = study(n_trials)
        self.running: set[int] = set()  # trials
        self.stops: dict[tuple[int, int], set[int]] = {}  # in which reports ranks stopped, by attempt
        self.now = 0.0
        self.width = width
        self.plan = TrainingSettings(3) if train else None
        self.least = least
        self.workers: dict[int, Rank] = {}
        self.epochs = dict.fromkeys(range(SLOTS), 0)
        self.boot()
        for index in range(SLOTS):
            self.come(index)

    def boot(self) -> None:
        """A driver on the journal as it is."""
        made = study(self.n_trials)
        options = settings_of(
            made,
            workers_per_trial=self.width,
            training=self.plan,
            min_workers=self.least,
            max_attempts=4,
            trial_timeout=50.0,
        )
        self.machine = StateMachine(made, options, size=SLOTS, heartbeat_timeout=1e9)
        self.machine.replay(map(from_json, self.journal))
        self.workers.clear()
        self.running.clear()
        self.carry_out(self.machine.start(self.now))

    # -- the wires ------------------------------------------------------------------------------------

    def tell(self, event: Input) -> None:
        self.carry_out(self.machine.handle(event, self.now))

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Append(event=event):
                    if isinstance(event, AttemptStarted):
                        assert event.trial not in self.running
                        self.running.add(event.trial)
                    elif isinstance(event, AttemptEnded):
                        self.running.discard(event.trial)
                    self.journal.append(to_json(event))
                    self.ledger.apply(from_json(self.journal[-1]))
                    self.ledger.take_updates()
                case Send(worker=known, message=message):
                    worker = self.workers.get(known.index)
                    if worker is not None and worker.id == known:
                        worker.inbox.append(message)
                case AskOptimizer(index=index, updates=updates):
                    asked = self.machine.study
                    for update in updates:
                        asked.history.apply(update)
                    self.tell(SuggestionReady(index, asked.checked(asked.optimizer.ask(index, asked.history))))

    def come(self, index: int) -> None:
        self.epochs[index] += 1
        worker = self.workers[index] = Rank(WorkerId(index, self.epochs[index]))
        worker.outbox += (WorkerJoined(worker.id, f"host {index % 2}"), WorkerReady(worker.id))

    def receive(self, worker: Rank) -> None:
        match worker.inbox.popleft():
            case Assign() as order:
                assert not worker.is_running
                worker.begin(order)
            case Halt() if worker.is_running:
                worker.halted = True
                order = worker.order
                assert order is not None
                worker.outbox.append(TrialSaid(worker.id, Held(order.trial, order.attempt, worker.passed)))
            case Stop(at=at) if worker.is_running:
                assert (at is None) == (self.peers(worker) == [])
                assert at is None or all(peer.passed < at for peer in [worker, *self.peers(worker)])
                worker.stop_at = worker.passed + 1 if at is None else at
                worker.verdicts += [True] * (at is None)
            case Decided(stop=stop) if worker.is_running:
                worker.verdicts.append(stop)
            case Abort() if worker.is_running:
                worker.end("stopped", cut=True)
            case Shutdown():
                if worker.is_running:
                    worker.end("stopped", cut=True)
                worker.outbox.append(WorkerGone(worker.id))

    def peers(self, worker: Rank) -> list[Rank]:
        """The others that run, or ran, its attempt."""
        mine = worker.order
        assert mine is not None
        others = [other for other in self.workers.values() if other is not worker and other.order is not None]
        return [o for o in others if o.order and (o.order.trial, o.order.attempt) == (mine.trial, mine.attempt)]

    def is_whole(self, worker: Rank) -> bool:
        """Whether no rank of its attempt has failed, was cut off or is gone."""
        assert worker.order is not None
        info = worker.order.rank_info
        group = [worker, *self.peers(worker)]
        return len(group) == (info.world_size if info else 1) and not any(
            rank.cut or rank.ended in ("raised", "died") for rank in group
        )

    def meets_later(self, worker: Rank) -> bool:
        """Whether the assignment of another rank is still on its way."""
        assert worker.order is not None
        run = (worker.order.trial, worker.order.attempt)
        coming = [message for other in self.workers.values() for message in other.inbox]
        return any(isinstance(message, Assign) and (message.trial, message.attempt) == run for message in coming)

    def act(self, worker: Rank, value: float) -> bool:
        """Go on as far as the next wait; whether it could."""
        order = worker.order
        assert order is not None
        if worker.waiting:
            if not worker.verdicts:
                return False
            worker.waiting = False
            if worker.verdicts.popleft():
                self.stop(worker, worker.passed)
            return True
        if worker.passed == order.budget:
            worker.end("returned")
            return True
        if self.meets_later(worker):
            return False
        if worker.arrived == worker.passed:
            worker.arrived += 1
            return True
        if not self.peers(worker) and not self.is_whole(worker):
            worker.end("raised", FailureKind.COLLECTIVE)
            return True
        if absent := [peer for peer in self.peers(worker) if peer.arrived < worker.arrived]:
            if not self.is_whole(worker):
                worker.end("raised", FailureKind.COLLECTIVE)
                return True
            assert all(peer.is_running for peer in absent)  # or it would wait for ever
            return False
        if worker.halted and worker.stop_at is None:
            return False
        if worker.stop_at is not None and worker.passed + 1 >= worker.stop_at:
            self.stop(worker, worker.passed + 1)
            return True
        worker.passed += 1
        step = worker.passed
        if order.rank_info is None or order.rank_info.rank == 0:
            awaiting = step in order.milestones
            columns = {"loss": ([step], [value])}
            worker.outbox.append(TrialSaid(worker.id, Reported(order.trial, order.attempt, "loss", columns, awaiting)))
        worker.waiting = step in order.milestones
        return True

    def stop(self, worker: Rank, report: int) -> None:
        order = worker.order
        assert order is not None
        self.stops.setdefault((order.trial, order.attempt), set()).add(report)
        worker.end("stopped")

    # -- what may happen ---------------------------------------------------------------------------------

    def pick(self, choices: list[Rank], pick: int) -> Rank:
        return choices[pick % len(choices)]

    @property
    def active(self) -> list[Rank]:
        return [worker for worker in self.workers.values() if worker.is_running]

    @precondition(lambda self: self.active)
    @rule(pick=PICK, times=st.integers(1, 8), value=st.sampled_from([0.9, 0.8, 0.1]))
    def a_rank_goes_on(self, pick: int, times: int, value: float) -> None:
        worker = self.pick(self.active, pick)
        for _ in range(times):
            if worker.is_running:
                self.act(worker, value)

    @precondition(lambda self: any(worker.outbox for worker in self.workers.values()))
    @rule(pick=PICK, times=st.integers(1, 4))
    def the_driver_hears(self, pick: int, times: int) -> None:
        worker = self.pick([worker for worker in self.workers.values() if worker.outbox], pick)
        for _ in range(min(times, len(worker.outbox))):
            self.tell(worker.outbox.popleft())

    @precondition(lambda self: any(worker.inbox for worker in self.workers.values()))
    @rule(pick=PICK, times=st.integers(1, 4))
    def a_worker_hears(self, pick: int, times: int) -> None:
        worker = self.pick([worker for worker in self.workers.values() if worker.inbox], pick)
        for _ in range(min(times, len(worker.inbox))):
            self.receive(worker)

    @precondition(lambda self: self.active)
    @rule(pick=PICK, outcome=st.sampled_from(["raised", "died"]))
    def a_rank_fails(self, pick: int, outcome: OutcomeKind) -> None:
        self.pick(self.active, pick).end(outcome, FailureKind.EXCEPTION if outcome == "raised" else FailureKind.SIGNAL)

    @precondition(lambda self: any(worker.passed for worker in self.active))
    @rule(pick=PICK)
    def rank_0_saves(self, pick: int) -> None:
        worker = self.pick([worker for worker in self.active if worker.passed], pick)
        order = worker.order
        assert order is not None
        if order.rank_info is None or order.rank_info.rank == 0:
            self.n_saved += 1
            name = str(StateName(order.trial, order.attempt, self.n_saved))
            saved = Checkpointed(order.trial, order.attempt, worker.passed, name)
            worker.outbox.append(TrialSaid(worker.id, saved))

    @precondition(lambda self: self.workers and self.machine.ending is None)
    @rule(pick=PICK, with_others=st.booleans(), back=st.booleans())
    def a_worker_is_lost(self, pick: int, with_others: bool, back: bool) -> None:
        worker = self.pick(list(self.workers.values()), pick)
        del self.workers[worker.id.index]
        self.tell(WorkerLost(worker.id, "kill -9", with_others))
        if back:
            self.come(worker.id.index)

    @precondition(lambda self: len(self.workers) < SLOTS and self.machine.ending is None)
    @rule()
    def a_worker_comes_back(self) -> None:
        self.come(min(set(range(SLOTS)) - set(self.workers)))

    @precondition(lambda self: self.workers and self.machine.ending is None)
    @rule(seconds=st.sampled_from([10.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.tell(Tick())

    @precondition(lambda self: len(self.journal) > 8 and self.machine.ending is None)
    @rule()
    def the_time_is_up(self) -> None:
        self.tell(StopRequested(Ending.TIMEOUT))

    # Also after the end of a search that was over soon: else there may be nothing left to happen.
    @precondition(lambda self: len(self.journal) > 8 or self.machine.ending is not None)
    @rule()
    def the_driver_dies(self) -> None:
        self.boot()
        assert self.ledger.counts[TrialState.RUNNING] == 0
        for index in range(SLOTS):
            self.come(index)

    # -- what always holds --------------------------------------------------------------------------------

    @invariant()
    def all_ranks_stop_in_the_same_report(self) -> None:
        assert all(len(reports) == 1 for reports in self.stops.values())

    @invariant()
    def the_journal_is_the_study(self) -> None:
        assert said(self.ledger) == said(self.machine.study)

    @invariant()
    def each_running_trial_has_one_team(self) -> None:
        attempts = {worker.attempt for worker in self.machine.workers.values() if worker.attempt is not None}
        assert {attempt.trial for attempt in attempts} == self.running
        assert len(attempts) == len(self.running)

    def teardown(self) -> None:
        """From wherever it is, everything ends once no more faults come, and all ranks with it."""
        if "machine" not in vars(self):
            return
        for _ in range(600):
            if self.machine.is_over:
                break
            self.settle_once()
        assert self.machine.is_over
        assert not self.running
        assert all(trial.is_over or trial.state is not TrialState.RUNNING for trial in self.ledger.trials)
        if self.machine.ending == "completed" and self.plan is not None and self.ledger.best is not None:
            assert self.ledger.trials[-1].training
            assert self.ledger.trials[-1].is_over

    def settle_once(self) -> None:
        if self.machine.ending is None:
            for index in set(range(SLOTS)) - set(self.workers):
                self.come(index)
        moved = False
        for worker in list(self.workers.values()):
            while worker.outbox:
                moved = True
                event = worker.outbox.popleft()
                self.tell(event)
                if isinstance(event, WorkerGone):
                    self.workers.pop(worker.id.index, None)
            while worker.inbox:
                moved = True
                self.receive(worker)
            moved |= worker.is_running and self.act(worker, 0.9)
        if not moved:  # a training may wait for those who do not come
            self.now += phases.PATIENCE
            for worker in self.workers.values():
                self.tell(WorkerSeen(worker.id))
            self.tell(Tick())


Ranks.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
TestRanks = Ranks.TestCase
