"""The protocol between a study and the algorithms: an optimizer proposes, a scheduler grants steps.

An algorithm has two sides, because they live under different clocks:

- :class:`Optimizer` proposes configurations. It may be slow (a Gaussian process), so the driver
  runs it beside the server's loop, ahead of need. It sees a :class:`History`.
- :class:`Scheduler` decides how many steps a trial gets: rungs, promotions, early stops. It runs
  inside the server's loop and must answer in microseconds.

Both speak of *loss*: smaller is better, and what is not finite ranks worst. The study turns the
user's direction once, at its border, so no algorithm ever sees it.
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from optimizers.checks import describe, short
from optimizers.core.trial import NOTHING
from optimizers.errors import OptimizerError
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace


class Decision(enum.StrEnum):
    """What becomes of a running trial after a report."""

    CONTINUE = "continue"
    STOP = "stop"


CONTINUE: Final = Decision.CONTINUE  # Python 3.11 takes as long to look up a member of an enumeration as for a call


@dataclass(frozen=True, slots=True)
class Problem:
    """What an algorithm is told of the search before it starts.

    Attributes:
        space: The domains of the parameters.
        seed: Source of all randomness.
        max_budget: Steps of a full training.
        n_trials: Upper bound on the number of configurations, or None.
        earlier: What earlier searches observed, a tuple for each of them: knowledge to start from.
            Their losses may be on another scale; their configurations are valid in ``space``. One
            observation for each trial and step, all of them ended. Whatever the optimizer, the best
            configuration of each search is tried first.
        n_objectives: How many objectives there are.
        is_timed: Whether the search is bounded by time alone, so that it matters how long trials take.
    """

    space: SearchSpace
    seed: int = 0
    max_budget: int = 1
    n_trials: int | None = None
    earlier: tuple[tuple[Observation, ...], ...] = ()
    n_objectives: int = 1
    is_timed: bool = False


class Wait(enum.Enum):
    """The type of :data:`WAIT`."""

    WAIT = "wait"

    def __repr__(self) -> str:
        return self.name


WAIT: Final = Wait.WAIT
"""An optimizer's answer while it has nothing to propose: it is asked again, for the same index, once anything has
changed. A search in which nothing runs and nothing is due any more ends, since nothing will change."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration whose training goes on from where another trial's was.

    Attributes:
        parent: Number of the trial from whose state at rest the new one starts (see :attr:`Trial.rest`);
            None to start from nothing, as a plain configuration does.
    """

    config: Config
    parent: int | None = None


Answer = Config | Proposal | Wait | None
"""What an optimizer may answer; None says that there is none left."""


class Observation(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A result: an attempt ended (completed, stopped, paused or failed), or a running one passed a milestone.

    Attributes:
        trial: The trial's number; a promoted trial is observed once per rung.
        step: The step of the last measurement.
        loss: The objective as a loss; ``inf`` for a failed trial or a value that is not finite.
        ended: Whether the attempt has ended; if not, the trial runs on and stays pending.
        paused: Whether the trial rests now and may run on later.
        losses: All objectives as losses, the first of them ``loss``; empty in a search of one.
        metrics: The newest value of every metric as the attempt ended: as returned, else as last reported.
        seconds: How long the trial has run, over all attempts, as this one ended. 0 where it runs on, and where an
            attempt was lost, which may have hung, or been found out late.
    """

    trial: int
    config: Config
    step: int
    loss: float
    ended: bool = True
    paused: bool = False
    losses: tuple[float, ...] = ()
    metrics: Mapping[str, float] = NOTHING
    seconds: float = 0.0

    def __eq__(self, other: object) -> bool:
        """Whether all but the metrics and the seconds are alike."""
        if not isinstance(other, Observation):
            return NotImplemented
        compared = (name for name in self.__struct_fields__ if name not in ("metrics", "seconds"))
        return all(getattr(self, name) == getattr(other, name) for name in compared)


