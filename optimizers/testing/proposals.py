"""The part of the conformance suite that asks for proposals, and enters results as they come in a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from optimizers.core.base import WAIT, Answer, History, Observation, Optimizer, Pending, Problem, Proposal, Update
from optimizers.samplers.grid import Grid
from optimizers.space.config import Config
from optimizers.space.search_space import SearchSpace
from optimizers.testing.search import require, survives

_ASKS = 16
_PENDING = 8  # the most that wait or run at a time
_POINTS = 3  # that are tried beside the optimizer's, as points of the user are
_FAR = 10**9  # an index past the end of any list of proposals

Loss = Callable[[int, float], float]
"""The loss of the ``n``-th trial to end, given the distance of its point from the best one."""


def check_proposals(factory: Callable[[], Optimizer], problem: Problem, loss: Loss, where: str) -> None:
    """Check what an optimizer proposes in one search, and that another answers the same as after a resumed one.

    Raises:
        AssertionError: A clause is broken.
    """
    _check_replay(factory, problem, _play(factory(), problem, loss, where), where)


def earlier_search(problem: Problem) -> tuple[Observation, ...]:
    """What another search of the same space observed."""
    rng = np.random.default_rng(problem.seed + 1)
    losses = [1e3, 2e3, math.inf, 1.5e3, 5e3, 1e3]  # on another scale
    return tuple(Observation(n, problem.space.sample(rng), problem.max_budget, loss) for n, loss in enumerate(losses))


@dataclass
class _Play:
    """A search as it went: all updates, and for each ask how many of them came before, its index and its answer."""

    updates: list[Update] = field(default_factory=list)
    asks: list[tuple[int, int, Answer]] = field(default_factory=list)


def _play(optimizer: Optimizer, problem: Problem, loss: Loss, where: str) -> _Play:
    """Run a search in which trials end in another order than they began, checking each proposal.

    Before the first ask there are points that the optimizer did not propose: one ended, one failed, one runs on.
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
        # Fill up, let most end at once, fill up again: models see many pending and few results, and more.
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
    """A fresh optimizer that never saw the earlier asks answers the same: as after a resumed search."""
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
            "an answer depends on the seed, the index and the history alone",
            f"ask({index}) gave {expected!r}, of a fresh optimizer {got!r}",
        )


def check_seeds(factory: Callable[[], Optimizer], problem: Problem, where: str) -> None:
    """Check that proposals differ from seed to seed."""
    first, other = (
        [factory().ask(index, History(replace(problem, seed=seed))) for index in range(4)]
        for seed in (problem.seed, problem.seed + 1)
    )
    if repr(first) == repr(other):
        # A fixed list, such as a grid, needs no randomness; but it has an end.
        listed = factory().ask(_FAR, History(problem)) is None
        require(listed, where, "another seed gives other proposals", first)
