"""The base classes of all domains, and the cells of the unit interval.

Every algorithm works on the unit interval. A domain of ``n`` values cuts it into ``n`` cells of the
same width (on a log scale where it has one), so a uniform draw from the interval is a uniform draw from
the domain.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, cast

from optimizers.errors import SearchSpaceError
from optimizers.space.priors import NO_PRIOR, WIDTHS, Bell, Confidence, NoPrior, Prior, read_confidence
from optimizers.space.scalars import Value, When, same, to_json


class Domain(ABC):
    """The values that one parameter may take.

    ``when`` makes the parameter conditional: it is active only where each parent named is active and
    has one of the values given.
    """

    __slots__ = ()

    when: When | None

    @property
    @abstractmethod
    def size(self) -> int | None:
        """How many values there are; None if the domain is continuous."""

    @abstractmethod
    def normalize(self, value: object) -> Value:
        """``value`` as this domain spells it: a plain Python scalar of the domain's own type.

        Raises:
            SearchSpaceError: ``value`` is not in the domain.
        """

    @abstractmethod
    def _at(self, index: int) -> Value:
        """The ``index``-th value of a discrete domain."""

    @abstractmethod
    def _at_unit(self, u: float) -> Value:
        """The value at ``u`` in [0, 1]."""

    @abstractmethod
    def _unit_of(self, value: Any) -> float:
        """The position of a normalized value in [0, 1]."""

    @property
    def conditions(self) -> Mapping[str, tuple[Value, ...]]:
        """``when``, with a tuple of values for each parent; empty if always active."""
        return cast("Mapping[str, tuple[Value, ...]]", self.when or {})

    def equal(self, a: Value, b: Value) -> bool:
        """Whether two values of this domain are one, however they are spelled."""
        return same(a, b)

    def from_unit(self, u: float) -> Value:
        """The value at ``u`` in [0, 1].

        Raises:
            SearchSpaceError: ``u`` lies outside [0, 1].
        """
        if not 0.0 <= u <= 1.0:
            raise SearchSpaceError(f"a position in the unit interval lies in [0, 1], got {u!r}; clip it")
        return self._at_unit(float(u))

    def to_unit(self, value: object) -> float:
        """The position of ``value`` in [0, 1]; for a discrete domain the middle of its cell.

        Raises:
            SearchSpaceError: ``value`` is not in the domain.
        """
        return self._unit_of(self.normalize(value))

    def contains(self, value: object) -> bool:
        """Whether ``value`` is in the domain."""
        try:
            self.normalize(value)
        except SearchSpaceError:
            return False
        return True

    def grid(self, n: int) -> list[Value]:
        """At most ``n`` values, evenly spaced on the unit interval, with both ends if ``n > 1``."""
        if self.size is not None and self.size <= n:
            return [self._at(index) for index in range(self.size)]
        if n == 1:
            return [self._at_unit(0.5)]
        spaced = [self._at_unit(index / (n - 1)) for index in range(n)]  # in order, so that repeats are neighbours
        return [value for place, value in enumerate(spaced) if not place or not same(value, spaced[place - 1])]

    def to_json(self) -> dict[str, Any]:
        """A plain dict that :func:`domain_from_json` reads back."""
        return {"type": type(self).__name__.lower(), **{name: _form(v) for name, v in self._settings().items()}}

    def __repr__(self) -> str:
        positional = required(type(self))
        parts = [repr(v) if name in positional else f"{name}={v!r}" for name, v in self._settings().items()]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _settings(self) -> dict[str, Any]:
        """The arguments that differ from their defaults, with values in lists."""
        pairs = [(item.name, getattr(self, item.name), item.default) for item in fields(cast(Any, self))]
        # An unpickled text is equal to the default, but not the same object.
        given = {name: v for name, v, default in pairs if v is not default and not (type(v) is str and v == default)}
        if "values" in given:
            given["values"] = list(given["values"])
        if "when" in given:
            given["when"] = {parent: list(values) for parent, values in self.conditions.items()}
        return given


class Dimension(Domain):
    """A domain that is searched: any but a constant.

    ``prior`` is the value that the user expects to be best, and ``confidence`` how firmly. Draws lie around it
    more often (see :meth:`~optimizers.space.search_space.SearchSpace.sample`), and models that can weigh it do.
    """

    __slots__ = ()

    prior: Value | NoPrior
    confidence: Confidence

    @property
    def density(self) -> Prior | None:
        """The prior as a density on the unit interval; None without a prior."""
        return None if self.prior is NO_PRIOR else self._density_at(self.to_unit(self.prior))

    def _density_at(self, position: float) -> Prior:
        """The density around a prior at ``position``: values near it are likelier than those far from it."""
        return Bell(position, WIDTHS[self.confidence])

    def _read_prior(self) -> None:
        """Check ``prior`` and ``confidence``, and spell them as the domain does.

        Raises:
            SearchSpaceError: The prior is not in the domain, or the confidence is none.
        """
        object.__setattr__(self, "confidence", read_confidence(self.confidence, self.prior))
        if self.prior is not NO_PRIOR:
            try:
                object.__setattr__(self, "prior", self.normalize(self.prior))
            except SearchSpaceError as error:
                raise SearchSpaceError(f"prior must be a value of the domain: {error}") from None


def required(kind: type[Domain]) -> list[str]:
    """The names of the arguments without a default."""
    return [item.name for item in fields(cast(Any, kind)) if item.default is MISSING]


def _form(setting: Any) -> Any:
    if isinstance(setting, dict):
        return {key: to_json(inner) for key, inner in setting.items()}
    return to_json(setting)


def cell(u: float, n: int) -> int:
    """The cell of [0, 1] that ``u`` lies in, of ``n`` of the same width."""
    return min(int(u * n), n - 1)


def middle(index: int, n: int) -> float:
    """The middle of the ``index``-th of ``n`` cells."""
    return (index + 0.5) / n
