"""Domains of parameters: ranges of numbers, listed values, and their JSON form.

Every algorithm works on the unit interval. A domain of ``n`` values divides it into ``n`` cells of equal width (on a
log scale if it has one), so a uniform draw from the interval is a uniform draw from the domain.
"""

from __future__ import annotations

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields
from statistics import NormalDist
from typing import Any, Final, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from optimizers.checks import as_int, did_you_mean, explains_init, read_text, short
from optimizers.errors import SearchSpaceError
from optimizers.space.scalars import (
    Value,
    When,
    fresh,
    from_json,
    plain,
    read_number,
    read_value,
    read_values,
    read_when,
    same,
    to_json,
    without_numpy,
)

Array = NDArray[np.float64]
Confidence = Literal["low", "medium", "high"]


class NoPrior(enum.Enum):
    """The type of :data:`NO_PRIOR`. None would not do, because it may be a value of a choice."""

    NO_PRIOR = "no prior"

    def __repr__(self) -> str:
        return self.name


NO_PRIOR: Final = NoPrior.NO_PRIOR

WIDTHS: Mapping[Confidence, float] = {"low": 0.5, "medium": 0.25, "high": 0.125}
"""Standard deviation around a numeric prior, as a share of the axis."""

WEIGHTS: Mapping[Confidence, float] = {"low": 2.0, "medium": 4.0, "high": 8.0}
"""How many times as likely the expected choice is as each other choice."""

UNIFORM_SHARE = 0.25
"""Share of draws that ignore all priors. If all priors are wrong, one draw in four is as good as without them."""


class Prior(ABC):
    """A density on [0, 1]."""

    @abstractmethod
    def quantile(self, p: float) -> float:
        """Return the position below which the share ``p`` in [0, 1) of the density lies.

        It maps uniform draws to draws from this density.
        """

    @abstractmethod
    def log_density(self, units: Array) -> Array:
        """Return the natural logarithm of the density at ``units``, shape (n,) to (n,).

        It is 0 where the density equals the uniform one.
        """


@dataclass(frozen=True, slots=True)
class Bell(Prior):
    """A normal density around ``centre``, truncated to [0, 1]."""

    centre: float
    width: float

    def quantile(self, p: float) -> float:
        normal = NormalDist(self.centre, self.width)
        below, within = self._mass()
        return min(max(normal.inv_cdf(below + p * within), 0.0), 1.0)

    def log_density(self, units: Array) -> Array:
        z = (units - self.centre) / self.width
        return -0.5 * z * z - math.log(self.width * math.sqrt(2.0 * math.pi) * self._mass()[1])

    def _mass(self) -> tuple[float, float]:
        """Return the shares of the normal distribution that lie below 0 and within [0, 1]."""
        normal = NormalDist(self.centre, self.width)
        below = normal.cdf(0.0)
        return below, normal.cdf(1.0) - below


@dataclass(frozen=True, slots=True)
class Favourite(Prior):
    """A density in which the ``place``-th of ``n`` cells is ``weight`` times as likely as each other cell."""

    place: int
    n: int
    weight: float

    def quantile(self, p: float) -> float:
        # The favourite's cell comes first, then the others in their order.
        total = self.weight + self.n - 1
        if p * total < self.weight:
            return (self.place + 0.5) / self.n
        other = min(int(p * total - self.weight), self.n - 2)
        return (other + (other >= self.place) + 0.5) / self.n

    def log_density(self, units: Array) -> Array:
        cells = np.minimum((units * self.n).astype(int), self.n - 1)
        other = math.log(self.n / (self.weight + self.n - 1))
        return np.where(cells == self.place, other + math.log(self.weight), other)


def read_confidence(confidence: object, prior: object) -> Confidence:
    """Return a confidence in its canonical spelling."""
    known = get_args(Confidence)
    if confidence not in known:
        near = did_you_mean(confidence, known) if isinstance(confidence, str) else ""
        raise SearchSpaceError(f"confidence must be one of {', '.join(map(repr, known))}, got {confidence!r}{near}")
    if prior is NO_PRIOR and confidence != "medium":
        raise SearchSpaceError(f"confidence={confidence!r} needs a prior; use prior=... as well")
    return cast(Confidence, known[known.index(confidence)])  # the same object: defaults are compared by identity


