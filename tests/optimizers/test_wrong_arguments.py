"""What the library is wrongly given is an error that names the argument, its value and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from optimizers import (
    ASHA,
    BOHB,
    PBT,
    Float,
    Grant,
    History,
    Integer,
    Optimizer,
    OptimizerError,
    Patience,
    Problem,
    Proposal,
    RandomSearch,
    Scheduler,
    SearchSpace,
    SearchSpaceError,
    Sobol,
    Study,
    Threshold,
    UserError,
    register,
)
from optimizers.testing import check_optimizer

SPACE = {"x": Float(0, 1)}
HUGE = 10**5000  # of more digits than Python writes
NONSENSE: list[Any] = [None, "yes", b"x", -1, 1.5, float("nan"), True, HUGE, [1], {"a": 1}, {1}, object()]


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("optimizer", []),
        ("direction", [None]),
        ("objectives", []),
        ("value", []),
        ("seed", [HUGE]),
        ("max_budget", []),
        ("n_trials", [None]),
        ("points", []),
        ("earlier", []),
        ("is_timed", [True]),
    ],
)
def test_a_study_takes_no_nonsense(name: str, taken: list[Any]) -> None:
    for value in NONSENSE:
        if not any(value is known for known in taken):
            with pytest.raises(UserError, match=name):
                Study(SPACE, **{"optimizer": RandomSearch(), name: value})


@pytest.mark.parametrize("space", [None, 3, "yes", [1]])
def test_a_space_is_a_dict(space: Any) -> None:
    with pytest.raises(SearchSpaceError, match="space must be a dict of names and domains, got"):
        Study(space, RandomSearch())


@pytest.mark.parametrize(
    ("optimizer", "remedy"),
    [
        ("asha", r"use make_optimizer\('asha'\)"),
        (RandomSearch, r"use RandomSearch\(\)"),
        (3, r"got 3; use ASHA\(\) or"),
    ],
)
def test_a_study_says_how_an_optimizer_is_made(optimizer: Any, remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        Study(SPACE, optimizer)


def test_a_study_of_a_training_alone_asks_for_nothing() -> None:
    assert Study(SPACE, RandomSearch(), n_trials=0).ask() is None


@pytest.mark.parametrize("trial", [None, 0, "trial"])
def test_a_study_is_told_of_its_trials(trial: Any) -> None:
    study = Study(SPACE, RandomSearch())
    for tell in (lambda: study.tell(trial), lambda: study.report(trial, 1, 0.5), lambda: study.fail(trial)):
        with pytest.raises(UserError, match=r"trial must be a trial that study.ask\(\) returned"):
            tell()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda value: PBT(quantile=value), "quantile must be a number above 0 and not above 0.5, got"),
        (lambda value: PBT(perturbation=value), "perturbation must be a positive number, got"),
        (lambda value: PBT(resample_probability=value), "resample_probability must be a number from 0 to 1, got"),
        (lambda value: Patience(min_delta=value), "min_delta must be a finite number of at least 0, got"),
        (lambda value: Threshold(step=1, worse_than=value, direction="max"), "worse_than must be a finite number, got"),
    ],
)
def test_a_number_is_a_number(make: Callable[[Any], Optimizer], message: str) -> None:
    for value in (None, "yes", [1], {}, True, float("nan"), float("inf"), 10**5000, 1j):
        with pytest.raises(OptimizerError, match=message):
            make(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ASHA(reduction_factor=3), r"ASHA\(\) has no .* got reduction_factor=3 \(did you mean 'eta'\?\)"),  # type: ignore[call-arg]
        (lambda: BOHB(grace_period=1), r"BOHB\(\) has no argument 'grace_period', .* mean 'min_budget'"),  # type: ignore[call-arg]
        (lambda: ASHA(3), r"by position, got 3; pass it by name: eta=, "),  # type: ignore[misc]
        (lambda: Sobol(3), r"Sobol\(\) takes no argument by position, got 3; leave it out$"),  # type: ignore[call-arg]
        (lambda: Sobol(seed=3), "no argument 'seed', got seed=3; use seed=3 in the call of the search$"),  # type: ignore[call-arg]
        (lambda: Threshold(), "missing a required argument: 'step'; it takes optimizer, step, worse_than, direction"),  # type: ignore[call-arg]
    ],
)
def test_the_error_of_an_optimizers_unknown_argument_names_the_one_that_was_meant(
    make: Callable[[], Optimizer], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize("kind", [Float, Integer])
def test_a_log_scale_is_wanted_or_not(kind: Callable[..., Any]) -> None:
    with pytest.raises(SearchSpaceError, match=r"log of .* must be True or False, got 'no'; use log=True"):
        kind(1, 10, log="no")


@pytest.mark.parametrize("config", [None, 3, "yes", [1], ["x"]])
def test_a_configuration_is_a_dict(config: Any) -> None:
    with pytest.raises(SearchSpaceError, match="a configuration must be a dict, got"):
        SearchSpace(SPACE).validate(config)


@pytest.mark.parametrize("data", [None, 3, {"x": 1}])
def test_a_space_is_read_from_its_own_form_alone(data: Any) -> None:
    with pytest.raises(SearchSpaceError, match=r"data must be a dict that space.to_json\(\) returned"):
        SearchSpace.from_json(data)


@pytest.mark.parametrize("name", [None, "", 3, ["evolution"]])
def test_an_own_name_is_a_text(name: Any) -> None:
    with pytest.raises(OptimizerError, match="name must be a text, got"):
        register(name, RandomSearch)


class Answering(Optimizer):
    """Answers all asks alike."""

    def __init__(self, answer: Any, grant: Any = None) -> None:
        self.answer = answer
        self.grant = grant

    def ask(self, index: int, history: History) -> Any:
        return self.answer

    def scheduler(self, problem: Problem) -> Any:
        return super().scheduler(problem) if self.grant is None else self.grant


class Granting(Scheduler):
    """Grants all trials the same."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def grant(self, trial: int) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [3, "yes", [1], (0.5,), Proposal(3)])  # type: ignore[arg-type]
def test_what_is_no_configuration_is_no_proposal(answer: Any) -> None:
    with pytest.raises(
        OptimizerError, match=r"Answering.ask\(\) must return a configuration, got .*; use a dict of the param"
    ):
        Study(SPACE, Answering(answer)).ask()


@pytest.mark.parametrize(
    "answer", [None, 3, Grant(0), Grant(-1), Grant("a"), Grant(2.5), Grant(9, None), Grant(9, ("a",))]
)  # type: ignore[arg-type]
def test_a_grant_is_of_one_step_or_more(answer: Any) -> None:
    study = Study(SPACE, Answering({"x": 0.5}, Granting(answer)), max_budget=9)
    with pytest.raises(
        OptimizerError, match=r"Granting.grant\(0\) must return a Grant, got .*; use Grant\(budget, milesto"
    ):
        study.ask()


def test_a_scheduler_is_one() -> None:
    with pytest.raises(OptimizerError, match=r"Answering.scheduler\(problem\) must return a Scheduler, got 3; use"):
        Study(SPACE, Answering(None, 3))


@pytest.mark.parametrize("factory", [None, 3, RandomSearch(), lambda: 3])
def test_the_suite_makes_its_optimizers(factory: Any) -> None:
    with pytest.raises(OptimizerError, match="factory must return a new optimizer at each call, got"):
        check_optimizer(factory)
