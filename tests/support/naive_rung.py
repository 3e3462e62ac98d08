"""The rungs of successive halving, written to be read: what those of the library are compared with."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

NOT_FINITE = (math.nan, math.inf, -math.inf)
SEEDED = settings(max_examples=examples(60))

# Few distinct values, so that ties are common.
LOSSES = st.sampled_from([0.0, 1.0, 2.0, 3.0, *NOT_FINITE]) | st.floats(allow_nan=False)


class NaiveRung:
    """A rung as the module's docstring has it: all results in a list, sorted anew for each question."""

    def __init__(self, eta: int) -> None:
        self.eta = eta
        self.results: list[tuple[float, int, int]] = []
        self.at_rest: set[int] = set()
        self.promoted: set[int] = set()

    def record(self, trial: int, loss: float) -> bool:
        loss = loss if math.isfinite(loss) else math.inf
        self.results.append((loss, len(self.results), trial))
        return trial in self.best()

    @property
    def quota(self) -> int:
        return len(self.results) // self.eta

    def best(self) -> list[int]:
        """The finite ones of the best floor(n / eta), best first."""
        return [trial for loss, _, trial in sorted(self.results)[: self.quota] if loss < math.inf]

    def candidate(self) -> int | None:
        if len(self.promoted) >= self.quota:
            return None
        return next((trial for trial in self.best() if trial in self.at_rest - self.promoted), None)

    def best_paused(self) -> int | None:
        able = self.at_rest - self.promoted
        rested = sorted(result for result in self.results if result[2] in able and result[0] < math.inf)
        return rested[0][2] if rested else None
