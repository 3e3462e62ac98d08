"""YAHPO Gym's surrogate of LCBench (Pfisterer et al., 2022): validation error and time after each of 50 epochs.

For any configuration, not the nearest of some that were drawn: a model that proposes a point gets that point's curve.
It needs ``onnxruntime`` and a directory with the model, its encoding, its parameters, and a reference for each data
set: the best that was found, the median of random configurations, and whether choices may look at it (*tune*) or not
(*test*). The directory is not part of this project.
"""

from __future__ import annotations

import importlib.util
import zlib
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.landscapes import Landscape
from benchmarks.lcbench import DIRECTORY, Curves, parameters, reference
from benchmarks.tables import Table
from maggy_like import Float, Integer, SearchSpace

PREFIX = "yahpo-"
"""How the names of these tasks begin; the number of a data set follows."""
UNSEEN = (34539, 167184, 168329, 168335, 168908, 189862, 189865)
"""The data sets that are kept apart: tuning looks at the others alone."""


def has_surrogate(curves: Path) -> bool:
    """Whether there is a model, and what computes it."""
    return importlib.util.find_spec("onnxruntime") is not None and (curves / DIRECTORY / "model.onnx").exists()


@cache
def surrogate(name: str, curves: Path) -> Landscape:
    """The surrogate of one data set.

    Args:
        name: ``yahpo-`` and the number of the data set.
        curves: Where the surrogate's directory lies.

    Example:
        >>> surrogate("yahpo-3945", Path("curves")).max_budget
        50
    """
    number = name.removeprefix(PREFIX)
    known = reference(curves, number)
    predicted = Curves(curves, number)
    kinds = {"uniform_int": Integer, "uniform_float": Float}
    space = SearchSpace(
        {
            entry["name"]: kinds[entry["type"]](entry["lower"], entry["upper"], log=entry["log"])
            for entry in parameters(curves)
        }
    )
    return Landscape(
        name,
        space,
        lambda config, rng: predicted(config),
        best=known["best"],
        median=known["median"],
        full_seconds=known["full_seconds"],
    )


RAGGED = "ragged-"
"""How the names of these tasks begin: a table of :data:`ROWS` configurations of a surrogate.

As on the tables ``lcbench-*``, a configuration gets the curve of its nearest one, so that a model which proposes a
point is paid with its neighbour's curve, and half of all small moves return the same one. Those tables were looked at
when the default was chosen; these were not.
"""
ROWS = 2000


@cache
def ragged(name: str, curves: Path) -> Table:
    """The table of one data set.

    Args:
        name: ``ragged-`` and the number of the data set.
        curves: Where the surrogate's directory lies.

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
