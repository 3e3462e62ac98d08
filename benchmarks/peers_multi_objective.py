"""Searches for several objectives, ours and other libraries', each driven through its own ask and tell.

Optuna comes with ``pip install maggy_like[bench]``; BoTorch (``pip install botorch``) takes part where it is found.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from benchmarks.fronts import Problem
from benchmarks.peers import BotorchSearch, OptunaSearch
from optimizers import Config, Optimizer, Study, Trial

_BROKEN = "excess"


class Peer(Protocol):
    """A search of several objectives, all of them losses."""

    def ask(self, trial: int) -> Config:
        """The configuration of the ``trial``-th training, which starts now."""
        ...

    def tell(self, trial: int, losses: tuple[float, ...]) -> None:
        """The losses of a training that has ended."""
        ...


class OurSearch:
    """One of our own optimizers, through :class:`~optimizers.Study`."""

    def __init__(self, problem: Problem, optimizer: Optimizer, seed: int) -> None:
        names = [f"loss_{number}" for number in range(problem.n_objectives)]
        self._study = Study(problem.space, optimizer, objectives=names, direction=["min"] * len(names), seed=seed)
        self._running: dict[int, Trial] = {}

    def ask(self, trial: int) -> Config:
        started = self._study.ask()
        assert started is not None
        self._running[trial] = started
        return started.config

    def tell(self, trial: int, losses: tuple[float, ...]) -> None:
        self._study.tell(self._running.pop(trial), list(losses))


class OptunaMany(OptunaSearch):
    """A sampler of Optuna for several objectives; of a constraint it learns by how much a trial broke it."""

    def __init__(self, problem: Problem, sampler: Any) -> None:
        import optuna

        super().__init__(problem.space, sampler)
        self._study = optuna.create_study(sampler=sampler, directions=["minimize"] * problem.n_objectives)
        self._excess = problem.excess

    def ask(self, trial: int) -> Config:
        config = super().ask(trial)
        if self._excess is not None:
            self._running[trial].set_user_attr(_BROKEN, self._excess(config))
        return config

    def tell(self, trial: int, losses: tuple[float, ...]) -> None:
        """Its losses count nothing where a constraint is broken, but it is told them, as its documentation says."""
        self._study.tell(self._running.pop(trial), list(losses))


def optuna_sampler(name: str, problem: Problem, seed: int) -> OptunaMany:
    """``nsga2``, ``nsga2_20`` (a population of 20 instead of 50), ``tpe`` or ``gp`` of Optuna."""
    import torch
    from optuna.samplers import GPSampler, NSGAIISampler, TPESampler

    torch.set_num_threads(1)
    options: Any = {"seed": seed}
    if problem.excess is not None:
        options["constraints_func"] = lambda trial: trial.user_attrs[_BROKEN]
    if name == "gp":
        return OptunaMany(problem, GPSampler(**options))
    if name == "tpe":
        return OptunaMany(problem, TPESampler(multivariate=True, constant_liar=True, **options))
    return OptunaMany(problem, NSGAIISampler(population_size=20 if name == "nsga2_20" else 50, **options))


class BotorchMany(BotorchSearch):
    """BoTorch as its tutorial puts it together: a model for each objective, and noisy hypervolume improvement.

    The constraints of a problem are not known to it: it draws its first points from the space, and what it proposes
    besides may break them. The reference point is inferred from the front, as BoTorch advises where none is known.
    """

    def __init__(self, problem: Problem, seed: int) -> None:
        super().__init__(problem.space, seed)
        self._many: list[tuple[float, ...]] = []

    def tell(self, trial: int, losses: tuple[float, ...]) -> None:
        self._points.append(self._running.pop(trial))
        self._losses.append(losses[0])
        self._many.append(losses)

    def _best(self) -> list[float]:
        import torch
        from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import MixedSingleTaskGP, ModelListGP, SingleTaskGP
        from botorch.optim.optimize_mixed import optimize_acqf_mixed_alternating
        from botorch.sampling import SobolQMCNormalSampler
        from botorch.utils.multi_objective.hypervolume import infer_reference_point
        from botorch.utils.multi_objective.pareto import is_non_dominated
        from gpytorch.mlls import SumMarginalLogLikelihood

        points = torch.tensor(self._points, dtype=torch.float64)
        values = -torch.tensor(np.array(self._many), dtype=torch.float64)
        models = [
            MixedSingleTaskGP(points, column[:, None], cat_dims=list(self._categories))
            if self._categories
            else SingleTaskGP(points, column[:, None])
            for column in values.T
        ]
        model = ModelListGP(*models)
        fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
        reference = infer_reference_point(values[is_non_dominated(values)])
        pending = torch.tensor(list(self._running.values()), dtype=torch.float64) if self._running else None
        acquisition = qLogNoisyExpectedHypervolumeImprovement(
            model,
            reference,
            points,
            X_pending=pending,
            prune_baseline=True,
            sampler=SobolQMCNormalSampler(torch.Size([64])),
        )
        listed = self._categories | self._lists
        ends = [listed.get(index, [0.0, 1.0]) for index in range(points.shape[1])]
        bounds = torch.tensor([[min(values) for values in ends], [max(values) for values in ends]], dtype=torch.float64)
        found, _ = optimize_acqf_mixed_alternating(
            acquisition, bounds, discrete_dims=self._lists, cat_dims=self._categories, num_restarts=4, raw_samples=128
        )
        best: list[float] = found[0].tolist()
        return best
