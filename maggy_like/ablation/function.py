"""What a training function takes of a study, checked before anything starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from maggy_like.ablation.calls import (
    FROM_DATA,
    NO_DATA,
    NO_MODEL,
    names_of,
    parameters_of,
    takes,
    takes_anything,
)
from maggy_like.ablation.components import Setting
from maggy_like.ablation.declaration import Declaration
from maggy_like.ablation.values import same_value
from maggy_like.ablation.variant import Variant
from maggy_like.errors import ConfigError, TrainFunctionError
from maggy_like.train_function.arguments import INJECTED as ALWAYS_INJECTED
from maggy_like.train_function.names import name_of
from maggy_like.train_function.parameters import check_call_runs
from optimizers.checks.near_names import did_you_mean
from optimizers.comparisons.repeats import SEED
from optimizers.errors import SearchSpaceError
from optimizers.space.scalars import read_scalar


def taken(study: Declaration, train_fn: Callable[..., Any]) -> tuple[str, ...]:
    """The study's parameters that ``train_fn`` takes by name, by ``**`` or in ``config``.

    Raises:
        TrainFunctionError: It takes nothing that a component changes, or no seed, or a call does not run it.
        ConfigError: A value that it takes is none that a trial's configuration may have.
    """
    name, names = name_of(train_fn), names_of(train_fn)
    check_call_runs(train_fn, name)
    takes_all = "config" in names or takes_anything(train_fn)
    if SEED not in names and not takes_all:
        raise TrainFunctionError(
            f"repeats differ by their seed, and {name} takes none; add a parameter 'seed', and use it"
        )
    passed = tuple(key for key in study.base if key in names or takes_all)
    seen = {*names, *passed}
    base = study.variant()
    _check_scalars(base, passed, name)
    for component in study.found:
        variant = base.without(component)
        _check_scalars(variant, passed, name)
        needs = _noticed_by(variant, base)
        if not isinstance(component, Setting) and not any(need in seen for need in needs):
            one = f"one of the parameters {', '.join(needs)}" if len(needs) > 1 else f"the parameter {needs[0]}"
            raise TrainFunctionError(f"{name} takes nothing that removing {component.name!r} changes; add {one}")
    _check_used(study, name, seen)
    return passed


def check_filled(train_fn: Callable[..., Any], base: Variant, passed: Sequence[str], searched: Sequence[str]) -> None:
    """Check that every parameter of ``train_fn`` is filled, and each that is searched is taken.

    Args:
        train_fn: The user's.
        base: The variant with everything.
        passed: The parameters of the study that the function takes.
        searched: Those that are tuned.

    Raises:
        TrainFunctionError: One is not.
    """
    name, names = name_of(train_fn), names_of(train_fn)
    filled = (*passed, *searched, SEED, *base.fills, *ALWAYS_INJECTED)
    for parameter in parameters_of(train_fn).values():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TrainFunctionError(
                f"parameter {parameter.name!r} of {name} is positional-only; parameters are given by name"
            )
        is_needed = parameter.name in names and parameter.default is inspect.Parameter.empty
        if is_needed and parameter.name not in filled:
            raise TrainFunctionError(
                f"nothing fills the parameter {parameter.name!r} of {name}{did_you_mean(parameter.name, filled)}; "
                f"{_mend(parameter.name)}"
            )
    takes_all = "config" in names or takes_anything(train_fn)
    for wanted in searched:
        if wanted not in names and not takes_all:
            raise TrainFunctionError(f"{name} has no parameter {wanted!r}{did_you_mean(wanted, names)}; add it")


def _check_used(study: Declaration, function: str, seen: set[str]) -> None:
    """Check that every parameter of the study reaches something that can use it."""
    if "variant" in seen:  # it has them all
        return
    ablated = {component.name for component in study.found if isinstance(component, Setting)}
    for key in study.base:
        by_factory = takes(study.factory, key)
        by_sample = key not in ablated and takes(study.sample, key)
        if key in seen or by_sample or (by_factory and "model" in seen):
            continue
        if by_factory:
            raise TrainFunctionError(
                f"only the model's factory takes the parameter {key!r}, and {function} takes no model; add a "
                "parameter 'model' or 'variant'"
            )
        near = did_you_mean(key, {*seen, *names_of(study.factory)})
        raise TrainFunctionError(
            f"nothing uses the parameter {key!r}{near}; add it to the parameters of {function}"
            + (" or of the model's factory" if study.factory is not None else "")
            + ("" if key in ablated else ", or leave it out of the study")
        )


def _noticed_by(variant: Variant, base: Variant) -> tuple[str, ...]:
    """Parameters of a training function, any of which is another with a variant than with the base."""
    columns = FROM_DATA if variant.features != base.features else ()
    values = tuple(key for key, value in variant.config.items() if not same_value(value, base.config[key]))
    by_factory = any(takes(base.factory, key) for key in values)
    builds = by_factory or variant.replaced or variant.model_changes or variant.factory is not base.factory
    return ("variant", *columns, *(("model",) if builds else ()), *values)


def _check_scalars(variant: Variant, passed: Sequence[str], function: str) -> None:
    for key in passed:
        try:
            read_scalar(variant.config[key])
        except SearchSpaceError as error:
            raise ConfigError(
                f"{function} takes the parameter {key!r}, for which the study has a "
                f"{type(variant.config[key]).__name__}, and a trial's configuration has bools, finite numbers, "
                f"strings and None alone; look the value up by a name in {function}, and load data there"
            ) from error


def _mend(name: str) -> str:
    if name in FROM_DATA:
        return NO_DATA
    if name == "model":
        return NO_MODEL
    return f"give it a default, or the study a value: AblationStudy(config={{{name!r}: ...}})"