_LARGEST_INTEGER = 2**40  # above it, a cell of a log scale is narrower than the resolution of floats
_ON_GRID = 1e-6  # largest distance of a number from its grid point, as a share of a step


class Domain(ABC):
    """The values that one parameter may take.

    ``when`` makes the parameter conditional: it is active only if each parent is active and has one of the given
    values.
    """

    __slots__ = ()

    when: When | None

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of values; None if the domain is continuous."""

    @abstractmethod
    def normalize(self, value: object) -> Value:
        """Return ``value`` as a plain Python value of the domain's own type.

        Raises:
            SearchSpaceError: ``value`` is not in the domain.
        """

    @abstractmethod
    def _at(self, index: int) -> Value:
        """Return the ``index``-th value of a discrete domain."""

    @abstractmethod
    def _at_unit(self, u: float) -> Value:
        """Return the value at ``u`` in [0, 1]."""

    @abstractmethod
    def _unit_of(self, value: Any) -> float:
        """Return the position of a normalized value in [0, 1]."""

    @property
    def conditions(self) -> Mapping[str, tuple[Value, ...]]:
        """``when``, with a tuple of values for each parent; empty if the parameter is always active."""
        return cast("Mapping[str, tuple[Value, ...]]", self.when or {})

    def equal(self, a: Value, b: Value) -> bool:
        """Return whether two values of this domain are equal, however they are spelled."""
        return same(a, b)

    def from_unit(self, u: float) -> Value:
        """Return the value at ``u`` in [0, 1].

        Raises:
            SearchSpaceError: ``u`` is outside [0, 1].
        """
        if not 0.0 <= u <= 1.0:
            raise SearchSpaceError(f"u must be from 0 to 1, got {u!r}; use min(max(u, 0), 1)")
        return self._at_unit(float(u))

    def to_unit(self, value: object) -> float:
        """Return the position of ``value`` in [0, 1]. In a discrete domain, it is the middle of the value's cell.

        Raises:
            SearchSpaceError: ``value`` is not in the domain.
        """
        return self._unit_of(self.normalize(value))

    def contains(self, value: object) -> bool:
        """Return whether ``value`` is in the domain."""
        try:
            self.normalize(value)
        except SearchSpaceError:
            return False
        return True

    def grid(self, n: int) -> list[Value]:
        """Return at most ``n`` values, evenly spaced on the unit interval, with both ends if ``n > 1``."""
        if self.size is not None and self.size <= n:
            return [self._at(index) for index in range(self.size)]
        if n == 1:
            return [self._at_unit(0.5)]
        spaced = [self._at_unit(index / (n - 1)) for index in range(n)]  # in order, so that repeats are neighbors
        return [value for place, value in enumerate(spaced) if not place or not same(value, spaced[place - 1])]

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict that :func:`domain_from_json` reads back."""
        return {"type": type(self).__name__.lower(), **{name: _form(v) for name, v in self._settings().items()}}

    def __repr__(self) -> str:
        positional = required(type(self))
        parts = [repr(v) if name in positional else f"{name}={v!r}" for name, v in self._settings().items()]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _settings(self) -> dict[str, Any]:
        """Return the arguments that differ from their defaults, with values in lists."""
        pairs = [(item.name, getattr(self, item.name), item.default) for item in fields(cast(Any, self))]
        # An unpickled text is equal to the default, but not the same object.
        given = {name: v for name, v, default in pairs if v is not default and not (type(v) is str and v == default)}
        if "values" in given:
            given["values"] = list(given["values"])
        if "when" in given:
            given["when"] = {parent: list(values) for parent, values in self.conditions.items()}
        return given


