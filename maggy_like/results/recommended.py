"""The trial that a model of all values of a search recommends, without further training."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from maggy_like.display.text import config_text, number
from optimizers.core.study_state import ValueRule
from optimizers.core.trial import Trial, TrialState
from optimizers.samplers.bayesian.posterior import posterior
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

_LARGE = 1 / 3  # noise, as a share of the spread of all values, from which the best value is worth a second look


@dataclass(frozen=True, repr=False)
class Recommended:
    """The trial with the best estimated value, by a model of all values of the search.

    The best value of a noisy search is biased upwards. A Gaussian process tells what a configuration contributes to its
    value from what varies between trainings of it. The trial is the best one if each estimate is worse than its mean by
    one standard deviation. See the docs page on noisy results.

    Attributes:
        trial: The trial. It was trained for as many steps as any other one.
        objective: Name of the optimized metric.
        mean: Estimated value of a full training of its configuration, as a mean over trainings.
        std: Standard deviation of that estimate.
        noise: Estimated standard deviation of the values of one configuration, from training to training.
        is_noisy: Whether the noise is at least a third of the standard deviation of all trials' values.

    Example:
        >>> result.recommended.config, result.recommended.mean
    """

    trial: Trial
    objective: str
    mean: float
    std: float
    noise: float
    is_noisy: bool

    @property
    def config(self) -> Config:
        """The recommended configuration."""
        return self.trial.config

    @property
    def sentence(self) -> str:
        """The recommendation, in a sentence."""
        return (
            f"trial {self.trial.id} with an estimated {self.objective} of {number(self.mean)} ± {number(self.std)}, "
            f"since values vary by {number(self.noise)} from training to training: {config_text(self.config)}"
        )

    def __repr__(self) -> str:
        return self.sentence


def recommended_of(
    trials: Sequence[Trial], space: SearchSpace, objective: str, direction: str, rule: ValueRule
) -> Recommended | None:
    """Return the trial with the best estimated value.

    None if too few trials have a value, or if configurations change during the training.
    """
    used = [trial for trial in trials if _has_value(trial) or _is_to_blame(trial)]
    if any(trial.parent is not None for trial in trials):
        return None
    sign = 1.0 if direction == "min" else -1.0
    losses = [sign * trial.value if trial.value is not None and _has_value(trial) else math.inf for trial in used]

    def loss_at(row: int, step: int) -> float:
        curve = used[row].curve
        seen = curve.values[: max(bisect_right(curve.steps, step), 1)]
        known = [sign * value for value in (seen if rule == "best" else seen[-1:]) if math.isfinite(value)]
        return min(known, default=math.inf)

    found = posterior(space, [trial.config for trial in used], [trial.step for trial in used], losses, loss_at)
    if found is None:
        return None
    best = int((found.means + found.stds).argmin())  # so that little tried ones do not win by chance
    trial, mean, std = used[found.rows[best]], float(found.means[best]), float(found.stds[best])
    return Recommended(trial, objective, sign * mean, std, found.noise, found.noise >= _LARGE * found.spread)


def _has_value(trial: Trial) -> bool:
    return trial.value is not None and math.isfinite(trial.value)


def _is_to_blame(trial: Trial) -> bool:
    """Return whether a trial failed, or diverged, by a fault of its own."""
    is_lost = trial.failure is not None and not trial.failure.kind.is_fault
    return trial.is_over and (trial.state is TrialState.FAILED or trial.value is not None) and not is_lost
