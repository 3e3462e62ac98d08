"""Checks of a study before anything runs."""

from __future__ import annotations

import inspect
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
from maggy_like.errors import ConfigError
from optimizers.checks import did_you_mean


def distinct(components: Iterable[Component | WantedModules]) -> None:
    """Check that each component has a name, and no two the same.

    Raises:
        ConfigError: One has none, or two have the same.
    """
    seen: set[str] = set()
    for component in components:
        if component.name is not None and not (isinstance(component.name, str) and component.name):
            raise ConfigError(f"a component is called by a word, got {component.name!r}")
        if component.name in seen:
            raise ConfigError(f"there are two components {component.name!r}; give one of them a group of another name")
        if component.name is not None:
            seen.add(component.name)


def base_config(study: Declaration, train_fn: Callable[..., Any] | None) -> dict[str, Any]:
    """The study's parameters with nothing removed, where need be from the defaults of the two functions.

    Raises:
        ConfigError: A name is not free, or a value is not known, or is what stands for being without it.
    """
    base = dict(study.base)
    settings = [component for component in study.asked if isinstance(component, Setting)]
    for name in (*base, *(setting.name for setting in settings)):
        if name in RESERVED:
            other = NO_DATA if name in FROM_DATA and not study.columns else "choose another name"
            raise ConfigError(f"the study cannot set {name!r}, which the runtime fills; {other}")
    for setting in settings:
        if setting.name not in base:
            base[setting.name] = _default(setting.name, study, train_fn)
        if same_value(base[setting.name], setting.value):
            raise ConfigError(
                f"{setting.name!r} is {setting.value!r} with nothing removed, so removing it changes nothing; "
                "give another value for one of the two"
            )
    return base


def resolved(study: Declaration) -> tuple[Component, ...]:
    """The components, with modules looked up in the model.

    Raises:
        ConfigError: A module is unknown, or two components have the same name.
    """
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
    """The components of a group.

    Raises:
        ConfigError: One is unknown.
    """
    known = [component.name for component in study.asked if component.name is not None]
    return tuple(matching(patterns, known, "component", group))


def run_models(study: Declaration, variants: Sequence[Variant]) -> dict[str, int]:
    """Build the model of every variant, one after the other, and run it where there is a sample.

    Returns:
        The number of parameters of each; nothing where there is no model, or not one of torch.

    Raises:
        ConfigError: A model cannot be built or is not built anew, a module is never used or does not fit.
    """
    if study.factory is None:
        return {}
    trial, last, counted = None, None, {}
    for variant in variants:
        model = _built(variant)
        if not _is_torch_module(model):
            return {}
        from maggy_like.ablation.modules import n_parameters
        from maggy_like.ablation.sample_run import Trial

        if last is not None and last() is model:
            raise ConfigError(
                "the model's factory returns the same model each time, which would bring what one trial changed to the "
                "next; build it in the factory"
            )
        last = weakref.ref(model)
        if study.sample is not None:
            if trial is None:
                base = study.variant()
                trial = Trial(_built(base), _sample(study, base))
                for component in study.found:
                    if isinstance(component, Modules):
                        trial.check_replaceable(component)
            trial.check_variant(variant, model, _sample(study, variant))
        counted[variant.name] = n_parameters(model)
        del model  # before the next is built: large ones do not fit beside each other
    return counted


def _is_torch_module(model: Any) -> bool:
    if "torch" not in sys.modules:  # a module would have loaded it
        return False
    from maggy_like.ablation.modules import is_module

    return is_module(model)


def _sample(study: Declaration, variant: Variant) -> Any:
    """The sample as a variant's model takes it."""
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
        near = did_you_mean(name, {*names_of(train_fn), *names_of(study.factory)})
        unseen = "pass the function that may have a default for it: study.bound(train_fn)"
        remedy = unseen if train_fn is None else "give train_fn a default for it"
        raise ConfigError(
            f"nothing says what {name!r} is with nothing removed{near}; {remedy}, or give the study a value: "
            f"AblationStudy(config={{{name!r}: ...}})"
        )
    return value
