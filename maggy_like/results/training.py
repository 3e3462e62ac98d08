"""The result of a training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maggy_like.display.text import duration, number
from maggy_like.errors import TrainingError
from maggy_like.protocol.values import encodable
from maggy_like.results.saved import read_saved
from maggy_like.storage.folders import name_of_folder
from optimizers.core.trial import Trial, TrialState


@dataclass(frozen=True, repr=False)
class Training:
    """The result of training one configuration on the whole gang.

    Attributes:
        trial: With its curves, its metrics, and its failure, if it failed.
        objective: Name of the optimised metric.
        checkpoint: URL of the last state that was saved, the trained weights; None where none was.
        best_checkpoint: URL of the state at the objective's best value.
        directory: Where the run's logs are: a path, or a URL where one was given.

    Example:
        >>> result = lagom(train_fn, space, train_best=True)
        >>> model.load_state_dict(result.training.load()["model"])
    """

    trial: Trial
    objective: str
    checkpoint: str | None
    best_checkpoint: str | None
    directory: Path | str

    def __repr__(self) -> str:
        return encodable("\n".join([training_line(self), *self._state_lines(), f"files: {self.directory}"]))

    def _state_lines(self) -> list[str]:
        """The saved states, each with its own step: the last one is seldom that of the best value."""
        best, last = self.trial.best_checkpoint, self.trial.checkpoint
        if last is None:
            return ["no state was saved"]
        if best is None or best.step == last.step:
            return [f"{'last' if best is None else 'best and last'} state, at step {last.step}: {self.checkpoint}"]
        return [
            f"best state, at step {best.step}: {self.best_checkpoint}",
            f"last state, at step {last.step}: {self.checkpoint}",
        ]

    @property
    def name(self) -> str:
        """The run's name."""
        return name_of_folder(self.directory)

    @property
    def value(self) -> float | None:
        """What the training is worth: its best value of the objective (with ``value="last"`` its last one)."""
        return self.trial.value

    @property
    def value_step(self) -> int | None:
        """The step at which that was measured; None where the function reported none."""
        return self.trial.value_step

    @property
    def world_size(self) -> int:
        """How many workers trained together, in the last attempt."""
        return self.trial.world_size

    @property
    def seconds_per_step(self) -> float | None:
        """Wall time of a step (a training epoch, say), start-up and lost attempts included."""
        return self.trial.seconds / self.trial.step if self.trial.step else None

    def load(self, *, best: bool = False) -> Any:
        """Read the last saved state, or that of the best value.

        A sharded one is read by ``torch.distributed.checkpoint`` from its URL.

        Raises:
            UserError: The function saved none, or it is sharded.
        """
        url = self.best_checkpoint if best else self.checkpoint
        return read_saved(url, "the training")


def failed_training(trial: Trial, logs: Path | str) -> TrainingError | None:
    """The error of a training that failed for good; None of any other.

    Args:
        logs: The folder of its logs.
    """
    if trial.state is not TrialState.FAILED or trial.failure is None:
        return None
    error = TrainingError(f"{trial.failure.message}\n{trial.failure.traceback}".rstrip())
    error.add_note(f"logs of all ranks are in {logs}")
    return error


def training_line(training: Training) -> str:
    """The training in one line: what it found, or why it ended early."""
    trial = training.trial
    if trial.failure is not None and trial.state is TrialState.FAILED:
        return f"the training failed: {trial.failure.message}"
    at = "" if trial.value_step is None else f" at step {trial.value_step}"
    found = f"{training.objective} {number(trial.value)}{at}"
    if trial.state is not TrialState.COMPLETED:
        why = "" if trial.failure is None else f" ({trial.failure.message})"
        return (
            f"the training was cut off after {trial.step} of {trial.training} steps{why}: {found}; resume=True goes on"
        )
    how = f"{trial.world_size} worker{'s' * (trial.world_size > 1)}, {trial.step} steps, {duration(trial.seconds)}"
    return f"trained on {how}: {found}"
