"""The trial that a model of all values of a search recommends, without further training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from maggy_like.display.text import config_text, number
from optimizers.core.trial import Trial, TrialState
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

_LARGE = 1 / 3  # noise, as a share of the spread of all values, from which the best value is worth a second look


@dataclass(frozen=True, repr=False)
class Recommended:
    """The trial with the best estimated value, by a model of all values of the search.

    The best value of a noisy search is biased upwards. A Gaussian process tells what the configuration contributes to a
    value from what varies between trainings of one configuration. See the docs page on noisy results.

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


def recommended_of(trials: Sequence[Trial], space: SearchSpace, objective: str, direction: str) -> Recommended | None:
    """Return the trial with the best estimated value.

    None if too few trials have a value, or if configurations change during the training.
    """
    used = [trial for trial in trials if _has_value(trial) or _is_to_blame(trial)]
    if any(trial.parent is not None for trial in trials):
        return None
    from optimizers.samplers.bayesian.posterior import posterior  # loads scipy

    sign = 1.0 if direction == "min" else -1.0
    losses = [sign * trial.value if trial.value is not None and _has_value(trial) else math.inf for trial in used]
    found = posterior(space, [trial.config for trial in used], [trial.step for trial in used], losses)
    if found is None:
        return None
    furthest = max(trial.step for trial in used if _has_value(trial))
    estimates = [
        (mean, std, used[row])
        for row, mean, std in zip(found.rows.tolist(), found.means.tolist(), found.stds.tolist(), strict=True)
        if _has_value(used[row]) and used[row].state is not TrialState.FAILED and used[row].step == furthest
    ]
    if not estimates:
        return None
    mean, std, trial = min(estimates, key=lambda each: each[0])
    return Recommended(trial, objective, sign * mean, std, found.noise, found.noise >= _LARGE * found.spread)


def _has_value(trial: Trial) -> bool:
    return trial.value is not None and math.isfinite(trial.value)


def _is_to_blame(trial: Trial) -> bool:
    """Return whether a trial failed, or diverged, by a fault of its own."""
    is_lost = trial.failure is not None and not trial.failure.kind.is_fault
    return trial.is_over and (trial.state is TrialState.FAILED or trial.value is not None) and not is_lost
