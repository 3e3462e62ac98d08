"""Other libraries' searches that stop trainings early, each driven through its own ask and report.

Optuna is in the extra ``[bench]``. Syne Tune is not, because it brings xgboost and with it half a gigabyte of CUDA
libraries: ``pip install "syne-tune huggingface_hub"``. Its newest versions have no MOBSTER any more.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import logging
from typing import Any

import numpy as np

from benchmarks.peers import OptunaSearch
from optimizers import Choice, Config, Domain, Float, Integer, Ordinal, SearchSpace

ETA = 3


def optuna_sh_tpe(space: SearchSpace, seed: int) -> OptunaSearch:
    """Optuna's successive halving (it stops, and cannot go on later) with its tree-structured Parzen estimator."""
    from optuna.pruners import SuccessiveHalvingPruner
    from optuna.samplers import TPESampler

    sampler = TPESampler(seed=seed, multivariate=True, constant_liar=True)
    return OptunaSearch(space, sampler, SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA))


class SyneSearch:
    """Syne Tune's asynchronous successive halving (it stops, and cannot go on later), with one of its searchers.

    Args:
        searcher: ``random_search``, ``kde`` (BOHB's) or ``cqr`` (conformal quantile regression).
        update_frequency: New trials until the model is fitted anew. Its own default is 1, at which a search with
            ``cqr`` takes ten minutes of one core.
    """

    def __init__(
        self, searcher: str, space: SearchSpace, seed: int, max_budget: int, *, update_frequency: int = 1
    ) -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it misses
            from syne_tune.backend.trial_status import Trial
            from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving
            from syne_tune.optimizer.schedulers.searchers.last_value_multi_fidelity_searcher import (
                LastValueMultiFidelitySearcher,
            )
        logging.getLogger("syne_tune").setLevel(logging.ERROR)
        np.random.seed(seed)  # its random searcher draws from numpy's own state
        self._space = space
        self._trial = Trial
        self._running: dict[int, Any] = {}
        domains = {name: _syne_domain(domain) for name, domain in space.domains.items()}
        self._scheduler = AsynchronousSuccessiveHalving(
            domains,
            metric="loss",
            time_attr="step",
            max_t=max_budget,
            random_seed=seed,
            reduction_factor=ETA,
            searcher=LastValueMultiFidelitySearcher(
                domains, random_seed=seed, searcher=searcher, update_frequency=update_frequency
            ),
        )

    def ask(self, trial: int) -> Config:
        config = self._scheduler.suggest().config
        started = self._running[trial] = self._trial(trial, config, datetime.datetime.min)
        self._scheduler.on_trial_add(started)
        return {name: domain.normalize(_within(domain, config[name])) for name, domain in self._space.domains.items()}

    def report(self, trial: int, step: int, loss: float, *, last: bool) -> bool:
        decision = self._scheduler.on_trial_result(self._running[trial], {"loss": loss, "step": step})
        if decision == "CONTINUE":
            return True
        del self._running[trial]
        return False


def _within(domain: Domain, value: Any) -> Any:
    """The value, where a float lies a rounding outside its bounds, or the KDE's integer on a log scale far outside."""
    return min(max(value, domain.low), domain.high) if isinstance(domain, Float | Integer) else value


def _syne_domain(domain: Domain) -> Any:
    from syne_tune import config_space

    match domain:
        case Choice(values=values):
            return config_space.choice(list(values))
        case Ordinal(values=values):
            return config_space.ordinal(list(values))
        case Integer(low=low, high=high, log=log):
            return config_space.lograndint(low, high) if log else config_space.randint(low, high)
        case Float(low=low, high=high, log=log):
            return config_space.loguniform(low, high) if log else config_space.uniform(low, high)
    raise TypeError(f"no form of {domain!r} for Syne Tune")
