"""Successive halving by other names that people know: ASHA with a sampler, a lowest rung and brackets.

The docs page "Which optimizer?" has the figures that the defaults come from.
"""

from __future__ import annotations

from optimizers.samplers.adapters import TPE
from optimizers.samplers.bayesian import BayesianSearch
from optimizers.samplers.highest_rung import HighestRung
from optimizers.samplers.random_search import RandomSearch
from optimizers.schedulers.asha import ASHA, Mode


class MOBSTER(ASHA):
    """ASHA with rungs from one step on, over a joint Gaussian process of configuration and budget.

    Source: Klein, Tiao, Lienart, Archambeau and Seeger, "Model-based Asynchronous Hyperparameter and Neural
    Architecture Search", 2020. The scores that are modelled are ours, see :mod:`optimizers.samplers.bayesian.scores`.

    Args:
        eta: As in :class:`ASHA`.
        min_budget: Steps of the lowest rung, or a little more.
        mode: As in :class:`ASHA`.
        n_initial: Results before the model is used; until then, Sobol' points.

    Example:
        >>> lagom(train_fn, space, optimizer="mobster", max_budget=27)
    """

    def __init__(self, *, eta: int = 3, min_budget: int = 1, mode: Mode | None = None, n_initial: int = 8) -> None:
        sampler = BayesianSearch(n_initial)
        super().__init__(eta=eta, min_budget=min_budget, mode=mode, sampler=sampler)
        self.n_initial = sampler.n_initial


class Hyperband(ASHA):
    """All brackets of Hyperband, run asynchronously, over random configurations.

    See :mod:`optimizers.schedulers.brackets` for the sources.

    Args:
        eta: As in :class:`ASHA`.
        min_budget: Steps of the lowest rung, or a little more.
        mode: As in :class:`ASHA`.

    Example:
        >>> lagom(train_fn, space, optimizer="hyperband", max_budget=27)
    """

    def __init__(self, *, eta: int = 3, min_budget: int = 1, mode: Mode | None = None) -> None:
        super().__init__(eta=eta, min_budget=min_budget, mode=mode, brackets=None, sampler=RandomSearch())


class BOHB(ASHA):
    """All brackets of Hyperband over the proposals of a density model of the highest rung that has enough results.

    Source: Falkner, Klein and Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018.
    The density model is Optuna's (``pip install 'maggy_like[optuna]'``).

    Args:
        eta: As in :class:`ASHA`.
        min_budget: Steps of the lowest rung, or a little more.
        mode: As in :class:`ASHA`.

    Example:
        >>> lagom(train_fn, space, optimizer="bohb", max_budget=27)
    """

    def __init__(self, *, eta: int = 3, min_budget: int = 1, mode: Mode | None = None) -> None:
        sampler = HighestRung(TPE(n_startup_trials=1))
        super().__init__(eta=eta, min_budget=min_budget, mode=mode, brackets=None, sampler=sampler)
