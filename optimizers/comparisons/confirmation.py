"""Confirmation of the best configurations of a search: which of them to train again, and what the repeats show.

Candidates are the numbers of their trials, and repeats have numbers, too. Repeats of the same number share a seed.
Losses are smaller for better candidates, and not finite for failed trainings.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from optimizers.comparisons.paired_tests import Finding, JointTests, differences, is_usable, rounding
from optimizers.core.events import TrialCreated
from optimizers.core.study import Study
from optimizers.core.study_state import StudyState
from optimizers.core.trial import Repeat, Trial, TrialState

FIRST_SEED = 1000
"""Seed of the first repeat. A training function's own default should be another one."""

FEWEST = 2
"""Repeats of every candidate, without which nothing is known about the noise."""

_MOST_EQUAL = 8  # trials per candidate that are looked at, since several may have one configuration

_EXACT = 1e-12  # deviations below this share of the losses are rounding of the fit

_HOPELESS = 0.05  # probability of catching up below which a candidate leaves the race

Losses = Mapping[tuple[int, int], float]
"""Losses of ended repeats, by candidate and number of the repeat."""


def repeated(study: StudyState) -> list[int]:
    """Return the trials of a search that have repeats, in the order of their first one."""
    return list(dict.fromkeys(trial.repeat.of for trial in study.repeats if trial.repeat is not None))