class Dimension(Domain):
    """A domain that is searched: any except a constant.

    ``prior`` is the value that the user expects to be best, and ``confidence`` the strength of that belief. Draws near
    it are more frequent (see :meth:`~optimizers.space.search_space.SearchSpace.sample`), and some models weigh it.
    """

    __slots__ = ()

    prior: Value | NoPrior
    confidence: Confidence

    @property
    def density(self) -> Prior | None:
        """The prior as a density on the unit interval; None without a prior."""
        return None if self.prior is NO_PRIOR else self._density_at(self.to_unit(self.prior))

    def _density_at(self, position: float) -> Prior:
        """Return the density around a prior at ``position``. Values near it are more likely than others."""
        return Bell(position, WIDTHS[self.confidence])

    def _read_prior(self) -> None:
        """Check and normalize ``prior`` and ``confidence``."""
        object.__setattr__(self, "confidence", read_confidence(self.confidence, self.prior))
        if self.prior is not NO_PRIOR:
            try:
                object.__setattr__(self, "prior", self.normalize(self.prior))
            except SearchSpaceError as error:
                raise SearchSpaceError(f"prior must be a value of the domain: {error}") from None


def required(kind: type[Domain]) -> list[str]:
    """Return the names of the arguments without a default."""
    return [item.name for item in fields(cast(Any, kind)) if item.default is MISSING]


def _form(setting: Any) -> Any:
    if isinstance(setting, dict):
        return {key: to_json(inner) for key, inner in setting.items()}
    return to_json(setting)


def cell(u: float, n: int) -> int:
    """Return which of ``n`` cells of [0, 1] contains ``u``."""
    return min(int(u * n), n - 1)


def middle(index: int, n: int) -> float:
    """Return the middle of the ``index``-th of ``n`` cells."""
    return (index + 0.5) / n


@explains_init
@dataclass(frozen=True, slots=True, repr=False)
class Float(Dimension):
    """Real numbers from ``low`` to ``high``, both included.

    Args:
        low: Smallest value.
        high: Largest value.
        log: If True, spread values evenly over orders of magnitude, as for learning rates. Default False.
        step: Distance between values: only ``low, low + step, ...`` up to ``high``. None (the default) for all values.
        when: Condition under which the parameter is active. None (the default) for always.
        prior: Value that you expect to be best, if any.
        confidence: Strength of the prior: ``low``, ``medium`` (the default) or ``high``.

    Raises:
        SearchSpaceError: The arguments do not make a domain.

    Example:
        >>> Float(1e-4, 1e-1, log=True, prior=1e-3, confidence="high").from_unit(0.0)
        0.0001
    """

    low: float
    high: float
    _: KW_ONLY
    log: bool = False
    step: float | None = None
    when: When | None = field(default=None, hash=False)
    prior: float | NoPrior = NO_PRIOR
    confidence: Confidence = "medium"

    def __post_init__(self) -> None:
        for name in _bounds(self):
            object.__setattr__(self, name, float(getattr(self, name)))
        if not math.isfinite(self.high - self.low):
            raise SearchSpaceError(f"high - low must be a finite float, got {self!r}; use narrower bounds")
        object.__setattr__(self, "when", read_when(self.when))
        self._read_prior()

    @property
    def size(self) -> int | None:
        return None if self.step is None else self._size(self.step)

    def normalize(self, value: object) -> float:
        number, slack = read_number(value), _ON_GRID * (self.step or 0.0)
        if number is None or not self.low - slack <= number <= self.high + slack:
            raise SearchSpaceError(f"{value!r} is not in {self!r}")
        if self.step is None:
            return float(number)
        nearest = self._at(min(round((number - self.low) / self.step), self._size(self.step) - 1))
        if abs(nearest - number) > _ON_GRID * self.step:
            raise SearchSpaceError(f"{value!r} is not on the grid of {self!r}; the nearest is {nearest!r}")
        return nearest

    def equal(self, a: Value, b: Value) -> bool:
        if self.step is None or not isinstance(a, int | float) or not isinstance(b, int | float):
            return same(a, b)
        return abs(a - b) <= _ON_GRID * self.step  # 0.3, and 0.1 + 2 * 0.1

    def _size(self, step: float) -> int:
        return math.floor((self.high - self.low) / step + _ON_GRID) + 1

    def _at(self, index: int) -> float:
        # One product and one sum, so the error does not grow along the grid; rounded, so that 0.1 + 2 * 0.1 is 0.3.
        step = cast(float, self.step)
        return min(round(self.low + index * step, max(_decimals(self.low), _decimals(step))), self.high)

    def _at_unit(self, u: float) -> float:
        if self.step is not None:
            return self._at(cell(u, self._size(self.step)))
        if u in (0.0, 1.0):  # exactly: exp and log would round
            return self.high if u else self.low
        if self.log:
            value = math.exp(math.log(self.low) * (1.0 - u) + math.log(self.high) * u)
        else:
            value = self.low + (self.high - self.low) * u
        return min(max(value, self.low), self.high)

    def _unit_of(self, value: float) -> float:
        if self.step is not None:
            return middle(round((value - self.low) / self.step), self._size(self.step))
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return min(max((math.log(value) - low) / (high - low), 0.0), 1.0)
        return (value - self.low) / (self.high - self.low)


