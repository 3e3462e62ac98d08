"""A Pareto set as a list of trials that prints one line for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maggy_like.display.text import clean, config_text, number
from optimizers.core.trial import Trial


class ParetoSet(list[Trial]):
    """The trials that no other dominates; printed, each is a line with its values and its configuration.

    Args:
        trials: They.
        objectives: Names of the objectives, in the order of the trials' values.

    Example:
        >>> print(result.pareto)
        trial 3: accuracy 0.91, latency 12 (units=64)
        trial 7: accuracy 0.93, latency 30 (units=128)
    """

    def __init__(self, trials: Iterable[Trial] = (), objectives: Sequence[str] = ()) -> None:
        super().__init__(trials)
        self._objectives = tuple(objectives)

    def __repr__(self) -> str:
        return "\n".join(map(self._line, self)) or "[]"

    def _line(self, trial: Trial) -> str:
        values = ", ".join(
            f"{clean(name)} {number(value)}" for name, value in zip(self._objectives, trial.values, strict=False)
        )
        return f"trial {trial.id}: {values} ({config_text(trial.config)})"
