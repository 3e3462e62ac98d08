"""All domains of parameters, and their JSON form.

The numeric ones, :class:`~optimizers.space.numeric.Float` and :class:`~optimizers.space.numeric.Integer`, are
re-exported here; those whose values are listed follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, cast

from optimizers.checks.arguments import explains_init
from optimizers.checks.near_names import did_you_mean
from optimizers.errors import SearchSpaceError
from optimizers.space.domain import Dimension, Domain, cell, middle, required
from optimizers.space.numeric import Float, Integer
from optimizers.space.priors import NO_PRIOR, WEIGHTS, Confidence, Favourite, NoPrior, Prior
from optimizers.space.scalars import Value, When, fresh, from_json, plain, read_value, read_values, read_when, same

__all__ = ["Choice", "Constant", "Domain", "Float", "Integer", "Ordinal", "domain_from_json"]


class _Listed(Dimension):
    """A domain whose values are listed one by one."""

    __slots__ = ()

    values: Sequence[Value]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", read_values(self.values, type(self).__name__))
        object.__setattr__(self, "when", read_when(self.when))
        self._read_prior()

    @property
    def size(self) -> int:
        return len(self.values)

    def normalize(self, value: object) -> Value:
        value = plain(value)
        for known in self.values:
            if same(known, value):
                return fresh(known)
        near = did_you_mean(str(value), (known for known in self.values if isinstance(known, str)))
        raise SearchSpaceError(f"{value!r} is not in {self!r}{near}")

    def _at(self, index: int) -> Value:
        return fresh(self.values[index])

    def _at_unit(self, u: float) -> Value:
        return fresh(self.values[cell(u, self.size)])

    def _unit_of(self, value: Value) -> float:
        return middle(next(i for i, known in enumerate(self.values) if same(known, value)), self.size)


@explains_init
@dataclass(frozen=True, slots=True, repr=False)
class Choice(_Listed):
    """One of several values that have no order among them.

    Args:
        values: The values: bool, int, float, str or None, or tuples or lists of them.
        when: Condition under which the parameter is active.
        prior: The value that is expected to be best, if any.
        confidence: How firmly: ``low``, ``medium`` or ``high``.

    Raises:
        SearchSpaceError: There are no values, two are the same, or one is of another type.
    """

    values: Sequence[Value] = field(hash=False)  # lists have no hash
    _: KW_ONLY
    when: When | None = field(default=None, hash=False)
    prior: Value | NoPrior = field(default=NO_PRIOR, hash=False)
    confidence: Confidence = "medium"

    def grid(self, n: int) -> list[Value]:
        """All values, whatever ``n`` is: they have no order in which some could be skipped."""
        return list(map(fresh, self.values))

    def _density_at(self, position: float) -> Prior:
        return Favourite(cell(position, self.size), self.size, WEIGHTS[self.confidence])


@explains_init
@dataclass(frozen=True, slots=True, repr=False)
class Ordinal(_Listed):
    """One of several values in an order that means something, such as ``[32, 128, 512]``.

    Args:
        values: The values in their order: bool, int, float, str or None, or tuples or lists of them.
        when: Condition under which the parameter is active.
        prior: The value that is expected to be best, if any.
        confidence: How firmly: ``low``, ``medium`` or ``high``.

    Raises:
        SearchSpaceError: There are no values, two are the same, or one is of another type.

    Example:
        >>> Ordinal(["low", "middle", "high"]).to_unit("middle")
        0.5
    """

    values: Sequence[Value] = field(hash=False)  # lists have no hash
    _: KW_ONLY
    when: When | None = field(default=None, hash=False)
    prior: Value | NoPrior = field(default=NO_PRIOR, hash=False)
    confidence: Confidence = "medium"


@explains_init
@dataclass(frozen=True, slots=True, repr=False)
class Constant(Domain):
    """One value, the same in every configuration; it is no dimension of the search.

    Args:
        value: The value: bool, int, float, str or None, or a tuple or list of them.
        when: Condition under which the parameter is active.

    Raises:
        SearchSpaceError: The value is of another type.
    """

    value: Value = field(hash=False)
    _: KW_ONLY
    when: When | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", read_value(self.value))
        object.__setattr__(self, "when", read_when(self.when))

    @property
    def size(self) -> int:
        return 1

    def normalize(self, value: object) -> Value:
        if not same(self.value, plain(value)):
            raise SearchSpaceError(f"{value!r} is not in {self!r}")
        return fresh(self.value)

    def _at(self, index: int) -> Value:
        return fresh(self.value)

    def _at_unit(self, u: float) -> Value:
        return fresh(self.value)

    def _unit_of(self, value: Value) -> float:
        return 0.5


def _read(name: str, setting: Any) -> Any:
    """An argument in the form of :meth:`Domain.to_json`."""
    if name == "when" and isinstance(setting, dict):  # by parameters, whose names may be any: "tuple" too
        return {parent: from_json(values) for parent, values in setting.items()}
    return from_json(setting)


_KINDS: dict[str, type[Domain]] = {kind.__name__.lower(): kind for kind in (Float, Integer, Choice, Ordinal, Constant)}


def domain_from_json(data: Mapping[str, Any]) -> Domain:
    """Read a domain from the form of :meth:`Domain.to_json`.

    Raises:
        SearchSpaceError: The form names no known type, or its arguments do not fit the type.

    Example:
        >>> domain_from_json({"type": "float", "low": 0, "high": 1})
        Float(0.0, 1.0)
    """
    if "type" not in data:
        raise SearchSpaceError(
            f"a dict must be a domain with a type, got {dict(data)!r}; use Float(low, high), "
            "Integer(low, high) or a list of values"
        )
    name = data["type"]
    kind = _KINDS.get(str(name).lower())
    if kind is None:
        raise SearchSpaceError(
            f"unknown type {name!r} in {dict(data)!r}{did_you_mean(str(name), _KINDS)}; use one of {', '.join(_KINDS)}"
        )
    arguments = {key: _read(key, value) for key, value in data.items() if key != "type"}
    known = [item.name for item in fields(cast(Any, kind))]
    for key in arguments:
        if key not in known:
            raise SearchSpaceError(f"{kind.__name__} has no {key!r}{did_you_mean(key, known)}; use {known}")
    for key in required(kind):
        if key not in arguments:
            raise SearchSpaceError(f"{kind.__name__} needs {key!r}, got {dict(data)!r}")
    return kind(**arguments)
