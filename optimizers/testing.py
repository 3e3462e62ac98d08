"""The contract of optimizers and schedulers as a suite of checks, for built-in and custom ones.

In a test::

    def test_evolution_keeps_the_contract():
        check_optimizer(Evolution)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise, zip_longest
from typing import Any, cast

import numpy as np

from optimizers.checks import integer, short
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
    factory: Callable[[], Optimizer],
    *,
    spaces: Mapping[str, SearchSpace | Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> None:
    """Check that an optimizer and its scheduler keep the contract of :mod:`optimizers.core.base`.

    The first space is checked with all kinds of losses, with results of an earlier search and with two objectives. The
    other spaces are checked with smooth losses.

    Args:
        factory: Returns a new optimizer: its class, if that needs no arguments.
        spaces: Search spaces by name, also as dicts. None (the default) for :data:`SPACES`; pass others if the
            optimizer does not support all of these.
        seed: Source of all randomness. Default 0.

    Raises:
        OptimizerError: ``factory`` does not return an optimizer, or another argument is not valid.
        AssertionError: A clause is broken; the message has the clause, what broke it, and what to use instead.

    Example:
        >>> check_optimizer(RandomSearch)
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
    read = _read_spaces(SPACES if spaces is None else spaces)
    seed = integer("seed", seed, least=0, most=None)
    if given.adaptive:
        _check_can_be_sent(given)
    for position, (name, space) in enumerate(read.items()):
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
        problem = Problem(next(iter(read.values())), seed, max_budget)
        try:
            factory().validate(problem)
        except OptimizerError:
            continue  # an optimizer may ask for a longer training
        _check_scheduler(factory(), problem, f"a scheduler for max_budget={max_budget}")
    check_search(factory, replace(problem, n_trials=_SEARCH))


def _read_spaces(spaces: Mapping[str, SearchSpace | Mapping[str, Any]]) -> dict[str, SearchSpace]:
    given: object = spaces
    if not isinstance(given, Mapping) or isinstance(given, SearchSpace) or not given:
        raise OptimizerError(
            f"spaces must be a dict of search spaces by name, at least one, got {short(given)}; use {{'mine': space}}"
        )
    return {name: it if isinstance(it, SearchSpace) else SearchSpace(it) for name, it in spaces.items()}


def _check_can_be_sent(optimizer: Optimizer) -> None:
    """Check that an optimizer can be pickled, by copying it: its class may be defined in a function."""
    try:
        copy.deepcopy(optimizer)
    except Exception as error:
        must = "an adaptive optimizer must be picklable, because it is sent to its own process"
        require(False, "a new optimizer", must, repr(error), "only options in self, and make the rest inside ask")


def _check_several(factory: Callable[[], Optimizer], problem: Problem, where: str) -> None:
    """Check that an optimizer either rejects several objectives, or keeps the contract with them."""
    try:
        factory().check(problem)
    except OptimizerError:
        return
    except Exception as error:
        must = "check must raise an OptimizerError if the optimizer cannot serve a search"
        require(False, where, must, repr(error), "raise OptimizerError(...) from check or validate")
    for kind in ("smooth losses", "losses that are not finite"):
        check_proposals(factory, problem, _LOSSES[kind], f"{where}, {kind}")


# -- schedulers -----------------------------------------------------------------------------------


