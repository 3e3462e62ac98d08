"""Ragged landscapes of data sets that no choice looked at: tables of some configurations of a surrogate.

As on the tables ``lcbench-*`` (:mod:`benchmarks.tables`), a configuration gets the curve of its nearest one of
:data:`ROWS`, so that a model which proposes a point is paid with its neighbour's curve, and half of all small moves
return the same one. Those tables were looked at when the default was chosen; these were not.
"""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.landscapes import Landscape
from benchmarks.surrogate import PREFIX, surrogate
from benchmarks.tables import Table

RAGGED = "ragged-"
"""How the names of these tasks begin; the number of a data set follows."""
ROWS = 2000


@cache
def ragged(name: str, curves: Path) -> Table:
    """The table of one data set.

    Args:
        name: ``ragged-`` and the number of the data set.
        curves: Where the surrogate's folder lies.

    Example:
        >>> ragged("ragged-189865", Path("curves")).max_budget
        50
    """
    return table_of(name, surrogate(PREFIX + name.removeprefix(RAGGED), curves))


def table_of(name: str, smooth: Landscape, rows: int = ROWS) -> Table:
    """The curves of ``rows`` random configurations of a landscape, each of which stands for what is nearest to it."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    configs = [smooth.space.sample(rng) for _ in range(rows)]
    trained = np.array([[smooth(config, step) for step in range(1, smooth.max_budget + 1)] for config in configs])
    units = np.array([smooth.space.to_unit(config) for config in configs])
    return Table(name, smooth.space, trained[:, :, 0], np.cumsum(trained[:, :, 1], axis=1), units=units)
