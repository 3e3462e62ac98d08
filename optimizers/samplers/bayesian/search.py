"""Bayesian search: propose what the model expects to improve most."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from optimizers.checks import explains_init, integer, real
from optimizers.core.base import History, Observation, Optimizer
from optimizers.samplers.model_based import untried
from optimizers.samplers.non_adaptive import Sobol
from optimizers.space import Config

if TYPE_CHECKING:
    from optimizers.samplers.bayesian.front import Front
    from optimizers.samplers.bayesian.surrogate import RunTimes, Surrogate

_PAIRS = 6  # fewest trials with results at two budgets to compare their orders
_AGREEMENT = 0.7  # rank correlation from which the shorter trainings are trusted


def short_trainings_agree(observations: Sequence[Observation]) -> bool:
    """Return whether trials have a similar order at the two lowest budgets that enough of them have results for.

    Budgets within a factor of two count as one. A failed trial ranks last.
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


Array = NDArray[np.float64]

_TRUSTED = 0.5  # rank correlation from which no proposal is random
_AWAY_SHARE = 0.5  # of the proposals that promise little, those one choice away from the best
_SHORT = 1.0  # seconds of a trial below which a proposal gets less effort
_LESS_EFFORT = 0.25
_LATEST = 20  # results from which the duration of trials is estimated
_PRIOR_WEIGHT = 10.0  # weight of the log prior, divided by the number of results