def losses_of(study: StudyState) -> dict[tuple[int, int], float]:
    """Return the losses of the repeats that have ended."""
    return {
        (trial.repeat.of, trial.repeat.number): (
            math.inf if trial.state is TrialState.FAILED else study.loss(trial.value)
        )
        for trial in study.repeats
        if trial.repeat is not None and trial.is_over
    }


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of the race between the candidates."""

    racing: tuple[int, ...]  # candidates that are still in the race, the best first
    rounds: int  # number of repeats that each of them gets before the next look
    is_over: bool  # whether no more repeats are due

    @property
    def leader(self) -> int | None:
        """The candidate in the lead. None if all have failed."""
        return self.racing[0] if self.racing else None


def standing(losses: Losses, candidates: Sequence[int], repeats: int) -> Standing:
    """Return the state of the race between the candidates, given with the likely best first.

    Every candidate gets two repeats. After each further round, a candidate leaves the race if it would hardly be ahead
    of the leader after all repeats: stochastic curtailment by the predictive probability (Spiegelhalter, Freedman and
    Blackburn, 1986). A failed repeat also ends a candidate's race. The winner gets all ``repeats``, at least 2. So it
    is nearly always the candidate that would win if all got all repeats, and early ends do not make its mean look
    better.
    """
    racing, rounds = list(candidates), FEWEST
    while True:
        racing = [c for c in racing if all(is_usable(losses.get((c, number), 0.0)) for number in range(rounds))]
        if any((c, number) not in losses for c in racing for number in range(rounds)):
            return Standing(tuple(racing), rounds, is_over=False)
        racing.sort(key=lambda c: _mean(losses, c, rounds))
        if rounds >= repeats or not racing:
            return Standing(tuple(racing), rounds, is_over=True)
        racing = _hopeful(losses, candidates, racing, rounds, repeats)
        rounds = rounds + 1 if len(racing) > 1 else repeats


def recommended(study: StudyState) -> tuple[Trial, float] | None:
    """Return the trial of a search whose repeats are the best so far, and the mean value of its repeats, if any."""
    plan = study.repeats[-1].repeat if study.repeats else None
    losses = losses_of(study)
    if plan is None or not losses:
        return None
    leader = standing(losses, repeated(study), plan.repeats).leader
    values = np.empty(0) if leader is None else values_of(losses, leader)
    return None if leader is None or not len(values) else (study.trials[leader], study.loss(1.0) * float(values.mean()))


class Confirming:
    """Decides which trials of the search are repeated, and how often. All follows from the study."""

    def __init__(self, study: Study, top: int, repeats: int) -> None:
        self._study = study
        self._top = top  # number of trials that are repeated
        self._repeats = repeats  # maximum number of repeats of each
        self._known: tuple[object, Standing] | None = None

    def look_again(self) -> None:
        """Forget the candidates, since the search has new results."""
        self._known = None

    def take(self) -> TrialCreated | None:
        """Return the event that creates the next repeat. None if no more are due now."""
        standing = self._standing()
        if standing.is_over:
            return None
        begun = {(trial.repeat.of, trial.repeat.number) for trial in self._study.repeats if trial.repeat is not None}
        for number in range(standing.rounds):
            for of in standing.racing:
                if (of, number) not in begun:
                    return self._created(of, number)
        return None

    @property
    def is_over(self) -> bool:
        """Whether all repeats have ended, and no more are due."""
        return self._standing().is_over and all(trial.is_over for trial in self._study.repeats)

    @property
    def recommended(self) -> Trial | None:
        """The trial of the search whose repeats are the best so far. None if all have failed."""
        leader = self._standing().leader
        return None if leader is None else self._study.trials[leader]

    def _created(self, of: int, number: int) -> TrialCreated:
        seed = FIRST_SEED + number
        config = {**self._study.trials[of].config, "seed": seed}
        repeat = Repeat(of, number, self._top, self._repeats)
        return TrialCreated(len(self._study.trials), config, training=self._study.problem.max_budget, repeat=repeat)

    def _standing(self) -> Standing:
        """Return the state of the race. After the search, it only changes when a trial or a repeat ends."""
        ended = sum(trial.is_over for trial in self._study.repeats), dict(self._study.counts)
        if self._known is None or self._known[0] != ended:
            losses = losses_of(self._study)
            known = standing(losses, self._candidates(), self._repeats)
            self._known = ended, known
        return self._known[1]

    def _candidates(self) -> list[int]:
        """Return the best distinct configurations of the search, and those that have repeats already."""
        study = self._study
        best: dict[bytes, int] = {}
        ranked = ((study.loss(trial.value), trial.id, trial) for trial in study.trials if not trial.training)
        known = (each for each in ranked if math.isfinite(each[0]) and each[2].state is not TrialState.FAILED)
        for _, number, trial in heapq.nsmallest(_MOST_EQUAL * self._top, known):
            best.setdefault(study.problem.space.key(trial.config), number)
        chosen = [*best.values()][: self._top]
        return list(dict.fromkeys([*chosen, *repeated(study)]))


def _mean(losses: Losses, candidate: int, rounds: int) -> float:
    return math.fsum(losses[candidate, number] for number in range(rounds)) / rounds


def _hopeful(losses: Losses, candidates: Sequence[int], racing: list[int], rounds: int, repeats: int) -> list[int]:
    """Return the candidates that may still be ahead of the leader after all repeats, the leader first."""
    from scipy import special

    noise = Noise.of(losses, candidates)
    # Counts, such as an accuracy, sometimes give equal differences with few seeds, and are noisy all the same.
    is_paired = noise.paired > 0.0
    variance, degrees = (noise.paired, noise.paired_degrees) if is_paired else (noise.variance, noise.degrees)
    spread = math.sqrt(2.0 * variance * (1.0 / rounds - 1.0 / repeats)) if len(racing) > 1 else 0.0
    lead = _mean(losses, racing[0], rounds)
    behind = {c: _mean(losses, c, rounds) - lead for c in racing[1:]}
    return [
        racing[0],
        *(c for c, by in behind.items() if spread > 0.0 and special.stdtr(degrees, -by / spread) >= _HOPELESS),
    ]


def values_of(losses: Losses, candidate: int) -> NDArray[np.float64]:
    """Return the losses of a candidate's repeats, in order. Empty if one of them failed."""
    values = np.array([loss for (c, _), loss in sorted(losses.items()) if c == candidate])
    return values if all(map(is_usable, values.tolist())) else values[:0]


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of one training, pooled over candidates. The candidates are assumed to be equally noisy.

    Variances that are only rounding are 0.
    """

    variance: float  # of a candidate's value over seeds
    # Degrees of freedom of the variance. Candidates that seeds move together count less (Satterthwaite, 1946).
    degrees: float
    paired: float  # variance of what is left of a value without the effects of its candidate and its seed
    paired_degrees: int  # degrees of freedom of ``paired``

    @classmethod
    def of(cls, losses: Losses, candidates: Sequence[int]) -> Noise:
        """Estimate the noise from the candidates with at least two repeats and no failed one.

        Candidates and seeds are the treatments and blocks of a randomised block design, fitted by least squares.
        """
        samples = [values for c in candidates if len(values := values_of(losses, c)) >= FEWEST]
        own = [len(values) - 1 for values in samples]
        total, n, k = sum(own), sum(map(len, samples)), len(samples)
        if not samples:
            return cls(math.nan, math.nan, math.nan, 0)
        variance = math.fsum(float(values.var() * len(values)) for values in samples) / total
        columns = np.zeros((n, k + max(map(len, samples))))
        rows = [(place, number) for place, values in enumerate(samples) for number in range(len(values))]
        for row, (place, number) in zip(columns, rows, strict=True):
            row[[place, k + number]] = 1.0
        values = np.concatenate(samples)
        rest = values - columns @ np.linalg.lstsq(columns, values, rcond=None)[0]
        paired_degrees = n - columns.shape[1] + 1
        paired = float(rest @ rest) / paired_degrees if paired_degrees else math.nan
        least = max(rounding(values.tolist()), _EXACT * float(np.abs(values).max())) ** 2
        variance, paired = (0.0 if found <= least else found for found in (variance, paired))
        shared = 2.0 * sum(min(a, b) for a, b in combinations(own, 2))
        alike = max(0.0, 1.0 - paired / variance) if paired_degrees and variance > 0.0 else 0.0
        return cls(variance, total**2 / (total + alike**2 * shared), paired, paired_degrees)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the repeats show of a candidate, as losses."""

    values: NDArray[np.float64]  # losses of its repeats, in the order of the seeds; empty if one of them failed
    mean: float  # ``inf`` if a repeat failed, nan if none has ended
    low: float  # lower end of its confidence interval; the intervals of all candidates hold together
    high: float


