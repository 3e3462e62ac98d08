"""The state of one run: its study, its workers, the attempts that run, and its phase.

:class:`Run` is data with look-ups. The functions in :mod:`~maggy_like.driver.state_machine.attempts`,
:mod:`~maggy_like.driver.state_machine.phases` and :mod:`~maggy_like.driver.state_machine.workers` change it.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from maggy_like.driver.settings import Settings
from maggy_like.driver.state_machine.failures import IdenticalFailures, StoreOutage
from maggy_like.driver.state_machine.proposals import Proposals
from maggy_like.errors import UserError
from maggy_like.protocol.endings import UNEVEN, Ending, StopReason
from maggy_like.protocol.messages import Finished
from maggy_like.protocol.state_names import parse_name
from maggy_like.protocol.task import WorkerId
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import Failure, FailureKind

if TYPE_CHECKING:
    from optimizers.comparisons.confirmation import Confirming


class SavedStates:
    """Records which states are in the store, and which trials would continue from each.

    An attempt keeps the last few states that the journal knows, and that of its best value. With the next attempt of a
    trial, its worker receives the names of the states to remove: those of earlier attempts from which neither this
    trial nor one that started from it (see :class:`~optimizers.core.base.Proposal`) would continue.
    """

    def __init__(self, study: Study, keep: int) -> None:
        self._study = study  # state of the study; it receives each event before this object
        self._keep = keep
        self._left: dict[int, list[tuple[int, str]]] = {}  # attempt and name, by the trial that saved it
        self._needed: dict[int, set[str]] = {}  # by trial
        self._needs: Counter[str] = Counter()

    def take(self, event: Event) -> None:
        """Record an event."""
        match event:
            case AttemptEnded():
                self._count(event.trial)
            case AttemptStarted(trial=trial):
                if trial in self._left:
                    self._left[trial] = [state for state in self._left[trial] if self._needs[state[1]]]
            case TrialCreated(parent=int()):
                self._count(event.trial)
            case CheckpointSaved(trial=trial, attempt=attempt, name=name):
                self._left.setdefault(trial, []).append((attempt, name))
                self._count(trial)

    def superseded(self, trial: int) -> tuple[str, ...]:
        """Return once the states of the present attempt of ``trial`` that its worker may remove."""
        left = self._left[trial]
        present = [name for attempt, name in left if attempt == left[-1][0]]
        gone = {name for name in present[: -self._keep] if not self._needs[name]}
        if gone:
            self._left[trial] = [state for state in left if state[1] not in gone]
        return tuple(name for name in present if name in gone)

    def unneeded(self, trial: int) -> tuple[str, ...]:
        """Return the states that a worker may remove when the next attempt of ``trial`` starts."""
        return tuple(name for _, name in self._left.get(trial, ()) if not self._needs[name])

    def older(self, name: str) -> tuple[str, ...]:
        """Return earlier states of the same trial than ``name`` that may still exist, newest first."""
        names = [state for _, state in self._left.get(parse_name(name).trial, ())]
        return tuple(reversed(names[: names.index(name)])) if name in names else ()

    def _count(self, number: int) -> None:
        """Record what a trial, and those that may yet start from it, would continue from."""
        trial = self._study.trials[number]
        if trial.checkpoint is None and number not in self._needed:
            return  # nor has it any other state
        needed = {state.name for state in (trial.checkpoint, trial.rest, trial.best_checkpoint) if state is not None}
        before = self._needed.get(number, set())
        if needed != before:
            self._needs.update(needed - before)
            for name in before - needed:
                self._needs[name] -= 1
                if not self._needs[name]:
                    del self._needs[name]
            self._needed[number] = needed


# -- workers ------------------------------------------------------------------------------------------


class WorkerState(enum.StrEnum):
    """``JOINING -> IDLE <-> BUSY -> DRAINING -> GONE``; any of them ``-> LOST``."""

    JOINING = "joining"
    IDLE = "idle"
    BUSY = "busy"
    DRAINING = "draining"
    GONE = "gone"
    LOST = "lost"


_LEFT = WorkerState.GONE, WorkerState.LOST  # looked up once, since each message asks


@dataclass(slots=True, eq=False)
class Worker:
    """One incarnation of a worker."""

    id: WorkerId
    host: str
    accelerators: tuple[str, ...]
    seen: float  # when its last message came
    state: WorkerState = WorkerState.JOINING
    attempt: RunningAttempt | None = None  # the attempt that it runs while ``BUSY``
    leaving: str = ""  # why it leaves once its attempt is over, since its machine is about to be taken away; else empty

    @property
    def trial(self) -> int | None:
        """The trial that it runs, if any."""
        return None if self.attempt is None else self.attempt.trial

    @property
    def is_live(self) -> bool:
        """Whether its messages still count."""
        return self.state not in _LEFT

    @property
    def place(self) -> str:
        """Its index and host, for people."""
        return f"worker {self.id.index} on {self.host}"


# -- attempts -----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class RunningAttempt:
    """An attempt of a trial that runs, on one worker or on several."""

    trial: int
    number: int  # which attempt of the trial it is, from 1
    members: tuple[Worker, ...]  # its workers, in order of rank
    since: float  # when it was assigned
    stop_reason: StopReason = StopReason.NONE  # why it must end early, if it must
    failure: Failure | None = None  # how its end is recorded then, if that is a fault
    cause: str = ""  # why the search is over, if that ends it
    saved: set[str] = field(default_factory=set)  # names of the states that it has saved
    # How its ranks ended, in the order of the messages.
    ends: dict[int, Finished | Failure] = field(default_factory=dict)
    waits: dict[WorkerId, float] = field(default_factory=dict)  # the members that wait for the store, and since when
    discounted: float = 0.0  # seconds for which any of them did, and which count against no limit
    # How many reports each rank had made when it was halted; None as long as nobody wants them to stop.
    halted: dict[int, int] | None = None
    leave_by: float | None = None  # when it is ended at the latest, since a member's machine is about to be taken away

    def rank(self, worker: WorkerId) -> int:
        """Return the rank of a member."""
        return next(rank for rank, member in enumerate(self.members) if member.id == worker)

    @property
    def running(self) -> list[WorkerId]:
        """The members that have not ended."""
        return [member.id for rank, member in enumerate(self.members) if rank not in self.ends]

    @property
    def has_ended(self) -> bool:
        """Whether all members have ended."""
        return len(self.ends) == len(self.members)

    @property
    def stop_at(self) -> int | None:
        """The report in which all must stop: the first that none of them has passed. None until all have answered."""
        halted = self.halted
        if halted is None or not all(rank in halted or rank in self.ends for rank in range(len(self.members))):
            return None
        return max(halted.values(), default=0) + 1

    def end(self) -> Finished | Failure:
        """Return how the attempt ended: as rank 0 did, or with the earliest failure.

        A failed collective operation is not a cause while there is another one: it only tells that a rank is gone. Nor
        is the loss of a worker, if a rank had failed before.
        """
        faults = {rank: end for rank, end in self.ends.items() if is_fault(end)}
        if not faults:
            return self.ends[0]
        rank = min(faults, key=lambda rank: _order(faults[rank]))
        fault = faults[rank]
        if isinstance(fault, Finished) and fault.kind is FailureKind.TIMEOUT:  # it may have waited for another rank
            return msgspec.structs.replace(fault, message=f"{fault.message}{standing(self.ends)}")
        if len(self.members) == 1:
            return fault
        return msgspec.structs.replace(fault, message=f"rank {rank}: {fault.message}{self._elsewhere(rank, faults)}")

    def _elsewhere(self, rank: int, faults: dict[int, Finished | Failure]) -> str:
        """Return where the others were, if a rank failed because they were elsewhere."""
        others = ((other, end) for other, end in faults.items() if other != rank and isinstance(end, Finished))
        places = [f"rank {other} was at {end.place}" for other, end in sorted(others) if end.place]
        return f" ({', '.join(places)})" if places and UNEVEN in faults[rank].message else ""


def standing(ends: Mapping[int, Finished | Failure]) -> str:
    """Return where the ranks of an attempt were when they were killed, those first for which others waited."""
    known = {rank: end for rank, end in ends.items() if isinstance(end, Finished) and end.stood}
    if len(ends) == 1:
        return "".join(f"; it was at {end.stood}" for end in known.values())
    away = [f"rank {rank} was at {end.stood}" for rank, end in sorted(known.items()) if not end.is_in_collective]
    waiting = [
        f"rank {rank} waited in a collective operation at {end.stood}"
        for rank, end in sorted(known.items())
        if end.is_in_collective
    ]
    uneven = f", so {UNEVEN}" if len(waiting) == len(ends) else ""
    return f"; {', '.join((*away, *waiting))}{uneven}" if known else ""


def is_fault(end: Finished | Failure) -> bool:
    """Whether a rank that ended so ends the attempt for all."""
    return isinstance(end, Failure) or end.outcome in ("raised", "died")


def _order(end: Finished | Failure) -> tuple[int, float]:
    if isinstance(end, Failure):
        return 1, 0.0
    return (2, end.at) if end.kind is FailureKind.COLLECTIVE else (0, end.at)


# -- the run ------------------------------------------------------------------------------------------


class Run:
    """All that a driver knows of its run."""

    def __init__(
        self, study: Study, settings: Settings, *, size: int, grows: bool, heartbeat_timeout: float, patience: float
    ) -> None:
        self.study = study
        self.settings = settings
        self.size = size  # number of workers, or the most that may join
        self.grows = grows  # whether workers come and go
        self.heartbeat_timeout = heartbeat_timeout  # seconds of silence after which a worker counts as lost
        self.now = 0.0  # when the present input came, in seconds
        self.stale = 0  # messages of lost incarnations or past attempts that were ignored
        # the phase
        self.objective = settings.search.objective  # name of the optimized metric, once known
        self.ending: Ending | None = None  # why the run ended; None before
        self.error: Exception | None = None  # the exception that ``lagom`` raises; None for none
        self.stopped_by = ""  # name of the one who stopped the run from outside; empty if nobody did
        # Why the search ended while the confirmation or the training is to come, or runs; None before.
        self.search_ended: Ending | None = None
        self.has_trained = False  # whether the training has begun
        self.short_since: float | None = None  # since when the training waits for workers
        # the workers
        self.workers: dict[int, Worker] = {}  # the newest incarnation of each worker, by index
        self.idle: dict[int, float] = {}  # since when workers are idle, by index, in the order in which they became so
        self.heard_until = float("-inf")  # every live worker was heard of since then, or has joined since
        self.newcomers: list[str] = []  # workers that have joined a running search, to be shown in one line
        self.newcomers_since = 0.0  # when the first of them joined
        self.any_leaves = False  # whether any worker was ever announced to leave
        # the attempts
        self.attempts: dict[int, RunningAttempt] = {}  # the attempts that run, by trial
        # Trials whose attempt failed or was lost, in the order in which they are retried.
        self.retries: deque[int] = deque()
        self.files: dict[int, int] = {}  # by trial, the last attempt that has left files (see ``Assign.files``)
        self.began_at: dict[int, tuple[int, int]] = {}  # how far each running trial was when its attempt began
        self.proposals = Proposals(study, size // settings.size.workers_per_trial, settings.search.n_configs)
        self.failures = IdenticalFailures(
            settings.failures.enough(self.at_a_time), settings.failures.names, retries=study.scheduler.can_retry
        )
        self.states = SavedStates(study, settings.files.kept.keep_checkpoints)  # which checkpoints are still needed
        self.confirming: Confirming | None = None  # decides about the repeats; None without a confirmation
        if (plan := settings.confirmation) is not None:
            from optimizers.comparisons.confirmation import (
                Confirming,  # loads scipy, which only confirmations should cost
            )

            self.confirming = Confirming(study, plan.top, plan.repeats)
        self.outage = StoreOutage(patience)  # which trials wait for the store
        self.known_until = 0.0  # the newest time in the journal
        self.is_named = bool(study.objectives.given)  # whether the metric, and so its direction, is settled
        self.is_sign_known = not settings.search.guessed  # whether a first result has been compared with the direction
        self.unclear: UserError | None = None  # with which the search ends if its direction is unclear or wrong
        self.warned: set[str] = set()  # keys of warnings that were shown
        # for each cause of failures: the trial whose traceback was shown, and its message
        self.traced: dict[tuple[str, str, str], tuple[int, str]] = {}

    @property
    def keeps_files(self) -> bool:
        """Whether any attempt has left files."""
        return any([*self.files.values()])  # a copy, since another thread may ask

    @property
    def is_after_search(self) -> bool:
        """Whether the search is over, and the run is not."""
        return self.search_ended is not None and self.ending is None

    @property
    def is_confirming(self) -> bool:
        """Whether the search is over, and its confirmation is not."""
        return self.is_after_search and self.confirming is not None and not self.confirming.is_over

    @property
    def is_training(self) -> bool:
        """Whether search and confirmation are over, and the training is not."""
        return self.is_after_search and not self.is_confirming

    @property
    def live(self) -> Iterator[Worker]:
        """The live workers."""
        return (worker for worker in self.workers.values() if worker.is_live)

    @property
    def at_a_time(self) -> int:
        """The number of trials that can run in parallel now."""
        workers = sum(1 for _ in self.live) if self.grows else self.size
        return max(1, workers // self.settings.size.workers_per_trial)

    def find(self, known: WorkerId) -> Worker | None:
        """Return the live worker of that incarnation, or None for a stale one."""
        worker = self.workers.get(known.index)
        return worker if worker is not None and worker.id == known and worker.is_live else None
