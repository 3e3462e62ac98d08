"""What a result holds, as plain data: its summary, tables, pictures and exports read it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from maggy_like.protocol.endings import Ending
from maggy_like.results.pareto_set import ParetoSet
from maggy_like.storage.folders import name_of_folder
from optimizers.core.study_state import ValueRule
from optimizers.core.trial import Trial, TrialState
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    from maggy_like.results.training import Training


@dataclass(frozen=True, repr=False)
class ResultData:
    """The data of a :class:`~maggy_like.results.result.Result`, which documents the attributes."""

    trials: list[Trial]
    best_trial: Trial | None
    objective: str
    direction: str
    ending: Ending
    seconds: float
    directory: Path | str
    space: SearchSpace
    others: tuple[tuple[str, str], ...] = ()
    pareto: ParetoSet = field(default_factory=ParetoSet)
    store: str = ""
    training: Training | None = None
    is_longer: bool = False
    _worth: ValueRule = "best"

    @property
    def name(self) -> str:
        """The run's name."""
        return name_of_folder(self.directory)

    @property
    def best_config(self) -> Config | None:
        """The best trial's configuration."""
        return None if self.best_trial is None else self.best_trial.config

    @property
    def best_value(self) -> float | None:
        """What the best trial is worth: its best value of the objective (with ``value="last"`` its last one)."""
        return None if self.best_trial is None else self.best_trial.value

    @property
    def best_step(self) -> int | None:
        """The step at which the best value was measured; None where ``train_fn`` reported nothing and returned it."""
        return None if self.best_trial is None else self.best_trial.value_step

    @property
    def counts(self) -> dict[TrialState, int]:
        """How many trials ended in which state."""
        return dict(Counter(trial.state for trial in self.trials))

    @property
    def failures(self) -> list[Trial]:
        """The failed trials."""
        return [trial for trial in self.trials if trial.state is TrialState.FAILED]