@explains_init
@dataclass(frozen=True, slots=True, repr=False)
class Integer(Dimension):
    """Integers from ``low`` to ``high``, both included.

    With ``log``, the cell of a value ``v`` spans ``v - 0.5`` to ``v + 0.5`` on a log scale. So small values occupy more
    of the unit interval. Without it, all cells have the same width.

    Args:
        low: Smallest value.
        high: Largest value, at most 2**40.
        log: If True, spread values evenly over orders of magnitude, as for numbers of units. Default False.
        step: Distance between values: only ``low, low + step, ...`` up to ``high``. None (the default) for all values.
        when: Condition under which the parameter is active. None (the default) for always.
        prior: Value that you expect to be best, if any.
        confidence: Strength of the prior: ``low``, ``medium`` (the default) or ``high``.

    Raises:
        SearchSpaceError: The arguments do not make a domain.

    Example:
        >>> Integer(16, 256, step=16).grid(3)
        [16, 144, 256]
    """

    low: int
    high: int
    _: KW_ONLY
    log: bool = False
    step: int | None = None
    when: When | None = field(default=None, hash=False)
    prior: int | NoPrior = NO_PRIOR
    confidence: Confidence = "medium"

    def __post_init__(self) -> None:
        for name in _bounds(self):
            value = plain(getattr(self, name))
            if not isinstance(value, int):
                remedy = as_int(value, -math.inf) or "use Float"
                raise SearchSpaceError(f"{name} of an Integer must be an int, got {value!r}; {remedy}")
            object.__setattr__(self, name, value)
        if max(abs(self.low), abs(self.high)) > _LARGEST_INTEGER:
            raise SearchSpaceError(f"bounds must be at most 2**40, got {self!r}; use Float and round in train_fn")
        object.__setattr__(self, "when", read_when(self.when))
        self._read_prior()

    @property
    def size(self) -> int:
        return (self.high - self.low) // (self.step or 1) + 1

    def normalize(self, value: object) -> int:
        number = read_number(value)
        if number is None or number != round(number) or not self.low <= number <= self.high:
            raise SearchSpaceError(f"{value!r} is not in {self!r}")
        if (round(number) - self.low) % (self.step or 1):
            raise SearchSpaceError(f"{value!r} is not on the grid of {self!r}")
        return round(number)

    def _at(self, index: int) -> int:
        return self.low + index * (self.step or 1)

    def _at_unit(self, u: float) -> int:
        if not self.log:
            return self._at(cell(u, self.size))
        low, high = self._log_edges
        return min(max(round(math.exp(low + (high - low) * u)), self.low), self.high)

    def _unit_of(self, value: int) -> float:
        if not self.log:
            return middle((value - self.low) // (self.step or 1), self.size)
        low, high = self._log_edges
        return (math.log(value) - low) / (high - low)

    @property
    def _log_edges(self) -> tuple[float, float]:
        return math.log(self.low - 0.5), math.log(self.high + 0.5)


def _decimals(number: float) -> int:
    """Return the number of decimals with which Python prints a number."""
    digits, _, exponent = repr(number).partition("e")
    return max(len(digits.partition(".")[2]) - int(exponent or 0), 0)


def _bounds(domain: Float | Integer) -> list[str]:
    """Check ``low``, ``high``, ``log`` and ``step``, and return the names of the numbers among them."""
    kind = type(domain).__name__
    low, high, step = domain.low, domain.high, domain.step
    names = ["low", "high"] if step is None else ["low", "high", "step"]
    for name in names:
        value = getattr(domain, name)
        if read_number(value) is None:
            number = read_number(read_text(value))
            remedy = "" if number is None else f"; use {number:g}"
            raise SearchSpaceError(f"{name} of {kind} must be a finite number, got {value!r}{remedy}")
    if low >= high:
        remedy = f"Constant({low!r})" if low == high else f"{kind}({high!r}, {low!r})"
        raise SearchSpaceError(f"low must be below high, got low={low!r} and high={high!r}; use {remedy}")
    if not isinstance(domain.log, bool):
        raise SearchSpaceError(f"log of {kind} must be True or False, got {short(domain.log)}; use log=True")
    if domain.log and low <= 0:
        raise SearchSpaceError(f"low must be above 0 with log=True, got low={low!r}; use a larger one, or no log")
    if domain.log and step is not None:
        raise SearchSpaceError(
            f"log=True and step={step!r} exclude each other; use log for a log scale, or step for an even grid"
        )
    if step is not None and not 0 < step <= high - low + _ON_GRID * step:
        raise SearchSpaceError(
            f"step must be above 0 and at most high - low = {high - low!r}, got {step!r}; use a step in that range"
        )
    return names


class _Listed(Dimension):
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
        value = without_numpy(value)
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
    """One of several values without an order.

    Args:
        values: The values: bool, int, float, str or None, or tuples or lists of them.
        when: Condition under which the parameter is active. None (the default) for always.
        prior: Value that you expect to be best, if any.
        confidence: Strength of the prior: ``low``, ``medium`` (the default) or ``high``.

    Raises:
        SearchSpaceError: There are no values, two are equal, or one has another type.

    Example:
        >>> Choice(["relu", "gelu"]).from_unit(0.9)
        'gelu'
    """

    values: Sequence[Value] = field(hash=False)  # lists have no hash
    _: KW_ONLY
    when: When | None = field(default=None, hash=False)
    prior: Value | NoPrior = field(default=NO_PRIOR, hash=False)
    confidence: Confidence = "medium"

    def grid(self, n: int) -> list[Value]:
        """Return all values, whatever ``n`` is, because an unordered value cannot be skipped."""
        return list(map(fresh, self.values))

    def _density_at(self, position: float) -> Prior:
        return Favourite(cell(position, self.size), self.size, WEIGHTS[self.confidence])


@explains_init
@dataclass(frozen=True, slots=True, repr=False)
class Ordinal(_Listed):
    """One of several values in a meaningful order, such as ``[32, 128, 512]``.

    Args:
        values: The values in order: bool, int, float, str or None, or tuples or lists of them.
        when: Condition under which the parameter is active. None (the default) for always.
        prior: Value that you expect to be best, if any.
        confidence: Strength of the prior: ``low``, ``medium`` (the default) or ``high``.

    Raises:
        SearchSpaceError: There are no values, two are equal, or one has another type.

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
    """One value, the same in every configuration. It is not a dimension of the search.

    Args:
        value: The value: bool, int, float, str or None, or a tuple or list of them.
        when: Condition under which the parameter is active. None (the default) for always.

    Raises:
        SearchSpaceError: The value has another type.

    Example:
        >>> Constant(7).size
        1
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
        if not same(self.value, without_numpy(value)):
            raise SearchSpaceError(f"{value!r} is not in {self!r}")
        return fresh(self.value)

    def _at(self, index: int) -> Value:
        return fresh(self.value)

    def _at_unit(self, u: float) -> Value:
        return fresh(self.value)

    def _unit_of(self, value: Value) -> float:
        return 0.5


def _read(name: str, setting: Any) -> Any:
    """Read an argument from the form of :meth:`Domain.to_json`."""
    if name == "when" and isinstance(setting, dict):  # its keys are names of parameters, which may be "tuple" too
        return {parent: from_json(values) for parent, values in setting.items()}
    return from_json(setting)


_KINDS: dict[str, type[Domain]] = {kind.__name__.lower(): kind for kind in (Float, Integer, Choice, Ordinal, Constant)}


def domain_from_json(data: Mapping[str, Any]) -> Domain:
    """Read a domain from the form of :meth:`Domain.to_json`: a dict with its ``type`` and its arguments."""
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
