"""The search space: named domains with conditions, constraints and priors, and the maps to and from the unit cube."""

from __future__ import annotations

import copy
import inspect
import keyword
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from optimizers.checks import did_you_mean, explains_init, short
from optimizers.errors import SearchSpaceError
from optimizers.space import Config
from optimizers.space.domains import (
    UNIFORM_SHARE,
    Array,
    Choice,
    Constant,
    Dimension,
    Domain,
    Float,
    Integer,
    Ordinal,
    domain_from_json,
)
from optimizers.space.scalars import Value, read_number, read_scalar

_MAGGY: dict[str, Callable[[Sequence[Any]], Domain]] = {
    "DOUBLE": lambda bounds: Float(*bounds),
    "INTEGER": lambda bounds: Integer(*bounds),
    "DISCRETE": Ordinal,
    "CATEGORICAL": Choice,
}

MAGGY_METHODS = {
    "add": "; unlike in the first Maggy, pass all parameters at once: SearchSpace(lr=Float(1e-4, 1e-1, log=True))",
    "get": "; unlike in the first Maggy, use space.domains[name]",
    "get_random_parameter_values": "; use space.sample(numpy.random.default_rng(seed)), for each configuration",
    "items": "; use space.domains.items()",
    "keys": "; use space.names",
    "values": "; use space.domains.values()",
}
"""Methods of the first Maggy's ``Searchspace``, with their replacements."""

_OF_A_DOMAIN = frozenset({"values", "choices", "categories", "options", "sequence", "bounds", "range", "when"})
"""Keys whose values may be lists and dicts in a dict that is a single domain, ours or of another library."""


def read_domain(name: str, spelling: Any) -> Domain:
    """Return the domain that ``spelling`` stands for. The parameter's name is for the error message.

    ==============================  ==========================================================
    ``Float(0, 1)`` and the like    itself
    ``["relu", "gelu"]``, a range   :class:`Choice`
    ``0.1``, ``"adam"``, ``None``   :class:`Constant`
    ``("DOUBLE", [0, 1])``          :class:`Float`; also ``INTEGER``, ``DISCRETE`` (:class:`Ordinal`)
                                    and ``CATEGORICAL`` (:class:`Choice`), in any case, or as a list
    ``{"type": "float", ...}``      the form of :meth:`Domain.to_json`
    ==============================  ==========================================================
    """
    if isinstance(spelling, Mapping) and list(spelling) == ["grid_search"]:
        raise SearchSpaceError(
            f"parameter {name!r}: a domain must not be a grid_search of Ray, got {short(spelling)}; use "
            f"{short(spelling['grid_search'])}, and optimizer='grid'"
        )
    if isinstance(spelling, list) and (spaces := [it for it in spelling if isinstance(it, Mapping) and _nested(it)]):
        raise SearchSpaceError(
            f"parameter {name!r}: a listed value must not have domains, got {short(spaces[0])}; use a list of names, "
            f"and parameters with a condition, such as Float(low, high, when={{{name!r}: NAME}})"
        )
    if isinstance(spelling, Mapping) and (inner := _nested(spelling)):
        raise SearchSpaceError(
            f"parameter {name!r}: a search space must be flat, got a dict with {', '.join(map(repr, inner))}; name its "
            f"parameters {', '.join(repr(f'{name}_{key}') for key in inner[:3])}{', ...' if len(inner) > 3 else ''}"
        )
    try:
        return _read(spelling)
    except SearchSpaceError as error:
        raise SearchSpaceError(f"parameter {name!r}: {error}") from None


