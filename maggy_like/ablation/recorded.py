"""The comparisons of an ablation in a journal, so that its answer can be read from the files of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from maggy_like.ablation.design import Design, DesignName, Effect
from maggy_like.ablation.outcome import Ablation

if TYPE_CHECKING:
    from maggy_like.results.result import Result


class AblationRecord(msgspec.Struct, frozen=True):
    """How the trials of an ablation are compared.

    Attributes:
        name: Name of the design, such as ``leave_one_out``.
        effects: Comparisons.
        parameters: Number of parameters of each variant's model; empty without a model.
        first_seed: First seed.
        bound: Maximum number of adaptive repeats; None if the number of repeats is fixed.
        seeds: Number of seeds; trials of later seeds belong to a tuning.
        n_configs: Number of configurations that each variant tries in each repeat; 0 if nothing is tuned.
        planned: Number of seeds that was fixed beforehand; None for adaptive repeats.
        resampled: Ratio of test rows to training rows if each seed splits the same rows again; otherwise 0.
        negligible: Difference that is too small to matter, in units of the metric; None if none was given.
    """

    name: DesignName
    effects: tuple[Effect, ...]
    parameters: dict[str, int]
    first_seed: int
    bound: int | None
    seeds: int | None
    n_configs: int
    planned: int | None
    resampled: float
    negligible: float | None

    def answer(self, result: Result, design: Design | None = None) -> Ablation:
        """Return the answer from the trials of a run.

        Args:
            result: Result of the run.
            design: Design with the variants. Default: one without them, which tables and plots do not need.
        """
        return Ablation.of_trials(
            design or Design(self.name, (), self.effects, self.parameters, ()),
            result.trials,
            metric=result.objective,
            direction="min" if result.direction == "min" else "max",
            bound=self.bound,
            first_seed=self.first_seed,
            seeds=self.seeds,
            n_configs=self.n_configs,
            planned=self.planned,
            resampled=self.resampled,
            negligible=self.negligible,
            result=result,
        )


def recorded_answer(result: Result, comparisons: Mapping[str, Any]) -> Ablation:
    """Return the answer of a run from its trials, and from the comparisons in the header of its journal."""
    return msgspec.convert(comparisons, AblationRecord).answer(result)