@explains_init
class BayesianSearch(Optimizer):
    """Model the loss with a Gaussian process and propose likely improvements.

    - Mixed and conditional spaces: numbers are compared by their place in the unit interval, choices by equality. Each
      parameter has a length scale.
    - Running configurations: their losses are drawn from the model several times (fantasies), and the acquisition is
      the mean over the draws. None of them is proposed again.
    - Several budgets (under ASHA): one model covers configuration and budget. It models scores, which are ranks from
      rung to rung, and proposes what it expects to be good at the full budget. With ``min_share``, it learns whether
      short trainings help the model.
    - Failed and diverged trials, and outliers: their losses are cut; see
      :meth:`~optimizers.samplers.bayesian.surrogate.Results.scores`.
    - Trust: if the model predicts left-out results badly, up to half of the proposals are random.
    - Choices: if the model expects hardly any improvement, half of the proposals differ from the best configuration in
      one choice, whatever the model says. Otherwise a value that was bad in one region would never be tried in another.
    - Cost: hyperparameters are fitted again, from the last ones, after each 15 % more results. The model has at most
      200 points: those that got furthest with the best losses, and the newest. Within an ask, running configurations
      extend the factorisation.
    - Short trials: if they take less than a second, fewer points are compared per proposal, because the model shares
      the cores with the trials.
    - Searches with only a time limit: if trials differ in duration, and a model predicts left-out durations, the
      expected improvement is per second.
    - Several objectives: a model of each, and the expected improvement of the hypervolume.

    Sources: Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions", 1998 (EI);
    Snoek, Larochelle and Adams, "Practical Bayesian Optimization of Machine Learning Algorithms", 2012, section 3.2
    (fantasies); Huang, Allen, Notz and Zeng, "Global Optimization of Stochastic Black-Box Systems via Sequential
    Kriging Meta-Models", 2006, equation 13 (augmented EI); Ament et al., 2023 (its logarithm); Klein et al., 2020
    (joint model over budgets); Hvarfner et al., "piBO", 2022, equation 6 (priors); Emmerich, Deutz and Klinkenberg,
    "Hypervolume-Based Expected Improvement", 2011 (several objectives).

    Args:
        n_initial: Number of results with a finite loss before the model is used. Until then, Sobol' points are
            proposed. Default 8.
        min_share: Share of the full budget, from 0 (the default) to 1, for schedules that stop the worst trials below
            it. Results below it are left out, except those of the worst third, which count as failed. They are included
            if the model then predicts the longer trainings better. They count for ``n_initial`` if trials have the same
            order at two short budgets.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, optimizer="bayesian", n_trials=30)
    """

    multi_objective = True

    def __init__(self, n_initial: int = 8, *, min_share: float = 0.0) -> None:
        self.n_initial = integer("n_initial", n_initial, least=1)
        self.min_share = real("min_share", min_share, "a number from 0 to 1", lambda share: 0.0 <= share <= 1.0)
        self._initial = Sobol()
        self._known: tuple[History, Surrogate | Front] | None = None
        self._times: RunTimes | None = None

    def load_libraries(self) -> None:
        from optimizers.samplers.bayesian import front  # noqa: F401  # scipy takes a second

    def is_blind(self, history: History) -> bool:
        if not history.problem.space.dimensions:
            return True
        least = int(self.min_share * history.problem.max_budget + 1e-9)
        finite = [seen for seen in history.observations if math.isfinite(seen.loss)]
        if any(history.problem.earlier) or sum(seen.step >= least for seen in finite) >= self.n_initial:
            return False
        return len(finite) < self.n_initial or not short_trainings_agree(history.observations)

    def ask(self, index: int, history: History) -> Config:
        space, rng = history.problem.space, history.rng(index)
        if not space.dimensions:
            return space.sample(rng)
        if self.is_blind(history):
            proposal = space.sample(rng) if space.has_prior else self._initial.ask(index, history)
            ended = {space.key(seen.config) for seen in history.observations}
        else:
            model = self._model(history)
            ended = {point.tobytes() for point in model.units}  # the keys of all would be computed at each ask
            if rng.random() < 0.5 * (1.0 - min(max(model.trust, 0.0) / _TRUSTED, 1.0)):
                proposal = space.sample(rng)
            else:
                proposal = self._improvement(model, history, rng)
        running = history.pending_keys()
        return untried(space, proposal, running, ended, rng)

    def _model(self, history: History) -> Surrogate | Front:
        from optimizers.samplers.bayesian.front import Front  # scipy takes a second, which only models should cost
        from optimizers.samplers.bayesian.surrogate import RunTimes, Surrogate

        if self._known is None or self._known[0] is not history:
            made = Surrogate if history.problem.n_objectives == 1 else Front
            self._known = (history, made(history, self.n_initial, self.min_share))
            self._times = RunTimes(history, self._known[1].axes) if history.problem.is_timed else None
        self._known[1].update()
        if self._times is not None:
            self._times.update()
        return self._known[1]

    def _improvement(self, model: Surrogate | Front, history: History, rng: np.random.Generator) -> Config:
        from optimizers.samplers.bayesian.acquisition import maximize, one_choice_away

        space = history.problem.space
        improvement, starts = model.improvement(rng)
        log_seconds = None if self._times is None else self._times.log_seconds()
        prior_weight = _PRIOR_WEIGHT / max(len(history.observations), 1) if space.has_prior else 0.0

        def score(units: Array) -> Array:
            scores = improvement(units)
            if prior_weight:
                scores = scores + prior_weight * space.log_prior(units)
            return scores if log_seconds is None else scores - log_seconds(units)

        taken = {point.tobytes() for point in model.units}
        taken |= history.pending_keys()
        points = maximize(score, model.axes, starts, rng, taken, _effort(history))
        if len(points) and improvement(points[:1])[0] < model.little and rng.random() < _AWAY_SHARE:
            points = np.concatenate([one_choice_away(score, model.axes, starts[0], taken), points])
        proposals = (space.from_unit(point) for point in points)
        return next((config for config in proposals if space.allows(config)), None) or space.sample(rng)


def _effort(history: History) -> float:
    """Return the share of the usual effort for a proposal: less if trials are short, 1 if their duration is unknown.

    There are only two shares, so that two searches with the same seed differ only if their trials take about a second.
    """
    seconds = [seen.seconds for seen in history.observations[-_LATEST:] if seen.seconds > 0.0]
    return _LESS_EFFORT if seconds and np.median(seconds) < _SHORT else 1.0
