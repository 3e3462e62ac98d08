"""The protocol between a study and its algorithms: an optimizer proposes, a scheduler grants steps.

An algorithm has two sides, because they have different time limits:

- :class:`Optimizer` proposes configurations. It may be slow (a Gaussian process), so the driver asks it in another
  process and ahead of need. It sees a :class:`History`.
- :class:`Scheduler` decides how many steps a trial gets: rungs, promotions, early stops. It runs inside the server's
  loop and must return within microseconds.

Both work with *losses*: smaller is better, and a value that is not finite ranks worst. Only the study knows the user's
direction and converts values to losses.
"""

from __future__ import annotations

import enum
import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import lt
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from optimizers.checks import describe, short
from optimizers.core.trial import NOTHING
from optimizers.errors import OptimizerError
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace


class Decision(enum.StrEnum):
    """What happens to a running trial after a report."""

    CONTINUE = "continue"
    STOP = "stop"


CONTINUE: Final = Decision.CONTINUE  # in Python 3.11, looking up an enumeration's member costs as much as a call


@dataclass(frozen=True, slots=True)
class Problem:
    """Describe a search to an algorithm before it starts.

    Attributes:
        space: The domains of the parameters.
        seed: Source of all randomness.
        max_budget: Steps of a full training.
        n_trials: Upper bound on the number of configurations, or None.
        earlier: Observations of earlier searches, one tuple per search: prior knowledge. Their losses may be on another
            scale; their configurations are valid in ``space``. Each tuple has one observation per trial and step, all
            of them ended. Whatever the optimizer, the best configuration of each search is tried first.
        n_objectives: Number of objectives.
        is_timed: Whether only time bounds the search, so that the duration of trials matters.
        direction: Direction of the first objective, ``max`` or ``min``; None if it is not known yet.
        began_with: ``n_trials`` as it was given when the search began, which a resume may change. 0 if it was not
            given; None (the default) if it is ``n_trials``.
    """

    space: SearchSpace
    seed: int = 0
    max_budget: int = 1
    n_trials: int | None = None
    earlier: tuple[tuple[Observation, ...], ...] = ()
    n_objectives: int = 1
    is_timed: bool = False
    direction: Literal["max", "min"] | None = None
    began_with: int | None = None

    @property
    def planned(self) -> int | None:
        """The number of trials from which an optimizer derives its defaults, so that a resume changes none of them."""
        return self.n_trials if self.began_with is None else self.began_with or None


class Wait(enum.Enum):
    """The type of :data:`WAIT`."""

    WAIT = "wait"

    def __repr__(self) -> str:
        return self.name


