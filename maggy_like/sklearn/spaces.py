"""Search spaces as scikit-learn's searches take them: distributions of scipy, lists and arrays of values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from maggy_like.display.text import number
from maggy_like.errors import ConfigError
from optimizers.space.domains import Domain, Float, Integer
from optimizers.space.search_space import SearchSpace

_OWN = (bool, int, float, str, tuple, list, np.generic)
"""Types of values that a search space accepts, or rejects with its own message; None too."""

_TAILS = (0.005, 0.995)
"""Quantiles of a distribution that a message proposes as bounds."""


@dataclass(frozen=True)
class Objects:
    """Values that no search space accepts, such as pipeline steps: by parameter, and by their name in the space."""

    by_name: Mapping[str, Mapping[str, Any]]

    def of(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration with objects in place of their names."""
        return {
            parameter: self.by_name.get(parameter, {}).get(value, value) if isinstance(value, str) else value
            for parameter, value in config.items()
        }

    def parameters(self) -> list[str]:
        """Return the names of the objects' own parameters, such as ``clf__C``."""
        return [
            f"{parameter}__{name}"
            for parameter, named in self.by_name.items()
            for value in named.values()
            if hasattr(value, "get_params") and not isinstance(value, type)
            for name in value.get_params()
        ]


def read_space(given: Any) -> tuple[SearchSpace, Objects]:
    """Convert what ``SearchCV`` received into a search space, and the objects that names stand for in it.

    In addition to what :func:`maggy_like.lagom` takes, a parameter may have a frozen distribution of scipy
    (``loguniform``, ``uniform``, ``randint``), a numpy array of equally likely values, or a list with objects
    (estimators, functions, dicts).
    """
    if isinstance(given, SearchSpace):
        return given, Objects({})
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"search_space must be a dict from parameters to domains, got {given!r}; use one dict, and "
            "Float(low, high, when={'kernel': 'rbf'}) for a parameter that only some configurations have"
        )
    names = {name: _names(value) for name, value in given.items() if isinstance(value, list)}
    space = SearchSpace({name: names[name] if name in names else _read(name, value) for name, value in given.items()})
    objects = {
        parameter: {name: value for name, value in zip(stand_ins, given[parameter], strict=True) if _is_object(value)}
        for parameter, stand_ins in names.items()
    }
    return space, Objects(objects)


def _names(values: Sequence[Any]) -> list[Any]:
    """Return what stands for each value in a search space: the value itself, or the name of an object."""
    names: list[Any] = []
    for value in values:
        name = value
        if _is_object(value):
            text = str(getattr(value, "__name__", " ".join(repr(value).split())))
            taken = [it for it in (*names, *values) if isinstance(it, str)]
            numbered = (f"{text} #{number}" for number in count(2))
            name = text if text not in taken else next(it for it in numbered if it not in taken)
        names.append(name)
    return names


def _is_object(value: object) -> bool:
    return not (value is None or isinstance(value, _OWN))


def _read(name: str, value: Any) -> Any:
    """Convert one domain."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return list(dict.fromkeys(value.tolist()))
    is_of_scipy = hasattr(value, "rvs") or (hasattr(value, "sample") and type(value).__module__.startswith("scipy."))
    return _of_distribution(name, value) if is_of_scipy else value


def _of_distribution(name: str, frozen: Any) -> Domain:
    known = getattr(getattr(frozen, "dist", None), "name", type(frozen).__name__)
    if known in ("loguniform", "reciprocal", "uniform", "randint"):
        low, high = (bound.item() for bound in frozen.support())
        if known == "randint":
            return Integer(int(low), int(high))
        if known == "uniform":
            return Float(low, high)
        if math.isclose(frozen.median() ** 2, low * high):  # else it is shifted by loc=
            return Float(low, high, log=True)
    raise ConfigError(f"parameter {name!r} must have a known distribution, got scipy's {known}; {_instead(frozen)}")


def _instead(frozen: Any) -> str:
    """Propose a domain for an unsupported distribution: its bounds, if it has a quantile function."""
    if not hasattr(frozen, "ppf"):
        return "use Float(low, high), Integer(low, high) or a list of values"
    low, high = (number(float(frozen.ppf(tail))) for tail in _TAILS)
    return f"use Float({low}, {high}), which has 99 % of its values, with log=True if their magnitude matters"
