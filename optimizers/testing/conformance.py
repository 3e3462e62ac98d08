"""The contract of optimizers and schedulers as a suite of checks, for those built in and your own.

In a test::

    def test_evolution_keeps_the_contract():
        check_optimizer(Evolution)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from optimizers.checks.options import short
from optimizers.core.base import (
    Decision,
    Grant,
    Observation,
    Optimizer,
    Problem,
    Scheduler,
)
from optimizers.errors import OptimizerError
from optimizers.space.config import Config
from optimizers.space.domains import Choice, Constant, Float, Integer, Ordinal
from optimizers.space.search_space import SearchSpace
from optimizers.testing.proposals import Loss, check_proposals, check_seeds, earlier_search
from optimizers.testing.search import check_search, require, survives


def _ordered(config: Config) -> bool:
    return bool(config["low"] < config["high"])


SPACES: Mapping[str, SearchSpace] = {
    "mixed": SearchSpace(
        lr=Float(1e-4, 1.0, log=True),
        drop=Float(0.0, 0.5, step=0.1),
        units=Integer(1, 64, log=True),
        size=Ordinal([16, 32, 64]),
        act=Choice(["relu", "gelu", None]),
        seed=Constant(7),
    ),
    "float": SearchSpace(lr=Float(1e-4, 1.0, log=True)),
    "conditional": SearchSpace(
        opt=Choice(["sgd", "adam"]),
        momentum=Float(0.0, 0.99, when={"opt": "sgd"}),
        nesterov=Choice([True, False], when={"opt": "sgd"}),
        beta=Float(0.8, 0.999, when={"opt": "adam"}),
    ),
    "single": SearchSpace(act=Choice(["relu"])),
    "tiny": SearchSpace(layers=Integer(1, 6), norm=Choice([True, False])),
    "constrained": SearchSpace(low=Integer(1, 6, prior=2), high=Integer(1, 6)).where(_ordered),
    "signed": SearchSpace(
        {"model.shift": Float(-10.2, 10.2, step=0.1), "lambda": Float(-1.0, 1.0)},
        offset=Integer(-10, -1, step=2),
        layers=Choice([(64, 64), (128,), [32]]),
        only=Ordinal(["one"]),
    ),
}
"""Spaces that expose common mistakes of optimizers: log scales, conditions, constraints, fewer points than trials,
values below zero, bounds that are off the grid, values that are lists, names that are no identifiers."""

_TRIALS = 27  # of a scheduler
_STEPS = 27  # of a full training
_SEARCH = 8  # trials of a whole search

_LOSSES: Mapping[str, Loss] = {
    "smooth losses": lambda n, distance: distance,
    "losses that are not finite": lambda n, distance: (distance, math.inf, math.nan, -math.inf)[n % 4],
    "failures alone": lambda n, distance: math.inf,
    "equal losses": lambda n, distance: 1.0,
    "huge losses": lambda n, distance: distance * 1e300,
}


def check_optimizer(
    factory: Callable[[], Optimizer], *, spaces: Mapping[str, SearchSpace] | None = None, seed: int = 0
) -> None:
    """Check that an optimizer, and the scheduler it brings, keep the contract of :mod:`optimizers.core.base`.

    All kinds of losses, knowledge of an earlier search and two objectives are tried in the first space, smooth losses
    in the others.

    Args:
        factory: Makes a fresh optimizer; its class, if that needs no arguments.
        spaces: Search spaces by name, for an optimizer that does not serve all of :data:`SPACES`.
        seed: Source of all randomness.

    Raises:
        OptimizerError: ``factory`` makes none.
        AssertionError: A clause is broken; the message says which one, and where.
    """
    given: object = factory
    is_called = callable(given) and not isinstance(given, Optimizer)
    if is_called:
        given = factory()
    if not is_called or not isinstance(given, Optimizer):
        raise OptimizerError(
            f"factory must make a fresh optimizer each time that it is called, got {short(given)}; pass the class of "
            "the optimizer, or a function that returns one"
        )
    spaces = SPACES if spaces is None else spaces
    for position, (name, space) in enumerate(spaces.items()):
        problem = Problem(space, seed, _STEPS)
        factory().validate(problem)
        for kind, loss in _LOSSES.items():
            if position == 0 or kind == "smooth losses":
                check_proposals(factory, problem, loss, f"space {name!r}, {kind}")
        if position == 0:
            knowing = replace(problem, earlier=(earlier_search(problem),))
            check_proposals(
                factory, knowing, _LOSSES["smooth losses"], f"space {name!r}, knowledge of an earlier search"
            )
            _check_several(factory, replace(problem, n_objectives=2), f"space {name!r}, two objectives")
        if space.size is None:
            check_seeds(factory, problem, f"space {name!r}")
    for max_budget in (1, _STEPS):
        problem = Problem(next(iter(spaces.values())), seed, max_budget)
        try:
            factory().validate(problem)
        except OptimizerError:
            continue  # an optimizer may ask for a longer training
        _check_scheduler(factory(), problem, f"max_budget={max_budget}")
    check_search(factory, replace(problem, n_trials=_SEARCH))


def _check_several(factory: Callable[[], Optimizer], problem: Problem, where: str) -> None:
    """Check that an optimizer either refuses several objectives, or keeps the contract with them."""
    try:
        factory().check(problem)
    except OptimizerError:
        return
    except Exception as error:
        require(False, where, "an optimizer that does not serve a problem raises OptimizerError", repr(error))
    for kind in ("smooth losses", "losses that are not finite"):
        check_proposals(factory, problem, _LOSSES[kind], f"{where}, {kind}")


# -- schedulers -------------------------------------------------------------------------------------


def _check_scheduler(optimizer: Optimizer, problem: Problem, where: str) -> None:
    first, again = (_Drive(optimizer.scheduler(problem), problem, where).run() for _ in range(2))
    require(first == again, where, "a fresh scheduler with the same inputs decides the same")


class _Drive:
    """Runs trials four at a time under a scheduler, and checks all that it answers."""

    def __init__(self, scheduler: Scheduler, problem: Problem, where: str) -> None:
        self.scheduler = scheduler
        self.problem = problem
        self.where = where
        self.rng = np.random.default_rng(problem.seed)
        self.qualities = self.rng.random(_TRIALS)
        self.steps = dict.fromkeys(range(_TRIALS), 0)
        self.running: dict[int, Grant] = {}
        self.paused: dict[int, int] = {}
        self.ever_paused: set[int] = set()
        self.promoted: set[int] = set()
        self.log: list[object] = []

    def run(self) -> list[object]:
        """Everything the scheduler answered, in order."""
        created = 0
        with survives(self.where, "a scheduler"):
            while True:
                if len(self.running) < 4 and (promotion := self._promotion()) is not None:
                    self._promote(promotion)
                elif len(self.running) < 4 and created < _TRIALS:
                    self.scheduler.create(created, None)
                    self._start(created)
                    created += 1
                elif self.running:
                    self._report(int(self.rng.choice(sorted(self.running))))
                elif (trial := self._closing_promotion()) is not None:
                    self._promote(trial)
                else:
                    break
        if self.ever_paused:
            self._require(self.promoted < self.ever_paused, "only a share of the paused trials is promoted")
        return self.log

    def _require(self, holds: bool, clause: str, detail: object = "") -> None:
        require(holds, self.where, clause, detail)

    def _promotion(self) -> int | None:
        promotion = self.scheduler.next_promotion()
        self._require(self.scheduler.next_promotion() == promotion, "next_promotion changes nothing")
        return promotion

    def _closing_promotion(self) -> int | None:
        promotion = self.scheduler.closing_promotion()
        self._require(self.scheduler.closing_promotion() == promotion, "closing_promotion changes nothing")
        return promotion

    def _promote(self, trial: int) -> None:
        self._require(trial in self.paused, "only a paused trial is promoted", f"trial {trial}")
        self._require(not _diverges(trial), "a loss that is not finite is never promoted", f"trial {trial}")
        self.scheduler.promote(trial)
        self.promoted.add(trial)
        self._start(trial)
        budget = self.running[trial].budget
        self._require(budget > self.paused.pop(trial), "a promotion grants more steps", f"trial {trial}")

    def _start(self, trial: int) -> None:
        grant = self.running[trial] = self.scheduler.grant(trial)
        rises = all(a < b for a, b in pairwise((0, *grant.milestones, grant.budget)))
        self._require(grant.budget <= self.problem.max_budget, "a budget is at most max_budget", grant)
        self._require(rises, "milestones rise below the budget", grant)
        self.log.append((trial, grant))

    def _report(self, trial: int) -> None:
        scheduler, grant = self.scheduler, self.running[trial]
        self._require(scheduler.grant(trial) == grant, "a grant stands until its attempt ends", f"trial {trial}")
        self.steps[trial] += 1
        step = self.steps[trial]
        if trial % 9 == 4 and step == 2:
            scheduler.fail(trial)
            self._end(trial, step, math.inf)
            return
        loss = math.nan if _diverges(trial) else float(self.qualities[trial] + 1.0 / step)
        decision = scheduler.report(trial, step, loss)
        self.log.append((trial, step, decision))
        self._require(isinstance(decision, Decision), "report returns a Decision", repr(decision))
        if decision is Decision.STOP:
            announced = scheduler.watches_reports or step in (*grant.milestones, grant.budget)
            self._require(announced, "a scheduler stops at milestones, or sets watches_reports", f"step {step}")
            self._end(trial, step, loss)
        elif step == grant.budget:
            paused = not scheduler.is_final(trial)
            if paused:
                self._require(
                    scheduler.may_promote, "a scheduler that pauses trials sets may_promote", f"trial {trial}"
                )
                scheduler.pause(trial)
                self.paused[trial] = grant.budget
                self.ever_paused.add(trial)
            self._end(trial, step, loss, paused=paused)

    def _end(self, trial: int, step: int, loss: float, *, paused: bool = False) -> None:
        del self.running[trial]
        loss = loss if math.isfinite(loss) else math.inf
        self.scheduler.observe(Observation(trial, {}, step, loss, paused=paused))


def _diverges(trial: int) -> bool:
    """Whether a trial of :class:`_Drive` has no finite loss."""
    return trial % 9 == 7