def _nested(spelling: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of a dict that is a nested search space, and none for a domain written as a dict."""
    domains = (Domain, Mapping, list, range)
    if not any(isinstance(value, domains) and key not in _OF_A_DOMAIN for key, value in spelling.items()):
        return []
    return list(spelling)


def _read(spelling: Any) -> Domain:
    match spelling:
        case Domain():
            return spelling
        case [str(kind), list() | tuple()] if kind.upper() in _MAGGY:  # as a list, if the space was a JSON file
            return _read_tuple(tuple(spelling))
        case list() | range():
            return Choice(spelling)
        case tuple():
            return _read_tuple(spelling)
        case Mapping():
            return domain_from_json(spelling)
        case type() if issubclass(spelling, Domain):
            raise SearchSpaceError(
                f"a domain must have arguments, got the class {spelling.__name__}; use {spelling.__name__}(...)"
            )
        case str():
            _check_no_list(spelling)
            return Constant(spelling)
        case set() | frozenset():
            raise SearchSpaceError(f"values must be a list, got {spelling!r}; use {sorted(spelling, key=repr)!r}")
        case type():
            raise SearchSpaceError(
                f"a domain must not be a class, got {spelling.__name__}; use Float(low, high), Integer(low, high) "
                "or a list"
            )
        case _ if hasattr(spelling, "pos_args"):
            raise SearchSpaceError(_instead_of_hyperopt(spelling))
        case _ if callable(spelling):
            name = getattr(spelling, "__name__", short(spelling))
            raise SearchSpaceError(
                f"a domain must not be a function, got {name}; use Float(low, high), Integer(low, high) or a list"
            )
        case _ if getattr(spelling, "shape", ()):
            raise SearchSpaceError(
                f"values must be a list, got a {type(spelling).__name__}, {spelling!r}; use .tolist()"
            )
        case _ if any(hasattr(spelling, name) for name in ("rvs", "sample", "low", "choices")):
            raise SearchSpaceError(_instead_of(spelling))
        case _:
            return Constant(read_scalar(spelling))


def _instead_of(distribution: Any) -> str:
    """Return an error message for a distribution of scipy or of another library, such as Optuna or Ray Tune."""
    frozen = getattr(getattr(distribution, "dist", None), "name", None)  # of scipy
    sampler = getattr(distribution, "sampler", None)  # of Ray Tune and Syne Tune, perhaps within one that rounds
    kind = frozen or type(distribution).__name__
    names = " ".join((kind, *(type(it).__name__ for it in (sampler, getattr(sampler, "sampler", None))))).lower()
    return f"a domain must not be a distribution, got {frozen or short(distribution)}; use " + (
        _values_of(distribution)
        or _range_of(distribution, sampler, "int" in kind.lower(), "log" in names or kind == "reciprocal")
    )


def _values_of(distribution: Any) -> str:
    """Return the list of a distribution's values, or nothing."""
    if callable(getattr(distribution, "func", None)):  # of tune.sample_from
        return "a parameter for what it depends on, and compute the value in train_fn"
    values = getattr(distribution, "categories", getattr(distribution, "choices", None))
    return short(list(values)) if isinstance(values, list | tuple) else ""


def _range_of(distribution: Any, sampler: Any, is_integer: bool, is_log: bool) -> str:
    """Return the range of a distribution as a domain. Ray's integers end below their upper bound, unless rounded."""
    is_log |= any(getattr(distribution, name, None) is True for name in ("log", "log_scale"))
    is_log |= "log" in str(getattr(distribution, "prior", ""))  # of scikit-optimize
    if callable(support := getattr(distribution, "support", None)):
        bounds = [read_number(bound) for bound in support()]
    else:
        ends = ("lower", "upper") if hasattr(distribution, "lower") else ("low", "high")
        bounds = [read_number(getattr(distribution, name, None)) for name in ends]
    step = read_number(getattr(sampler, "q", getattr(distribution, "step", None)))
    if is_integer and step is None and type(distribution).__module__.startswith("ray.") and bounds[1] is not None:
        bounds[1] -= 1
    finite = [f"{bound:g}" for bound in bounds if bound is not None]
    low, high = finite if len(finite) == 2 else ("low", "high")
    more = ", log=True" if is_log else f", step={step:g}" if step is not None and step != is_integer else ""
    return f"{'Integer' if is_integer else 'Float'}({low}, {high}{more})"


_HYPEROPT = {
    "choice": "a list of values, and when= for a parameter that only one of them has",
    "uniform": "Float(low, high)",
    "loguniform": "Float(low, high, log=True), with the bounds and not their logarithms",
    "quniform": "Integer(low, high), or Float(low, high, step=q)",
    "qloguniform": "Integer(low, high, log=True), with the bounds and not their logarithms",
    "randint": "Integer(low, high), both ends included",
    "normal": "Float(low, high, prior=mu)",
    "lognormal": "Float(low, high, log=True, prior=exp(mu))",
}
"""What to write instead of an expression of Hyperopt, by its kind."""


def _instead_of_hyperopt(node: Any) -> str:
    """Return an error message for an expression of Hyperopt, such as ``hp.uniform("lr", 0, 1)``."""
    while node.name in ("float", "int", "hyperopt_param"):  # a type and a label are around the distribution
        node = node.pos_args[-1]
    kind = node.name.replace("switch", "choice")
    remedy = _HYPEROPT.get(kind, "Float(low, high), Integer(low, high) or a list")
    return f"a domain must not be an expression of Hyperopt, got {kind}; use {remedy}"


_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NUMBERS = re.compile(rf"\s*[\[({{]?\s*{_NUMBER}(?:(?:\s*(?:,|;|\.\.|\bto\b)\s*|\s+){_NUMBER})+\s*,?\s*[\])}}]?\s*")
_CALL = re.compile(
    r"\s*\w*(?:uniform|normal|choice|randint|float|int|integer|double|range)\w*\s*\(.*\)\s*", re.I | re.S
)


def _check_no_list(text: str) -> None:
    """Raise if a text looks like several numbers or a domain, because it would be read as a constant."""
    if not (_NUMBERS.fullmatch(text) or _CALL.fullmatch(text)):
        return
    numbers = re.findall(_NUMBER, text)
    values = f"[{', '.join(numbers)}]"
    kind, log = "Integer" if "int" in text.lower() else "Float", ", log=True" if "log" in text.lower() else ""
    span = f" or {kind}({numbers[0]}, {numbers[1]}{log})" if len(numbers) == 2 else ""
    raise SearchSpaceError(
        f"the text {text!r} would be a constant; use {values}{span} without quotes, or Constant({text!r}) if "
        "the text itself is the value"
    )


def _read_tuple(spelling: tuple[Any, ...]) -> Domain:
    match spelling:
        case (a, b) if read_number(a) is not None and read_number(b) is not None:
            whole = f", Integer({a!r}, {b!r})" if isinstance(a, int) and isinstance(b, int) else ""
            raise SearchSpaceError(
                f"({a!r}, {b!r}) may be a range or two values; use Float({a!r}, {b!r}){whole} or [{a!r}, {b!r}]"
            )
        case (str(kind), list() | tuple() as values):
            make = _MAGGY.get(kind.upper())
            if make is None:
                near = did_you_mean(kind.upper(), _MAGGY)
                raise SearchSpaceError(
                    f"unknown type {kind!r}{near}; use one of {', '.join(_MAGGY)}, or better Float(low, high), "
                    "Integer(low, high) or a list of values"
                )
            if make not in (Ordinal, Choice) and len(values) != 2:
                raise SearchSpaceError(f"{kind!r} must have [low, high], got {values!r}")
            return make(values)
        case _:
            raise SearchSpaceError(
                f"a tuple must be (type, values), as in the first Maggy, got {spelling!r}; "
                f"use a list for a choice, or Constant({spelling!r}) for the tuple itself"
            )


Constraint = Callable[[Config], bool]
"""A function that returns whether a configuration, with only its active parameters, is allowed."""

_MAX_DRAWS = 10_000  # without an allowed one
_MOST_LOOKED_AT = 1_000  # values of a parent, to find one that deactivates a parameter


@explains_init
class SearchSpace:
    """Named parameters with their domains. Conditions may deactivate some, and :meth:`where` adds constraints.

    A configuration is a point of the unit cube of ``d`` dimensions: one for each parameter that is not a
    :class:`~optimizers.space.domains.Constant`, in the order of the space.

    Args:
        params: Domains by name, or any spelling that :func:`~optimizers.space.search_space.read_domain` accepts.
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

    __slots__ = ("_constraints", "_dimensions", "_domains", "_joint_prior", "_parents_first")

    if not TYPE_CHECKING:  # so that type checkers know what is missing

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"a search space has no attribute {name!r}{MAGGY_METHODS.get(name, '')}")

        def __getitem__(self, name: str) -> Any:
            raise TypeError(f"a search space has no items; use space.domains[{name!r}]")

    def __init__(self, params: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        params = {} if params is None else params
        if not isinstance(params, Mapping):
            raise SearchSpaceError(
                f"a search space must be a dict of names and domains, got {short(params)}; use "
                "{'lr': Float(1e-4, 1e-1, log=True)}, and when= for a parameter that only some configurations have"
            )
        if twice := sorted(set(params) & set(named)):
            raise SearchSpaceError(f"parameters {twice} are given twice; remove one of each")
        constraint = named.get("where")
        if callable(constraint) or (params and isinstance(constraint, str | int | float)):
            got = getattr(constraint, "__name__", None) or short(constraint)
            raise SearchSpaceError(
                f"where must be called with a constraint, got where={got}; use SearchSpace(...).where(lambda config: "
                "...), or a list for a parameter of this name"
            )
        spellings = {**params, **named}
        self._domains = {_checked(name): read_domain(name, spelling) for name, spelling in spellings.items()}
        self._check_conditions()
        parents = {name: tuple(domain.conditions) for name, domain in self._domains.items()}  # sets have no order
        try:
            self._parents_first = tuple(TopologicalSorter(parents).static_order())
        except CycleError as error:
            cycle = " <- ".join(error.args[1])
            raise SearchSpaceError(f"conditions must not form a cycle, got {cycle}; remove one of them") from None
        self._dimensions = tuple(n for n, domain in self._domains.items() if not isinstance(domain, Constant))
        self._joint_prior = JointPrior(self._domains, self._dimensions)
        self._constraints: tuple[Constraint, ...] = ()

    def where(self, constraint: Constraint) -> SearchSpace:
        """Return a copy of this space without the configurations that ``constraint`` rejects.

        Optimizers propose only allowed configurations. Several constraints must all hold. Functions have no JSON form,
        so :meth:`to_json` leaves constraints out.

        Args:
            constraint: A function of a configuration (a dict of the active parameters) that returns True if it is
                allowed. It must depend on nothing else. An optimizer with a model calls it several hundred times per
                proposal.

        Raises:
            SearchSpaceError: The constraint is not a function, raises, returns something other than True or False, or
                allows none of 10,000 random configurations.

        Example:
            >>> space = SearchSpace(low=Float(0, 1), high=Float(0, 1))
            >>> space = space.where(lambda config: config["low"] < config["high"])
            >>> space.allows({"low": 0.7, "high": 0.2})
            False
        """
        if not callable(constraint):
            raise SearchSpaceError(
                f"constraint must be a function of a configuration, got {short(constraint)}; use a lambda"
            )
        _check_takes_config(constraint, next(iter(self), "lr"))
        space = copy.copy(self)
        space._constraints = (*self._constraints, constraint)
        space.sample(np.random.default_rng(0))  # raises if no configuration is allowed
        for config in space._activities():  # or if it needs a parameter that may be inactive
            space.allows(config)
        return space

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all parameters, in order."""
        return tuple(self._domains)

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of the unit cube's ``d`` axes: all parameters except constants, in order."""
        return self._dimensions

    @property
    def parents_first(self) -> tuple[str, ...]:
        """Names of all parameters, each after the parents in its condition."""
        return self._parents_first

    @property
    def domains(self) -> Mapping[str, Domain]:
        """Domains by name, read-only."""
        return MappingProxyType(self._domains)

    @property
    def size(self) -> int | None:
        """Upper bound on the number of configurations; None if infinite.

        It is exact without conditions and constraints.
        """
        sizes = [domain.size for domain in self._domains.values()]
        known = [size for size in sizes if size is not None]
        return math.prod(known) if len(known) == len(sizes) else None

    @property
    def has_prior(self) -> bool:
        """Whether any parameter has a prior."""
        return bool(self._joint_prior)

    @property
    def has_constraint(self) -> bool:
        """Whether :meth:`where` has added a constraint."""
        return bool(self._constraints)

    @property
    def prior_config(self) -> Config | None:
        """The configuration of all priors, with the other parameters at the middle of their axes.

        None if there is no prior, or if the constraints reject the configuration.
        """
        if not self.has_prior:
            return None
        config = self.from_unit(self._joint_prior.centre)
        return config if self.allows(config) else None

    def allows(self, config: Mapping[str, Any]) -> bool:
        """Return whether all constraints of :meth:`where` hold for ``config``, which is valid otherwise.

        Raises:
            SearchSpaceError: A constraint raises, or returns something other than True or False.
        """
        return all(holds(constraint, config) for constraint in self._constraints)

    def is_active(self, name: str, config: Mapping[str, Any]) -> bool:
        """Return whether the parameter ``name`` is active, given its parents' values in ``config``.

        Raises:
            SearchSpaceError: The parameter does not exist.
        """
        self._domain(name)
        known: dict[str, bool] = {}  # each parent is looked at once, however many of its children lead to it

        def is_active(each: str) -> bool:
            if each not in known:
                known[each] = self._is_met(each, config) and all(map(is_active, self._domains[each].conditions))
            return known[each]

        return is_active(name)

    def _is_met(self, name: str, active: Mapping[str, Any]) -> bool:
        """Return whether the condition of a parameter holds if exactly those in ``active`` are active."""
        return all(
            parent in active and any(self._domains[parent].equal(active[parent], value) for value in values)
            for parent, values in self._domains[name].conditions.items()
        )

    def sample(self, rng: np.random.Generator) -> Config:
        """Draw a configuration from the unit cube, and repeat until the constraints allow it.

        Draws are uniform without a prior. With priors, three draws in four come from them, independently for each
        parameter, and the fourth is uniform.

        Args:
            rng: Source of randomness.

        Raises:
            SearchSpaceError: None of 10,000 draws is allowed.
            TypeError: ``rng`` is not a generator.
        """
        if not isinstance(rng, np.random.Generator):
            raise TypeError(f"rng must be a numpy Generator, got {short(rng)}; use numpy.random.default_rng(seed)")
        for _ in range(_MAX_DRAWS):
            config = self.from_unit(self._joint_prior.draw(rng))
            if self.allows(config):
                return config
        names = ", ".join(map(name_of, self._constraints))
        raise SearchSpaceError(
            f"none of {_MAX_DRAWS:,} draws is allowed by the constraint {names}, so their share is below "
            f"{1 / _MAX_DRAWS:.2%}; loosen it, or narrow the domains to where it holds"
        )

    def log_prior(self, units: Any) -> NDArray[np.float64]:
        """Return how much more likely points are under the priors than without any, as a logarithm.

        This is the density that :meth:`sample` draws from, without constraints. It is never below ``log(0.25)``,
        because a quarter of the draws is uniform. Acquisition functions can weigh their values with it (Hvarfner et
        al., "piBO: Augmenting Acquisition Functions with User Beliefs for Bayesian Optimization", ICLR 2022).

        Args:
            units: Points of the unit cube, of shape (n, d).

        Returns:
            Natural logarithms, of shape (n,). All are 0 without priors.

        Raises:
            SearchSpaceError: The shape does not fit.
        """
        points = np.asarray(units, dtype=float)
        if points.ndim != 2 or points.shape[1] != len(self._dimensions):
            raise SearchSpaceError(f"units must have the shape (n, {len(self._dimensions)}), got {points.shape}")
        return self._joint_prior.log_density(points)

    def from_unit(self, u: Any) -> Config:
        """Return the configuration at a point of the unit cube, without inactive parameters.

        Args:
            u: Coordinates, of shape (d,), each in [0, 1].

        Raises:
            SearchSpaceError: The shape or a coordinate does not fit.
        """
        point = np.asarray(u, dtype=float)
        if point.shape != (len(self._dimensions),):
            raise SearchSpaceError(f"u must have the shape ({len(self._dimensions)},), got {point.shape}")
        coordinates = dict(zip(self._dimensions, point.tolist(), strict=True))
        config: Config = {}
        for name in self._parents_first:
            if self._is_met(name, config):
                config[name] = self._domains[name].from_unit(coordinates.get(name, 0.5))
        return {name: config[name] for name in self._domains if name in config}

    def to_unit(self, config: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return the point of a configuration: shape (d,), with 0.5 for parameters that ``config`` lacks.

        Discrete values are at the middle of their cells, so each configuration has one point.

        Raises:
            SearchSpaceError: A value is not in its domain.
        """
        domains = self._domains
        return np.array([domains[n].to_unit(config[n]) if n in config else 0.5 for n in self._dimensions])

    def key(self, config: Mapping[str, Any]) -> bytes:
        """Return the point of ``config`` as bytes: a hashable key that is equal only for equal configurations."""
        return self.to_unit(config).tobytes()

    def validate(self, config: Mapping[str, Any]) -> Config:
        """Return ``config`` in the order of the space, with plain Python values of the domains' types.

        Constants may be left out.

        Raises:
            SearchSpaceError: A name is unknown, an active parameter is missing, an inactive one is given, a value is
                not in its domain, or a constraint does not hold.
        """
        if not isinstance(config, Mapping):
            raise SearchSpaceError(f"a configuration must be a dict, got {short(config)}; use {{name: value}}")
        for name in config:
            self._domain(name)
        checked: Config = {}
        for name in self._parents_first:
            if not self._is_met(name, checked):
                if name in config:
                    when = self._domains[name].conditions
                    raise SearchSpaceError(f"{name!r} is only active when {when}; remove it from {config!r}")
            elif name not in config and isinstance(constant := self._domains[name], Constant):
                checked[name] = constant.value
            elif name not in config:
                raise SearchSpaceError(f"{name!r} is missing in {config!r}; add a value")
            else:
                try:
                    checked[name] = self._domains[name].normalize(config[name])
                except SearchSpaceError as error:
                    raise SearchSpaceError(f"parameter {name!r}: {error}") from None
        checked = {name: checked[name] for name in self._domains if name in checked}
        for constraint in self._constraints:
            if not holds(constraint, checked):
                raise SearchSpaceError(f"{checked!r} is not allowed by the constraint {name_of(constraint)}")
        return checked

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict that :meth:`from_json` reads back, without constraints."""
        return {name: domain.to_json() for name, domain in self._domains.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SearchSpace:
        """Read a space from the form of :meth:`to_json`.

        Raises:
            SearchSpaceError: The data do not have this form.
        """
        if not isinstance(data, Mapping) or not all(isinstance(domain, Mapping) for domain in data.values()):
            raise SearchSpaceError(f"data must be a dict that space.to_json() returned, got {short(data)}")
        return cls({name: domain_from_json(domain) for name, domain in data.items()})

    def __len__(self) -> int:
        return len(self._domains)

    def __iter__(self) -> Iterator[str]:
        return iter(self._domains)

    def __contains__(self, name: object) -> bool:
        return name in self._domains

    def __eq__(self, other: object) -> bool:
        # The order counts: it is the order of the cube's axes.
        return (
            isinstance(other, SearchSpace)
            and list(self._domains.items()) == list(other._domains.items())
            and self._constraints == other._constraints
        )

    def __repr__(self) -> str:
        if all(name.isidentifier() and not keyword.iskeyword(name) for name in self._domains):
            params = ", ".join(f"{name}={domain!r}" for name, domain in self._domains.items())
        else:
            params = repr(self._domains)
        return f"SearchSpace({params})" + "".join(f".where({name_of(constraint)})" for constraint in self._constraints)

    def _activities(self) -> Iterator[Config]:
        """Yield configurations in which each conditional parameter is active for each reason, or inactive."""
        rng = np.random.default_rng(0)
        for name in self._parents_first:
            for parent, values in self._domains[name].conditions.items():
                domain = self._domains[parent]
                others = (
                    value for value in domain.grid(_MOST_LOOKED_AT) if not any(domain.equal(value, v) for v in values)
                )
                for value in (*values, *islice(others, 1)):
                    u = rng.random(len(self._dimensions))
                    self._place(u, parent, value)
                    for other, allowed in self._domains[name].conditions.items():
                        if other != parent:
                            self._place(u, other, allowed[0])
                    yield self.from_unit(u)

    def _place(self, u: NDArray[np.float64], name: str, value: Value) -> None:
        """Move a point to where a parameter has a value and is active."""
        if name in self._dimensions:
            u[self._dimensions.index(name)] = self._domains[name].to_unit(value)
        for parent, values in self._domains[name].conditions.items():
            self._place(u, parent, values[0])

    def _domain(self, name: str) -> Domain:
        if name not in self._domains:
            near = did_you_mean(str(name), self._domains)
            raise SearchSpaceError(f"the search space has no {name!r}{near}; it has {list(self._domains)}")
        return self._domains[name]

    def _check_conditions(self) -> None:
        for name, domain in self._domains.items():
            for parent, values in domain.conditions.items():
                try:
                    parent_domain = self._domain(parent)
                    if parent_domain.size is None:
                        raise SearchSpaceError("it is continuous, so no value is hit exactly; use a step")
                    for value in values:
                        parent_domain.normalize(value)
                except SearchSpaceError as error:
                    is_value = parent in self._domains and self._domains[parent].contains(values)
                    remedy = f"; use when={{{parent!r}: [{values!r}]}} for this value" if is_value else ""
                    raise SearchSpaceError(f"{name!r} cannot depend on {parent!r}: {error}{remedy}") from None


def _checked(name: object) -> str:
    if not isinstance(name, str) or not name.strip() or name != name.strip() or not name.isprintable():
        raise SearchSpaceError(
            f"a name must be a text of printable characters without spaces around it, got {name!r}; use one "
            "such as 'lr' or 'model.lr'"
        )
    return name


class JointPrior:
    """A density on the unit cube of a search space.

    Each parameter has a separate prior, or none. The prior of an inactive parameter has no effect. The product of the
    priors is mixed with a share of the uniform density, so that a wrong prior excludes no region. ``dimensions`` has
    the names of the axes, in order.
    """

    def __init__(self, domains: Mapping[str, Domain], dimensions: Sequence[str]) -> None:
        self._domains = domains
        self._axes = {name: axis for axis, name in enumerate(dimensions)}
        densities = {name: domain.density for name, domain in domains.items() if isinstance(domain, Dimension)}
        self._priors = {name: prior for name, prior in densities.items() if prior is not None}

    def __bool__(self) -> bool:
        return bool(self._priors)

    @property
    def centre(self) -> Array:
        """The position of all priors, shape (d,), with 0.5 for parameters without one."""
        centre = np.full(len(self._axes), 0.5)
        for name in self._priors:
            domain = self._domains[name]
            assert isinstance(domain, Dimension)
            centre[self._axes[name]] = domain.to_unit(domain.prior)
        return centre

    def draw(self, rng: np.random.Generator) -> Array:
        """Draw a point from the density, shape (d,)."""
        point = rng.random(len(self._axes))
        if self._priors and rng.random() >= UNIFORM_SHARE:
            for name, prior in self._priors.items():
                axis = self._axes[name]
                point[axis] = prior.quantile(point[axis])
        return point

    def log_density(self, points: Array) -> Array:
        """Return the natural logarithm of the density at ``points``, shape (n, d) to (n,)."""
        total = np.zeros(len(points))
        if not self._priors:
            return total
        active: dict[str, NDArray[np.bool_]] = {}
        for name, prior in self._priors.items():
            density = prior.log_density(points[:, self._axes[name]])
            total += np.where(self._is_active(name, points, active), density, 0.0)
        mixed: Array = np.logaddexp(math.log(1.0 - UNIFORM_SHARE) + total, math.log(UNIFORM_SHARE))
        return mixed

    def _is_active(self, name: str, points: Array, known: dict[str, NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Return at which points a parameter is active. ``known`` has what was found out about others."""
        if name in known:
            return known[name]
        active = np.ones(len(points), dtype=bool)
        for parent, values in self._domains[name].conditions.items():
            domain = self._domains[parent]
            column = points[:, self._axes[parent]] if parent in self._axes else np.full(len(points), 0.5)
            positions, places = np.unique(column, return_inverse=True)  # few, since a parent is discrete
            taken = [domain.from_unit(position) for position in positions.tolist()]
            hits = [any(domain.equal(of_parent, value) for value in values) for of_parent in taken]
            active &= np.array(hits, dtype=bool)[places] & self._is_active(parent, points, known)
        known[name] = active
        return active


def name_of(constraint: Constraint) -> str:
    """Return a constraint's name for messages."""
    return str(getattr(constraint, "__name__", None) or repr(constraint))


def _check_takes_config(constraint: Constraint, parameter: str) -> None:
    """Check that a constraint can be called with a configuration as its only argument."""
    try:
        signature = inspect.signature(constraint)
    except ValueError:  # as of some functions in C
        return
    try:
        signature.bind({})
    except TypeError:
        raise SearchSpaceError(
            f"the constraint {name_of(constraint)} must take one argument, the configuration as a dict, got "
            f"{name_of(constraint)}{signature}; use config[{parameter!r}] for the value of a parameter"
        ) from None


def holds(constraint: Constraint, config: Mapping[str, Any]) -> bool:
    """Return whether ``constraint`` allows ``config``."""
    try:
        answer: object = constraint(dict(config))
    except Exception as error:
        remedy = "; use config.get(name), because inactive parameters are left out"
        raise SearchSpaceError(
            f"the constraint {name_of(constraint)} raised {error!r} for {dict(config)!r}"
            f"{remedy if isinstance(error, KeyError) else ''}"
        ) from error
    if not isinstance(answer, bool | np.bool_):
        raise SearchSpaceError(
            f"the constraint {name_of(constraint)} must return True or False, got {answer!r} for {dict(config)!r}"
        )
    return bool(answer)