WAIT: Final = Wait.WAIT
"""Returned by an optimizer that has nothing to propose yet. It is asked again, with the same index, after the next
change. A search ends when nothing runs and nothing is due, because nothing can change any more."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """Propose a configuration whose training continues from another trial's state.

    Attributes:
        config: The parameter values.
        parent: Number of the trial whose checkpoint the new one starts from (see :attr:`Trial.rest`). None to start
            from scratch, as with a plain configuration.
    """

    config: Config
    parent: int | None = None


Answer = Config | Proposal | Wait | None
"""What :meth:`Optimizer.ask` may return; None if no configuration is left."""


class Observation(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Record a result: an attempt ended (completed, stopped, paused or failed), or a running one passed a milestone.

    Attributes:
        trial: Number of the trial. A promoted trial is observed once per rung.
        config: Its parameter values.
        step: Step of the last measurement.
        loss: The objective as a loss; ``inf`` if the trial failed or the value is not finite.
        ended: Whether the attempt has ended. If not, the trial is still running and stays pending.
        paused: Whether the trial is paused and may be promoted later.
        losses: All objectives as losses, ``loss`` first. Empty if there is one objective.
        metrics: Newest value of each metric at the end of the attempt: the returned value, or else the last report.
        seconds: Running time of the trial over all attempts, when this one ended. 0 while it runs, and after a lost
            attempt, because that one may have hung.
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
        """Compare everything except the metrics and the seconds."""
        if not isinstance(other, Observation):
            return NotImplemented
        compared = (name for name in self.__struct_fields__ if name not in ("metrics", "seconds"))
        return all(getattr(self, name) == getattr(other, name) for name in compared)


@dataclass(slots=True)
class History:
    """Everything that an optimizer may know: all observations so far, and what is running now.

    Attributes:
        problem: The search.
        observations: Results in order of arrival. The list only grows, so an optimizer may keep a cursor into it.
        pending: Configurations by trial number that are waiting or running. They include proposals that wait for a free
            worker.
    """

    problem: Problem
    observations: list[Observation] = field(default_factory=list)
    pending: dict[int, Config] = field(default_factory=dict)
    _points: dict[int, tuple[Config, NDArray[np.float64]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _entropy: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)

    @property
    def entropy(self) -> tuple[int, ...]:
        """The source of all randomness: the seed and, if there are any, the earlier searches.

        With the seed alone, a search that begins from another one would draw the same configurations again.
        """
        if not self._entropy:
            problem, tried = self.problem, 0
            for search in problem.earlier:
                for trial, config in {seen.trial: seen.config for seen in search}.items():
                    tried = zlib.crc32(problem.space.key(config), tried ^ trial)
            self._entropy = (problem.seed, tried) if problem.earlier else (problem.seed,)
        return self._entropy

    def pending_points(self) -> dict[int, NDArray[np.float64]]:
        """Return the points of the pending configurations in the unit cube, shape (d,), by trial number.

        Each point is computed once, because with hundreds of workers all of them would dominate the cost of an ask.
        """
        to_unit, known = self.problem.space.to_unit, self._points
        self._points = {
            trial: known[trial] if trial in known and known[trial][0] is config else (config, to_unit(config))
            for trial, config in self.pending.items()
        }
        return {trial: point for trial, (_, point) in self._points.items()}

    def pending_keys(self) -> set[bytes]:
        """Return the keys of the pending configurations, as :meth:`SearchSpace.key` returns them."""
        return {point.tobytes() for point in self.pending_points().values()}

    def rng(self, index: int) -> np.random.Generator:
        """Return the random generator of the ``index``-th ask. There is no state to save, so replay is exact."""
        seed, *earlier = self.entropy
        return np.random.default_rng([seed, index, *earlier])

    def apply(self, update: Update) -> None:
        """Apply one change."""
        if isinstance(update, Observation):
            if update.ended:
                self.pending.pop(update.trial, None)
            self.observations.append(update)
        else:
            self.pending[update.trial] = update.config


class Pending(msgspec.Struct, frozen=True, gc=False):
    """A configuration started to wait or run, possibly again."""

    trial: int
    config: Config


Update = Pending | Observation


class Grant(msgspec.Struct, frozen=True, gc=False):
    """Steps granted to an attempt.

    Attributes:
        budget: Step up to which the attempt may run, at most ``max_budget``. In a run, a report past it ends the
            training function.
        milestones: Steps below the budget, in rising order, at which the scheduler decides before the trial continues.
    """

    budget: int
    milestones: tuple[int, ...] = ()


def is_grant(answer: object, max_budget: int) -> bool:
    """Return whether ``answer`` is a grant of at least one step and at most ``max_budget``, with rising milestones."""
    if not isinstance(answer, Grant) or not isinstance(answer.milestones, tuple):
        return False
    steps = (0, *answer.milestones, answer.budget)
    return all(type(step) is int for step in steps) and answer.budget <= max_budget and all(map(lt, steps, steps[1:]))


class Scheduler(ABC):
    """Decide how many steps each trial gets. Methods are called in the order of the study's events."""

    watches_reports: bool = False
    """Whether reports between milestones may also end a trial."""

    may_promote: bool = False
    """Whether a trial that has used up its budget may be promoted later."""

    resumes_all: bool = False
    """Whether each paused trial continues, unless another one takes its place, so that a pause is not an end."""

    can_retry: bool = False
    """Whether the scheduler can forget that a trial has failed, so that a resumed search tries it again."""

    def create(self, trial: int, parent: int | None) -> None:
        """Add a trial. It starts from the checkpoint of the trial ``parent``, if given."""

    @abstractmethod
    def grant(self, trial: int) -> Grant:
        """Return the steps of the current attempt of ``trial``, or of its next one. Must not change anything.

        For a paused trial, it is the step up to which the trial runs if it is promoted, beyond the one before. It is
        called before :meth:`promote`.
        """

    def report(self, trial: int, step: int, loss: float) -> Decision:
        """Process a measurement of a running trial and decide whether it continues."""
        return Decision.CONTINUE

    def why_stopped(self, trial: int) -> str:
        """Return why :meth:`report` stopped a trial, for the decision log. By default, nothing."""
        return ""

    def fail(self, trial: int) -> None:
        """Record that a trial has finally failed."""

    def retry(self, trial: int) -> None:
        """Forget that a trial failed, since it runs again. Called only if :attr:`can_retry`."""

    def is_final(self, trial: int) -> bool:
        """Return whether a trial that has used up its grant is completed. Otherwise it is paused."""
        return True

    def pause(self, trial: int) -> None:
        """Record that a trial that is not final has used up its grant and left its worker."""

    def next_promotion(self) -> int | None:
        """Return the paused trial to promote now, or None. Must not change anything."""
        return None

    def closing_promotion(self) -> int | None:
        """Return the paused trial to promote before the search ends, or None. Must not change anything.

        It is called when nothing runs, :meth:`next_promotion` returns None, and no new trial follows. So no better
        candidate can appear.
        """
        return None

    def promote(self, trial: int) -> None:
        """Record that the trial of :meth:`next_promotion` or :meth:`closing_promotion` is promoted."""

    def observe(self, observation: Observation) -> None:
        """Process a result as the optimizer sees it, after all other calls about it."""


