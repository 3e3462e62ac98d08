from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maggy_like.errors import UserError
from maggy_like.results.result import Result
from optimizers.core.base import Optimizer
from optimizers.core.events import AttemptEnded
from optimizers.core.objectives import Direction
from optimizers.core.study import Study
from optimizers.core.trial import Failure, FailureKind, TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.samplers.optuna_sampler import TPE
from optimizers.schedulers.asha import ASHA
from optimizers.space import Config
from optimizers.space.domains import Choice, Float, Integer
from optimizers.space.search_space import SearchSpace

pytestmark = pytest.mark.slow

SPACE = SearchSpace(
    lr=Float(1e-5, 1, log=True), act=Choice(["a", "b", "c"]), depth=Integer(1, 9), noise=Float(0, 1), fixed=1
)


def loss(config: Config) -> float:
    return float((math.log10(config["lr"]) + 3) ** 2 + 1.5 * (config["act"] != "b"))


def result(
    evaluate: Callable[[Config], float | None],
    n: int = 60,
    space: SearchSpace = SPACE,
    optimizer: Optimizer | None = None,
    direction: Direction = "min",
    max_budget: int = 1,
) -> Result:
    """A search whose function gives a loss, or None to fail."""
    study = Study(space, optimizer or RandomSearch(), direction=direction, seed=1, max_budget=max_budget, n_trials=n)
    while trial := study.ask():
        if (found := evaluate(trial.config)) is None:
            study.fail(trial)
        else:
            study.tell(trial, found / trial.budget if direction == "min" else -found)
    return Result(study.trials, study.best, "value", direction, "completed", 1.0, Path("run"), study.problem.space)


@pytest.mark.parametrize("options", [{}, {"direction": "max"}, {"optimizer": TPE()}, {"n": 200}])
def test_what_matters_has_the_largest_share(options: dict[str, Any]) -> None:
    shares = result(loss, **options).importance()
    assert set(shares) == set(SPACE.names)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert next(iter(shares)) == "lr"
    assert shares["lr"] + shares["act"] > 0.6
    assert shares["fixed"] == 0.0


def test_trials_of_a_low_rung_are_not_compared_with_those_of_a_high_one() -> None:
    """Each step more divides the loss, so values of different rungs say nothing of each other."""
    asha = result(
        lambda config: 1.0 + loss(config), 90, optimizer=ASHA(sampler="random", mode="promotion"), max_budget=27
    )
    assert {trial.step for trial in asha.trials} == {1, 3, 9, 27}
    shares = asha.importance()
    assert list(shares)[:2] == ["lr", "act"]
    assert shares["lr"] > 0.4


def test_a_trial_promoted_by_chance_does_not_outrank_the_best() -> None:
    """Values count where the trials met, not where each of them ended."""
    plain = result(loss)
    for trial in plain.trials[::10]:
        trial.curves = dict(trial.curves)
        trial.curve.extend([2], [-1000.0])
        trial.value = trial.last_value = -1000.0
    expected = result(loss).importance()
    assert plain.importance() == expected


def test_conditional_parameters_count_where_they_are_active() -> None:
    space = SearchSpace(
        opt=["sgd", "adam"], momentum=Float(0, 1, when={"opt": "sgd"}), beta=Float(0, 1, when={"opt": "adam"})
    )
    shares = result(lambda config: abs(config.get("momentum", 0.9) - 0.5), 120, space).importance()
    assert list(shares) == ["momentum", "opt", "beta"]  # adam is about as bad as sgd can be
    assert shares["opt"] > 0.1


def test_failed_trials_are_the_worst() -> None:
    shares = result(lambda config: None if config["act"] == "a" else 1.0 + config["noise"] / 10, 80).importance()
    assert list(shares)[:2] == ["noise", "act"]
    assert shares["act"] > 3 * max(shares["lr"], shares["depth"])


def test_trials_lost_with_their_worker_say_nothing() -> None:
    searched = result(loss)
    kept = searched.importance()
    study = Study(SPACE, RandomSearch(), direction="min", seed=9)
    for _ in range(30):
        trial = study.ask()
        assert trial is not None
        failure = Failure(FailureKind.WORKER_LOST, "the worker is gone")
        study.apply(AttemptEnded(trial.id, 1, TrialState.FAILED, 0.0, failure=failure))
    searched.trials.extend(study.trials)
    assert searched.importance() == kept


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: result(loss, 19), "needs 20 ended trials, got 19; use resume=True"),
        (lambda: result(lambda config: 1.0), "all 60 trials have the same value"),
        (lambda: result(lambda config: None), "only 0 of 60 trials have a finite value; see result.failures"),
        (lambda: result(lambda config: math.nan, 30), "only 0 of 30 trials have a finite value"),
        (lambda: result(lambda config: 1.0, space=SearchSpace(a=1)), "all 60 trials have the same"),
    ],
)
def test_what_cannot_be_told_is_said(make: Callable[[], Result], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make().importance()


def test_no_warning_of_what_optuna_imports_reaches_the_user() -> None:
    """In a notebook without ipywidgets, the progress bars that Optuna imports warn of that."""
    code = """
import sys, warnings

class Noisy:
    def find_spec(self, name, path=None, target=None):
        if name == "tqdm.auto":
            warnings.warn("IProgress not found. Please update jupyter and ipywidgets.")

sys.meta_path.insert(0, Noisy())
from maggy_like import Float, lagom
import tempfile
result = lagom(lambda x: x, {"x": Float(0, 1)}, optimizer="random", direction="max", n_trials=20, engine="inline",
               directory=tempfile.mkdtemp(), progress=False)
assert "optuna" not in sys.modules
assert result.importance() == {"x": 1.0}
assert "tqdm.auto" in sys.modules
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
