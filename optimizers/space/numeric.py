"""Domains of numbers: :class:`Float` and :class:`Integer`."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import cast

from optimizers.checks.arguments import explains_init
from optimizers.checks.options import as_int, short
from optimizers.errors import SearchSpaceError
from optimizers.space.domain import Dimension, cell, middle
from optimizers.space.priors import NO_PRIOR, Confidence, NoPrior
from optimizers.space.scalars import Value, When, plain, read_number, read_when, same

_LARGEST_INTEGER = 2**40  # above it, a cell of a log scale is narrower than the resolution of floats
_ON_GRID = 1e-6  # how far a number may lie from its grid point, as a share of a step


@explains_init
@dataclass(frozen=True, slots=True, repr=False)
class Float(Dimension):
    """Real numbers from ``low`` to ``high``, both included.

    Args:
        low: Smallest value.
        high: Largest value.
        log: Spread evenly over orders of magnitude, as fits learning rates.
        step: Take only ``low, low + step, ...`` up to ``high``.
        when: Condition under which the parameter is active.
        prior: The value that is expected to be best, if any.
        confidence: How firmly: ``low``, ``medium`` or ``high``.

    Raises:
        SearchSpaceError: The arguments make no domain.

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
            raise SearchSpaceError(f"{self!r} is wider than a float can tell; use narrower bounds")
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
    """Whole numbers from ``low`` to ``high``, both included.

    With ``log``, the cell of a value ``v`` spans ``v - 0.5`` to ``v + 0.5`` on a log scale, so small
    values have more of the unit interval; otherwise all have the same.

    Args:
        low: Smallest value.
        high: Largest value.
        log: Spread evenly over orders of magnitude, as fits numbers of units.
        step: Take only ``low, low + step, ...`` up to ``high``.
        when: Condition under which the parameter is active.
        prior: The value that is expected to be best, if any.
        confidence: How firmly: ``low``, ``medium`` or ``high``.

    Raises:
        SearchSpaceError: The arguments make no domain.

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
            raise SearchSpaceError(f"{self!r} goes past 2**40; use Float and round the value in train_fn")
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
    """How many decimals a number has, as Python writes it."""
    digits, _, exponent = repr(number).partition("e")
    return max(len(digits.partition(".")[2]) - int(exponent or 0), 0)


def _bounds(domain: Float | Integer) -> list[str]:
    """Check ``low``, ``high``, ``log`` and ``step``; the names of those that are numbers.

    Raises:
        SearchSpaceError: They make no range.
    """
    kind = type(domain).__name__
    low, high, step = domain.low, domain.high, domain.step
    names = ["low", "high"] if step is None else ["low", "high", "step"]
    for name in names:
        value = getattr(domain, name)
        if read_number(value) is None:
            raise SearchSpaceError(f"{name} of {kind} must be a finite number, got {value!r}")
    if low >= high:
        remedy = f"Constant({low!r})" if low == high else f"{kind}({high!r}, {low!r})"
        raise SearchSpaceError(f"low must lie below high, got low={low!r} and high={high!r}; use {remedy}")
    if not isinstance(domain.log, bool):
        raise SearchSpaceError(f"log of {kind} must be True or False, got {short(domain.log)}; use log=True")
    if domain.log and low <= 0:
        raise SearchSpaceError(f"a log scale needs bounds above 0, got low={low!r}; raise it or drop log")
    if domain.log and step is not None:
        raise SearchSpaceError(
            f"log=True and step={step!r} exclude each other; drop step for a log scale, log for an even grid"
        )
    if step is not None and not 0 < step <= high - low + _ON_GRID * step:
        raise SearchSpaceError(f"step must lie above 0 and within high - low = {high - low!r}, got {step!r}")
    return names