def _check_scheduler(optimizer: Optimizer, problem: Problem, where: str) -> None:
    first, again = (_Drive(optimizer.scheduler(problem), problem, where).run() for _ in range(2))
    require(
        first == again,
        where,
        "two new schedulers must decide the same for the same trials, because a resumed search repeats all decisions",
        _first_difference(first, again),
        "keep all state in the scheduler itself, and draw random numbers from np.random.default_rng(problem.seed)",
    )


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
        with survives(self.where, "a scheduler must not raise in any of its methods"):
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
            self._require(
                self.promoted < self.ever_paused,
                "a scheduler that pauses trials must promote only some of them",
                f"promotions of all {len(self.ever_paused)} trials that were paused",
                "None from next_promotion and closing_promotion once the best share is promoted",
            )
        return self.log

    def _require(self, holds: bool, must: str, got: object, use: str) -> None:
        require(holds, self.where, must, got, use)

    def _promotion(self) -> int | None:
        return self._unchanged("next_promotion", self.scheduler.next_promotion)

    def _closing_promotion(self) -> int | None:
        return self._unchanged("closing_promotion", self.scheduler.closing_promotion)

    def _unchanged(self, name: str, promotion: Callable[[], int | None]) -> int | None:
        first, again = promotion(), promotion()
        must = f"{name} must return the same trial until promote is called"
        self._require(first == again, must, f"{first}, and then {again}", "promote(trial) to record the promotion")
        return first

    def _promote(self, trial: int) -> None:
        record = "promote(trial) to take the trial off the paused ones"
        self._require(trial in self.paused, "a scheduler must promote only paused trials", f"trial {trial}", record)
        self._require(
            not _diverges(trial),
            "a scheduler must not promote a trial whose loss is not finite",
            f"trial {trial} with the loss nan",
            "math.isfinite(loss) in report to leave the trial out",
        )
        self.scheduler.promote(trial)
        self.promoted.add(trial)
        self._start(trial)
        budget, before = self.running[trial].budget, self.paused.pop(trial)
        self._require(
            budget > before,
            "grant must return a larger budget after a promotion",
            f"{budget} after {before} for trial {trial}",
            "the budget of the next rung",
        )

    def _start(self, trial: int) -> None:
        grant = self.running[trial] = self.scheduler.grant(trial)
        rises = all(a < b for a, b in pairwise((0, *grant.milestones, grant.budget)))
        most = self.problem.max_budget
        self._require(
            grant.budget <= most,
            f"a budget must be at most max_budget={most}",
            grant,
            "min(budget, problem.max_budget)",
        )
        must = "the milestones of a grant must be rising steps from 1 on, all below its budget"
        self._require(rises, must, grant, "tuple(sorted(steps))")
        self.log.append((trial, grant))

    def _report(self, trial: int) -> None:
        scheduler, grant = self.scheduler, self.running[trial]
        self._require(
            (now := scheduler.grant(trial)) == grant,
            "grant must return the same while an attempt of the trial runs",
            f"{now} after {grant} for trial {trial}",
            "pause(trial) or promote(trial) to change what the next attempt gets",
        )
        self.steps[trial] += 1
        step = self.steps[trial]
        if trial % 9 == 4 and step == 2:
            scheduler.fail(trial)
            self._end(trial, step, math.inf)
            return
        loss = math.nan if _diverges(trial) else float(self.qualities[trial] + 1.0 / step)
        decision = scheduler.report(trial, step, loss)
        self.log.append((trial, step, decision))
        self._require(
            isinstance(decision, Decision),
            "report must return a Decision",
            repr(decision),
            "Decision.CONTINUE or Decision.STOP",
        )
        if decision is Decision.STOP:
            self._require(
                scheduler.watches_reports or step in (*grant.milestones, grant.budget),
                "report must return Decision.STOP only at a milestone of the grant, or at its budget",
                f"Decision.STOP at step {step} of {grant}",
                "that step as a milestone, or watches_reports = True in the class to see every report",
            )
            self._end(trial, step, loss)
        elif step == grant.budget:
            paused = not scheduler.is_final(trial)
            if paused:
                self._require(
                    scheduler.may_promote,
                    "a scheduler whose is_final returns False must say that it promotes trials",
                    "may_promote = False",
                    "may_promote = True in the class",
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
        with survives(where, f"ask must not raise, but ask({index}) did"):
            answer = optimizer.ask(index, history)
            again = optimizer.ask(index, history) if index % 5 == 0 else answer
        require(
            repr(history) == before,
            where,
            "ask must not change the history",
            f"another history after ask({index})",
            "copies, such as sorted(history.observations) or dict(history.pending)",
        )
        require(
            repr(again) == repr(answer),
            where,
            "ask must return the same configuration again for the same index and history",
            f"{answer!r}, and then {again!r} from ask({index})",
            "random numbers from history.rng(index) only",
        )
        exhausted = bool(play.asks) and play.asks[-1][2] is None
        play.asks.append((len(play.updates), index, answer))
        if answer is None or answer is WAIT:
            require(bool(index), where, "ask(0) must return a configuration", answer, "space.sample(rng) at first")
        else:
            require(
                not exhausted,
                where,
                "ask must return None for all later indexes once it has returned None, because the search then ends",
                f"None from ask({index - 1}), and {answer!r} from ask({index})",
                "WAIT if there may be a configuration later",
            )
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
    try:
        space.validate(config)
    except Exception as error:
        use = "space.sample(rng) or space.from_unit(point), and space.allows(config) if the space has constraints"
        require(False, where, "ask must return a configuration of the space", f"{config}: {error}", use)
    for name, value in config.items():
        require(
            _is_plain(value),
            where,
            "values must be plain Python values, or tuples or lists of them",
            f"{name}={value!r} of type {type(value).__name__}",
            "value.item() for a value of numpy, or space.from_unit(point) for a configuration",
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
            "an adaptive optimizer must not propose a configuration that is pending, while the space has others",
            config,
            "another one if config in history.pending.values(), or adaptive = False if results do not matter",
        )


def _check_replay(factory: Callable[[], Optimizer], problem: Problem, play: _Play, where: str) -> None:
    """Check that a new optimizer, which never saw the earlier asks, returns the same, as after a resumed search."""
    for place in (len(play.asks) // 2, -1):
        n_updates, index, expected = play.asks[place]
        history = History(problem)
        for update in play.updates[:n_updates]:
            history.apply(update)
        with survives(where, f"ask must not raise in a resumed search, but ask({index}) of a new optimizer did"):
            got = factory().ask(index, history)
        require(
            repr(got) == repr(expected),
            where,
            "ask must depend only on index and history, because a resumed search asks a new optimizer",
            f"{expected!r} from ask({index}), and {got!r} from that of a new optimizer",
            "history for all that ask needs, and no state in self that ask changes",
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
        must = "ask must return other configurations if the search has another seed"
        require(
            listed, where, must, f"{first[0]!r} from ask(0) for both seeds", "random numbers from history.rng(index)"
        )


# -- whole searches -------------------------------------------------------------------------------


_WORKERS = 4


def check_search(factory: Callable[[], Optimizer], problem: Problem) -> None:
    """Check that a search ends, and that replaying its events gives the same search.

    Raises:
        AssertionError: A clause is broken.
    """
    where = f"a whole search of {problem.n_trials} trials"
    study: _Recorded | None = None
    for direction in ("max", "min"):  # a rule may only serve one of them
        with suppress(OptimizerError):
            study = study or _Recorded(factory(), replace(problem, direction=direction))
    if study is None:
        return  # an optimizer may ask for more trials
    with survives(where, "a search must not raise"):
        _run(study, np.random.default_rng(problem.seed))
    left = [trial.id for trial in study.trials if not trial.is_over and trial.state is not TrialState.PAUSED]
    require(not left, where, "a search must run all of its trials", f"trials {left} that never ran", "")
    due = study.next_promotion() or study.closing_promotion()
    must = "a search must end only when no promotion is due"
    require(due is None, where, must, f"a promotion of {due}", "None from next_promotion and closing_promotion")
    for trial in study.trials:
        if trial.parent is not None:
            must = "the parent of a proposal must be an earlier trial"
            got = f"parent={trial.parent} for trial {trial.id}"
            require(trial.parent < trial.id, where, must, got, "trial of an observation")
    replayed = _Recorded(factory(), study.problem)
    with survives(where, "a search that is resumed must not raise"):
        for event in study.events:
            replayed.apply(event)
    require(
        repr(replayed.trials) == repr(study.trials),
        where,
        "a resumed search must have the same trials as before",
        _first_difference(study.trials, replayed.trials),
        "no state outside the scheduler, and no clock",
    )


class _Recorded(Study):
    def __init__(self, optimizer: Optimizer, problem: Problem) -> None:
        super().__init__(
            problem.space,
            optimizer,
            direction=problem.direction,
            seed=problem.seed,
            max_budget=problem.max_budget,
            n_trials=problem.n_trials,
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


def _first_difference(before: Sequence[object], now: Sequence[object]) -> str:
    """Return where two searches part, as text. Empty if they are the same."""
    pairs = zip_longest(before, now)
    return next((f"{one}, and then {other}" for one, other in pairs if repr(one) != repr(other)), "")


def require(holds: bool, where: str, must: str, got: object, use: str = "") -> None:
    """Raise an error if a clause of the contract is broken.

    Args:
        holds: Whether the clause holds.
        where: The space, the losses or the search with which it was checked.
        must: The clause, as a sentence.
        got: What breaks it.
        use: What keeps it.
    """
    if not holds:
        remedy = f"\n  use: {use}" if use else ""
        raise AssertionError(f"{must}\n  got: {got}{remedy}\n  checked with: {where}")


@contextmanager
def survives(where: str, must: str) -> Iterator[None]:
    """Report an exception raised inside as a broken clause."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{must}\n  got: {type(error).__name__}: {error}\n  checked with: {where}") from error
