"""What came of a run, as plain data, with the states and logs that its trials have saved."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maggy_like.display.text import clean, config_text, duration, number
from maggy_like.errors import SavedStateError, TrainingError, UserError
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.state_names import SHARDED, state_url
from maggy_like.protocol.texts import encodable
from maggy_like.storage.checkpoints import StateLostError, load_state
from maggy_like.storage.file_systems import open_url
from maggy_like.storage.folders import name_of_folder, url_of
from maggy_like.storage.log_file import log_name
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.ranking import Worth
from optimizers.core.trial import Trial, TrialState
from optimizers.space.config import Config
from optimizers.space.search_space import SearchSpace


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


def read_saved(url: str | None, whose: str) -> Any:
    """A saved state.

    Args:
        url: Where it is; None where there is none.
        whose: Who saved it, for people.

    Raises:
        SavedStateError: It is damaged, or gone.
        UserError: There is none, or it is sharded.
    """
    if url is None:
        raise UserError(f"{whose} has no saved state; call reporter.checkpoint(state) in train_fn")
    if url.endswith(SHARDED):
        raise UserError(f"{url} is sharded; read it with torch.distributed.checkpoint.load")
    try:
        return load_state(url)
    except StateLostError as error:
        raise SavedStateError(f"the saved state {error}; use load(trial) to read another trial's") from error


def read_log(paths: RunPaths, trial: int, rank: int, attempts: int) -> str:
    """What a trial printed on one of its workers.

    Args:
        paths: Where the run is. Workers that do not see its folder copy their logs to its store.
        trial: The trial's number.
        rank: The worker's.
        attempts: How many files there may be in a store: each attempt copies one of its own.

    Raises:
        UserError: A file system does not answer.
    """
    parts: list[tuple[float, bytes]] = []
    for url in log_urls(paths, trial, rank, attempts):
        fs, path = open_url(url)
        with reading_log(path):
            parts.append((written(fs, path), fs.cat_file(path)))
    parts.sort(key=lambda part: part[0])  # a worker that copies may have had an attempt before one that does not
    return b"".join(text for _, text in parts).decode(errors="replace")


def log_urls(paths: RunPaths, trial: int, rank: int, attempts: int) -> list[str]:
    """Where there may be log files of a trial's worker; the arguments are those of :func:`read_log`."""
    folders = filter(None, (url_of(paths.logs), paths.log_copies))
    return [f"{folder}/{log_name(trial, rank, attempt)}" for folder in folders for attempt in range(1, attempts + 1)]


@contextlib.contextmanager
def reading_log(path: str) -> Iterator[None]:
    """Read a log file, if it is there.

    Raises:
        UserError: Its file system does not answer.
    """
    try:
        yield
    except FileNotFoundError:  # the trial was silent
        return
    except Exception as error:  # of whatever file system it is
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"the log {path} cannot be read ({said}); fix the access, or try again") from error


def written(fs: Any, path: str) -> float:
    """When a file was last written to, in Unix time; 0 where its file system does not say."""
    with contextlib.suppress(NotImplementedError, KeyError):
        return float(fs.modified(path).timestamp())
    return 0.0


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
    _worth: Worth = "best"

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


def state_of(result: ResultData, trial: Trial) -> str | None:
    """URL of the state that a trial saved at its best value; see :meth:`maggy_like.Result.checkpoint_of`."""
    state = trial.saved(newest=result._worth == "last")
    return None if state is None else state_url(result.store, state.name)


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
