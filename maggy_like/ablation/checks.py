"""What is told of a study before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from maggy_like.ablation.calls import call, default_of, parameters_of, takes_anything
from maggy_like.ablation.components import Component, Custom, Features, Modules, Setting, WantedModules, matching
from maggy_like.ablation.variant import RESERVED, Variant
from maggy_like.errors import ConfigError, TrainFunctionError
from optimizers.names import did_you_mean
from optimizers.repeats import SEED

if TYPE_CHECKING:
    from maggy_like.ablation.study import AblationStudy

_NEEDS = {Features: ("variant", "features", "n_features"), Modules: ("variant", "model"), Custom: ("variant", "model")}
"""What a training function takes at least one of, so that removing a component of that kind changes anything."""


def distinct(components: Iterable[Component | WantedModules]) -> None:
    """Check that no two components have the same name.

    Raises:
        ConfigError: Two have.
    """
    seen: set[str] = set()
    for component in components:
        if component.name in seen:
            raise ConfigError(f"there are two components {component.name!r}; give one of them a group of another name")
        if component.name is not None:
            seen.add(component.name)


def base_config(study: AblationStudy, train_fn: Callable[..., Any] | None) -> dict[str, Any]:
    """The study's parameters with nothing removed, where need be from the defaults of the two functions.

    Raises:
        ConfigError: A name is not free, or a value is not known, or is what stands for being without it.
    """
    base = dict(study.base)
    for component in study.asked:
        if isinstance(component, Setting) and component.name not in base:
            value = default_of(component.name, train_fn, study.factory)
            if value is inspect.Parameter.empty:
                known = {name for function in (train_fn, study.factory) for name in _names(function)}
                near = did_you_mean(component.name, known)
                raise ConfigError(
                    f"nothing says what {component.name!r} is with nothing removed{near}; "
                    f"give train_fn a default for it, or the study a value: AblationStudy(config={{{component.name!r}: "
                    "...})"
                )
            base[component.name] = value
        if isinstance(component, Setting) and _same(base[component.name], component.value):
            raise ConfigError(
                f"{component.name!r} is {component.value!r} with nothing removed, so removing it changes nothing; "
                "give another value for one of the two"
            )
    for name in RESERVED:
        if name in base:
            raise ConfigError(f"the study cannot set {name!r}, which the runtime fills; choose another name")
    return base


def resolved(study: AblationStudy) -> tuple[Component, ...]:
    """The components, with modules looked up in the model.

    Raises:
        ConfigError: A module is unknown, or two components have the same name.
    """
    known: list[str] | None = None
    found: list[Component] = []
    for component in study.asked:
        if isinstance(component, WantedModules):
            if known is None:
                from maggy_like.ablation.modules import module_names

                known = module_names(_built(_base_variant(study)))
            found += component.among(known)
        else:
            found.append(component)
    distinct(found)
    return tuple(found)


def members(study: AblationStudy, group: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """The components of a group.

    Raises:
        ConfigError: One is unknown.
    """
    known = [component.name for component in study.asked if component.name is not None]
    return tuple(matching(patterns, known, "component", group))


def taken(study: AblationStudy, train_fn: Callable[..., Any]) -> tuple[str, ...]:
    """The study's parameters that ``train_fn`` takes by name.

    Raises:
        TrainFunctionError: It takes nothing that a component changes, or no seed.
    """
    name, parameters = getattr(train_fn, "__name__", "train_fn"), parameters_of(train_fn)
    takes_all = "config" in parameters or takes_anything(parameters)
    if SEED not in parameters and not takes_all:
        raise TrainFunctionError(
            f"repeats differ by their seed, and {name} takes none; add a parameter 'seed', and use it"
        )
    builds = "variant" in parameters or "model" in parameters
    for component in study.components:
        if isinstance(component, Setting):
            used = component.name in parameters or takes_all or (builds and component.name in _names(study.factory))
            if not used and not ("variant" in parameters and component.name in study.given):
                known = {*parameters, *_names(study.factory)}
                raise TrainFunctionError(
                    f"nothing uses the parameter {component.name!r}{did_you_mean(component.name, known)}; add it to "
                    f"the parameters of {name}" + (" or of the model's factory" if study.factory is not None else "")
                )
        elif not any(need in parameters for need in _NEEDS[type(component)]) and not takes_anything(parameters):
            raise TrainFunctionError(
                f"{name} takes nothing that removing {component.name!r} changes; add one of the parameters "
                f"{', '.join(_NEEDS[type(component)])}"
            )
    return tuple(key for key in study.base if key in parameters or takes_all)


def run_models(study: AblationStudy, variants: Sequence[Variant]) -> dict[str, int]:
    """Build the model of every variant, one after the other, and run it where there is a sample.

    Returns:
        The number of parameters of each; nothing where there is no model, or not one of torch.

    Raises:
        ConfigError: A model cannot be built, a module is never used or does not fit.
    """
    if study.factory is None:
        return {}
    from maggy_like.ablation.modules import Trial, is_module, n_parameters

    trial, counted = None, {}
    for variant in variants:
        model = _built(variant)
        if not is_module(model):
            return {}
        if study.sample is not None:
            if trial is None:
                base = _base_variant(study)
                trial = Trial(_built(base), _sample(study, base))
                for component in study.components:
                    if isinstance(component, Modules):
                        trial.check_replaceable(component)
            trial.check_variant(variant, model, _sample(study, variant))
        counted[variant.name] = n_parameters(model)
        del model  # before the next is built: large ones do not fit beside each other
    return counted


def _sample(study: AblationStudy, variant: Variant) -> Any:
    """The sample as a variant's model takes it."""
    if callable(study.sample) and not hasattr(study.sample, "shape"):
        known = {**variant.config, "features": list(variant.features), "n_features": len(variant.features)}
        return call(study.sample, known, {}, "sample")
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


def _base_variant(study: AblationStudy) -> Variant:
    return Variant("base", (), list(study.columns), dict(study.base), study.factory)


def _names(function: Callable[..., Any] | None) -> Iterable[str]:
    return parameters_of(function) if function is not None else ()


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)
