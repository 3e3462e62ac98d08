"""ASHA over the proposals of a Gaussian process, as we found it best: ``optimizer="asha"``."""

from __future__ import annotations

from optimizers.samplers.bayesian import BayesianSearch
from optimizers.schedulers.asha import ASHA, Mode
from optimizers.schedulers.rungs import rung_levels

GLANCE_ETA = 1.5
"""At the rungs below ``max_budget // eta`` one in this many goes on: two thirds."""


class ModelASHA(ASHA):
    """Halves at ``max_budget // eta``, after two glances below, over the proposals of a model.

    On the learning curves that we measured, rungs far below the full budget made every sampler worse: those who
    learn fast at first are not those who end well, and a model learns to propose them. Glances that end no more
    than the worst third save the time of what is hopeless, and the model is fitted to what lies above them. While
    there is too little of that, proposals are random. The class :class:`ASHA` is the plain algorithm. The docs page
    "Which optimizer?" has the figures.

    Args:
        eta: As in :class:`ASHA`: one in ``eta`` goes on at ``max_budget // eta``.
        min_budget: Steps of the lowest rung, or a little more; None for ``max_budget // eta**3``.
        mode: As in :class:`ASHA`.
        n_initial: Results at ``max_budget // eta`` and above before the model is used.

    Example:
        >>> lagom(train_fn, space, optimizer="asha", max_budget=27)
    """

    def __init__(
        self, eta: int = 3, min_budget: int | None = None, mode: Mode = "promotion", n_initial: int = 8
    ) -> None:
        super().__init__(eta=eta, min_budget=1 if min_budget is None else min_budget, mode=mode)
        self.min_budget = self.min_budget if min_budget is not None else None
        self.n_initial = n_initial
        self.sampler = BayesianSearch(n_initial, min_share=1.0 / self.eta)
        self.adaptive = True

    def levels(self, max_budget: int) -> tuple[int, ...]:
        lowest = max(1, max_budget // self.eta**3) if self.min_budget is None else self.min_budget
        return rung_levels(max_budget, lowest, self.eta)

    def etas(self, levels: tuple[int, ...]) -> tuple[float, ...]:
        return (GLANCE_ETA,) * (len(levels) - 2) + (float(self.eta),) * min(2, len(levels))
