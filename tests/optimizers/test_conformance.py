from __future__ import annotations

import inspect
import math
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis_profiles import IS_THOROUGH

from optimizers.core.base import Grant, History, Optimizer, Problem, Scheduler
from optimizers.registry import make_optimizer, names
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import MedianRule, Patience, Threshold
from optimizers.space import Config
from optimizers.space.domains import Constant, Float
from optimizers.space.search_space import SearchSpace
from optimizers.testing import SPACES, check_optimizer

# Few enough results before the model that the suite's short searches reach it: 3 also where only some are finite.
# A model of scikit-optimize costs a tenth of a second, so there it comes last.
OPTIONS: dict[str, dict[str, Any]] = {
    "skopt": {"n_initial": 8},
    "bayesian": {"n_initial": 3},
    "tpe": {"n_startup_trials": 4},
    "pbt": {"population": 4, "interval": 3},
}


class Evolution(Optimizer):
    """As a user would write it."""

    def ask(self, index: int, history: History) -> Config:
        space, rng = history.problem.space, history.rng(index)
        ended = sorted((seen for seen in history.observations if math.isfinite(seen.loss)), key=lambda s: s.loss)
        while True:
            if len(ended) < 3:
                child = space.sample(rng)
            else:
                parent = space.to_unit(ended[rng.integers(3)].config)
                child = space.from_unit(np.clip(parent + rng.normal(0.0, 0.3, len(parent)), 0.0, 1.0))
            if space.allows(child) and (child not in history.pending.values() or space.size == 1):
                return child


# Those whose models take seconds. `make test` runs the first three in one space, that with conditions, since the others
# have the same parts or a library's; `make test-long` runs all in all spaces.
SLOW = ("asha", "bayesian", "tpe", "bohb", "mobster", "skopt")
ONE_SPACE = {"conditional": SPACES["conditional"]}


def marks(name: str) -> list[pytest.MarkDecorator]:
    if name not in SLOW:
        return []
    return [pytest.mark.conformance, pytest.mark.thorough if name in SLOW[:3] else pytest.mark.long]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in names()])
def test_registered_optimizers_keep_the_contract(name: str) -> None:
    spaces = ONE_SPACE if name in SLOW and not IS_THOROUGH else SPACES
    check_optimizer(lambda: make_optimizer(name, **OPTIONS.get(name, {})), spaces=spaces)


@pytest.mark.parametrize(
    "factory",
    [
        Evolution,
        lambda: ASHA(sampler="random", mode="stopping"),
        lambda: ASHA(min_budget=9, sampler=Evolution()),
        MedianRule,
        lambda: MedianRule(ASHA(sampler="random")),
        lambda: MedianRule(PBT(population=5, quantile=0.4)),
        lambda: Patience(ASHA(sampler="random", mode="stopping"), patience=3),
        lambda: Threshold(step=2, worse_than=0.5, direction="min"),
    ],
)
def test_own_and_wrapped_optimizers_keep_the_contract(factory: Callable[[], Optimizer]) -> None:
    check_optimizer(factory, seed=1)


def test_the_optimizer_of_the_documentation_keeps_the_contract() -> None:
    documented = inspect.cleandoc(Optimizer.__doc__ or "").split("::\n", 1)[1].split("lagom(")[0]
    names: dict[str, Any] = {"Optimizer": Optimizer, "np": np}
    exec(textwrap.dedent(documented), names)
    check_optimizer(names["Evolution"])


# -- broken ones ------------------------------------------------------------------------------------


class Forgetful(RandomSearch):
    """Keeps a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def ask(self, index: int, history: History) -> Config:
        return history.problem.space.sample(self.generator)


class Counting(RandomSearch):
    """Goes by how often it was asked, not by the index."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def ask(self, index: int, history: History) -> Config:
        if index not in self.asked:
            self.asked.append(index)
        return super().ask(len(self.asked), history)


class Seedless(RandomSearch):
    def ask(self, index: int, history: History) -> Config:
        return history.problem.space.sample(np.random.default_rng(index))


class NumpyScalars(RandomSearch):
    def ask(self, index: int, history: History) -> Config:
        config = super().ask(index, history)
        return {name: np.float64(value) if isinstance(value, float) else value for name, value in config.items()}


class Stray(RandomSearch):
    def ask(self, index: int, history: History) -> Config:
        return {**super().ask(index, history), "extra": 1}


class Meddling(RandomSearch):
    def ask(self, index: int, history: History) -> Config:
        history.pending.clear()
        return super().ask(index, history)


