"""Short ways to write a domain: lists, scalars, JSON and the tuples of Maggy's ``Searchspace``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optimizers.checks import did_you_mean, short
from optimizers.errors import SearchSpaceError
from optimizers.space.domains import Choice, Constant, Domain, Float, Integer, Ordinal, domain_from_json
from optimizers.space.scalars import read_number, read_scalar

_MAGGY: dict[str, Callable[[Sequence[Any]], Domain]] = {
    "DOUBLE": lambda bounds: Float(*bounds),
    "INTEGER": lambda bounds: Integer(*bounds),
    "DISCRETE": Ordinal,
    "CATEGORICAL": Choice,
}

MAGGY_METHODS = {
    "add": "; unlike in the first Maggy, pass all parameters at once: SearchSpace(lr=Float(1e-4, 1e-1))",
    "get": "; unlike in the first Maggy, use space.domains[name]",
}
"""Methods of the first Maggy's ``Searchspace``, with their replacements."""

_OF_A_DOMAIN = frozenset({"values", "choices", "categories", "options", "sequence", "bounds", "range", "when"})
"""Keys whose values may be lists and dicts in a dict that is a single domain, ours or of another library."""


def read_domain(name: str, spelling: Any) -> Domain:
    """Return the domain that ``spelling`` stands for.

    ==============================  ==========================================================
    ``Float(0, 1)`` and the like    itself
    ``["relu", "gelu"]``, a range   :class:`Choice`
    ``0.1``, ``"adam"``, ``None``   :class:`Constant`
    ``("DOUBLE", [0, 1])``          :class:`Float`; also ``INTEGER``, ``DISCRETE`` (:class:`Ordinal`)
                                    and ``CATEGORICAL`` (:class:`Choice`), in any case
    ``{"type": "float", ...}``      the form of :meth:`Domain.to_json`
    ==============================  ==========================================================

    Args:
        name: Name of the parameter, for the error message.
        spelling: What the user wrote.

    Raises:
        SearchSpaceError: The spelling is not a domain, or is ambiguous.

    Example:
        >>> read_domain("units", ("INTEGER", [16, 256]))
        Integer(16, 256)
    """
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
        case _ if callable(spelling):
            name = getattr(spelling, "__name__", short(spelling))
            raise SearchSpaceError(
                f"a domain must not be a function, got {name}; use Float(low, high), Integer(low, high) or a list"
            )
        case _ if getattr(spelling, "shape", ()):
            raise SearchSpaceError(
                f"values must be a list, got a {type(spelling).__name__}, {spelling!r}; use .tolist()"
            )
        case _ if any(hasattr(spelling, name) for name in ("rvs", "sample", "low")):
            raise SearchSpaceError(_instead_of(spelling))
        case _:
            return Constant(read_scalar(spelling))


def _instead_of(distribution: Any) -> str:
    """Return an error message for a distribution of scipy or of another library, such as Optuna."""
    known = getattr(getattr(distribution, "dist", None), "name", type(distribution).__name__)
    kind = "Integer" if "int" in known.lower() else "Float"
    is_log = "log" in known.lower() or known == "reciprocal" or getattr(distribution, "log", None) is True
    log = ", log=True" if is_log else ""
    if callable(support := getattr(distribution, "support", None)):
        bounds = [read_number(bound) for bound in support()]
    else:
        bounds = [read_number(getattr(distribution, name, None)) for name in ("low", "high")]
    finite = [f"{bound:g}" for bound in bounds if bound is not None]
    low, high = finite if len(finite) == 2 else ("low", "high")
    return f"a domain must not be a distribution, got {known}; use {kind}({low}, {high}{log})"


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
    span = f" or Float({numbers[0]}, {numbers[1]})" if len(numbers) == 2 else ""
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
