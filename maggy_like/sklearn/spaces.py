"""Search spaces as users of scikit-learn's searches have them: distributions of scipy, lists and arrays of values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from maggy_like.display.text import number
from maggy_like.errors import ConfigError
from optimizers.space.domain import Domain
from optimizers.space.numeric import Float, Integer
from optimizers.space.search_space import SearchSpace

_TAILS = (0.005, 0.995)
"""Quantiles of a distribution that an error proposes as bounds."""


def read_space(given: Any) -> SearchSpace:
    """The search space of what ``SearchCV`` got.

    Beside what :func:`maggy_like.lagom` takes, a parameter may have a frozen distribution of scipy (``loguniform``,
    ``uniform``, ``randint``), or a numpy array of values, each of them as likely.

    Raises:
        ConfigError: It is no mapping, or there is no domain of that distribution or array.
        SearchSpaceError: A domain is wrong.
    """
    if isinstance(given, SearchSpace):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"search_space maps the names of parameters to domains, got {given!r}; use one dict, and "
            "Float(low, high, when={'kernel': 'rbf'}) for a parameter that only some configurations have"
        )
    return SearchSpace({name: _read(name, value) for name, value in given.items()})


def _read(name: str, value: Any) -> Any:
    """What a search space takes for it."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return list(dict.fromkeys(value.tolist()))
    return _of_distribution(name, value) if hasattr(value, "rvs") or hasattr(value, "sample") else value


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
    raise ConfigError(f"parameter {name!r}: there is no domain for scipy's {known}; {_instead(frozen)}")


def _instead(frozen: Any) -> str:
    """What to use for a distribution that has no domain: its bounds, where it has a quantile function."""
    if not hasattr(frozen, "ppf"):
        return "use Float(low, high), Integer(low, high) or a list of values"
    low, high = (number(float(frozen.ppf(tail))) for tail in _TAILS)
    return f"use Float({low}, {high}), where 99 % of its values lie, with log=True if their size matters"
