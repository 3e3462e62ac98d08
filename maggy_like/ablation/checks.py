"""Checks of a study before any trial starts."""

from __future__ import annotations

import inspect
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from maggy_like.ablation.components import Modules, Setting, WantedModules, matching
from maggy_like.ablation.variant import (
    FROM_DATA,
    NO_DATA,
    RESERVED,
    Component,
    Declaration,
    Variant,
    call,
    default_of,
    names_of,
    same_value,
)
from maggy_like.argument_checks import real
from maggy_like.errors import ConfigError
from optimizers.checks import did_you_mean, short


def check_negligible(value: Any) -> float | None:
    """Check the difference that is too small to matter; None for none."""
    number = real(value)
    if value is not None and (number is None or not 0.0 < number < math.inf):
        raise ConfigError(f"negligible must be a difference above 0 in the metric, such as 0.005, got {short(value)}")
    return number


def distinct(components: Iterable[Component | WantedModules]) -> None:
    """Check that all components have different names, which are not empty."""
    seen: set[str] = set()
    for component in components:
        if component.name is not None and not (isinstance(component.name, str) and component.name):
            raise ConfigError(f"the name of a component must be a word, got {component.name!r}")
        if component.name in seen:
            raise ConfigError(
                f"components must have different names, got {component.name!r} twice; give one of them a group of "
                "another name"
            )
        if component.name is not None:
            seen.add(component.name)


def base_config(study: Declaration, train_fn: Callable[..., Any] | None) -> dict[str, Any]:
    """Return the study's parameters with nothing removed, completed by the defaults of the two functions.

    The runtime's own names are reserved, and the value of a parameter must differ from the one that stands for its
    removal.
    """
    base = dict(study.base)
    settings = [component for component in study.asked if isinstance(component, Setting)]
    for name in (*base, *(setting.name for setting in settings)):
        if name in RESERVED:
            other = NO_DATA if name in FROM_DATA and not study.columns else "use another name"
            raise ConfigError(f"config must not have {name!r}, which the runtime fills; {other}")
    for setting in settings:
        if setting.name not in base:
            base[setting.name] = _default(setting.name, study, train_fn)
        if same_value(base[setting.name], setting.value):
            raise ConfigError(
                f"{setting.name!r} must change when it is removed, got {setting.value!r} with and without it; use "
                "another value for one of the two"
            )
    return base


def resolved(study: Declaration) -> tuple[Component, ...]:
    """Return the components, with modules looked up in the model."""
    known: dict[str, tuple[str, ...]] | None = None
    found: list[Component] = []
    for component in study.asked:
        if isinstance(component, WantedModules):
            if known is None:
                from maggy_like.ablation.modules import module_places

                known = module_places(_built(study.variant()))
            found += component.among(known)
        else:
            found.append(component)
    distinct(found)
    return tuple(found)


def members(study: Declaration, group: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a group's components. Each pattern must match one."""
    known = [component.name for component in study.asked if component.name is not None]
    return tuple(matching(patterns, known, "component", group))


def run_models(study: Declaration, variants: Sequence[Variant]) -> dict[str, int]:
    """Build the model of every variant in turn, and run it if there is a sample.

    Return the number of parameters of each; empty if there is no model, or it is not a torch model. The factory must
    build a new model each time, and the model must use each module that is replaced.
    """
    if study.factory is None:
        return {}
    trial, last, counted = None, None, {}
    for variant in variants:
        model = _built(variant)
        if not _is_torch_module(model):
            return {}
        from maggy_like.ablation.modules import SampleRun, n_parameters

        if last is not None and last() is model:
            raise ConfigError(
                "the model's factory must return a new model each time, got the same one, so a trial would inherit the "
                "changes of another; build it in the factory"
            )
        last = weakref.ref(model)
        if study.sample is not None:
            if trial is None:
                base = study.variant()
                trial = SampleRun(_built(base), _sample(study, base))
                for component in study.found:
                    if isinstance(component, Modules):
                        trial.check_replaceable(component)
            trial.check_variant(variant.name, variant.replaced, model, _sample(study, variant))
        counted[variant.name] = n_parameters(model)
        del model  # before the next is built: several large ones do not fit in memory
    return counted


def _is_torch_module(model: Any) -> bool:
    if "torch" not in sys.modules:  # a module would have loaded it
        return False
    from maggy_like.ablation.modules import is_module

    return is_module(model)


def _sample(study: Declaration, variant: Variant) -> Any:
    """Return the sample for a variant's model."""
    if callable(study.sample) and not hasattr(study.sample, "shape"):
        return call(study.sample, variant.config, variant.from_data(), {}, "sample")
    if isinstance(study.sample, Mapping) and study.columns and set(study.columns) <= set(study.sample):
        return {name: part for name, part in study.sample.items() if name not in variant.dropped}
    from maggy_like.ablation.modules import cut

    kept = [place for place, column in enumerate(study.columns) if column in variant.features]
    return cut(study.sample, kept, len(study.columns))


def _built(variant: Variant) -> Any:
    try:
        return variant.model()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the model of {variant.name!r} cannot be built: {error!r}") from error


def _default(name: str, study: Declaration, train_fn: Callable[..., Any] | None) -> Any:
    value = default_of(name, train_fn, study.factory)
    if value is inspect.Parameter.empty:
        near = did_you_mean(name, {*names_of(train_fn), *names_of(study.factory)} - {name})
        unseen = "pass the function that may have a default for it: study.bound(train_fn)"
        remedy = unseen if train_fn is None else "give train_fn a default for it"
        raise ConfigError(
            f"{name!r} must have a value with nothing removed, got none{near}; {remedy}, or use "
            f"AblationStudy(config={{{name!r}: ...}})"
        )
    return value
