"""Optimizers by name: ``optimizer="asha"`` is ``optimizer=ASHA()``."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any, cast

from optimizers.checks import did_you_mean, instead_of_optuna, meant, short
from optimizers.core.base import Optimizer
from optimizers.errors import OptimizerError

Factory = Callable[..., Optimizer]

_BUILT_IN = {
    "random": "optimizers.samplers.non_adaptive:RandomSearch",
    "grid": "optimizers.samplers.non_adaptive:Grid",
    "sobol": "optimizers.samplers.non_adaptive:Sobol",
    "bayesian": "optimizers.samplers.bayesian:BayesianSearch",
    "asha": "optimizers.schedulers.asha:ASHA",
    "mobster": "optimizers.schedulers.asha:MOBSTER",
    "hyperband": "optimizers.schedulers.asha:Hyperband",
    "bohb": "optimizers.schedulers.asha:BOHB",
    "pbt": "optimizers.schedulers.population:PBT",
    "skopt": "optimizers.samplers.skopt_search:SkoptSearch",
    "tpe": "optimizers.samplers.optuna_sampler:TPE",
}
"""The class of each name. It is imported when the name is used, because ASHA both has a name and takes one."""

_NEAR = 0.74
"""How similar a name must be to be suggested: ``adam`` and ``radam`` are not misspellings of ``random``."""

_registered: dict[str, Factory] = {}


def names() -> tuple[str, ...]:
    """Return the names that :func:`make_optimizer` knows."""
    return (*_BUILT_IN, *_registered)


def register(name: str, factory: Factory) -> None:
    """Register an optimizer under a name. A custom name may be registered again.

    Args:
        name: The name, as in ``lagom(..., optimizer=name)``.
        factory: An optimizer class, or a function that takes options and returns an optimizer.

    Raises:
        OptimizerError: The name is not a text or is built in, or the factory cannot be called.

    Example:
        >>> register("wide asha", lambda eta=8: ASHA(eta=eta))
        >>> make_optimizer("wide asha").eta
        8
    """
    if not isinstance(name, str) or not name:
        raise OptimizerError(f"name must be a text, got {short(name)}; use one such as 'evolution'")
    if name in _BUILT_IN:
        raise OptimizerError(f"{name!r} is built in as {_BUILT_IN[name].partition(':')[2]}; use another name")
    if not callable(factory):
        raise OptimizerError(f"factory must be a class or a function, got {short(factory)}; use an Optimizer class")
    _registered[name] = factory


def make_optimizer(spec: str | Optimizer | Factory, **options: Any) -> Optimizer:
    """Return the optimizer that ``spec`` stands for.

    Args:
        spec: A name, an optimizer class (or another factory), or an optimizer, which is returned unchanged.
        **options: Arguments of the factory; none for an optimizer.

    Raises:
        OptimizerError: The name is unknown, or the options do not fit.

    Example:
        >>> make_optimizer("asha", eta=4).eta
        4
    """
    if isinstance(spec, Optimizer):
        if options:
            raise OptimizerError(
                f"options must be passed when the {type(spec).__name__} is created, got {sorted(options)} later; "
                f"use {type(spec).__name__}(...) with them"
            )
        return spec
    if (module := str(getattr(spec, "__module__", ""))).startswith("hyperopt."):  # tpe.suggest
        algorithm = module.rpartition(".")[2]
        use = "random" if algorithm == "rand" else "tpe"
        raise OptimizerError(f"optimizer must be an Optimizer, got Hyperopt's {algorithm}.suggest; use {use!r}")
    if isinstance(spec, str):
        factory = _registered.get(spec) or _class_of(spec)
        if factory is None:
            near = _peer(spec) or did_you_mean(spec.lower(), names(), cutoff=_NEAR)
            raise OptimizerError(f"unknown optimizer {spec!r}{near}; use one of {', '.join(names())}")
        label = spec
    elif ours := instead_of_optuna(spec):
        kind = spec if isinstance(spec, type) else type(spec)
        raise OptimizerError(f"optimizer must be an Optimizer, got Optuna's {kind.__name__}; use {ours}")
    elif callable(spec) and (not isinstance(spec, type) or issubclass(spec, Optimizer)):
        factory, label = spec, getattr(spec, "__name__", repr(spec))
    else:
        raise OptimizerError(
            f"optimizer must be a name, an optimizer or its class, got {short(spec)}; use one of {', '.join(names())}"
        )
    _check_options(label, factory, options)
    optimizer = factory(**options)
    if not isinstance(optimizer, Optimizer):
        raise OptimizerError(
            f"{label!r} must return an Optimizer, got {short(optimizer)}; derive its class from Optimizer"
        )
    return optimizer


def _class_of(name: str) -> Factory | None:
    """Return the class of a built-in name, or None."""
    if name not in _BUILT_IN:
        return None
    module, _, kind = _BUILT_IN[name].partition(":")
    return cast(Factory, getattr(importlib.import_module(module), kind))


_PEERS = {
    "tpe": "optuna hyperopt parzen",
    "bayesian": "gp bo gaussian botorch ax gpsampler gpyopt spearmint",
    "asha": "successive halving sha successivehalvingpruner",
    "skopt": "scikit-optimize",
    "pbt": "population",
    "sobol": "qmc",
    "grid": "bruteforce",
    "hyperband": "hyperbandpruner",
}
"""Our names, and what other libraries call the same optimizers."""

_OBJECTS = {
    "MedianRule('tpe')": "median medianrule medianpruner medianstopping",
    "Patience('tpe')": "patience patientpruner",
    "OptunaSampler(lambda seed: CmaEsSampler(seed=seed))": "cma cmaes",
    "OptunaSampler(lambda seed: NSGAIISampler(seed=seed))": "nsga nsgaii",
}
"""What to pass for optimizers that have no name, and their names in other libraries."""


def _peer(spec: str) -> str:
    """Return a clause with our name if ``spec`` is that of another library, or nothing."""
    words = re.findall(r"[a-z]+", spec.lower().replace("sampler", "").replace("search", ""))
    near = [repr(ours) for ours in names() if {*words} & {ours, *_PEERS.get(ours, "").split()}]
    near += [ours for ours, theirs in _OBJECTS.items() if {*words} & {*theirs.split()}]
    return f" (did you mean {near[0]}?)" if near else ""


def _check_options(label: str, factory: Factory, options: dict[str, Any]) -> None:
    signature = inspect.signature(factory)
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()):
        for name in options:
            if name not in signature.parameters:
                near = meant(name, options[name], signature.parameters, {})
                takes = ", ".join(signature.parameters) or "no options"
                raise OptimizerError(f"optimizer {label!r} has no option {name!r}{near}; it takes {takes}")
    try:
        signature.bind(**options)
    except TypeError as error:
        takes = ", ".join(signature.parameters)
        raise OptimizerError(f"optimizer {label!r}: {error}; it takes {takes}") from None