def estimates(losses: Losses, candidates: Sequence[int], *, alpha: float = 0.05) -> dict[int, Estimate]:
    """Return the mean of each candidate, with simultaneous confidence intervals.

    The intervals are those of Student's t, with the variance pooled over all candidates. Each holds with probability
    ``1 - alpha / len(candidates)`` (Bonferroni), and all together with ``1 - alpha``. So the candidate with the best
    mean may be picked by looking at them.
    """
    from scipy import special

    known = {c: values_of(losses, c) for c in candidates}
    noise = Noise.of(losses, candidates)
    height = -float(special.stdtrit(noise.degrees, alpha / len(known) / 2.0)) if noise.variance > 0.0 else math.nan
    found = {}
    for candidate, values in known.items():
        failed = any(c == candidate and not is_usable(loss) for (c, _), loss in losses.items())
        mean = math.inf if failed else float(values.mean()) if len(values) else math.nan
        half = height * math.sqrt(noise.variance / len(values)) if len(values) else math.nan
        if not math.isfinite(half):
            half = math.inf
        is_known = math.isfinite(mean)
        low, high = (mean - half, mean + half) if is_known else (-math.inf, math.inf)
        found[candidate] = Estimate(values, mean, low, high)
    return found


def pairwise(losses: Losses, candidates: Sequence[int], *, alpha: float = 0.05) -> dict[tuple[int, int], Finding]:
    """Return the tests of all pairs of candidates, paired by seed and corrected for the number of pairs.

    A finding is on the loss of the first of a pair minus that of the second. The probability of any false difference is
    at most ``alpha``. The tests are t-tests with the pooled variance of :class:`Noise`, since a candidate may have only
    two repeats. Nothing is tested if every seed gave the same differences. The correction is that of ablations, max-T
    (:class:`~optimizers.comparisons.paired_tests.JointTests`).
    """
    from scipy import special

    named = {(str(c), number): loss for (c, number), loss in losses.items()}
    seeds = sorted({number for _, number in losses})
    samples = {(a, b): differences({str(a): 1.0, str(b): -1.0}, named, seeds) for a, b in combinations(candidates, 2)}
    if not samples:
        return {}
    noise, joint = Noise.of(losses, candidates), JointTests([*samples.values()], alpha)
    height = -float(special.stdtrit(noise.paired_degrees, joint.level / 2.0)) if noise.paired > 0.0 else math.nan
    found = {}
    for pair, sample in samples.items():
        error = math.sqrt(2.0 * noise.paired / len(sample.values)) if len(sample.values) else math.nan
        if not error > 0.0:
            found[pair] = Finding(sample, -math.inf, math.inf, None, None, differs=False)
            continue
        p = float(2.0 * special.stdtr(noise.paired_degrees, -abs(sample.mean) / error))
        low, high = sample.mean - height * error, sample.mean + height * error
        found[pair] = Finding(sample, low, high, p, joint.corrected(p), differs=p <= joint.level)
    return found
