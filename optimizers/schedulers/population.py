"""Population-based training: configurations change while their trainings go on.

Source: Jaderberg, Dalibard, Osindero, Czarnecki, Donahue, Razavi, Vinyals, Green, Dunning, Simonyan,
Fernando and Kavukcuoglu: "Population Based Training of Neural Networks", 2017, Algorithm 1 with truncation
selection, asynchronously.

A population trains, and each member rests every few steps. One that is among the worst then is given up; a new
trial takes its place, which starts from the state of one of the best (exploit) with a configuration somewhat off
that one's (explore). The others go on. The two sides of the algorithm live apart: the scheduler lets members go
on, the optimizer fills the places of those given up. Both follow the same :class:`Population`, which knows
nothing but the observations in their order, so they agree without communicating.

Where this differs from what is often done:

- A member is compared with what each place of the population had at no later step than its own, whichever
  trial had it then. So a slow one is not given up because others are ahead.
- Where there are fewer workers than members, the one with the fewest steps goes on first, of those the best: so
  the worst are judged last, when the others' results are in.
- A member goes on with equal results; only strictly better ones can push it out.
- Once ``n_trials`` trials are made, places stay empty: the population shrinks to its best.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

from optimizers.checks import explains_init, integer, real
from optimizers.core.base import WAIT, Answer, Grant, History, Observation, Optimizer, Problem, Proposal, Scheduler
from optimizers.errors import OptimizerError
from optimizers.samplers.model_based import untried
from optimizers.space import Config
from optimizers.space.domains import Choice
from optimizers.space.search_space import SearchSpace

_MOVES = 20  # from one configuration, until one is allowed


@dataclass(slots=True)
class Place:
    """A place in the population: the trial that has it, and the results at pauses of all trials that had it.

    Attributes:
        trial: The trial that has it, or had it last.
        config: That trial's configuration.
        steps: The steps of the results, rising.
        losses: The results.
        paused: Whether the trial rests, or runs on from a rest.
        vacant: Whether the trial was given up.
    """

    trial: int
    config: Config
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    paused: bool = False
    vacant: bool = False

    def enter(self, observation: Observation) -> None:
        """Take in a result; one at no later step, of a trial that had the place before, makes room."""
        self.trial, self.config, self.paused = observation.trial, observation.config, observation.paused
        self.vacant = False
        while self.steps and self.steps[-1] >= observation.step:
            self.steps.pop()
            self.losses.pop()
        self.steps.append(observation.step)
        self.losses.append(observation.loss)

    def loss_at(self, step: int) -> float | None:
        """The newest loss up to ``step``, if there is one."""
        number = bisect_right(self.steps, step)
        return self.losses[number - 1] if number else None


class Population:
    """Which trials are members and which are given up; a function of the observations in their order.

    Trials are numbered as they are created, so the first ``size`` of them begin a place each, and each
    later one takes the place of the next trial that was given up.

    Args:
        size: The number of places.
        quantile: The share of the places that counts as the worst, and as the best.
        max_budget: Steps of a full training: a trial that ends before, without a pause, was stopped or has failed.

    Attributes:
        given_up: The trials that were given up, in order.
        places: By trial, for all that were observed.
    """

    def __init__(self, size: int, quantile: float, max_budget: int) -> None:
        self.given_up: list[int] = []
        self.places: dict[int, Place] = {}
        self._all: list[Place] = []
        self._size = size
        self._quantile = quantile
        self._max_budget = max_budget

    def observe(self, observation: Observation) -> None:
        """Take in a result; a trial that came to rest is judged at once."""
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
        """The best of those that may go on, at least one if there is any, by their newest losses."""
        ranked = sorted((place for place in self._all if not place.vacant), key=lambda p: (p.losses[-1], p.trial))
        able = [place for place in ranked if place.paused]
        return able[: max(1, self._share(len(self._all)))]

    def _is_among_worst(self, step: int, loss: float) -> bool:
        """Whether so many places are strictly better that it does not matter how ties are broken."""
        known = [other for place in self._all if (other := place.loss_at(step)) is not None]
        return sum(other < loss for other in known) >= len(known) - self._share(len(known))

    def _share(self, n: int) -> int:
        return int(n * self._quantile + 1e-9)  # 0.29 * 100 is a little less than 29


class PopulationScheduler(Scheduler):
    """Grants one interval after another to all trials that are not given up.

    No trial goes on while a place is empty: with fewer workers than places, there is always one that could, and
    the trials that fill the places would never start.

    Args:
        population: Not shared with another scheduler.
        size: Its number of places.
        interval: Steps between rests.
        problem: The search.
    """

    may_promote = True

    def __init__(self, population: Population, size: int, interval: int, problem: Problem) -> None:
        self._population = population
        self._size = size
        self._interval = interval
        self._max_budget = problem.max_budget
        self._n_trials = math.inf if problem.n_trials is None else problem.n_trials
        self._created = 0
        self._rests: dict[int, int] = {}  # how often a trial paused, its ancestors' pauses included
        self._due: dict[int, tuple[int, float, int]] = {}  # its rank among those that rest and are in

    def create(self, trial: int, parent: int | None) -> None:
        self._created += 1
        if parent is not None:
            self._rests[trial] = self._rests.get(parent, 0)

    def grant(self, trial: int) -> Grant:
        return Grant(min((self._rests.get(trial, 0) + 1) * self._interval, self._max_budget))

    def is_final(self, trial: int) -> bool:
        return self.grant(trial).budget == self._max_budget

    def pause(self, trial: int) -> None:
        self._rests[trial] = self._rests.get(trial, 0) + 1

    def observe(self, observation: Observation) -> None:
        self._population.observe(observation)
        trial = observation.trial
        if observation.paused and not self._population.places[trial].vacant:
            self._due[trial] = (self._rests[trial], observation.loss, trial)

    def next_promotion(self) -> int | None:
        wanted = min(self._size + len(self._population.given_up), self._n_trials)
        if self._created < wanted or not self._due:
            return None
        return min(self._due.values())[2]

    def promote(self, trial: int) -> None:
        self._due.pop(trial, None)  # absent where the line of its pause was lost from a damaged journal


@explains_init
class PBT(Optimizer):
    """Population-based training: bad trainings take over the state of good ones, and try another configuration.

    What it finds is a training, whose configuration changed on the way: the best trial's ``config`` is the last
    one of it, and ``parent`` names the trial that it started from. The training function must save and restore
    checkpoints, and apply the configuration that it is given to the state that it restores: so parameters that
    shape the state (numbers of layers or units) cannot be searched in this way.

    Args:
        population: How many train at a time; best as many as there are workers, or a few times that.
        interval: Steps between rests; by default a tenth of ``max_budget``.
        quantile: At its rest, a member that is in this share of the worst is given up for one in this share of
            the best.
        perturbation: How far numbers move then: the standard deviation of a normal draw on the unit interval, so
            by factors where the domain is logarithmic.
        resample_probability: How often a choice is drawn anew then.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> lagom(train_fn, space, optimizer=PBT(population=8, interval=5), max_budget=100, n_trials=60)
    """

    needs_checkpoints = True

    def __init__(
        self,
        *,
        population: int = 16,
        interval: int | None = None,
        quantile: float = 0.25,
        perturbation: float = 0.1,
        resample_probability: float = 0.25,
    ) -> None:
        population = integer("population", population, least=1)
        quantile = real(
            "quantile", quantile, "a number above 0 and not above 0.5", lambda share: 0 < share <= 0.5, "0.25 is usual"
        )
        if population * quantile < 1.0:
            raise OptimizerError(
                f"population={population} and quantile={quantile} never give a trial up; "
                f"use a population of at least {math.ceil(1.0 / quantile)}"
            )
        self.population = population
        self.interval = None if interval is None else integer("interval", interval, least=1)
        self.quantile = quantile
        self.perturbation = real(
            "perturbation", perturbation, "a positive number", lambda deviation: deviation > 0.0, "0.1 is usual"
        )
        self.resample_probability = real(
            "resample_probability", resample_probability, "a number from 0 to 1", lambda share: 0.0 <= share <= 1.0
        )
        self._followed: tuple[History, Population, int] | None = None

    def validate(self, problem: Problem) -> None:
        if (interval := self._interval(problem)) >= problem.max_budget:
            raise OptimizerError(
                f"interval={interval} leaves no rest within max_budget={problem.max_budget}; "
                "lower the one or raise the other"
            )
        if problem.n_trials is not None and problem.n_trials <= self.population:
            raise OptimizerError(
                f"population={self.population} leaves none of n_trials={problem.n_trials} to replace a member with; "
                "lower the one or raise the other"
            )

    def scheduler(self, problem: Problem) -> PopulationScheduler:
        population = Population(self.population, self.quantile, problem.max_budget)
        return PopulationScheduler(population, self.population, self._interval(problem), problem)

    def ask(self, index: int, history: History) -> Answer:
        space, rng = history.problem.space, history.rng(index)
        population = self._follow(history)
        n_trials = len(population.places) + sum(trial not in population.places for trial in history.pending)
        running = {space.key(config) for config in history.pending.values()}
        if n_trials >= self.population:
            if n_trials - self.population >= len(population.given_up):
                return WAIT
            if best := population.best():
                parent = best[rng.integers(len(best))]
                child = self._explore(space, parent.config, rng)
                return Proposal(untried(space, child, running, set(), rng), parent.trial)
        return untried(space, space.sample(rng), running, set(), rng)

    def _explore(self, space: SearchSpace, config: Config, rng: np.random.Generator) -> Config:
        """A configuration near ``config``; what that one lacks, and some choices, are drawn anew."""
        point = space.to_unit(config)
        for _ in range(_MOVES):
            moved = np.clip(point + rng.normal(0.0, self.perturbation, len(point)), 0.0, 1.0)
            anew, chances = rng.random((2, len(point)))
            for place, name in enumerate(space.dimensions):
                if name not in config:
                    moved[place] = anew[place]
                elif isinstance(space.domains[name], Choice):
                    moved[place] = anew[place] if chances[place] < self.resample_probability else point[place]
            if space.allows(child := space.from_unit(moved)):
                break
        return child

    def _interval(self, problem: Problem) -> int:
        return self.interval if self.interval is not None else max(1, problem.max_budget // 10)

    def _follow(self, history: History) -> Population:
        """The population as it is by now, from where the last ask left it if that was of the same history."""
        if self._followed is None or self._followed[0] is not history:
            population = Population(self.population, self.quantile, history.problem.max_budget)
            self._followed = (history, population, 0)
        _, population, known = self._followed
        for observation in history.observations[known:]:
            population.observe(observation)
        self._followed = (history, population, len(history.observations))
        return population
