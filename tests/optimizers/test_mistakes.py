"""What the library is wrongly given is an error that names the argument, its value and the remedy."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from optuna.samplers import TPESampler
from scipy import stats
from skopt.space import Categorical, Real

from optimizers import (
    ASHA,
    BOHB,
    MOBSTER,
    PBT,
    TPE,
    BayesianSearch,
    Choice,
    Constant,
    Float,
    Grant,
    Grid,
    History,
    Integer,
    MedianRule,
    Optimizer,
    OptimizerError,
    Ordinal,
    Patience,
    Problem,
    Proposal,
    RandomSearch,
    Scheduler,
    SearchSpace,
    SearchSpaceError,
    SkoptSearch,
    Sobol,
    Study,
    Threshold,
    UserError,
    make_optimizer,
    register,
)
from optimizers.comparisons.paired_tests import compare, power
from optimizers.comparisons.repeats import AdaptiveRepeats, Repeats, TunedRepeats
from optimizers.space.domains import domain_from_json
from optimizers.space.search_space import read_domain
from optimizers.testing import check_optimizer

SPACE = {"x": Float(0, 1)}
LINE = SearchSpace(SPACE)
PLAIN = SearchSpace(low=Integer(1, 5), high=Integer(1, 5))
NESTED = SearchSpace(
    opt=["sgd", "adam"], momentum=Float(0, 0.99, when={"opt": ["sgd"]}), layers=Integer(1, 8), classes=10
)
HUGE = 10**5000  # of more digits than Python writes
NONSENSE: list[Any] = [None, "yes", b"x", -1, 1.5, float("nan"), True, HUGE, [1], {"a": 1}, {1}, object()]

# -- spaces ---------------------------------------------------------------------------------------

DOMAINS: list[tuple[Callable[[], Any], str]] = [
    (lambda: Float(1, 0), r"low=1 and high=0; use Float\(0, 1\)"),
    (lambda: Integer(3, 3), r"use Constant\(3\)"),
    (lambda: Float(0, 1, log=True), "low must be above 0 with log=True, got low=0"),
    (lambda: Float(1, 10, log="no"), r"log of .* must be True or False, got 'no'; use log=True"),
    (lambda: Integer(1, 10, log="no"), r"log of .* must be True or False, got 'no'; use log=True"),
    (lambda: Float(0, float("inf")), "high of Float must be a finite number, got inf"),
    (lambda: Float(float("nan"), 1), "low of Float must be a finite number, got nan"),
    (lambda: Float(-1e308, 1e308), "narrower bounds"),
    (lambda: Float(True, 2), "got True"),
    (lambda: Float("0", 1), "got '0'"),
    (lambda: Float(0, 1, step=0), "got 0"),
    (lambda: Float(0, 1, step=2), "at most high - low = 1, got 2"),
    (lambda: Float(1, 2, log=True, step=0.1), "use log for a log scale, or step"),
    (lambda: Integer(1, 9, log=True, step=2), "use log for a log scale, or step"),
    (lambda: Integer(0, 1.5), "must be an int, got 1.5; use Float"),
    (lambda: Integer(1, 1e3), "high of an Integer must be an int, got 1000.0; use 1000"),
    (lambda: Integer(-2.0, 3), "low of an Integer must be an int, got -2.0; use -2"),
    (lambda: Integer(0, 9, step=3.0), "got 3.0; use 3"),
    (lambda: Integer(0, 2**41), "use Float and round"),
    (lambda: Choice([]), "values of Choice must not be empty"),
    (lambda: Choice([1, 1.0]), "1.0 twice"),
    (lambda: Choice([(64,), [64]]), r"values of Choice must differ, got \[64\] twice"),
    (lambda: Choice("relu"), r"use Choice\(\['relu'\]\)"),
    (lambda: Choice({"a"}), r"values of Choice must be a list, got \{'a'\}; use Choice\(\['a'\]\)"),
    (lambda: Choice({"a": 1, "b": 2}), r"must be a list, got .*; use Choice\(\['a', 'b'\]\)"),
    (lambda: Choice(["relu", "gelu"]).normalize("relo"), "did you mean 'relu'"),
    (lambda: Ordinal([(1, {2})]), r"look it up in train_fn"),
    (lambda: Choice([float("nan")]), "a number must be finite, got nan"),
    (lambda: Constant([{}]), "look it up in train_fn"),
    (lambda: Float(0, 1, when={"a": []}), r"values of when\['a'\] must not be empty"),
    (lambda: Float(0, 1, when={"a": {3, 2}}), r"values of when\['a'\] must be a list, got \{2, 3\}; use \[2, 3\]"),
    (lambda: Float(0, 1, when=["a"]), "must be a dict"),
    (lambda: Float(0, 1, prior=2), r"prior must be a value of the domain: 2 is not in Float\(0.0, 1.0"),
    (lambda: Float(0, 1, step=0.5, prior=0.4), "the nearest is 0.5"),
    (lambda: Float(0, 1, prior=None), "None is not in"),
    (lambda: Integer(1, 9, prior=2.5), "2.5 is not in"),
    (lambda: Choice(["relu", "gelu"], prior="relo"), "did you mean 'relu'"),
    (lambda: Float(0, 1, prior=0.5, confidence="hihg"), "'hihg' .did you mean 'high'"),
    (lambda: Float(0, 1, prior=0.5, confidence=3), "'low', 'medium', 'high', got 3"),
    (lambda: Float(0, 1, confidence="high"), "confidence='high' needs a prior; use prior"),
    *(
        (lambda u=u: Float(0, 1).from_unit(u), r"u must be from 0 to 1, got .*; use min\(max\(u, 0\), 1\)")
        for u in (-0.001, 1.001, float("nan"))
    ),
    (lambda: domain_from_json({"type": "flaot", "low": 0}), "did you mean 'float'"),
    (lambda: domain_from_json({"low": 0, "high": 1}), "with a type, got"),
    (lambda: domain_from_json({"type": "float", "low": 0}), "Float needs 'high'"),
    (lambda: domain_from_json({"type": "float", "low": 0, "hihg": 1}), "did you mean 'high'"),
]
SPACES: list[tuple[Callable[[], Any], str]] = [
    (lambda: SearchSpace([("a", 1)]), "must be a dict of names and domains, got .*; use"),
    (lambda: SearchSpace({"": 1}), r"printable characters .*got ''; use one"),
    (lambda: SearchSpace({" lr": 1}), "without spaces around it, got ' lr'"),
    (lambda: SearchSpace({"l\nr": 1}), "printable characters .*got 'l.nr'"),
    (lambda: SearchSpace({"\x1b[31m": 1}), "printable characters"),
    (lambda: SearchSpace({3: 1}), "must be a text of .* got 3"),
    (lambda: SearchSpace({"a": (1, 2)}), "parameter 'a'"),
    (lambda: SearchSpace({"a": 1}, a=2), r"\['a'\] are given twice"),
    (lambda: SearchSpace({"a": Float(0, 1, when={"bb": 1}), "bbb": 1}), "'a' cannot depend on 'bb': .* mean 'bbb'"),
    (lambda: SearchSpace({"a": Float(0, 1, when={"b": 3}), "b": [1, 2]}), "cannot depend on 'b': 3 is not in"),
    *(
        (
            lambda it=it: SearchSpace({"a": Float(0, 1, when={"b": it}), "b": [it, (7,)]}),
            rf"cannot depend on 'b': 64 is not in .*; use when={{'b': \[{re.escape(repr(it))}\]}} for this value",
        )
        for it in ((64,), (64, 64))
    ),
    (lambda: SearchSpace({"a": Float(0, 1, when={"b": 0.5}), "b": Float(0, 1)}), "use a step"),
    (
        lambda: SearchSpace({"a": Choice([1, 2], when={"b": 1}), "b": Choice([1, 2], when={"a": 1})}),
        "conditions must not form a cycle, got (a <- b <- a|b <- a <- b)",
    ),
    *(
        (lambda it=it: Study(it, RandomSearch()), "space must be a dict of names and domains, got")
        for it in (None, 3, "yes", [1])
    ),
    *(
        (lambda it=it: SearchSpace.from_json(it), r"data must be a dict that space.to_json\(\) returned")
        for it in (None, 3, {"x": 1})
    ),
    *((lambda it=it: LINE.validate(it), "a configuration must be a dict, got") for it in (None, 3, "yes", [1], ["x"])),
    (lambda: NESTED.validate({"opt": "adam", "layer": 2, "classes": 10}), "no 'layer' .did you mean 'layers'"),
    (lambda: NESTED.validate({"opt": "adam", "classes": 10}), "'layers' is missing"),
    (lambda: NESTED.validate({"opt": "adam", "layers": 9, "classes": 10}), "parameter 'layers': 9 is not in Integer"),
    (
        lambda: NESTED.validate({"opt": "adam", "layers": 2, "classes": 10, "momentum": 0.5}),
        "'momentum' is only active when",
    ),
    (lambda: NESTED.validate({"opt": "adam", "layers": 2, "classes": 11}), "parameter 'classes': 11"),
    *((lambda it=it: NESTED.from_unit(it), r"u must have the shape \(3,\)") for it in ([0.5] * 2, [[0.5] * 3])),
    (lambda: NESTED.from_unit([0.5, 0.5, 1.5]), r"u must be from 0 to 1, got 1\.5"),
    *(
        (lambda it=it: LINE.log_prior(it), r"units must have the shape \(n, 1\), got")
        for it in (np.zeros(1), np.zeros((2, 2)), np.zeros((2, 1, 1)))
    ),
    (
        lambda: PLAIN.where("low < high"),
        "constraint must be a function of a configuration, got 'low < high'; use a lambda",
    ),
    (
        lambda: PLAIN.where(lambda config: False),
        r"none of 10,000 draws is allowed by the constraint <lambda>.*below 0.01%; loosen it",
    ),
    (
        lambda: PLAIN.where(lambda config: config["hihg"] > 1),
        r"<lambda> raised KeyError\('hihg'\) for \{'low'.*config.get\(name\)",
    ),
    (
        lambda: PLAIN.where(lambda low, high: low < high),
        r"must take one argument, the configuration as a dict, got <lambda>\(low, high\); use config\['low'\]",
    ),
    (lambda: PLAIN.where(lambda config: 1 / 0), r"raised ZeroDivisionError\(.*for \{'low': \d, 'high': \d\}$"),
    (lambda: PLAIN.where(lambda config: config["low"]), r"must return True or False, got \d for"),
    (lambda: PLAIN.where(lambda config: None), "must return True or False, got None for"),
]


@pytest.mark.parametrize(("make", "message"), [*DOMAINS, *SPACES])
def test_a_space_says_what_is_wrong(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SearchSpaceError, match=message):
        make()


class Sampled(SimpleNamespace):
    """A distribution as Ray Tune and Syne Tune have it."""

    def sample(self) -> float:
        return 0.5


class SampledInteger(Sampled):
    """An integer as Ray Tune has it, which ends below its upper bound unless it is rounded."""


SampledInteger.__module__ = "ray.tune.search.sample"


class LogUniform:
    """A scale of Ray Tune and Syne Tune."""


class Rounded(SimpleNamespace):
    """A scale of Ray Tune whose values are rounded to multiples of ``q``."""


def node(kind: str) -> Any:
    """Return an expression as Hyperopt has it: a distribution, within its label and its type."""
    apply = type("Apply", (), {"__init__": lambda self, name, *of: vars(self).update(name=name, pos_args=of)})
    return apply("float", apply("hyperopt_param", apply("literal"), apply(kind)))


class LogNormal:
    """A distribution as torch has it, whose ``support`` is no method."""

    support = "positive"

    def sample(self) -> float:
        return 1.0


class Series:
    """A column as pandas has it, which has a ``sample()`` too."""

    shape = (2,)

    def sample(self) -> Series:
        return self


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ((0.1, 0.9), r"use Float\(0.1, 0.9\) or \[0.1, 0.9\]"),
        ((1, 9), r"use Float\(1, 9\), Integer\(1, 9\) or \[1, 9\]"),
        (("DUOBLE", [0, 1]), "did you mean 'DOUBLE'"),
        (("DOUBLE", [0, 1, 2]), r"'DOUBLE' must have \[low, high\], got \[0, 1, 2\]"),
        (("INTEGER", [5, 1]), "low must be below high"),
        (("relu", "gelu"), "use a list for a choice"),
        ((1, 2, 3), "use a list for a choice"),
        ([], "values of Choice must not be empty"),
        ([[1, 2], [{3}]], "look it up in train_fn"),
        ({1, 2}, r"values must be a list, got \{1, 2\}; use \[1, 2\]"),
        ({"low": 0, "high": 1}, "with a type, got"),
        ({"values": [1, 2]}, r"with a type, got .*or a list of values"),
        (
            {"lr": Float(0, 1), "name": "adam"},
            "must be flat, got a dict with 'lr', 'name'; name its parameters 'p_lr', 'p_name'$",
        ),
        ({"type": ["adam", "sgd"], "lr": 0.1}, "must be flat, .* name its parameters 'p_type', 'p_lr'$"),
        ({"lr": {"type": "float", "low": 0, "high": 1}}, "name its parameters 'p_lr'$"),
        ({"layers": [1, 2]}, "name its parameters 'p_layers'$"),
        (
            stats.loguniform(1e-4, 1e-1),
            r"must not be a distribution, got loguniform; use Float\(0.0001, 0.1, log=True\)",
        ),
        (stats.uniform(0, 2), r"must not be a distribution, got uniform; use Float\(0, 2\)"),
        (stats.randint(1, 9), r"must not be a distribution, got randint; use Integer\(1, 8\)"),
        (LogNormal(), r"distribution, got <.*LogNormal object>; use Float\(low, high, log=True\)"),
        (Series(), r"values must be a list, got a Series, .*; use \.tolist\(\)"),
        (Real(1e-3, 1, prior="log-uniform"), r"not be a distribution, got Real.*; use Float\(0.001, 1, log=True\)"),
        (Categorical(["a", "b"]), r"got .*Categorical.*; use \['a', 'b'\]"),
        (stats.norm(), r"must not be a distribution, got norm; use Float\(low, high\)"),
        (stats.Uniform(a=1, b=2), r"must not be a distribution, got Uniform\(a=.*\); use Float\(1, 2\)"),
        (Sampled(lower=1e-4, upper=1, sampler=LogUniform()), r"use Float\(0.0001, 1, log=True\)$"),
        (Sampled(lower=0, upper=1, sampler=Rounded(q=0.1)), r"use Float\(0, 1, step=0.1\)$"),
        (Sampled(lower=-math.inf, upper=math.inf), r"use Float\(low, high\)$"),
        (SampledInteger(lower=1, upper=9), r"use Integer\(1, 8\)$"),
        (SampledInteger(lower=0, upper=10, sampler=Rounded(q=2)), r"use Integer\(0, 10, step=2\)$"),
        (Sampled(categories=["a", "b"]), r"use \['a', 'b'\]$"),
        (SimpleNamespace(choices=("a", "b")), r"use \['a', 'b'\]$"),
        (Sampled(func=len), "use a parameter for what it depends on, and compute the value in train_fn$"),
        ({"grid_search": [1, 2]}, r"must not be a grid_search of Ray, .*; use \[1, 2\], and optimizer='grid'$"),
        (node("switch"), "must not be an expression of Hyperopt, got choice; use a list of values, and when="),
        (node("loguniform"), r"Hyperopt, got loguniform; use Float\(low, high, log=True\), with the bounds and not"),
        (node("add"), r"Hyperopt, got add; use Float\(low, high\), Integer"),
        (
            [{"C": Float(0, 1)}, {"depth": 3}],
            r"must not have domains, got \{'C': .*; use a list of names, and .* when=",
        ),
        (Float, r"must have arguments, got the class Float; use Float\(...\)"),
        (float("inf"), "a number must be finite, got inf"),
    ],
)
def test_an_unreadable_spelling_raises_with_the_parameter_and_a_remedy(spelling: Any, message: str) -> None:
    with pytest.raises(SearchSpaceError, match=f"parameter 'p': .*{message}"):
        read_domain("p", spelling)


# -- optimizers -----------------------------------------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {"base": {"dropout": 0.2}, "without A": {"dropout": 0.2}}
CONTRASTS = {"A": {"without A": 1.0, "base": -1.0}}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ASHA(eta=1), "eta must be an integer of at least 2, got 1"),
        (lambda: ASHA(eta=4.0), "eta must be an integer of at least 2, got 4.0; use 4"),
        (lambda: ASHA(eta=1.0), "eta must be an integer of at least 2, got 1.0; use 3"),
        (lambda: ASHA(mode="hyperband"), "mode must be 'promotion', 'stopping' or None, got 'hyperband'"),
        (lambda: ASHA(mode="max"), "mode must be .*, got 'max'; use direction='max'"),
        (lambda: ASHA(early_eta=1), "early_eta must be a number above 1, got 1"),
        (lambda: ASHA(early_eta=math.inf), "early_eta must be a number above 1, got inf"),
        (lambda: ASHA(sampler="rnd"), "unknown optimizer 'rnd'"),
        (lambda: ASHA(sampler=PBT()), r"sampler must not have a schedule, got PBT\(\)"),
        (lambda: ASHA(sampler="pbt"), r"sampler must not have a schedule, got PBT\(\)"),
        (
            lambda: ASHA(sampler=ASHA(sampler="random")),
            r"schedule, got ASHA\(\).*, or pass ASHA\(\) as the optimizer itself",
        ),
        (lambda: ASHA(sampler=MOBSTER), r"sampler must not have a schedule, got MOBSTER\(\)"),
        (
            lambda: Study(SPACE, ASHA(sampler="random", min_budget=10), max_budget=9),
            "min_budget must be at most max_budget=9, got 10",
        ),
        (lambda: make_optimizer("mobster", n_initial=0), "n_initial must be"),
        (lambda: MedianRule("asah"), "unknown optimizer 'asah'"),
        (lambda: MedianRule(grace=-1), "grace must be an integer of at least 0, got -1"),
        (lambda: Threshold(step=1, worse_than=1.0, direction="up"), "'max' or 'min', got 'up'"),
        (
            lambda: PBT(population=3),
            r"population \* quantile must be at least 1, got 3 \* 0.25; use a population of at least 4",
        ),
        (lambda: PBT(quantile=0.6), "quantile must be a number above 0 and not above 0.5, got 0.6"),
        (lambda: PBT(perturbation=0.0), "perturbation must be a positive number, got 0.0"),
        (lambda: PBT(resample_probability=1.5), "resample_probability must be a number from 0 to 1, got 1.5"),
        (
            lambda: PBT(interval=5).validate(Problem(LINE, 0, max_budget=5)),
            "interval must be below max_budget=5, got 5; use a smaller one",
        ),
        (
            lambda: PBT().validate(Problem(LINE, 0, max_budget=1)),
            "max_budget must be at least 2, .*, got 1; use a larger one",
        ),
        (
            lambda: PBT(population=16, interval=5).validate(Problem(LINE, 0, max_budget=50, n_trials=16)),
            "population must be below n_trials=16, got 16",
        ),
        (lambda: SkoptSearch(acquisition="ei"), "did you mean 'EI'"),
        (lambda: Repeats(VARIANTS, 0), "repeats must be an integer of at least 1, got 0"),
        (lambda: Repeats(VARIANTS, 3, first_seed=-1), "first_seed must be an integer of at least 0, got -1"),
        (lambda: Repeats({}, 3), "at least one"),
        (lambda: Repeats({"base": {"seed": 3}}, 3), r"must not set \['seed'\]"),
        (lambda: AdaptiveRepeats(VARIANTS, {"A": {"wihtout A": 1.0}}), "did you mean 'without A'"),
        (lambda: AdaptiveRepeats(VARIANTS, {}), "at least one contrast"),
        (lambda: AdaptiveRepeats(VARIANTS, CONTRASTS, 2), "at least 3, got 2"),
        (lambda: AdaptiveRepeats(VARIANTS, CONTRASTS, alpha=1.5), "alpha must be between 0 and 1"),
        (lambda: TunedRepeats({"base": {"x": 0.1}}, 2, LINE), r"must not set \['x'\], which are searched"),
        *(
            (
                lambda tuner=tuner: TunedRepeats(VARIANTS, 2, LINE, optimizer=tuner),
                rf"must not have a schedule, got {type(tuner).__name__},.*optimizer='random'",
            )
            for tuner in (PBT(), ASHA(), MedianRule())
        ),
        *(
            (lambda it=it: compare(CONTRASTS, {}, resampled=it), r"resampled must be .*, got .*; use 0\.3 / 0\.7")
            for it in (-0.1, math.inf, math.nan)
        ),
        (
            lambda: power(float("nan"), 1.0, 10),
            r"effect must be a number and sd a number above 0, got nan and 1.0",
        ),
        (lambda: power(0.5, 1.0, 1), "repeats must be an integer of at least 2, got 1"),
        *(
            (lambda it=it: register(it, RandomSearch), "name must be a text, got")
            for it in (None, "", 3, ["evolution"])
        ),
        *(
            (lambda it=it: check_optimizer(it), "factory must return a new optimizer at each call, got")
            for it in (None, 3, RandomSearch(), lambda: 3)
        ),
        *(
            (lambda it=it: check_optimizer(RandomSearch, spaces=it), r"spaces must be a dict .* use {'mine': space}")
            for it in ({}, [], SearchSpace(x=Float(0, 1)))
        ),
        (lambda: check_optimizer(RandomSearch, seed=-1), "seed must be an integer of at least 0, got -1"),
    ],
)
def test_an_optimizer_says_what_is_wrong(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptimizerError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("eta", lambda n: ASHA(eta=n)),
        ("brackets", lambda n: ASHA(brackets=n)),
        ("min_budget", lambda n: ASHA(min_budget=n)),
        ("min_budget", lambda n: make_optimizer("asha", min_budget=n)),
        ("min_budget", lambda n: make_optimizer("mobster", min_budget=n)),
        ("population", lambda n: PBT(population=n, quantile=0.5)),
        ("interval", lambda n: PBT(interval=n)),
        ("n_initial", lambda n: BayesianSearch(n)),
        ("n_initial", lambda n: SkoptSearch(n)),
        ("resolution", lambda n: Grid(n)),
        ("patience", lambda n: Patience(patience=n)),
        ("min_trials", lambda n: MedianRule(min_trials=n)),
        ("n_startup_trials", lambda n: TPE(n_startup_trials=n)),
        ("n_ei_candidates", lambda n: TPE(n_ei_candidates=n)),
    ],
)
def test_any_integer_is_taken_and_nothing_else(name: str, make: Callable[[Any], Optimizer]) -> None:
    assert make(np.int64(3)).describe() == make(3).describe()
    for wrong in (0, -1, True, 2.5, "3", np.float64(3)):
        with pytest.raises(
            OptimizerError, match=rf"{name} must be an integer of at least [12], got {re.escape(repr(wrong))}"
        ):
            make(wrong)


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
    for value in (None, "yes", [1], {}, True, float("nan"), float("inf"), HUGE, 1j):
        with pytest.raises(OptimizerError, match=message):
            make(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ASHA(reduction_factor=3), r"ASHA\(\) has no .* got reduction_factor=3 \(did you mean 'eta'\?\)"),
        (lambda: BOHB(grace_period=1), r"BOHB\(\) has no argument 'grace_period', .* mean 'min_budget'"),
        (lambda: ASHA(3), r"by position, got 3; pass it by name: eta=, "),
        (lambda: Sobol(3), r"Sobol\(\) takes no argument by position, got 3; leave it out$"),
        (lambda: Sobol(seed=3), "no argument 'seed', got seed=3; use seed=3 in the call of the search$"),
        (lambda: Study(SPACE), r"Study\(\): missing a required argument: 'optimizer'; it takes space, optimizer"),
        (lambda: Study(SPACE, RandomSearch(), directions=["min"]), r"\(did you mean 'direction'\?\)"),
        (lambda: Study(SPACE, RandomSearch(), metric="loss"), r"\(did you mean 'objectives'\?\)"),
        (
            lambda: Study(SPACE, sampler=TPESampler()),
            r"use optimizer=OptunaSampler\(lambda seed: TPESampler\(seed=seed",
        ),
        (lambda: Threshold(), "missing a required argument: 'step'; it takes optimizer, step, worse_than, direction"),
    ],
)
def test_an_unknown_argument_is_an_error_that_names_the_one_that_was_meant(
    make: Callable[[], Optimizer], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("best_params", "; use best.config"),
        ("optimize", "; use ask(), and tell(trial, value) in a loop"),
        ("enqueue_trial", "; use Study(..., points=[...])"),
        ("parreto", " (did you mean 'pareto'?)"),
    ],
)
def test_an_attribute_of_a_study_of_optuna_is_an_error_with_ours(name: str, remedy: str) -> None:
    study = Study(SPACE, RandomSearch())
    with pytest.raises(AttributeError) as raised:
        getattr(study, name)
    assert str(raised.value) == f"'Study' object has no attribute {name!r}{remedy}"
    assert copy.deepcopy(study).ask() == study.ask()


# -- studies --------------------------------------------------------------------------------------


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


class Deciding(Granting):
    """Grants three steps, and decides the same on all reports."""

    def __init__(self, decision: Any) -> None:
        super().__init__(Grant(3))
        self.decision = decision

    def report(self, trial: int, step: int, loss: float) -> Any:
        return self.decision


class LateGrowing(Granting):
    """Lets the grant of a paused trial grow only when it is promoted."""

    may_promote = True

    def __init__(self) -> None:
        super().__init__(Grant(3))
        self.due: int | None = None

    def is_final(self, trial: int) -> bool:
        return self.answer.budget == 9

    def pause(self, trial: int) -> None:
        self.due = trial

    def next_promotion(self) -> int | None:
        return self.due

    def promote(self, trial: int) -> None:
        self.due, self.answer = None, Grant(9)


class Promoting(Granting):
    """Promotes one trial, whatever its state."""

    may_promote = True

    def __init__(self, trial: Any, *, closing: bool = False) -> None:
        super().__init__(Grant(9))
        self.trial, self.closing = trial, closing

    def next_promotion(self) -> Any:
        return None if self.closing else self.trial

    def closing_promotion(self) -> Any:
        return self.trial


def promoting(trial: Any, *, closing: bool = False) -> Callable[[], None]:
    """Ask for a trial after one has ended and while another one runs, or after both have ended."""

    def ask() -> None:
        scheduler = Promoting(None)
        study = Study(SPACE, Answering({"x": 0.5}, scheduler), max_budget=9, n_trials=2)
        study.tell(study.ask(), 0.5)
        running = study.ask()
        scheduler.trial, scheduler.closing = trial, closing
        if closing:
            study.tell(running, 0.5)
        study.ask()

    return ask


def paused_and_asked() -> None:
    study = Study(SPACE, Answering({"x": 0.5}, LateGrowing()), max_budget=9)
    study.tell(study.ask(), 0.5)
    study.ask()


def told(*acts: Callable[[Study, Any], Any]) -> Callable[[], None]:
    """Tell a study of its first trial."""

    def tell() -> None:
        study = Study(SPACE, RandomSearch(), max_budget=3)
        trial = study.ask()
        for act in acts:
            act(study, trial)

    return tell


STUDIES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: Study(SPACE, "asha"), UserError, r"use make_optimizer\('asha'\)"),
    (lambda: Study(SPACE, RandomSearch), UserError, r"use RandomSearch\(\)"),
    (lambda: Study(SPACE, 3), UserError, r"got 3; use ASHA\(\) or"),
    (lambda: Study(SPACE, TPESampler()), UserError, r"use OptunaSampler\(lambda seed: TPESampler\(seed=seed\)\)"),
    (lambda: Study(SPACE, RandomSearch(), direction="up"), UserError, "direction must be 'max' or 'min', got 'up'"),
    (lambda: Study(SPACE, RandomSearch(), value="newest"), UserError, "value must be 'best' or 'last', got 'newest'"),
    *(
        (
            lambda act=act, it=it: act(Study(SPACE, RandomSearch()), it),
            UserError,
            r"trial must be a trial that study.ask\(\) returned",
        )
        for it in (None, 0, "trial")
        for act in (lambda s, t: s.tell(t), lambda s, t: s.report(t, 1, 0.5), lambda s, t: s.fail(t))
    ),
    (told(lambda s, t: s.tell(t, "0.5")), UserError, "value must be a number, one for each objective, got '0.5'"),
    (told(lambda s, t: s.tell(t, 10**400)), UserError, "value must be a number"),
    (told(lambda s, t: s.tell(t, [0.5, 0.6])), UserError, r"value must have 1 numbers, one for .* got \[0.5, 0.6\]"),
    (told(lambda s, t: s.report(t, 1, None)), UserError, "value must be a number, one for each objective, got None"),
    (told(lambda s, t: s.report(t, 1.5, 0.5)), UserError, r"step must be an integer below 2\*\*63, got 1.5"),
    (told(lambda s, t: s.report(t, 3.0, 0.5)), UserError, r"got 3.0; use 3"),
    (told(lambda s, t: s.report(t, 2**63, 0.5)), UserError, "step must be an integer below"),
    (
        told(lambda s, t: s.tell(t, 0.5), lambda s, t: s.tell(t, 0.6)),
        UserError,
        "trial 0 must be running, got one that is completed",
    ),
    (told(lambda s, t: s.tell(t, 0.5), lambda s, t: s.fail(t)), UserError, "trial 0 .* that is completed"),
    (
        told(lambda s, _: s.tell(Study(SPACE, RandomSearch(), seed=1).ask(), 0.5)),
        UserError,
        "trial 0 .* belongs to another study",
    ),
    (
        lambda: Study(SPACE, RandomSearch(), n_trials=2, points=[{"x": x} for x in (0.1, 0.2, 0.3)]),
        UserError,
        "n_trials must be at least 3 to try all points, got 2; use n_trials=3",
    ),
    (
        lambda: Study(PLAIN.where(lambda c: c["low"] < c["high"]), RandomSearch(), points=[{"low": 3, "high": 2}]),
        SearchSpaceError,
        "not allowed by the constraint <lambda>",
    ),
    (
        lambda: Study(SPACE, Answering({"x": 7})).ask(),
        OptimizerError,
        r"Answering proposed \{'x': 7\}, which is not in the space",
    ),
    *(
        (
            lambda it=it: Study(SPACE, Answering(it)).ask(),
            OptimizerError,
            r"Answering.ask\(\) must return a configuration, got .*; use a dict of the param",
        )
        for it in (3, "yes", [1], (0.5,), Proposal(3))
    ),
    *(
        (
            lambda it=it: Study(SPACE, Answering({"x": 0.5}, Granting(it)), max_budget=9).ask(),
            OptimizerError,
            r"Granting.grant\(0\) must return a Grant, got .*; use Grant\(budget, milesto",
        )
        for it in (
            *(None, 3, Grant(0), Grant(-1), Grant("a"), Grant(2.5), Grant(True), Grant(10)),
            *(Grant(9, None), Grant(9, ("a",)), Grant(9, (9,)), Grant(9, (3, 1)), Grant(9, (0, 3))),
        )
    ),
    *(
        (
            lambda it=it, act=act: act(
                study := Study(SPACE, Answering({"x": 0.5}, Deciding(it)), max_budget=3), study.ask()
            ),
            OptimizerError,
            r"Deciding.report\(\) must return a Decision, got .*; use Decision.CONTINUE or Decision.STOP",
        )
        for it in (None, True, False, "stop")
        for act in (lambda s, t: s.report(t, 1, 0.5), lambda s, t: s.tell(t, 0.5))
    ),
    *(
        (
            promoting(it),
            OptimizerError,
            rf"Promoting.next_promotion\(\) must return the number .* got {got}; add a trial in",
        )
        for it, got in (
            (0, "trial 0, which is completed"),
            (1, "trial 1, which is running"),
            (2, "2"),
            (-1, "-1"),
            (True, "True"),
            ("0", "'0'"),
        )
    ),
    (promoting(1, closing=True), OptimizerError, r"Promoting.closing_promotion\(\) .* got trial 1, which is completed"),
    (
        paused_and_asked,
        OptimizerError,
        r"LateGrowing.grant\(0\) must return more steps than the 3 that the paused trial has used up, got 3; let",
    ),
    (
        lambda: Study(SPACE, Answering(None, 3)),
        OptimizerError,
        r"Answering.scheduler\(problem\) must return a Scheduler, got 3; use",
    ),
]


@pytest.mark.parametrize(("make", "kind", "message"), STUDIES)
def test_a_study_says_what_is_wrong(make: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_a_study_of_a_training_alone_asks_for_nothing() -> None:
    assert Study(SPACE, RandomSearch(), n_trials=0).ask() is None
