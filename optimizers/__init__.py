"""Ask/tell search: spaces, optimizers, schedulers and the ledger of a study.

Importing this package loads numpy, but neither scipy nor Optuna nor scikit-optimize: an optimizer that needs
them imports them at its first ask.
"""

from __future__ import annotations

from optimizers.adapters import TPE, OptunaSampler
from optimizers.asha import ASHA
from optimizers.base import (
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
from optimizers.bayesian import BayesianSearch
from optimizers.domains import Choice, Constant, Domain, Float, Integer, Ordinal
from optimizers.errors import MaggyError, OptimizerError, SearchSpaceError, UserError
from optimizers.grid import Grid
from optimizers.population import PBT
from optimizers.quasi_random import Sobol
from optimizers.random_search import RandomSearch
from optimizers.registry import make_optimizer, register
from optimizers.skopt_search import SkoptSearch
from optimizers.space import SearchSpace
from optimizers.stopping import MedianRule, Patience, Threshold
from optimizers.study import Study
from optimizers.trial import Config, Trial, TrialState

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
