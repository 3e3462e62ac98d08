"""Other libraries behind one interface: their samplers, and their methods that stop trials early."""

from __future__ import annotations

import contextlib
import datetime
import io
import logging
from typing import Any, cast

import numpy as np

from optimizers import Choice, Config, Domain, Float, Integer, Ordinal, SearchSpace


def optuna_tpe(space: SearchSpace, seed: int) -> OptunaSearch:
    """Optuna's tree-structured Parzen estimator, with the options that it advises for workers in parallel."""
    from optuna.samplers import TPESampler

    return OptunaSearch(space, TPESampler(seed=seed, multivariate=True, constant_liar=True))


def optuna_gp(space: SearchSpace, seed: int) -> OptunaSearch:
    """Optuna's Gaussian process with its defaults."""
    import torch
    from optuna.samplers import GPSampler

    torch.set_num_threads(1)
    return OptunaSearch(space, GPSampler(seed=seed))


class OptunaSearch:
    """Any sampler of Optuna, and a pruner that may end a training early."""

    def __init__(self, space: SearchSpace, sampler: Any, pruner: Any = None) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._study = optuna.create_study(sampler=sampler, pruner=pruner or optuna.pruners.NopPruner())
        self._running: dict[int, Any] = {}
        self._distributions = {name: _distribution(domain) for name, domain in space.domains.items()}

    def ask(self, trial: int) -> Config:
        asked = self._running[trial] = self._study.ask(self._distributions)
        return {name: _listed(domain, asked.params[name]) for name, domain in self._space.domains.items()}

    def report(self, trial: int, step: int, loss: float, *, last: bool) -> bool:
        from optuna.trial import TrialState

        if last:
            self._study.tell(self._running.pop(trial), loss)
            return False
        self._running[trial].report(loss, step)
        if not self._running[trial].should_prune():
            return True
        self._study.tell(self._running.pop(trial), state=TrialState.PRUNED)
        return False

    def add(self, config: Config, loss: float) -> None:
        """Take in a result from elsewhere."""
        from optuna.trial import create_trial

        params = {
            name: domain.values.index(config[name]) if isinstance(domain, Ordinal) else config[name]
            for name, domain in self._space.domains.items()
        }
        self._study.add_trial(create_trial(params=params, distributions=self._distributions, value=loss))


def _distribution(domain: Domain) -> Any:
    from optuna import distributions

    match domain:
        case Choice(values=values):
            return distributions.CategoricalDistribution(cast(Any, tuple(values)))
        case Ordinal(values=values):
            return distributions.IntDistribution(0, len(values) - 1)
        case Integer(low=low, high=high, log=log):
            return distributions.IntDistribution(low, high, log=log)
        case Float(low=low, high=high, log=log):
            return distributions.FloatDistribution(low, high, log=log)
    raise TypeError(f"no form of {domain!r} for Optuna")


def _listed(domain: Domain, value: Any) -> Any:
    """The value that an index into an ordered list stands for."""
    return domain.values[int(value)] if isinstance(domain, Ordinal) else domain.normalize(value)


class SkoptSearch:
    """scikit-optimize's Gaussian process with its defaults; for what runs it is told its usual lie, the best so far.

    An optimizer of scikit-optimize cannot take back what it was told, so each ask begins a new one from all
    results and the lies; the gains of its portfolio of acquisition functions go on from one to the next, as in its
    own ``Optimizer.copy``.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space = space
        self._dimensions = [_skopt_dimension(domain) for domain in space.domains.values()]
        self._rng = np.random.RandomState(seed)
        self._gains: Any = None
        self._running: dict[int, list[Any]] = {}
        self._points: list[list[Any]] = []
        self._losses: list[float] = []

    def ask(self, trial: int) -> Config:
        import skopt

        fresh = skopt.Optimizer(self._dimensions, base_estimator="GP", random_state=self._rng.randint(2**31 - 1))
        if self._gains is not None:
            fresh.gains_ = self._gains
        if self._losses:
            lies = [min(self._losses)] * len(self._running)
            fresh.tell([*self._points, *self._running.values()], [*self._losses, *lies])
            self._gains = getattr(fresh, "gains_", None)
        point = self._running[trial] = fresh.ask()
        domains = self._space.domains.items()
        return {name: _listed(domain, value) for (name, domain), value in zip(domains, point, strict=True)}

    def report(self, trial: int, step: int, loss: float, *, last: bool) -> bool:
        self._points.append(self._running.pop(trial))
        self._losses.append(loss)
        return False


def _skopt_dimension(domain: Domain) -> Any:
    from skopt import space

    match domain:
        case Choice(values=values):
            return space.Categorical(values)
        case Ordinal(values=values):
            return space.Integer(0, len(values) - 1)
        case Integer(low=low, high=high, log=log):
            return space.Integer(low, high, prior="log-uniform" if log else "uniform")
        case Float(low=low, high=high, log=log):
            return space.Real(low, high, prior="log-uniform" if log else "uniform")
    raise TypeError(f"no form of {domain!r} for scikit-optimize")


class AxSearch:
    """Ax through its client, with its defaults; an ordered list is a range of integers."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        import logging

        import torch
        from ax.api.client import Client
        from ax.utils.common.logger import set_ax_logger_levels

        torch.set_num_threads(1)
        set_ax_logger_levels(logging.ERROR)
        self._space = space
        self._client = Client(random_seed=seed)
        self._client.configure_experiment([_ax_parameter(name, domain) for name, domain in space.domains.items()])
        self._client.configure_optimization("-loss")
        self._running: dict[int, int] = {}

    def ask(self, trial: int) -> Config:
        [(self._running[trial], asked)] = self._client.get_next_trials(max_trials=1).items()
        return {name: _listed(domain, asked[name]) for name, domain in self._space.domains.items()}

    def report(self, trial: int, step: int, loss: float, *, last: bool) -> bool:
        self._client.complete_trial(self._running.pop(trial), raw_data={"loss": loss})
        return False


def _ax_parameter(name: str, domain: Domain) -> Any:
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

    match domain:
        case Choice(values=values):
            return ChoiceParameterConfig(name=name, values=list(values), parameter_type="str", is_ordered=False)
        case Ordinal(values=values):
            return RangeParameterConfig(name=name, bounds=(0, len(values) - 1), parameter_type="int")
        case Integer(low=low, high=high, log=log) | Float(low=low, high=high, log=log):
            kind = "int" if isinstance(domain, Integer) else "float"
            scaling = "log" if log else "linear"
            return RangeParameterConfig(name=name, bounds=(low, high), parameter_type=kind, scaling=scaling)
    raise TypeError(f"no form of {domain!r} for Ax")


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
        searcher: ``random_search`` or ``kde`` (BOHB's).
    """

    def __init__(self, searcher: str, space: SearchSpace, seed: int, max_budget: int) -> None:
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
            searcher=LastValueMultiFidelitySearcher(domains, random_seed=seed, searcher=searcher),
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