class Repeating(RandomSearch):
    adaptive = True

    def ask(self, index: int, history: History) -> Config:
        return super().ask(index // 2, history)


class Reviving(RandomSearch):
    def ask(self, index: int, history: History) -> Config | None:  # type: ignore[override]
        return None if index == 5 else super().ask(index, history)


class Fragile(RandomSearch):
    """Cannot stand a loss that is not finite."""

    def ask(self, index: int, history: History) -> Config:
        total = sum(round(seen.loss) for seen in history.observations)
        return super().ask(index + total % 2, history)


class OwnPoints(RandomSearch):
    """Takes it that all that is observed was proposed by itself."""

    def ask(self, index: int, history: History) -> Config:
        if len({seen.trial for seen in history.observations} | history.pending.keys()) > index:
            raise IndexError(index)
        return super().ask(index, history)


class Unaware(RandomSearch):
    """Cannot start from what earlier searches know."""

    def ask(self, index: int, history: History) -> Config:
        if history.problem.earlier:
            raise NotImplementedError
        return super().ask(index, history)


class Single(RandomSearch):
    """Says that it serves several objectives, and fails."""

    def ask(self, index: int, history: History) -> Config:
        if any(seen.losses for seen in history.observations):
            raise NotImplementedError
        return super().ask(index, history)


class Locked(RandomSearch):
    """Has an attribute that cannot be pickled."""

    adaptive = True

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Rude(RandomSearch):
    """Refuses several objectives by an error that is none of ours."""

    def check(self, problem: Problem) -> None:
        if problem.n_objectives > 1:
            raise KeyError("losses")


@pytest.mark.parametrize(
    ("factory", "clause"),
    [
        (OwnPoints, r"ask must not raise, but ask\(0\) did"),
        (Unaware, r"ask must not raise, but ask\(0\) did.*knowledge of an earlier search"),
        (Single, r"ask must not raise, but ask\(\d+\) did.*two objectives"),
        (Locked, "an adaptive optimizer must be picklable.*cannot pickle '_thread.lock'"),
        (Rude, "check must raise an OptimizerError if the optimizer cannot serve a search.*KeyError"),
        (Forgetful, "ask must return the same configuration again for the same index and history"),
        (Counting, "ask must depend only on index and history"),
        (Seedless, "ask must return other configurations if the search has another seed"),
        (NumpyScalars, "values must be plain Python values, .*float64"),
        (Stray, "ask must return a configuration of the space.*no 'extra'"),
        (Meddling, "ask must not change the history"),
        (Repeating, "must not propose a configuration that is pending"),
        (Reviving, r"must return None for all later indexes .*\n  got: None from ask\(5\), and {'lr'.* from ask\(6\)"),
        (Fragile, r"ask must not raise, but ask\(\d+\) did.*OverflowError: cannot convert float infinity"),
    ],
)
def test_broken_optimizers_are_caught(factory: Callable[[], Optimizer], clause: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s){clause}"):
        check_optimizer(factory, spaces={name: SPACES[name] for name in ("mixed", "tiny")})


def test_spaces_may_be_dicts() -> None:
    check_optimizer(RandomSearch, spaces={"mine": {"x": Float(0, 1)}})


def test_a_broken_clause_says_what_was_got_and_what_to_use() -> None:
    with pytest.raises(AssertionError) as caught:
        check_optimizer(NumpyScalars, spaces={"line": SearchSpace(x=Constant(0.5))})
    assert str(caught.value) == (
        "values must be plain Python values, or tuples or lists of them\n"
        "  got: x=np.float64(0.5) of type float64\n"
        "  use: value.item() for a value of numpy, or space.from_unit(point) for a configuration\n"
        "  checked with: space 'line', smooth losses"
    )


class Scheduled(RandomSearch):
    def __init__(self, scheduler: Callable[[int], Scheduler]) -> None:
        self.make = scheduler

    def scheduler(self, problem: Problem) -> Scheduler:
        return self.make(problem.max_budget)


class Generous(Scheduler):
    def __init__(self, max_budget: int) -> None:
        self.max_budget = max_budget

    def grant(self, trial: int) -> Grant:
        return Grant(self.max_budget + 1)


class Jumbled(Generous):
    def grant(self, trial: int) -> Grant:
        return Grant(self.max_budget, (5, 3) if self.max_budget > 5 else ())


class Silent(Generous):
    def grant(self, trial: int) -> Grant:
        return Grant(self.max_budget)

    def report(self, trial: int, step: int, loss: float) -> Any:
        return None


class PromotesAll(Scheduler):
    may_promote = True

    def __init__(self, max_budget: int) -> None:
        self.max_budget = max_budget
        self.paused: list[int] = []
        self.promoted: set[int] = set()

    def grant(self, trial: int) -> Grant:
        return Grant(self.max_budget if trial in self.promoted else 1)

    def is_final(self, trial: int) -> bool:
        return trial in self.promoted or self.max_budget == 1

    def pause(self, trial: int) -> None:
        self.paused.append(trial)

    def next_promotion(self) -> int | None:
        return self.paused[0] if self.paused else None

    def promote(self, trial: int) -> None:
        self.paused.remove(trial)
        self.promoted.add(trial)


class PromotesAnew(PromotesAll):
    def promote(self, trial: int) -> None:
        self.promoted.add(trial)


class Undecided(PromotesAll):
    """Offers a promotion once, whether it is taken or not."""

    def next_promotion(self) -> int | None:
        return self.paused.pop() if self.paused else None


@pytest.mark.parametrize(
    ("scheduler", "clause"),
    [
        (Generous, r"a budget must be at most max_budget=1\n  got: Grant\(budget=2"),
        (Jumbled, "the milestones of a grant must be rising steps"),
        (Silent, "report must return a Decision\n  got: None\n  use: Decision.CONTINUE or Decision.STOP"),
        (PromotesAll, "must not promote a trial whose loss is not finite"),
        (PromotesAnew, "must promote only paused trials"),
        (Undecided, r"next_promotion must return the same trial until promote is called\n  got: 3, and then None"),
    ],
)
def test_broken_schedulers_are_caught(scheduler: Callable[[int], Scheduler], clause: str) -> None:
    with pytest.raises(AssertionError, match=clause):
        check_optimizer(lambda: Scheduled(scheduler), spaces={"line": SearchSpace(x=Float(0, 1))})