class FullBudget(Scheduler):
    """Run every trial to the end."""

    can_retry = True

    def __init__(self, max_budget: int) -> None:
        self._grant = Grant(max_budget)

    def grant(self, trial: int) -> Grant:
        return self._grant


class Optimizer(ABC):
    """Propose configurations.

    An optimizer holds only options; everything that it knows about a search is passed to each call.

    A custom optimizer::

        class Evolution(Optimizer):
            def ask(self, index, history):
                space, rng = history.problem.space, history.rng(index)
                ended = sorted(history.observations, key=lambda seen: seen.loss)
                for _ in range(100):  # until the configuration is not running
                    config = space.sample(rng)
                    if len(ended) >= 10 and rng.random() < 0.8:
                        parent = space.to_unit(ended[rng.integers(3)].config)
                        child = space.from_unit(np.clip(parent + rng.normal(0.0, 0.1, len(parent)), 0.0, 1.0))
                        config = child if space.allows(child) else config
                    if config not in history.pending.values():
                        break
                return config

        lagom(train_fn, space, optimizer=Evolution())

    ``optimizers.testing.check_optimizer(Evolution)`` checks that it keeps the contract.
    """

    adaptive: bool = True
    """Whether proposals depend on results. If not, they are computed far ahead of need. If so, they are computed in a
    separate process, to which the optimizer is pickled."""

    multi_objective: bool = False
    """Whether several objectives are supported (see :attr:`Observation.losses`)."""

    needs_checkpoints: bool = False
    """Whether the training function must save and restore checkpoints."""

    @abstractmethod
    def ask(self, index: int, history: History) -> Answer:
        """Propose the ``index``-th configuration.

        If proposals depend on results, do not repeat a configuration of ``history.pending`` while there are others.

        The result must depend only on ``index`` and ``history``: the same arguments give the same result, in this
        process and in one that resumes the search. Draw random numbers from ``history.rng(index)``.

        Args:
            index: Number of the proposal, from 0.
            history: Results so far, and what is running.

        Returns:
            A configuration, a :class:`Proposal` that also names a parent trial, :data:`WAIT` to be asked again, or None
            if no configuration is left.
        """

    def is_blind(self, history: History) -> bool:
        """Return whether the next proposal depends on no result yet, like the first points of a search with a model.

        An adaptive optimizer then returns within microseconds too, so nothing waits for its process to start. By
        default, no adaptive optimizer is blind.
        """
        return not self.adaptive

    def scheduler(self, problem: Problem) -> Scheduler:
        """Return a new scheduler for one search. By default, every trial runs to the end."""
        return FullBudget(problem.max_budget)

    def suited_to(self, *, checkpoints: bool) -> Optimizer:
        """Return this optimizer with the options filled in that depend on the training function.

        By default, there are none. :func:`maggy_like.lagom` calls this first, and searches with the returned optimizer.

        Args:
            checkpoints: Whether the training function both saves and restores states.
        """
        return self

    def describe(self) -> str:
        """Return this optimizer and the options that affect a search, as text.

        A search can only be resumed by an optimizer of the same description. By default, it has the arguments of
        ``__init__`` that are held in attributes of the same name (see :func:`~optimizers.checks.describe`).
        """
        return describe(self)

    def check(self, problem: Problem) -> None:
        """Check that this optimizer can serve a search, including what :meth:`validate` checks.

        Raises:
            OptimizerError: The optimizer cannot serve the search.
        """
        if problem.n_objectives > 1 and not self.multi_objective:
            raise OptimizerError(
                f"{type(self).__name__} supports one objective, got {problem.n_objectives}; use "
                "optimizer='bayesian', 'tpe', 'random' or 'grid', or optimize a weighted sum"
            )
        self.validate(problem)
        made: object = self.scheduler(problem)
        if not isinstance(made, Scheduler):
            name = type(self).__name__
            remedy = "use FullBudget(problem.max_budget), for example"
            raise OptimizerError(f"{name}.scheduler(problem) must return a Scheduler, got {short(made)}; {remedy}")

    def size(self, space: SearchSpace) -> int | None:
        """Return how many configurations of ``space`` this proposes at most; None if it never ends.

        A search without ``n_trials`` and ``timeout`` tries them all.
        """
        return None

    def full_trainings(self, problem: Problem) -> float:
        """Return how many trials should be trained to ``max_budget``; ``inf`` for all of them or an unknown number."""
        return math.inf

    def load_libraries(self) -> None:
        """Import the libraries that proposals need, so that no worker waits for them. By default, there are none.

        It is called before the first ask, in the driver's process and in the optimizer's own.
        """
        return

    def remarks(self, problem: Problem) -> list[str]:
        """Return what a user should know about this search before it starts. By default, nothing."""
        return []

    def validate(self, problem: Problem) -> None:
        """Check what a subclass requires of a search.

        Raises:
            OptimizerError: The optimizer cannot serve the search.
        """
