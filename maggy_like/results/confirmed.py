"""The configuration that is best despite the noise: by repeats with other seeds, or by a model of all values."""

from __future__ import annotations

import copy
import html
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maggy_like.argument_checks import require
from maggy_like.display.text import aligned, as_html, config_text, number
from optimizers.comparisons.confirmation import estimates, losses_of, pairwise, repeated, standing
from optimizers.core.study import Study
from optimizers.core.study_state import ValueRule
from optimizers.core.trial import Trial
from optimizers.samplers.bayesian.posterior import posterior
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Candidate:
    """One of the configurations that were trained again.

    Attributes:
        trial: The trial of the search.
        mean: Mean value of its repeats. None if a repeat failed or none has ended.
        low: Lower end of the confidence interval of the mean.
        high: Upper end of it. The intervals of all candidates hold together.
        repeats: The trainings with other seeds.
    """

    trial: Trial
    mean: float | None
    low: float
    high: float
    repeats: tuple[Trial, ...]

    @property
    def values(self) -> dict[int, float | None]:
        """Values of its repeats by seed."""
        return {trial.config["seed"]: trial.value for trial in self.repeats if trial.is_over}


@dataclass(frozen=True)
class PairTest:
    """The difference between two candidates, paired by seed.

    Attributes:
        first: Number of the first one's trial.
        second: Number of the second one's trial.
        difference: Mean value of the first one minus that of the second one, with the same seeds.
        low: Lower end of the confidence interval. The intervals of all pairs hold together.
        high: Upper end of it.
        p: p-value, corrected for the number of pairs. None without a test, as when every seed gave the same difference.
        differs: Whether the difference is not zero, at 5 % for all pairs together.
    """

    first: int
    second: int
    difference: float
    low: float
    high: float
    p: float | None
    differs: bool


@dataclass(frozen=True, repr=False)
class Confirmed:
    """The comparison of the best configurations of a search, which were trained again with other seeds.

    The values from the search do not count, since they selected the configurations and are biased upwards. See the docs
    page on noisy results for the method.

    Attributes:
        objective: Name of the optimized metric.
        candidates: The configurations, the recommended one first, then by their means.
        tests: The tests of all pairs.
        is_complete: Whether all repeats have ended. If not, ``resume=True`` continues them.

    Example:
        >>> result = lagom(train_fn, space, confirm=True)
        >>> result.confirmed.config
        {'lr': ..., 'units': ...}
        >>> print(result.confirmed)
        trial  accuracy  95 % interval       seeds  in the search  configuration
        ...
    """

    objective: str
    candidates: tuple[Candidate, ...]
    tests: tuple[PairTest, ...]
    is_complete: bool

    @property
    def best(self) -> Candidate | None:
        """The recommended candidate. None if each of them has failed or none has ended."""
        first = self.candidates[0]
        return None if first.mean is None else first

    @property
    def config(self) -> Config | None:
        """A copy of the recommended configuration."""
        return None if self.best is None else copy.deepcopy(self.best.trial.config)

    @property
    def value(self) -> float | None:
        """Its mean value, as an estimate for future trainings."""
        return None if self.best is None else self.best.mean

    @property
    def sentence(self) -> str:
        """How sure the recommendation is, in a sentence."""
        best = self.best
        if best is None or best.mean is None:
            return "no configuration could be confirmed, since each of them has failed repeats or none has ended"
        so_far = "" if self.is_complete else "so far "
        n = len(best.values)
        found = f"{so_far}{self.objective} {number(best.mean)} of trial {best.trial.id} with {n} seeds"
        if math.isfinite(best.low):
            found += f" (95 % interval {number(best.low)} to {number(best.high)})"
        return f"{found}, {self._next_best(best)}"

    def _next_best(self, best: Candidate) -> str:
        """Say how the recommended candidate compares to the others."""
        others = [candidate for candidate in self.candidates[1:] if candidate.mean is not None]
        if not others:
            return "the others failed" if len(self.candidates) > 1 else "it was not compared with others"
        by_pair = {frozenset((test.first, test.second)): test for test in self.tests}
        tests = {it.trial.id: by_pair[frozenset((best.trial.id, it.trial.id))] for it in others}
        if all(test.p is None for test in tests.values()) and min(len(it.values) for it in (best, *others)) > 1:
            return f"not tested against {_named([*tests])}, as every seed gave the same difference (is the seed used?)"
        equal = [trial for trial, test in tests.items() if not test.differs]
        if not equal:
            return f"better than the other {len(others)}" if len(others) > 1 else "better than the second best"
        return f"not distinguishable from {_named(equal)}"

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with one row per candidate.

        Returns:
            Trial, mean, interval, number of repeats, value in the search, and parameters of each candidate. If a
            parameter has the name of another column, its column is ``param_NAME``.

        Raises:
            UserError: pandas is missing.
        """
        require("pandas", "to_pandas()")
        from maggy_like.results.frames import as_frame, param_columns

        rows: list[dict[str, Any]] = [
            {
                "trial": it.trial.id,
                "mean": it.mean,
                "low": it.low,
                "high": it.high,
                "repeats": len(it.values),
                "in_search": it.trial.value,
            }
            for it in self.candidates
        ]
        params = param_columns(rows[0], {name for it in self.candidates for name in it.trial.config})
        for row, it in zip(rows, self.candidates, strict=True):
            row |= {params[name]: value for name, value in it.trial.config.items()}
        return as_frame(rows)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the head and the rows of a table for people."""
        head = ["trial", self.objective, "95 % interval", "seeds", "in the search", "configuration"]
        return head, [
            [
                str(it.trial.id),
                number(it.mean),
                f"{number(it.low)} to {number(it.high)}" if math.isfinite(it.low) else "-",
                str(len(it.values)),
                number(it.trial.value),
                config_text(it.trial.config),
            ]
            for it in self.candidates
        ]

    def __repr__(self) -> str:
        return f"{aligned(*self.table())}\n{self.sentence}"

    def _repr_html_(self) -> str:
        return f"{as_html(*self.table())}<p>{html.escape(self.sentence)}</p>"


