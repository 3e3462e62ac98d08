"""Ask-and-tell search: search spaces, optimizers, schedulers and the study.

Names are loaded at their first use, and numpy with them, but not scipy, Optuna or scikit-optimize. An optimizer that
needs one of those imports it at its first ask.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optimizers.core.base import (
        WAIT,
        Answer,
        Decision,
        FullBudget,
        Grant,
        History,
        Observation,
        Optimizer,
        Pending,
        Problem,
        Proposal,
        Scheduler,
    )
    from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event, Measured, TrialCreated
    from optimizers.core.study import Study
    from optimizers.core.trial import Trial, TrialState
    from optimizers.errors import MaggyError, OptimizerError, SearchSpaceError, UserError
    from optimizers.registry import make_optimizer, register
    from optimizers.samplers.bayesian import BayesianSearch
    from optimizers.samplers.non_adaptive import Grid, RandomSearch, Sobol
    from optimizers.samplers.optuna_sampler import TPE, OptunaSampler
    from optimizers.samplers.skopt_search import SkoptSearch
    from optimizers.schedulers.asha import ASHA, BOHB, MOBSTER, Hyperband
    from optimizers.schedulers.population import PBT
    from optimizers.schedulers.stopping import MedianRule, Patience, Threshold
    from optimizers.space import Config
    from optimizers.space.domains import Choice, Constant, Domain, Float, Integer, Ordinal
    from optimizers.space.search_space import SearchSpace

_HOMES = {
    "ASHA": "optimizers.schedulers.asha",
    "Answer": "optimizers.core.base",
    "AttemptEnded": "optimizers.core.events",
    "AttemptStarted": "optimizers.core.events",
    "BOHB": "optimizers.schedulers.asha",
    "BayesianSearch": "optimizers.samplers.bayesian",
    "CheckpointSaved": "optimizers.core.events",
    "Choice": "optimizers.space.domains",
    "Config": "optimizers.space",
    "Constant": "optimizers.space.domains",
    "Decision": "optimizers.core.base",
    "Domain": "optimizers.space.domains",
    "Event": "optimizers.core.events",
    "Float": "optimizers.space.domains",
    "FullBudget": "optimizers.core.base",
    "Grant": "optimizers.core.base",
    "Grid": "optimizers.samplers.non_adaptive",
    "History": "optimizers.core.base",
    "Hyperband": "optimizers.schedulers.asha",
    "Integer": "optimizers.space.domains",
    "MOBSTER": "optimizers.schedulers.asha",
    "MaggyError": "optimizers.errors",
    "Measured": "optimizers.core.events",
    "MedianRule": "optimizers.schedulers.stopping",
    "Observation": "optimizers.core.base",
    "Optimizer": "optimizers.core.base",
    "OptimizerError": "optimizers.errors",
    "OptunaSampler": "optimizers.samplers.optuna_sampler",
    "Ordinal": "optimizers.space.domains",
    "PBT": "optimizers.schedulers.population",
    "Patience": "optimizers.schedulers.stopping",
    "Pending": "optimizers.core.base",
    "Problem": "optimizers.core.base",
    "Proposal": "optimizers.core.base",
    "RandomSearch": "optimizers.samplers.non_adaptive",
    "Scheduler": "optimizers.core.base",
    "SearchSpace": "optimizers.space.search_space",
    "SearchSpaceError": "optimizers.errors",
    "SkoptSearch": "optimizers.samplers.skopt_search",
    "Sobol": "optimizers.samplers.non_adaptive",
    "Study": "optimizers.core.study",
    "TPE": "optimizers.samplers.optuna_sampler",
    "Threshold": "optimizers.schedulers.stopping",
    "Trial": "optimizers.core.trial",
    "TrialCreated": "optimizers.core.events",
    "TrialState": "optimizers.core.trial",
    "UserError": "optimizers.errors",
    "WAIT": "optimizers.core.base",
    "make_optimizer": "optimizers.registry",
    "register": "optimizers.registry",
}

__all__ = [
    "ASHA",
    "BOHB",
    "MOBSTER",
    "PBT",
    "TPE",
    "WAIT",
    "Answer",
    "AttemptEnded",
    "AttemptStarted",
    "BayesianSearch",
    "CheckpointSaved",
    "Choice",
    "Config",
    "Constant",
    "Decision",
    "Domain",
    "Event",
    "Float",
    "FullBudget",
    "Grant",
    "Grid",
    "History",
    "Hyperband",
    "Integer",
    "MaggyError",
    "Measured",
    "MedianRule",
    "Observation",
    "Optimizer",
    "OptimizerError",
    "OptunaSampler",
    "Ordinal",
    "Patience",
    "Pending",
    "Problem",
    "Proposal",
    "RandomSearch",
    "Scheduler",
    "SearchSpace",
    "SearchSpaceError",
    "SkoptSearch",
    "Sobol",
    "Study",
    "Threshold",
    "Trial",
    "TrialCreated",
    "TrialState",
    "UserError",
    "make_optimizer",
    "register",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'optimizers' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
