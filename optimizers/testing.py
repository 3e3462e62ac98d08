"""The contract of optimizers and schedulers as a suite of checks, for built-in and custom ones.

In a test::

    def test_evolution_keeps_the_contract():
        check_optimizer(Evolution)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np

from optimizers.checks import short
from optimizers.core.base import (
    WAIT,
    Answer,
    Decision,
    Grant,
    History,
    Observation,
    Optimizer,
    Pending,
    Problem,
    Proposal,
    Scheduler,
    Update,
)
from optimizers.core.events import Event
from optimizers.core.study import Study
from optimizers.core.trial import Trial, TrialState
from optimizers.errors import OptimizerError
from optimizers.samplers.non_adaptive import Grid
from optimizers.space import Config
from optimizers.space.domains import Choice, Constant, Float, Integer, Ordinal
from optimizers.space.search_space import SearchSpace


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
negative values, bounds off the grid, values that are lists, and names that are not identifiers."""

_TRIALS = 27  # of a scheduler
_STEPS = 27  # of a full training
_SEARCH = 8  # trials of a whole search

Loss = Callable[[int, float], float]
"""Loss of the ``n``-th trial to end, given the distance of its point from the best one."""

_LOSSES: Mapping[str, Loss] = {
    "smooth losses": lambda n, distance: distance,
    "losses that are not finite": lambda n, distance: (distance, math.inf, math.nan, -math.inf)[n % 4],
    "only failures": lambda n, distance: math.inf,
    "equal losses": lambda n, distance: 1.0,
    "huge losses": lambda n, distance: distance * 1e300,
}


