"""What came of a run, as plain data, with the states and logs that its trials have saved."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maggy_like.display.text import clean, config_text, duration, number
from maggy_like.errors import JournalError, SavedStateError, TrainingError, UserError
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.state_names import SHARDED, log_name, state_url
from maggy_like.protocol.values import encodable
from maggy_like.storage.file_systems import name_of_directory, open_url, url_of
from maggy_like.storage.journal import backend_of, read_ends
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.study import Study
from optimizers.core.study_state import ValueRule
from optimizers.core.trial import Trial, TrialState
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    from maggy_like.results.confirmed import Confirmed, Recommended


class ParetoSet(list[Trial]):
    """A list of the trials that no other trial dominates. Printed, it has one line per trial.

    Args:
        trials: The trials.
        objectives: Names of the objectives, in the order of the trials' values.

    Example:
        >>> def train(units):
        ...     return {"accuracy": 0.95 - 4 / units, "latency": units / 4}
        >>> result = lagom(train, {"units": [64, 128]}, optimizer="grid", metric=["accuracy", "latency"])
        >>> print(result.pareto)
        trial 0: accuracy 0.8875, latency 16 (units=64)
        trial 1: accuracy 0.91875, latency 32 (units=128)
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
    """Load the checkpoint at a URL, or raise an error that names whose it is."""
    from maggy_like.storage.checkpoints import StateLostError, load_state

    if url is None:
        raise UserError(f"{whose} has no checkpoint; call reporter.checkpoint(state) in train_fn")
    if url.endswith(SHARDED):
        raise UserError(f"{url} is sharded; read it with torch.distributed.checkpoint.load")
    try:
        return load_state(url)
    except StateLostError as error:
        raise SavedStateError(f"the checkpoint {error}; use load(trial) for the checkpoint of another trial") from error


def read_log(paths: RunPaths, trial: int, rank: int, attempts: int, most: int | None = None) -> str:
    """Read what a trial printed on one of its workers, or the last ``most`` bytes of each file.

    Workers that do not see the run's directory copy their logs to its store, where each attempt may have a file.
    """
    parts: list[tuple[float, bytes]] = []
    for url in log_urls(paths, trial, rank, attempts):
        fs, path = open_url(url)
        with reading_log(path):
            fs.invalidate_cache()  # it may still grow
            start = None if most is None else max(0, fs.size(path) - most)
            parts.append((written(fs, path), fs.cat_file(path, start=start)))
    parts.sort(key=lambda part: part[0])  # an attempt whose log was copied may precede one whose log was not
    return b"".join(text for _, text in parts).decode(errors="replace")


def log_urls(paths: RunPaths, trial: int, rank: int, attempts: int) -> list[str]:
    """Return the URLs of the log files that a trial's worker may have; for the arguments see :func:`read_log`."""
    directories = filter(None, (url_of(paths.logs), paths.log_copies))
    return [
        f"{directory}/{log_name(trial, rank, attempt)}"
        for directory in directories
        for attempt in range(1, attempts + 1)
    ]


@contextlib.contextmanager
def reading_log(path: str) -> Iterator[None]:
    """Ignore that a log file is missing."""
    try:
        yield
    except FileNotFoundError:  # the trial printed nothing
        return
    except Exception as error:  # of any file system
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"the log {path} cannot be read ({said}); fix the access, or try again") from error


def written(fs: Any, path: str) -> float:
    """Return when a file was last written to, in Unix time. 0 if its file system does not know."""
    with contextlib.suppress(NotImplementedError, KeyError):
        return float(fs.modified(path).timestamp())
    return 0.0