@dataclass(slots=True)
class History:
    """All that an optimizer may know: append-only observations, and what is running now.

    Attributes:
        problem: The search.
        observations: Results in the order in which they came; only ever appended to, so an
            optimizer may keep a cursor into it.
        pending: Configurations by trial number that are waiting or running, proposals for which no worker
            was free yet among them.
    """

    problem: Problem
    observations: list[Observation] = field(default_factory=list)
    pending: dict[int, Config] = field(default_factory=dict)

    def rng(self, index: int) -> np.random.Generator:
        """The random generator of the ``index``-th ask: no state to save, so replay is exact."""
        return np.random.default_rng([self.problem.seed, index])

    def apply(self, update: Update) -> None:
        """Take in one change."""
        if isinstance(update, Observation):
            if update.ended:
                self.pending.pop(update.trial, None)
            self.observations.append(update)
        else:
            self.pending[update.trial] = update.config


class Pending(msgspec.Struct, frozen=True, gc=False):
    """A configuration began to wait or run (again)."""

    trial: int
    config: Config


Update = Pending | Observation


class Grant(msgspec.Struct, frozen=True, gc=False):
    """Steps granted to an attempt.

    Attributes:
        budget: The step up to which the attempt may run; reports past it are not taken.
        milestones: Steps below the budget at which the scheduler must decide before the trial
            goes on, in rising order.
    """

    budget: int
    milestones: tuple[int, ...] = ()


def is_grant(answer: object) -> bool:
    """Whether a scheduler's answer grants a step or more, and has steps for milestones."""
    if not isinstance(answer, Grant) or type(answer.budget) is not int or not isinstance(answer.milestones, tuple):
        return False
    return answer.budget >= 1 and all(type(step) is int for step in answer.milestones)


class Scheduler(ABC):
    """Decides how many steps each trial gets. Called in the order of the ledger's events."""

    watches_reports: bool = False
    """Whether reports between milestones may also end a trial (a rule that watches all the time)."""

    may_promote: bool = False
    """Whether a trial that used its budget up may be granted more later."""

    def create(self, trial: int, parent: int | None) -> None:
        """Take in a new trial, which starts from the state at rest of the trial ``parent`` if there is one."""

    @abstractmethod
    def grant(self, trial: int) -> Grant:
        """The steps that the present attempt of ``trial`` has, or that its next one gets. Changes nothing."""

    def report(self, trial: int, step: int, loss: float) -> Decision:
        """Take in a measurement of a running trial and decide."""
        return Decision.CONTINUE

    def fail(self, trial: int) -> None:
        """Take in that a trial failed for good."""

    def retry(self, trial: int) -> bool:
        """Take back that a trial failed, since it runs again after all; False, and no change, where that cannot be."""
        return False

    def is_final(self, trial: int) -> bool:
        """Whether a trial that has used up its present grant is completed (else it is paused)."""
        return True

    def pause(self, trial: int) -> None:
        """Take in that a trial used up its grant, is not final, and has left its worker."""

    def next_promotion(self) -> int | None:
        """The paused trial that should run on now, if one is due. Changes nothing."""
        return None

    def closing_promotion(self) -> int | None:
        """The paused trial that should run on before the search ends, if there is one. Changes nothing.

        Asked where nothing runs, none is due by :meth:`next_promotion`, and no new trial will come: so no better one
        will either.
        """
        return None

    def promote(self, trial: int) -> None:
        """Take in that the trial of :meth:`next_promotion` or :meth:`closing_promotion` runs on."""

    def observe(self, observation: Observation) -> None:
        """Take in a result as the optimizer will see it, after whatever else is told of it."""


class FullBudget(Scheduler):
    """Every trial runs to the end."""

    def __init__(self, max_budget: int) -> None:
        self._grant = Grant(max_budget)

    def grant(self, trial: int) -> Grant:
        return self._grant

    def retry(self, trial: int) -> bool:
        return True