def _named(trials: list[int]) -> str:
    return f"trial{'s' * (len(trials) > 1)} {', '.join(map(str, trials))}"


def confirmed_of(study: Study, objective: str) -> Confirmed | None:
    """Return the comparison of the repeated trials. None without any."""
    plan = study.repeats[-1].repeat if study.repeats else None
    if plan is None:
        return None
    losses, numbers, sign = losses_of(study), repeated(study), study.loss(1.0)
    state, found = standing(losses, numbers, plan.repeats), estimates(losses, numbers)
    candidates = []
    for number_, estimate in found.items():
        low, high = sorted((sign * estimate.low, sign * estimate.high))
        repeats = tuple(it for it in study.repeats if it.repeat is not None and it.repeat.of == number_)
        mean = sign * estimate.mean + 0.0 if math.isfinite(estimate.mean) else None
        candidates.append(Candidate(study.trials[number_], mean, low, high, repeats))

    def place(it: Candidate) -> tuple[bool, float]:
        return it.trial.id != state.leader, math.inf if it.mean is None else sign * it.mean

    candidates.sort(key=place)
    tests = []
    for (first, second), finding in pairwise(losses, numbers).items():
        low, high = sorted((sign * finding.low, sign * finding.high))
        difference = sign * finding.difference + 0.0  # no negative zero
        tests.append(PairTest(first, second, difference, low, high, finding.corrected, finding.differs))
    return Confirmed(objective, tuple(candidates), tuple(tests), state.is_over)


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
        is_noisy: Whether the noise is at least a third of the standard deviation of all trials' values, and these are
            hard to explain without noise. After few trials, they rarely are.

    Example:
        >>> result.recommended.config, result.recommended.mean
        ({'lr': ..., 'units': ...}, 0.8...)
    """

    trial: Trial
    objective: str
    mean: float
    std: float
    noise: float
    is_noisy: bool

    @property
    def config(self) -> Config:
        """A copy of the recommended configuration."""
        return copy.deepcopy(self.trial.config)

    @property
    def sentence(self) -> str:
        """The recommendation, in a sentence."""
        noise = f"since values vary by {number(self.noise)}"
        if not self.is_noisy:
            noise = f"at an estimated noise of {number(self.noise)}"
        return (
            f"trial {self.trial.id} with an estimated {self.objective} of {number(self.mean)} ± {number(self.std)}, "
            f"{noise} from training to training: {config_text(self.config)}"
        )

    def __repr__(self) -> str:
        return self.sentence


def recommended_of(
    trials: Sequence[Trial], space: SearchSpace, objective: str, direction: str, rule: ValueRule
) -> Recommended | None:
    """Return the trial with the best estimated value.

    None if too few trials have a value, or if configurations change during the training.
    """
    if any(trial.parent is not None for trial in trials):
        return None
    sign = 1.0 if direction == "min" else -1.0
    losses = [math.nan if trial.value is None else sign * trial.value for trial in trials]

    def loss_at(row: int, step: int) -> float:
        curve = trials[row].curve
        seen = curve.values[: max(bisect_right(curve.steps, step), 1)]
        known = [sign * value for value in (seen if rule == "best" else seen[-1:]) if math.isfinite(value)]
        return min(known, default=math.inf)

    found = posterior(space, [trial.config for trial in trials], [trial.step for trial in trials], losses, loss_at)
    if found is None:
        return None
    best = int((found.means + found.stds).argmin())  # so that little tried ones do not win by chance
    trial, mean, std = trials[found.rows[best]], float(found.means[best]), float(found.stds[best])
    return Recommended(trial, objective, sign * mean, std, found.noise, found.is_noisy)