def check_optimizer(
    factory: Callable[[], Optimizer], *, spaces: Mapping[str, SearchSpace] | None = None, seed: int = 0
) -> None:
    """Check that an optimizer and its scheduler keep the contract of :mod:`optimizers.core.base`.

    The first space is checked with all kinds of losses, with results of an earlier search and with two objectives. The
    other spaces are checked with smooth losses.

    Args:
        factory: Returns a new optimizer: its class, if that needs no arguments.
        spaces: Search spaces by name. None (the default) for :data:`SPACES`; pass others if the optimizer does not
            support all of these.
        seed: Source of all randomness. Default 0.

    Raises:
        OptimizerError: ``factory`` does not return an optimizer.
        AssertionError: A clause is broken; the message says which one, and where.

    Example:
        >>> check_optimizer(Evolution)
    """
    given: object = factory
    is_called = callable(given) and not isinstance(given, Optimizer)
    if is_called:
        given = factory()
    if not is_called or not isinstance(given, Optimizer):
        raise OptimizerError(
            f"factory must return a new optimizer at each call, got {short(given)}; use the class of "
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
    """Check that an optimizer either rejects several objectives, or keeps the contract with them."""
    try:
        factory().check(problem)
    except OptimizerError:
        return
    except Exception as error:
        require(False, where, "an optimizer that does not serve a problem raises OptimizerError", repr(error))
    for kind in ("smooth losses", "losses that are not finite"):
        check_proposals(factory, problem, _LOSSES[kind], f"{where}, {kind}")


# -- schedulers -----------------------------------------------------------------------------------


def _check_scheduler(optimizer: Optimizer, problem: Problem, where: str) -> None:
    first, again = (_Drive(optimizer.scheduler(problem), problem, where).run() for _ in range(2))
    require(first == again, where, "a fresh scheduler with the same inputs decides the same")


class _Drive:
    """Run trials under a scheduler, four at a time, and check everything that it returns."""

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
        """Return everything that the scheduler returned, in order."""
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
    """Return whether a trial of :class:`_Drive` has no finite loss."""
    return trial % 9 == 7


# -- proposals ------------------------------------------------------------------------------------


_ASKS = 16
_PENDING = 8  # maximum number of waiting and running trials
_POINTS = 3  # tried in addition to the optimizer's, like points of the user
_FAR = 10**9  # an index past the end of any list of proposals


def check_proposals(factory: Callable[[], Optimizer], problem: Problem, loss: Loss, where: str) -> None:
    """Check the proposals of an optimizer in one search, and that a resumed search gets the same.

    Raises:
        AssertionError: A clause is broken.
    """
    _check_replay(factory, problem, _play(factory(), problem, loss, where), where)


def earlier_search(problem: Problem) -> tuple[Observation, ...]:
    """Return the observations of another search of the same space."""
    rng = np.random.default_rng(problem.seed + 1)
    losses = [1e3, 2e3, math.inf, 1.5e3, 5e3, 1e3]  # on another scale
    return tuple(Observation(n, problem.space.sample(rng), problem.max_budget, loss) for n, loss in enumerate(losses))


@dataclass
class _Play:
    """The course of a search: all updates, and for each ask how many came before it, its index and its result."""

    updates: list[Update] = field(default_factory=list)
    asks: list[tuple[int, int, Answer]] = field(default_factory=list)


def _play(optimizer: Optimizer, problem: Problem, loss: Loss, where: str) -> _Play:
    """Run a search whose trials end in random order, and check each proposal.

    Before the first ask, there are three points that the optimizer did not propose: one ended, one failed, one running.
    """
    rng = np.random.default_rng(problem.seed)
    play, history, n_ended = _Play(), History(problem), 0

    def tell(update: Update) -> None:
        play.updates.append(update)
        history.apply(update)

    def end(trial: int, made: float) -> None:
        config = history.pending[trial]
        if problem.n_objectives == 1 and trial % 3 == 0 and problem.max_budget > 1:
            tell(Observation(trial, config, 1, made, ended=False))
        losses = (made, -made) if problem.n_objectives == 2 else ()
        tell(Observation(trial, config, problem.max_budget, made, losses=losses, metrics={"seconds": 1.0}))

    for number in range(_POINTS):
        tell(Pending(number, problem.space.sample(rng)))
    end(0, loss(0, 1.0))
    end(1, math.inf)
    index = 0
    while index < _ASKS:
        before = repr(history)
        with survives(where, f"ask({index})"):
            answer = optimizer.ask(index, history)
            again = optimizer.ask(index, history) if index % 5 == 0 else answer
        require(repr(history) == before, where, "ask changes nothing in the history", f"ask({index})")
        require(repr(again) == repr(answer), where, "the same ask gives the same answer", (answer, again))
        exhausted = bool(play.asks) and play.asks[-1][2] is None
        play.asks.append((len(play.updates), index, answer))
        if answer is None or answer is WAIT:
            require(bool(index), where, "there is at least one configuration")
        else:
            require(not exhausted, where, "None means that there is none left", f"ask({index}) gave {answer!r}")
            config = answer.config if isinstance(answer, Proposal) else answer
            _check_config(problem.space, config, where)
            if optimizer.adaptive:
                _check_fresh(history, config, where)
            tell(Pending(_POINTS + index, config))
        if answer is WAIT and not history.pending:
            break  # nothing will change any more
        index += answer is not WAIT
        # Fill up, let most end at once, fill up again: so models see few and many results, with many pending.
        for _ in range(_PENDING - 2 if len(history.pending) == _PENDING else int(answer is WAIT)):
            trial = int(rng.choice(sorted(history.pending)))
            point = problem.space.to_unit(history.pending[trial])
            distance = float(np.sum((point - 0.3) ** 2))
            end(trial, loss(n_ended, distance))
            n_ended += 1
    return play


def _check_config(space: SearchSpace, config: Any, where: str) -> None:
    with survives(where, "validating a proposal"):
        space.validate(config)
    for name, value in config.items():
        require(
            _is_plain(value),
            where,
            "values are plain Python scalars, or tuples or lists of them",
            f"{name}={value!r} is a {type(value).__name__}",
        )


def _is_plain(value: object) -> bool:
    if type(value) in (tuple, list):
        return all(map(_is_plain, cast("Sequence[object]", value)))
    return value is None or type(value) in (bool, int, float, str)


def _check_fresh(history: History, config: Config, where: str) -> None:
    space = history.problem.space
    running = {space.to_unit(other).tobytes() for other in history.pending.values()}
    if Grid(_PENDING + 1).size(space) > len(running):
        require(
            space.to_unit(config).tobytes() not in running,
            where,
            "an adaptive optimizer repeats no pending configuration while the space has others",
            config,
        )


def _check_replay(factory: Callable[[], Optimizer], problem: Problem, play: _Play, where: str) -> None:
    """Check that a new optimizer, which never saw the earlier asks, returns the same, as after a resumed search."""
    for place in (len(play.asks) // 2, -1):
        n_updates, index, expected = play.asks[place]
        history = History(problem)
        for update in play.updates[:n_updates]:
            history.apply(update)
        with survives(where, f"ask({index}) of a fresh optimizer"):
            got = factory().ask(index, history)
        require(
            repr(got) == repr(expected),
            where,
            "a proposal depends only on the seed, the index and the history",
            f"ask({index}) gave {expected!r}, of a fresh optimizer {got!r}",
        )


def check_seeds(factory: Callable[[], Optimizer], problem: Problem, where: str) -> None:
    """Check that proposals differ between seeds."""
    first, other = (
        [factory().ask(index, History(replace(problem, seed=seed))) for index in range(4)]
        for seed in (problem.seed, problem.seed + 1)
    )
    if repr(first) == repr(other):
        # A fixed list, such as a grid, needs no randomness; but it has an end.
        listed = factory().ask(_FAR, History(problem)) is None
        require(listed, where, "another seed gives other proposals", first)


# -- whole searches -------------------------------------------------------------------------------


_WORKERS = 4


def check_search(factory: Callable[[], Optimizer], problem: Problem) -> None:
    """Check that a search ends, and that replaying its events gives the same search.

    Raises:
        AssertionError: A clause is broken.
    """
    where = "a whole search"
    try:
        study = _Recorded(factory(), problem)
    except OptimizerError:
        return  # an optimizer may ask for more trials
    with survives(where, "a search by ask and tell"):
        _run(study, np.random.default_rng(problem.seed))
    has_ended = all(trial.is_over or trial.state is TrialState.PAUSED for trial in study.trials)
    is_due = study.next_promotion() or study.closing_promotion()
    require(has_ended and is_due is None, where, "nothing is due when nothing runs any more")
    for trial in study.trials:
        if trial.parent is not None:
            require(trial.parent < trial.id, where, "a parent is older than its child", trial)
    replayed = _Recorded(factory(), problem)
    with survives(where, "the replay of a search"):
        for event in study.events:
            replayed.apply(event)
    require(repr(replayed.trials) == repr(study.trials), where, "the same events give the same trials")


class _Recorded(Study):
    def __init__(self, optimizer: Optimizer, problem: Problem) -> None:
        super().__init__(
            problem.space, optimizer, seed=problem.seed, max_budget=problem.max_budget, n_trials=problem.n_trials
        )
        self.events: list[Event] = []

    def apply(self, event: Event) -> Decision:
        self.events.append(event)
        return super().apply(event)


def _run(study: Study, rng: np.random.Generator) -> None:
    """Run a study with four workers, which report every step. Some trials fail, some diverge."""
    running: list[Trial] = []
    while True:
        while len(running) < _WORKERS and (trial := study.ask()) is not None:
            running.append(trial)
        if not running:
            return
        trial = running.pop(int(rng.integers(len(running))))
        step = trial.step + 1
        if trial.id % 5 == 4 and step == 2:
            study.fail(trial)
        elif study.report(trial, step, math.nan if trial.id % 5 == 2 else float(rng.random())) is not Decision.STOP:
            if step == trial.budget:
                study.tell(trial)
            else:
                running.append(trial)


def require(holds: bool, where: str, clause: str, detail: object = "") -> None:
    """Raise if a clause of the contract is broken."""
    if not holds:
        raise AssertionError(f"broken: {clause} ({where}): {detail}")


@contextmanager
def survives(where: str, what: str) -> Iterator[None]:
    """Report an exception raised inside as a broken clause."""
    try:
        yield
    except Exception as error:
        if isinstance(error, AssertionError):
            raise
        raise AssertionError(f"broken: {what} raises nothing ({where}): {error!r}") from error