@dataclass(frozen=True, repr=False)
class ResultData:
    """The data of a :class:`~maggy_like.results.result.Result`, whose documentation has the attributes."""

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
    confirmed: Confirmed | None = None
    training: Training | None = None
    is_longer: bool = False
    _value_rule: ValueRule = "best"
    _created: float | None = None  # Unix time at which the run began; None if it is not known

    @property
    def name(self) -> str:
        """The run's name."""
        return name_of_directory(self.directory)

    @property
    def best_config(self) -> Config | None:
        """A copy of the best trial's configuration, so that changing it changes no result."""
        return None if self.best_trial is None else copy.deepcopy(self.best_trial.config)

    @property
    def best_value(self) -> float | None:
        """The best trial's value of the objective: its best one, or with ``value="last"`` its last one."""
        return None if self.best_trial is None else self.best_trial.value

    @property
    def best_step(self) -> int | None:
        """The step at which the best value was measured. None if ``train_fn`` returned it without a report."""
        return None if self.best_trial is None else self.best_trial.value_step

    @cached_property
    def recommended(self) -> Recommended | None:
        """The trial that a model of all values recommends, without further training.

        None with several objectives, for ablations, for PBT, and with fewer than eight finite values. The model is
        fitted when this is first read, which takes up to a second.
        """
        from maggy_like.results.confirmed import recommended_of  # loads scipy

        if self.best_trial is None:
            return None
        return recommended_of(self.trials, self.space, self.objective, self.direction, self._value_rule)

    @property
    def counts(self) -> dict[TrialState, int]:
        """Number of trials by state."""
        return dict(Counter(trial.state for trial in self.trials))

    @property
    def failures(self) -> list[Trial]:
        """The failed trials."""
        return [trial for trial in self.trials if trial.state is TrialState.FAILED]


def every_trial(result: ResultData) -> list[Trial]:
    """Return all trials by number, including the repeats of a confirmation and the training."""
    confirmed = () if result.confirmed is None else result.confirmed.candidates
    repeats = [repeat for candidate in confirmed for repeat in candidate.repeats]
    training = [] if result.training is None else [result.training.trial]
    return sorted([*result.trials, *repeats, *training], key=lambda trial: trial.id)


def state_of(result: ResultData, trial: Trial) -> str | None:
    """Implement :meth:`maggy_like.Result.checkpoint_of`."""
    state = trial.saved(newest=result._value_rule == "last")
    return None if state is None else state_url(result.store, state.name)


def other_state(result: ResultData, trial: Trial) -> str:
    """Return a sentence if the state that represents a trial is not that of its value. Empty if it is."""
    state = trial.other_state(newest=result._value_rule == "last")
    if state is None:
        return ""
    return (
        f"the checkpoint of trial {trial.id} is of step {state.step} ({number(trial.curve.at(state.step))}), since "
        f"none was saved at step {trial.value_step} ({number(trial.value)})"
    )


@dataclass(frozen=True, repr=False)
class Training:
    """The result of training one configuration on all workers.

    Attributes:
        trial: The training as a trial, with its curves, its metrics, and its failure.
        objective: Name of the optimized metric.
        checkpoint: URL of the last checkpoint, which has the trained weights. None if none was saved.
        best_checkpoint: URL of the checkpoint at the best value of the objective. None if there is none.
        directory: The run's directory, as a path or URL.
        ending: How the run ended, as of a search.

    Example:
        >>> result = lagom(train_fn, space, train_best=True)
        >>> model.load_state_dict(result.training.load()["model"])
        <All keys matched successfully>
    """

    trial: Trial
    objective: str
    checkpoint: str | None
    best_checkpoint: str | None
    directory: Path | str
    ending: Ending
    _created: float | None = None  # Unix time at which the run began; None if it is not known

    def __repr__(self) -> str:
        return encodable("\n".join([training_line(self), *self._state_lines(), f"files: {self.directory}"]))

    def _state_lines(self) -> list[str]:
        """Return the checkpoints with their steps: the last one is rarely the best one."""
        best, last = self.trial.best_checkpoint, self.trial.checkpoint
        if last is None:
            return ["no checkpoint was saved"]
        if best is None or best.step == last.step:
            return [f"{'last' if best is None else 'best and last'} checkpoint, at step {last.step}: {self.checkpoint}"]
        return [
            f"best checkpoint, at step {best.step}: {self.best_checkpoint}",
            f"last checkpoint, at step {last.step}: {self.checkpoint}",
        ]

    @property
    def name(self) -> str:
        """The run's name."""
        return name_of_directory(self.directory)

    @property
    def value(self) -> float | None:
        """The value of the objective: the best one, or with ``value="last"`` the last one."""
        return self.trial.value

    @property
    def value_step(self) -> int | None:
        """The step at which ``value`` was measured. None if the function reported no step."""
        return self.trial.value_step

    @property
    def seconds(self) -> float:
        """Wall time of all attempts."""
        return self.trial.seconds

    @property
    def counts(self) -> dict[TrialState, int]:
        """Number of trials by state: the training is one."""
        return {self.trial.state: 1}

    @property
    def failures(self) -> list[Trial]:
        """The training's trial if it failed, and else nothing."""
        return [self.trial] if self.trial.state is TrialState.FAILED else []

    @property
    def world_size(self) -> int:
        """Number of workers that trained together in the last attempt."""
        return self.trial.world_size

    @property
    def seconds_per_step(self) -> float | None:
        """Wall time of one step in seconds, including start-up and lost attempts. None without steps."""
        return self.trial.seconds / self.trial.step if self.trial.step else None

    def load(self, *, best: bool = False) -> Any:
        """Load the last checkpoint, or the one of the best value.

        Args:
            best: If True, load the one of the best value. Default False.

        Returns:
            The checkpoint.

        Raises:
            UserError: The function saved no checkpoint, or a sharded one. Load a sharded checkpoint with
                ``torch.distributed.checkpoint`` from its URL.
            SavedStateError: The checkpoint is damaged or missing.
        """
        url, other = (self.best_checkpoint, self.trial.other_state(newest=False)) if best else (self.checkpoint, None)
        if other is not None:
            warnings.warn(
                f"the checkpoint is of step {other.step}, since none was saved at the best step, {self.value_step}",
                stacklevel=2,
            )
        check_files(self)
        return read_saved(url, "the training")


