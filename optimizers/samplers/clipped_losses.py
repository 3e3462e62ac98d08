"""Losses as models can take them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_HUGE = 1e100  # squares of losses must stay finite


def clipped(losses: NDArray[np.float64], distances: float = 10.0) -> NDArray[np.float64]:
    """Losses that a model can be fitted to, shape (n,): finite, and of a scale that resolves the good ones.

    What is not finite becomes the worst finite loss, so that models keep away from where trainings fail;
    it stays nan while there is no finite one. What lies further above the median than ``distances`` times
    the distance from the best to the median is cut there. The order of the others stays as it is.
    """
    finite = np.isfinite(losses)
    if not finite.any():
        return np.full(len(losses), np.nan)
    result: NDArray[np.float64] = np.clip(np.where(finite, losses, losses[finite].max()), -_HUGE, _HUGE)
    best, median = result.min(), np.median(result)
    return np.minimum(result, median + distances * (median - best)) if best < median else result
