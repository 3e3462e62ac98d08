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


Array = NDArray[np.float64]

_TRUSTED = 0.5  # rank correlation from which on no proposal is random
_AWAY_SHARE = 0.5  # of the proposals that promise as little, one choice away from the best
_WORTH_ALL = 1.0  # seconds of a trial from which on a proposal is worth all its time
_LEAST_EFFORT = 0.25
_LATEST = 20  # results that tell how long trials take
_PRIOR_WEIGHT = 10.0  # weight of the log prior, divided by the number of results


@explains_init
class BayesianSearch(Optimizer):
    """Models the loss with a Gaussian process and proposes where an improvement is likely.

    - Mixed and conditional spaces: numbers at their place in the unit interval, choices by whether they
      are equal, one length scale each.
    - Configurations that still run: their losses are drawn from the model several times (fantasies), and
      the acquisition is the mean over the draws. None of them is proposed again.
    - Several budgets (under ASHA): one model over configuration and budget, of scores that are ranks from
      rung to rung; it proposes what it expects to be good at the full budget. With ``min_share``, whether short
      trainings are modelled is learned.
    - Losses of diverged and failed trials, and outliers: cut, see
      :meth:`~optimizers.samplers.bayesian.surrogate.Results.scores`.
    - A model that predicts left-out results badly is trusted less: up to half of the proposals are
      random then.
    - Choices: where the model expects hardly any improvement, half of the proposals differ from the best in one
      choice, whatever the model says. It takes a value that was bad elsewhere for bad everywhere, and
      would never look.
    - Cost: hyperparameters are fitted anew, from the last ones on, when there are 15 % more results; the
      model has 200 points at most, those that got furthest with the best losses and the newest. Within an
      ask, running configurations extend the factorisation.
    - Short trials: where they take less than a second, fewer points are looked at for a proposal, since the model
      shares the cores with the trials.
    - A search that time alone bounds: where trials differ in how long they take, and a model of it predicts left-out
      times, the expected improvement counts by the second.
    - Several objectives: a model of each, and the expected improvement of the hypervolume.

    Sources: Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions", 1998 (EI);
    Snoek, Larochelle and Adams, "Practical Bayesian Optimization of Machine Learning Algorithms", 2012, section 3.2
    (fantasies); Huang, Allen, Notz and Zeng, "Global Optimization of Stochastic Black-Box Systems via Sequential
    Kriging Meta-Models", 2006, equation 13 (augmented EI); Ament et al., 2023 (its logarithm); Klein et al., 2020
    (joint model over budgets); Hvarfner et al., "piBO", 2022, equation 6 (priors); Emmerich, Deutz and Klinkenberg,
    "Hypervolume-Based Expected Improvement", 2011 (several objectives).

    Args:
        n_initial: Results with a finite loss before the model is used; until then, Sobol' points.
        min_share: For schedules that end the worst trials below this share of the full budget. Results after less of
            it are left out, but for those of the worst third, which count as failed; unless the model with all of
            them predicts the longer ones better. They also count as results for ``n_initial`` where trials come in the
            same order at two short budgets.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> lagom(train_fn, space, optimizer="bayesian", n_trials=100)
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
            ended = {point.tobytes() for point in model.units}  # not the keys of all, made anew at each ask
            if rng.random() < 0.5 * (1.0 - min(max(model.trust, 0.0) / _TRUSTED, 1.0)):
                proposal = space.sample(rng)
            else:
                proposal = self._improvement(model, history, rng)
        running = {space.key(config) for config in history.pending.values()}
        return untried(space, proposal, running, ended, rng)

    def _model(self, history: History) -> Surrogate | Front:
        from optimizers.samplers.bayesian.front import Front  # scipy takes a second that only models should cost
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
        taken.update(space.to_unit(config).tobytes() for config in history.pending.values())
        points = maximize(score, model.axes, starts, rng, taken, _effort(history))
        if len(points) and improvement(points[:1])[0] < model.little and rng.random() < _AWAY_SHARE:
            points = np.concatenate([one_choice_away(score, model.axes, starts[0], taken), points])
        proposals = (space.from_unit(point) for point in points)
        return next((config for config in proposals if space.allows(config)), None) or space.sample(rng)


def _effort(history: History) -> float:
    """The share of the usual work that a proposal is worth, by how long trials take; all of it if that is not known."""
    seconds = [seen.seconds for seen in history.observations[-_LATEST:] if seen.seconds > 0.0]
    typical = float(np.median(seconds)) if seconds else _WORTH_ALL
    return min(max(typical / _WORTH_ALL, _LEAST_EFFORT), 1.0)