def check_files(result: ResultData | Training) -> None:
    """Check that the files in a result's directory are of its run, as far as the journal can be read."""
    with contextlib.suppress(JournalError):
        ends = read_ends(backend_of(str(result.directory)))
        if ends is not None and ends.header is not None:
            check_created(result, ends.header.created)


def is_deleted(result: ResultData) -> bool:
    """Return whether the run's directory was on this machine and is gone, such as the temporary one of a SearchCV."""
    return isinstance(result.directory, Path) and not result.directory.exists()


def check_created(result: ResultData | Training, created: float) -> None:
    """Check that a result is of the run that began at that time, and not of an earlier one that was overwritten."""
    if result._created not in (None, created):
        raise UserError(
            f"the run {result.name!r} was deleted and started again after this result, so its files are those of "
            f"another run; use load_run({str(result.directory)!r}) for them, and another name for the next run"
        )


def training_of(study: Study, paths: RunPaths, objective: str, ending: Ending, created: float) -> Training:
    """Return the result of the last training."""
    trial = [trial for trial in study.trials if trial.is_final_training][-1]
    best = trial.best_checkpoint
    return Training(
        trial=trial,
        objective=objective,
        checkpoint=state_url(paths.store, trial.checkpoint.name) if trial.checkpoint is not None else None,
        best_checkpoint=state_url(paths.store, best.name) if best is not None else None,
        directory=paths.directory,
        ending=ending,
        _created=created,
    )


def failed_training(trial: Trial, logs: Path | str) -> TrainingError | None:
    """Return the error of a training run that failed for good. None of any other training."""
    if trial.state is not TrialState.FAILED or trial.failure is None:
        return None
    error = TrainingError(f"{trial.failure.message}\n{trial.failure.traceback}".rstrip())
    error.add_note(f"logs of all ranks are in {logs}")
    return error


def training_line(training: Training) -> str:
    """Return one line with the value that the training reached, or why it ended early."""
    trial = training.trial
    if trial.failure is not None and trial.state is TrialState.FAILED:
        return f"the training failed: {trial.failure.message}"
    at = "" if trial.value_step is None else f" at step {trial.value_step}"
    found = f"{training.objective} {number(trial.value)}{at}"
    if trial.state is not TrialState.COMPLETED:
        why = "" if trial.failure is None else f" ({trial.failure.message})"
        steps = f"{trial.step} of {trial.training} steps"
        return f"the training was cut off after {steps}{why}: {found}; resume=True continues it"
    how = f"{trial.world_size} worker{'s' * (trial.world_size > 1)}, {trial.step} steps, {duration(trial.seconds)}"
    return f"trained on {how}: {found}"
