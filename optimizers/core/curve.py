"""One metric over steps."""

from __future__ import annotations

import math
import operator
from array import array
from bisect import bisect_left
from itertools import islice

import msgspec


class Curve(msgspec.Struct, gc=False):
    """One metric over steps, in columns (16 bytes a measurement)."""

    steps: array[int] = msgspec.field(default_factory=lambda: array("q"))
    values: array[float] = msgspec.field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last_step(self) -> int:
        """The newest step, or 0 while there is none."""
        return self.steps[-1] if self.steps else 0

    @property
    def last(self) -> float | None:
        """The newest value, or None while there is none."""
        return self.values[-1] if self.values else None

    def at(self, step: int) -> float | None:
        """The value at a step; None where nothing was measured."""
        index = bisect_left(self.steps, step)
        return self.values[index] if index < len(self) and self.steps[index] == step else None

    def extend(self, steps: list[int], values: list[float]) -> tuple[list[int], list[float]]:
        """Append the measurements whose step lies past the last one; what was appended.

        A later attempt that starts over repeats steps; the ledger keeps the first word on each.
        """
        known = self.steps
        if len(steps) == len(values) and steps and (not known or steps[0] > known[-1]) and _rise(steps):
            known.fromlist(steps)
            self.values.fromlist(values)
            return steps, values
        last = known[-1] if known else -math.inf
        fresh: tuple[list[int], list[float]] = [], []
        for step, value in zip(steps, values, strict=True):
            if step > last:
                fresh[0].append(step)
                fresh[1].append(value)
                last = step
        known.fromlist(fresh[0])
        self.values.fromlist(fresh[1])
        return fresh


def _rise(steps: list[int]) -> bool:
    """Whether each step comes after the one before."""
    return len(steps) == 1 or all(map(operator.lt, steps, islice(steps, 1, None)))
