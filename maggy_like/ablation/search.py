"""An ablation as a search: its optimizer goes through the variants and seeds, and its function gets a variant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from maggy_like.ablation.design import AUTO_BOUND, Design, DesignName
from maggy_like.ablation.outcome import Ablation
from maggy_like.ablation.study import AblationStudy
from maggy_like.ablation.variant import RESERVED
from maggy_like.errors import ConfigError, TrainFunctionError
from maggy_like.inspection import pickle_train_fn
from maggy_like.worker.invoke import HasBudget, arguments_for
from optimizers.base import Optimizer
from optimizers.names import did_you_mean
from optimizers.repeats import SEED, VARIANT
from optimizers.space import SearchSpace
from optimizers.trial import Trial
from optimizers.tuned_repeats import TunedRepeats, tuned_space

TUNED = 8
"""Configurations that ``tune=True`` tries for each variant."""

PRELOAD = ("maggy_like.ablation.search",)
"""What workers need beside the function's own modules."""


@dataclass(frozen=True)
class AblatedFunction:
    """The function of an ablation's trials: the user's, with what a variant fills.

    Attributes:
        train_fn: The user's.
        design: Has the variants.
    """

    train_fn: Callable[..., Any]
    design: Design

    def __call__(self, reporter: HasBudget, **config: Any) -> Any:
        parameters = inspect.signature(self.train_fn).parameters
        variant = self.design.variant(config.pop(VARIANT))
        searched = {name: value for name, value in config.items() if name != SEED}
        variant = replace(variant, config={**variant.config, **searched})
        if "model" in parameters:
            from maggy_like.ablation.modules import seed_weights

            seed_weights(config[SEED])
        given = arguments_for(parameters.values(), config, reporter)
        return self.train_fn(**given, **variant.arguments(name for name in parameters if name not in given))


@dataclass(frozen=True)
class AblationSearch:
    """What a search needs to be an ablation.

    Attributes:
        design: What is tried.
        space: Of the trials.
        optimizer: Goes through them.
        n_trials: How many there are at most.
        name: Of the optimizer, for people.
        bound: Of adaptive repeats.
        first_seed: The first seed.
        seeds: How many there are; trials of later ones are those of a tuning.
    """

    design: Design
    space: SearchSpace
    optimizer: Optimizer
    n_trials: int
    name: str
    bound: int | None
    first_seed: int
    seeds: int | None

    def outcome(self, trials: list[Trial], metric: str, direction: str) -> Ablation:
        """The answer that the trials give."""
        return Ablation.of_trials(
            self.design,
            trials,
            metric=metric,
            direction="min" if direction == "min" else "max",
            bound=self.bound,
            first_seed=self.first_seed,
            seeds=self.seeds,
        )


def plan_ablation(
    train_fn: Callable[..., Any],
    study: AblationStudy,
    *,
    design: DesignName,
    repeats: int | Literal["auto"],
    first_seed: int,
    searched: SearchSpace | None,
    tune: bool | int,
    tuner: Optimizer | None,
) -> AblationSearch:
    """Check a study against its function, and make the search of it.

    Args:
        first_seed: The first seed of the repeats.
        searched: What is tuned for each variant.
        tune: How many configurations each variant tries first; True for 8.
        tuner: Proposes them.

    Raises:
        UserError: An argument or the study is wrong.
    """
    if not isinstance(study, AblationStudy):
        raise ConfigError(f"ablation must be an AblationStudy, got {study!r}")
    if repeats != "auto" and (isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1):
        raise ConfigError(f"repeats must be a whole number of at least 1, or 'auto', got {repeats!r}")
    if not isinstance(tune, int) or tune < 0:
        raise ConfigError(f"tune must be True, False or a number of configurations of at least 1, got {tune!r}")
    if (searched is not None) is not bool(tune):
        raise ConfigError(
            "tune and a search space belong together: lagom(train_fn, searchspace, ablation=study, tune=True) tunes "
            "each variant; leave out both, or give both"
        )
    if not callable(train_fn):
        raise TrainFunctionError(f"train_fn must be a function, got {train_fn!r}")
    pickle_train_fn(train_fn)  # by itself, so that what cannot be sent is named as in a search
    names = tuple(searched.names) if searched is not None else ()
    for name in names:
        if name in RESERVED:
            raise ConfigError(f"the search space sets {name!r}, which the runtime fills; choose another name")
    designed = study.bound(train_fn).designed(design)
    _check_filled(train_fn, (*designed.passed, *names))
    kind = f"{design}, repeats={repeats}"
    if searched is None:
        n_trials = len(designed.variants) * (AUTO_BOUND if repeats == "auto" else repeats)
        optimizer = designed.optimizer(repeats, first_seed=first_seed)
        bound = AUTO_BOUND if repeats == "auto" else None
        space = designed.space(repeats, first_seed=first_seed)
        return AblationSearch(designed, space, optimizer, n_trials, f"ablation({kind})", bound, first_seed, None)
    if repeats == "auto":
        raise ConfigError("tune=True needs a fixed number of repeats; pass repeats=5, say")
    n_configs = TUNED if tune is True else tune
    optimizer = TunedRepeats(
        designed.configs, repeats, searched, n_configs=n_configs, first_seed=first_seed, optimizer=tuner
    )
    space = tuned_space(designed.configs, repeats, searched, first_seed=first_seed)
    n_trials = len(designed.variants) * (n_configs + repeats)
    name = f"ablation({kind}, tune={n_configs})"
    return AblationSearch(designed, space, optimizer, n_trials, name, None, first_seed, repeats)


def _check_filled(train_fn: Callable[..., Any], given: tuple[str, ...]) -> None:
    """Check that every parameter of ``train_fn`` is filled, and each that is searched is taken.

    Raises:
        TrainFunctionError: One is not.
    """
    name = getattr(train_fn, "__name__", "train_fn")
    parameters: Mapping[str, inspect.Parameter] = inspect.signature(train_fn).parameters
    filled = (*given, *RESERVED)
    takes_all = "config" in parameters
    for parameter in parameters.values():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TrainFunctionError(
                f"parameter {parameter.name!r} of {name} is positional-only; parameters are given by name"
            )
        takes_all |= parameter.kind is inspect.Parameter.VAR_KEYWORD
        needed = parameter.default is inspect.Parameter.empty and parameter.kind in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
        )
        if needed and parameter.name not in filled:
            raise TrainFunctionError(
                f"nothing fills the parameter {parameter.name!r} of {name}{did_you_mean(parameter.name, filled)}; give "
                f"it a default, or the study a value: AblationStudy(config={{{parameter.name!r}: ...}})"
            )
    for wanted in given:
        if wanted not in parameters and not takes_all:
            raise TrainFunctionError(f"{name} has no parameter {wanted!r}{did_you_mean(wanted, parameters)}; add it")
