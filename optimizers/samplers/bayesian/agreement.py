"""Whether short trainings tell how longer ones come out, before there are long ones."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from optimizers.core.base import Observation

_PAIRS = 6  # trials with a result at both of two budgets, from which on their order tells anything
_AGREEMENT = 0.7  # rank correlation of the two from which on the shorter ones are believed


def short_trainings_agree(observations: Sequence[Observation]) -> bool:
    """Whether trials come in much the same order at the two lowest budgets of which enough have results of both.

    Budgets within a factor of two count as one; what failed ranks last.
    """
    losses: defaultdict[int, dict[int, float]] = defaultdict(dict)
    for seen in observations:
        losses[math.ceil(math.log2(max(seen.step, 1)) - 1e-9)][seen.trial] = seen.loss
    levels = sorted(losses)
    for level, above in pairwise(levels):
        both = [trial for trial in losses[above] if trial in losses[level]]
        if len(both) >= _PAIRS:
            ranks = [np.argsort(np.argsort([at[trial] for trial in both])) for at in (losses[level], losses[above])]
            return bool(np.corrcoef(ranks[0], ranks[1])[0, 1] >= _AGREEMENT)
    return False
