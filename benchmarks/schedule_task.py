"""A training whose best learning rate falls as it goes on: the best schedule is known, and its loss at the end is 0.

A step wins the most where the learning rate is the best one of that step, which falls by three orders of magnitude in a
training; a second parameter has one best value. It needs no package, so an interpreter of another library has it too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

STEPS, WORKERS = 50, 16
INTERVAL = 5
"""Steps between the rests of a population's member."""

LR = 1e-5, 1.0
FIRST, LAST = -1.0, -4.0
"""Logarithms of the best learning rates."""

_WIDTH = 0.5  # how far off, in orders of magnitude, a learning rate still wins a third
DECAY = 0.3
"""The best of the second parameter."""


def best_lr(step: int) -> float:
    """The best learning rate of a step, from 1 on."""
    return float(10.0 ** (FIRST + (LAST - FIRST) * (step - 1) / (STEPS - 1)))


def train(config: Mapping[str, Any], step: int, state: Any) -> tuple[float, float, Any]:
    """The loss after a step, its seconds, and what the training has won by then."""
    off = math.log10(config["lr"] / best_lr(step)) / _WIDTH
    won = state + math.exp(-off * off) * (1.0 - (config["decay"] - DECAY) ** 2) / STEPS
    return 1.0 - won, 1.0, won


def least(step: int) -> float:
    """The loss of the best schedule after a step."""
    return 1.0 - step / STEPS
