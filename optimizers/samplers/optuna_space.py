"""Search spaces as Optuna's samplers see them.

Floats and integers keep their values. Listed values and a float's steps become indexes: categories for a choice, whole
numbers if the order has a meaning. So nothing is lost to rounding, and ``1`` and ``True`` stay different.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from optimizers.samplers.silence import shared, without_warnings
from optimizers.space import Config
from optimizers.space.domains import Choice, Constant, Domain, Float, Integer, Ordinal, cell, middle
from optimizers.space.scalars import Value
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import BaseTrial


def load_optuna() -> None:
    """Import Optuna without warnings: in a notebook, tqdm warns that a package is missing."""
    with without_warnings():
        importlib.import_module("optuna")


@shared
@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress Optuna's log lines and warnings, because the user did not call it."""
    load_optuna()
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with without_warnings():
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions of all parameters except constants, by name."""
    return {name: _distribution(space.domains[name]) for name in space.dimensions}


def to_params(space: SearchSpace, config: Mapping[str, Any]) -> dict[str, float]:
    """Return the active parameters of a configuration, without constants, as Optuna's samplers see them.

    They have the order in which :func:`suggest` asks for them, because ``BruteForceSampler`` depends on it.
    """
    asked = (name for name in space.parents_first if name in config)
    return {name: to_param(space.domains[name], config[name]) for name in asked if name in space.dimensions}


def suggest(space: SearchSpace, dims: Mapping[str, BaseDistribution], trial: BaseTrial) -> Config:
    """Ask a running Optuna trial for all active parameters, parents first, and return them in the space's order.

    ``dims`` is the result of :func:`distributions`.
    """
    config: Config = {}
    for name in space.parents_first:
        if space.is_active(name, config):
            domain = space.domains[name]
            config[name] = (
                domain.value if isinstance(domain, Constant) else _to_value(domain, _suggest(trial, name, dims[name]))
            )
    return {name: config[name] for name in space.names if name in config}


def _by_index(domain: Domain) -> bool:
    return isinstance(domain, (Choice, Ordinal)) or (isinstance(domain, Float) and domain.step is not None)


def _distribution(domain: Domain) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Integer):
        step = domain.step or 1  # Optuna requires an upper bound on the grid
        return IntDistribution(domain.low, domain.low + (domain.size - 1) * step, log=domain.log, step=step)
    if isinstance(domain, Float) and domain.step is None:
        return FloatDistribution(domain.low, domain.high, log=domain.log)
    n = cast(int, domain.size)
    return CategoricalDistribution(range(n)) if isinstance(domain, Choice) else IntDistribution(0, n - 1)


def to_param(domain: Domain, value: Any) -> float:
    """Return a value of a domain as Optuna's samplers see it."""
    return cell(domain.to_unit(value), cast(int, domain.size)) if _by_index(domain) else value


def _to_value(domain: Domain, param: float) -> Value:
    return domain.from_unit(middle(int(param), cast(int, domain.size))) if _by_index(domain) else param


def _suggest(trial: BaseTrial, name: str, distribution: BaseDistribution) -> float:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match distribution:
        case FloatDistribution():
            return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)
        case IntDistribution():
            low, high = distribution.low, distribution.high
            return trial.suggest_int(name, low, high, log=distribution.log, step=distribution.step)
        case CategoricalDistribution():
            return cast(int, trial.suggest_categorical(name, distribution.choices))
    raise AssertionError(distribution)
