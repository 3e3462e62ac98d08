"""Ask/tell search: spaces, optimizers, schedulers and the ledger of a study.

Importing this package loads numpy, but neither scipy nor Optuna nor scikit-optimize: an optimizer that needs
them imports them at its first ask.
"""

from __future__ import annotations

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
from optimizers.core.study import Study
from optimizers.core.trial import Trial, TrialState
from optimizers.errors import MaggyError, OptimizerError, SearchSpaceError, UserError
from optimizers.registry import make_optimizer, register
from optimizers.samplers.adapters import TPE, OptunaSampler
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.samplers.grid import Grid
from optimizers.samplers.random_search import RandomSearch
from optimizers.samplers.skopt_search import SkoptSearch
from optimizers.samplers.sobol import Sobol
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.population import PBT
from optimizers.schedulers.stopping import MedianRule, Patience, Threshold
from optimizers.space.config import Config
from optimizers.space.domains import Choice, Constant, Domain, Float, Integer, Ordinal
from optimizers.space.search_space import SearchSpace

__all__ = [
    "ASHA",
    "PBT",
    "TPE",
    "WAIT",
    "Answer",
    "BayesianSearch",
    "Choice",
    "Config",
    "Constant",
    "Decision",
    "Domain",
    "Float",
    "FullBudget",
    "Grant",
    "Grid",
    "History",
    "Integer",
    "MaggyError",
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
    "TrialState",
    "UserError",
    "make_optimizer",
    "register",
]
