"""Properties of Optuna's samplers that the adapter depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseGASampler, BaseSampler, BruteForceSampler, CmaEsSampler, PartialFixedSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from optimizers.errors import OptimizerError, SearchSpaceError
from optimizers.samplers.adapters.optuna_space import to_param
from optimizers.space.search_space import SearchSpace


class Independent(BaseSampler):
    """Draws each parameter as ``sampler`` draws those that it does not model together with others.

    Most samplers draw those at random, so proposals repeat less often; a ``PartialFixedSampler`` keeps the
    values that it fixes.
    """

    def __init__(self, sampler: BaseSampler) -> None:
        self._sampler = sampler

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)


def innermost(sampler: BaseSampler) -> BaseSampler:
    """The sampler itself, or the one that a ``PartialFixedSampler`` wraps."""
    *_, inner = _layers(sampler)
    return inner


def uses_system_attrs(sampler: BaseSampler) -> bool:
    """Whether the sampler keeps its state in the trials' system attributes."""
    return isinstance(innermost(sampler), (CmaEsSampler, BaseGASampler))


def is_exhaustive(sampler: BaseSampler) -> bool:
    """Whether the sampler goes through all configurations and repeats one only when all are tried."""
    return isinstance(innermost(sampler), BruteForceSampler)


def fixed_values(sampler: BaseSampler) -> dict[str, Any]:
    """What ``PartialFixedSampler`` fixes."""
    fixed: dict[str, Any] = {}
    for layer in _layers(sampler):
        if isinstance(layer, PartialFixedSampler):
            fixed = {**layer._fixed_params, **fixed}
    return fixed


def check_fixed(sampler: BaseSampler, space: SearchSpace) -> None:
    """Check that the search space has what ``PartialFixedSampler`` fixes.

    Raises:
        OptimizerError: It has not.
    """
    for name, value in fixed_values(sampler).items():
        if name not in space:
            raise OptimizerError(f"PartialFixedSampler fixes {name!r}, and the search space has {list(space)}")
        try:
            space.domains[name].normalize(value)
        except SearchSpaceError as error:
            raise OptimizerError(f"PartialFixedSampler cannot fix {name!r}: {error}") from None


def translate_fixed(sampler: BaseSampler, space: SearchSpace) -> None:
    """Turn what ``PartialFixedSampler`` fixes, given as people write it, into what samplers see."""
    for layer in _layers(sampler):
        if isinstance(layer, PartialFixedSampler):
            given = layer._fixed_params.items()
            layer._fixed_params = {n: to_param(space.domains[n], value) for n, value in given if n in space.dimensions}


def _layers(sampler: BaseSampler) -> Iterator[BaseSampler]:
    yield sampler
    while isinstance(sampler, PartialFixedSampler):
        sampler = sampler._base_sampler
        yield sampler
