"""What a search found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from maggy_like.display.text import config_text, duration, number
from optimizers.trial import Config, Trial, TrialState

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Result:
    """The outcome of one :func:`~maggy_like.lagom` call.

    Attributes:
        trials: All trials, by number; failed ones with their traceback in ``failure``.
        best_trial: The trial whose newest value is the best, or None when none has a value.
        objective: Name of the optimised metric.
        direction: ``max`` or ``min``.
        ending: ``completed``, ``timeout``, ``interrupted`` or ``stopped``.
        seconds: Wall time.
        directory: Where the run's journal, logs and checkpoints are.

    Example:
        >>> result = lagom(train_fn, space)
        >>> result.best_config, result.best_value
    """

    trials: list[Trial]
    best_trial: Trial | None
    objective: str
    direction: str
    ending: str
    seconds: float
    directory: Path

    @property
    def best_config(self) -> Config | None:
        """The best trial's configuration."""
        return None if self.best_trial is None else self.best_trial.config

    @property
    def best_value(self) -> float | None:
        """The best trial's newest value of the objective."""
        return None if self.best_trial is None else self.best_trial.value

    @property
    def counts(self) -> dict[TrialState, int]:
        """How many trials ended in which state."""
        return dict(Counter(trial.state for trial in self.trials))

    @property
    def failures(self) -> list[Trial]:
        """The failed trials."""
        return [trial for trial in self.trials if trial.state is TrialState.FAILED]

    def log(self, trial: int) -> str:
        """All that a trial printed, as far as its log file lies on this machine."""
        path = self.directory / "logs" / f"{trial:05d}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def to_pandas(self) -> pandas.DataFrame:
        """A row a trial: number, state, value, step, attempts, seconds, failure, and the parameters."""
        import pandas

        rows = [
            {
                "trial": trial.id,
                "state": trial.state.value,
                "value": trial.value,
                "step": trial.step,
                "attempts": trial.attempt,
                "seconds": trial.seconds,
                "failure": trial.failure.message if trial.failure is not None else None,
                **trial.config,
            }
            for trial in self.trials
        ]
        return pandas.DataFrame(rows)

    def curves(self) -> pandas.DataFrame:
        """A row a measurement: trial, step, metric, value."""
        import pandas

        rows = [
            (trial.id, step, name, value)
            for trial in self.trials
            for name, curve in trial.curves.items()
            for step, value in zip(curve.steps, curve.values, strict=True)
        ]
        return pandas.DataFrame(rows, columns=["trial", "step", "metric", "value"])

    def __repr__(self) -> str:
        counted = ", ".join(f"{count} {state.value}" for state, count in self.counts.items())
        lines = [f"{self.ending} after {duration(self.seconds)}: {len(self.trials)} trials ({counted})"]
        if self.best_trial is not None:
            best = f"best {self.objective} {number(self.best_value)} (trial {self.best_trial.id})"
            lines.append(f"{best}: {config_text(self.best_trial.config)}")
        else:
            lines.append("no trial has a value")
        if failures := self.failures:
            first = failures[0]
            cause = first.failure.message if first.failure is not None else ""
            lines.append(f"{len(failures)} failed, the first (trial {first.id}) with: {cause}")
        lines.append(f"files: {self.directory}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The summary and the five best trials, for notebooks."""
        import html

        table = self.to_pandas()
        if len(table):
            table = table.sort_values("value", ascending=self.direction == "min").head(5)
        return f"<pre>{html.escape(str(self))}</pre>{table.to_html(index=False)}"
