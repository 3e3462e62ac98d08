"""The search space: named domains, and the maps between configurations and the unit cube."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizers.domain import Domain
from optimizers.domains import Constant, domain_from_json
from optimizers.errors import SearchSpaceError
from optimizers.names import did_you_mean
from optimizers.scalars import same
from optimizers.spellings import read_domain
from optimizers.trial import Config


class SearchSpace:
    """Parameters by name, in order; some may be active only under conditions.

    A configuration is a point of the unit cube of ``d`` dimensions, one for each parameter that is
    not a :class:`~optimizers.domains.Constant`, in the order of the space.

    Args:
        params: Domains by name, or any spelling that :func:`~optimizers.spellings.read_domain` knows.
        **named: More of them.

    Raises:
        SearchSpaceError: A name or a domain is not valid, or a condition cannot hold.

    Example:
        >>> space = SearchSpace(
        ...     optimizer=["sgd", "adam"],
        ...     momentum=Float(0, 0.99, when={"optimizer": "sgd"}),
        ... )
        >>> space.from_unit([0.9, 0.5])
        {'optimizer': 'adam'}
    """

    __slots__ = ("_dimensions", "_domains", "_parents_first")

    def __init__(self, params: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        params = {} if params is None else params
        if not isinstance(params, Mapping):
            raise SearchSpaceError(f"a search space maps names to domains, got {params!r}; use a dict")
        if twice := sorted(set(params) & set(named)):
            raise SearchSpaceError(f"parameters {twice} are given twice; leave one of each out")
        spellings = {**params, **named}
        if not spellings:
            raise SearchSpaceError("the search space is empty; give at least one parameter")
        self._domains = {_checked(name): read_domain(name, spelling) for name, spelling in spellings.items()}
        self._check_conditions()
        parents = {name: set(domain.conditions) for name, domain in self._domains.items()}
        try:
            self._parents_first = tuple(TopologicalSorter(parents).static_order())
        except CycleError as error:
            cycle = " <- ".join(error.args[1])
            raise SearchSpaceError(f"conditions go in a circle: {cycle}; drop the when of one") from None
        self._dimensions = tuple(n for n, domain in self._domains.items() if not isinstance(domain, Constant))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all parameters, in order."""
        return tuple(self._domains)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the unit cube's ``d`` axes: all parameters but the constants, in order."""
        return self._dimensions

    @property
    def parents_first(self) -> tuple[str, ...]:
        """Names of all parameters, each after those that its condition names."""
        return self._parents_first

    @property
    def domains(self) -> Mapping[str, Domain]:
        """Domains by name, read-only."""
        return MappingProxyType(self._domains)

    @property
    def size(self) -> int | None:
        """Upper bound on the number of configurations (reached without conditions); None if infinite."""
        sizes = [domain.size for domain in self._domains.values()]
        known = [size for size in sizes if size is not None]
        return math.prod(known) if len(known) == len(sizes) else None

    def is_active(self, name: str, config: Mapping[str, Any]) -> bool:
        """Whether the parameter ``name`` is active, as the parents' values in ``config`` have it.

        Raises:
            SearchSpaceError: There is no such parameter.
        """
        return all(
            parent in config and self.is_active(parent, config) and any(same(config[parent], value) for value in values)
            for parent, values in self._domain(name).conditions.items()
        )

    def sample(self, rng: np.random.Generator) -> Config:
        """A configuration drawn uniformly from the unit cube."""
        return self.from_unit(rng.random(len(self._dimensions)))

    def from_unit(self, u: Any) -> Config:
        """The configuration at a point of the unit cube; parameters that are not active are left out.

        Args:
            u: Coordinates, of shape (d,), each in [0, 1].

        Raises:
            SearchSpaceError: The shape or a coordinate does not fit.
        """
        point = np.asarray(u, dtype=float)
        if point.shape != (len(self._dimensions),):
            raise SearchSpaceError(f"a point needs the shape ({len(self._dimensions)},), got {point.shape}")
        coordinates = dict(zip(self._dimensions, point.tolist(), strict=True))
        config: Config = {}
        for name in self._parents_first:
            if self.is_active(name, config):
                config[name] = self._domains[name].from_unit(coordinates.get(name, 0.5))
        return {name: config[name] for name in self._domains if name in config}

    def to_unit(self, config: Mapping[str, Any]) -> NDArray[np.float64]:
        """The point of a configuration: shape (d,), with 0.5 for parameters that ``config`` lacks.

        Discrete values lie in the middle of their cells, so a configuration has one point.

        Raises:
            SearchSpaceError: A value is not in its domain.
        """
        domains = self._domains
        return np.array([domains[n].to_unit(config[n]) if n in config else 0.5 for n in self._dimensions])

    def validate(self, config: Mapping[str, Any]) -> Config:
        """``config`` in the order of the space and with plain values of the domains' own types.

        Raises:
            SearchSpaceError: A name is unknown, an active parameter is missing or an inactive one
                given, or a value is not in its domain.
        """
        for name in config:
            self._domain(name)
        checked: Config = {}
        for name in self._parents_first:
            if not self.is_active(name, checked):
                if name in config:
                    when = self._domains[name].conditions
                    raise SearchSpaceError(f"{name!r} is active only when {when}; leave it out of {config!r}")
            elif name not in config:
                raise SearchSpaceError(f"{name!r} is missing in {config!r}; give it a value")
            else:
                try:
                    checked[name] = self._domains[name].normalize(config[name])
                except SearchSpaceError as error:
                    raise SearchSpaceError(f"parameter {name!r}: {error}") from None
        return {name: checked[name] for name in self._domains if name in checked}

    def to_json(self) -> dict[str, Any]:
        """A plain dict that :meth:`from_json` reads back."""
        return {name: domain.to_json() for name, domain in self._domains.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SearchSpace:
        """Read a space from the form of :meth:`to_json`.

        Raises:
            SearchSpaceError: It is no such form.
        """
        return cls({name: domain_from_json(domain) for name, domain in data.items()})

    def __len__(self) -> int:
        return len(self._domains)

    def __iter__(self) -> Iterator[str]:
        return iter(self._domains)

    def __contains__(self, name: object) -> bool:
        return name in self._domains

    def __eq__(self, other: object) -> bool:
        # The order counts: it is the order of the cube's axes.
        return isinstance(other, SearchSpace) and list(self._domains.items()) == list(other._domains.items())

    def __repr__(self) -> str:
        return f"SearchSpace({', '.join(f'{name}={domain!r}' for name, domain in self._domains.items())})"

    def _domain(self, name: str) -> Domain:
        if name not in self._domains:
            near = did_you_mean(name, self._domains)
            raise SearchSpaceError(f"the search space has no {name!r}{near}; it has {list(self._domains)}")
        return self._domains[name]

    def _check_conditions(self) -> None:
        for name, domain in self._domains.items():
            for parent, values in domain.conditions.items():
                try:
                    parent_domain = self._domain(parent)
                    if parent_domain.size is None:
                        raise SearchSpaceError("it is continuous and hits no value exactly; give it a step")
                    for value in values:
                        parent_domain.normalize(value)
                except SearchSpaceError as error:
                    raise SearchSpaceError(f"{name!r} cannot depend on {parent!r}: {error}") from None


def _checked(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise SearchSpaceError(f"names become arguments of train_fn, got {name!r}; use a Python identifier")
    return name
