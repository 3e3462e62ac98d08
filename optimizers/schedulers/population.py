"""Population-based training: configurations change during training.

Source: Jaderberg, Dalibard, Osindero, Czarnecki, Donahue, Razavi, Vinyals, Green, Dunning, Simonyan, Fernando and
Kavukcuoglu: "Population Based Training of Neural Networks", 2017, Algorithm 1 with truncation selection,
asynchronously.

A population trains, and each member pauses every few steps. A member among the worst is then replaced by a new trial.
The new trial starts from the state of one of the best (exploit), with a configuration close to that one's (explore).
All other members continue. The algorithm has two parts: the scheduler continues members, and the optimizer fills the
places of replaced ones. Both follow the same :class:`Population`, which depends only on the observations in their
order. So they agree without communicating.

Differences from common implementations:

- A member is compared with the results of each place of the population at no later step than its own, whichever trial
  had the place then. So a slow member is not replaced because others are ahead.
- With fewer workers than members, the member with the fewest steps continues first, and among those the best. So the
  worst are judged last, when the others' results are known.
- A member with equal results continues. Only strictly better ones can replace it.
- After ``n_trials`` trials, places stay empty, and the population shrinks to its best.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from optimizers.checks import explains_init, integer, real
from optimizers.core.base import (
    CONTINUE,
    WAIT,
    Answer,
    Decision,
    Grant,
    History,
    Observation,
    Optimizer,
    Problem,
    Proposal,
    Scheduler,
)
from optimizers.errors import OptimizerError
from optimizers.samplers.model_based import untried
from optimizers.space import Config
from optimizers.space.domains import Choice
from optimizers.space.search_space import SearchSpace

_MOVES = 20  # moves from one configuration, until one is allowed


_POPULATION = 16
"""Number of members, if there are trials for twice as many."""


@dataclass(slots=True)
class Place:
    """A place in the population: its trial, and the results at pauses of all trials that had it."""

    trial: int  # the trial that has it, or had it last
    config: Config
    steps: list[int] = field(default_factory=list)  # of the results, in rising order
    losses: list[float] = field(default_factory=list)
    paused: bool = False  # whether the trial is paused, or was continued after a pause
    vacant: bool = False  # whether the trial was replaced

    def enter(self, observation: Observation) -> None:
        """Add a result. It removes results at the same or later steps of the trial that had the place before."""
        self.trial, self.config, self.paused = observation.trial, observation.config, observation.paused
        self.vacant = False
        while self.steps and self.steps[-1] >= observation.step:
            self.steps.pop()
            self.losses.pop()
        self.steps.append(observation.step)
        self.losses.append(observation.loss)

    def loss_at(self, step: int) -> float | None:
        """Return the newest loss up to ``step``, if any."""
        number = bisect_right(self.steps, step)
        return self.losses[number - 1] if number else None


class Population:
    """Which trials are members and which are given up, as a function of the observations in their order.

    Trials are numbered in order of creation. So the first ``size`` trials start one place each, and each later one
    takes the place of the next trial that was given up.

    The share ``quantile`` of the places counts as the worst, and an equal share as the best. A trial that ends before
    ``max_budget``, without a pause, was stopped or has failed.
    """

    def __init__(self, size: int, quantile: float, max_budget: int) -> None:
        self.given_up: list[int] = []  # trials, in the order in which they were given up
        self.places: dict[int, Place] = {}  # by trial, for all observed trials
        self._all: list[Place] = []
        self._size = size
        self._quantile = quantile
        self._max_budget = max_budget

    def observe(self, observation: Observation) -> None:
        """Process a result. A paused trial is judged at once."""
        if not observation.ended:
            return
        trial, step, loss = observation.trial, observation.step, observation.loss
        place = self.places.get(trial)
        if place is None:
            if 0 <= trial - self._size < len(self.given_up):
                place = self.places[self.given_up[trial - self._size]]
            else:
                place = Place(trial, observation.config)
                self._all.append(place)
            self.places[trial] = place
        place.enter(observation)
        gives_up = self._is_among_worst(step, loss) if observation.paused else step < self._max_budget
        if gives_up or not math.isfinite(loss):
            place.vacant = True
            self.given_up.append(trial)

    def best(self) -> list[Place]:
        """Return the best members that can continue by their newest losses, at least one if there is any."""
        ranked = sorted((place for place in self._all if not place.vacant), key=lambda p: (p.losses[-1], p.trial))
        able = [place for place in ranked if place.paused]
        return able[: max(1, self._share(len(self._all)))]

    def _is_among_worst(self, step: int, loss: float) -> bool:
        """Return whether enough places are strictly better, however ties are broken."""
        known = [other for place in self._all if (other := place.loss_at(step)) is not None]
        return sum(other < loss for other in known) >= len(known) - self._share(len(known))

    def _share(self, n: int) -> int:
        return int(n * self._quantile + 1e-9)  # 0.29 * 100 is a little less than 29


class PopulationScheduler(Scheduler):
    """Grant one interval after another to all trials that are not given up.

    No trial continues while a place is empty. Otherwise, with fewer workers than places, there would always be a trial
    that can continue, and those that fill the places would never start.
    """

    may_promote = True
    resumes_all = True

    def __init__(self, population: Population, size: int, interval: int, problem: Problem) -> None:
        self._population = population  # one that no other scheduler uses
        self._size = size
        self._interval = interval  # steps between pauses
        self._max_budget = problem.max_budget
        self._n_trials = math.inf if problem.n_trials is None else problem.n_trials
        self._created = 0
        self._intervals: dict[int, int] = {}  # number of intervals that a trial and its ancestors have trained
        self._reached: dict[int, int] = {}  # newest step by trial, since reports may be further apart than pauses
        self._due: dict[int, tuple[int, float, int]] = {}  # its rank among the paused members

    def create(self, trial: int, parent: int | None) -> None:
        self._created += 1
        if parent is not None:
            self._intervals[trial] = self._intervals.get(parent, 0)

    def grant(self, trial: int) -> Grant:
        return Grant(min((self._intervals.get(trial, 0) + 1) * self._interval, self._max_budget))

    def report(self, trial: int, step: int, loss: float) -> Decision:
        self._reached[trial] = step
        return CONTINUE

    def is_final(self, trial: int) -> bool:
        return max(self.grant(trial).budget, self._reached.get(trial, 0)) >= self._max_budget

    def pause(self, trial: int) -> None:
        trained = self._reached.get(trial, 0) // self._interval
        self._intervals[trial] = max(self._intervals.get(trial, 0) + 1, trained)

    def observe(self, observation: Observation) -> None:
        self._population.observe(observation)
        trial = observation.trial
        if observation.paused and not self._population.places[trial].vacant:
            self._due[trial] = (self._intervals[trial], observation.loss, trial)

    def next_promotion(self) -> int | None:
        wanted = min(self._size + len(self._population.given_up), self._n_trials)
        if self._created < wanted or not self._due:
            return None
        return min(self._due.values())[2]

    def promote(self, trial: int) -> None:
        self._due.pop(trial, None)  # absent if a damaged journal lost the line of its pause


@explains_init
class PBT(Optimizer):
    """Population-based training: bad trainings copy the state of good ones and try another configuration.

    The result is a training whose configuration changed on the way. The best trial's ``config`` is the last
    configuration, and ``parent`` is the number of the trial that it started from.

    The training function must save and restore checkpoints, and apply the given configuration to the restored state. So
    parameters that shape the state, such as numbers of layers or units, cannot be searched.

    Source: Jaderberg et al., "Population Based Training of Neural Networks", 2017.

    Args:
        population: Number of members. Use the number of workers, or a small multiple of it. Default 16, or half of
            ``n_trials`` if that is less.
        interval: Steps between pauses. Default a tenth of ``max_budget``. A training function that reports less often
            pauses at its next report. It should always report the last step, since a member that starts shortly before
            that fails without a report.
        quantile: Share of the population, above 0 and at most 0.5. At a pause, a member in the worst share is replaced
            by one from the best share. Default 0.25.
        perturbation: Standard deviation of the change of numbers on the unit interval, so by factors on a log scale.
            Default 0.1.
        resample_probability: Probability that a choice is drawn again when a member is replaced. Default 0.25.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, optimizer=PBT(population=8, interval=5), max_budget=25, n_trials=20)
    """

    needs_checkpoints = True

    def __init__(
        self,
        *,
        population: int | None = None,
        interval: int | None = None,
        quantile: float = 0.25,
        perturbation: float = 0.1,
        resample_probability: float = 0.25,
    ) -> None:
        population = None if population is None else integer("population", population, least=1)
        quantile = real(
            "quantile", quantile, "a number above 0 and not above 0.5", lambda share: 0 < share <= 0.5, "use 0.25"
        )
        if population is not None and population * quantile < 1.0:
            raise OptimizerError(
                f"population * quantile must be at least 1, got {population} * {quantile}; "
                f"use a population of at least {math.ceil(1.0 / quantile)}"
            )
        self.population = population
        self.interval = None if interval is None else integer("interval", interval, least=1)
        self.quantile = quantile
        self.perturbation = real(
            "perturbation", perturbation, "a positive number", lambda deviation: deviation > 0.0, "use 0.1"
        )
        self.resample_probability = real(
            "resample_probability", resample_probability, "a number from 0 to 1", lambda share: 0.0 <= share <= 1.0
        )
        self._followed: tuple[History, Population, int] | None = None

    def validate(self, problem: Problem) -> None:
        if problem.max_budget < 2:
            raise OptimizerError(
                "max_budget must be at least 2, because the members of PBT pause on the way, got 1; use a larger one, "
                "or optimizer='bayesian'"
            )
        if (interval := self._interval(problem)) >= problem.max_budget:
            raise OptimizerError(
                f"interval must be below max_budget={problem.max_budget}, got {interval}; "
                "use a smaller one, or a larger max_budget"
            )
        if self.population is not None and problem.n_trials is not None and problem.n_trials <= self.population:
            raise OptimizerError(
                f"population must be below n_trials={problem.n_trials}, got {self.population}; "
                "use a smaller one, or more trials"
            )

    def scheduler(self, problem: Problem) -> PopulationScheduler:
        size = self._size(problem)
        population = Population(size, self.quantile, problem.max_budget)
        return PopulationScheduler(population, size, self._interval(problem), problem)

    def ask(self, index: int, history: History) -> Answer:
        space, rng = history.problem.space, history.rng(index)
        population = self._follow(history)
        n_trials = len(population.places) + sum(trial not in population.places for trial in history.pending)
        running = history.pending_keys()
        size = self._size(history.problem)
        if n_trials >= size:
            if n_trials - size >= len(population.given_up):
                return WAIT
            if best := population.best():
                parent = best[rng.integers(len(best))]
                child = self._explore(space, parent.config, rng)
                return Proposal(untried(space, child, running, set(), rng), parent.trial)
        return untried(space, space.sample(rng), running, set(), rng)

    def _size(self, problem: Problem) -> int:
        """Return the number of members: by default enough that some are replaced, and that trials are left for that."""
        if self.population is not None:
            return self.population
        least = math.ceil(1.0 / self.quantile)
        if problem.planned is None:
            return max(least, _POPULATION)
        return min(problem.planned, max(least, min(_POPULATION, problem.planned // 2)))

    def _explore(self, space: SearchSpace, config: Config, rng: np.random.Generator) -> Config:
        """Return a configuration near ``config``, with its missing parameters and some choices drawn again."""
        point = space.to_unit(config)
        for _ in range(_MOVES):
            moved = np.clip(point + rng.normal(0.0, self.perturbation, len(point)), 0.0, 1.0)
            redrawn, chances = rng.random((2, len(point)))
            for place, name in enumerate(space.dimensions):
                if name not in config:
                    moved[place] = redrawn[place]
                elif isinstance(space.domains[name], Choice):
                    moved[place] = redrawn[place] if chances[place] < self.resample_probability else point[place]
            if space.allows(child := space.from_unit(moved)):
                break
        return child

    def _interval(self, problem: Problem) -> int:
        return self.interval if self.interval is not None else max(1, problem.max_budget // 10)

    def _follow(self, history: History) -> Population:
        """Return the current population, continuing from the last ask if the history is the same."""
        if self._followed is None or self._followed[0] is not history:
            population = Population(self._size(history.problem), self.quantile, history.problem.max_budget)
            self._followed = (history, population, 0)
        _, population, known = self._followed
        for observation in history.observations[known:]:
            population.observe(observation)
        self._followed = (history, population, len(history.observations))
        return population