class Optimizer(ABC):
    """Proposes configurations. Holds options alone; what it knows comes with each call.

    One of one's own::

        class Evolution(Optimizer):
            def ask(self, index, history):
                space, rng = history.problem.space, history.rng(index)
                ended = sorted(history.observations, key=lambda seen: seen.loss)
                for _ in range(100):  # until it is none of those that run now
                    config = space.sample(rng)
                    if len(ended) >= 10 and rng.random() < 0.8:
                        parent = space.to_unit(ended[rng.integers(3)].config)
                        child = space.from_unit(np.clip(parent + rng.normal(0.0, 0.1, len(parent)), 0.0, 1.0))
                        config = child if space.allows(child) else config
                    if config not in history.pending.values():
                        break
                return config

        lagom(train_fn, space, optimizer=Evolution())

    ``optimizers.testing.check_optimizer(Evolution)`` tells whether it keeps the contract.
    """

    adaptive: bool = True
    """Whether proposals depend on results. If not, they are computed far ahead of need; if so, in a process of
    their own, to which the optimizer travels by pickle."""

    multi_objective: bool = False
    """Whether several objectives can be served (see :attr:`Observation.losses`)."""

    needs_checkpoints: bool = False
    """Whether a training function that saves and restores no checkpoints cannot be served."""

    @abstractmethod
    def ask(self, index: int, history: History) -> Answer:
        """Propose the ``index``-th configuration (from 0), or None when there is none left.

        A :class:`Proposal` names a trial to go on from as well; :data:`WAIT` asks to be asked again. Where proposals
        depend on results, none repeats a configuration of ``history.pending`` while there are others.

        Must depend on nothing but ``index`` and ``history``: the same two give the same answer, in
        this process or in one that resumes the search. Draw from ``history.rng(index)``.
        """

    def is_blind(self, history: History) -> bool:
        """Whether the next answer depends on no result yet, as of the first points of a search with a model.

        Then an adaptive optimizer answers in microseconds too, and nobody waits for its process to start. By default
        no adaptive one is.
        """
        return not self.adaptive

    def scheduler(self, problem: Problem) -> Scheduler:
        """A fresh scheduler for one search; by default every trial runs to the end."""
        return FullBudget(problem.max_budget)

    def suited_to(self, *, checkpoints: bool) -> Optimizer:
        """This optimizer with whatever it leaves to the training function filled in; by default nothing.

        :func:`maggy_like.lagom` calls it before anything else, and searches with what it returns.

        Args:
            checkpoints: Whether the training function both saves and restores states.
        """
        return self

    def describe(self) -> str:
        """This optimizer and whatever of its options shapes a search, as text.

        A search is only resumed by an optimizer of the same description. By default it has the arguments of
        ``__init__`` that are held in attributes of their names (see :func:`~optimizers.checks.describe`).
        """
        return describe(self)

    def check(self, problem: Problem) -> None:
        """Raise :class:`~optimizers.errors.OptimizerError` if a search cannot be served, in whatever way."""
        if problem.n_objectives > 1 and not self.multi_objective:
            raise OptimizerError(
                f"{type(self).__name__} serves one objective, and there are {problem.n_objectives}; use "
                "optimizer='bayesian', 'tpe', 'random' or 'grid', or optimise one number that weighs them"
            )
        self.validate(problem)
        made: object = self.scheduler(problem)
        if not isinstance(made, Scheduler):
            name = type(self).__name__
            remedy = "let it return one, such as FullBudget(problem.max_budget)"
            raise OptimizerError(f"{name}.scheduler(problem) returned {short(made)}, which is no Scheduler; {remedy}")

    def size(self, space: SearchSpace) -> int | None:
        """How many configurations of ``space`` this proposes at most before it ends; None where it does not end.

        A search without ``n_trials`` and ``timeout`` tries them all.
        """
        return None

    def full_trainings(self, problem: Problem) -> float:
        """How many of the trials of a search are meant to be trained to ``max_budget``; ``inf`` for all, or unknown."""
        return math.inf

    def load_libraries(self) -> None:
        """Import the libraries that later proposals need, so that no worker waits for that; by default nothing.

        It is called in the optimizer's own process, before the first question.
        """
        return

    def remarks(self, problem: Problem) -> list[str]:
        """What a user should know of how this search will go, before it starts; by default nothing."""
        return []

    def validate(self, problem: Problem) -> None:
        """Raise :class:`~optimizers.errors.OptimizerError` if this search cannot be served."""
