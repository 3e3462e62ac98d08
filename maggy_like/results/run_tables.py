"""Several runs as a table: listed, or compared side by side."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maggy_like.argument_checks import require
from maggy_like.display.text import aligned, as_html, config_text, duration, number, words
from maggy_like.errors import ConfigError, MaggyError
from maggy_like.protocol.endings import Ending
from maggy_like.results.frames import as_frame
from maggy_like.results.record import Record, clock_of, improvements, read_record
from maggy_like.results.result import Result
from maggy_like.results.runs import directory_of, names_in, open_run, read_each
from maggy_like.storage.file_systems import check_directory
from maggy_like.storage.journal import RunHeader, RunTotals, backend_of, read_ends
from optimizers.checks import short
from optimizers.core.events import config_of
from optimizers.core.trial import Trial, TrialState
from optimizers.space import Config

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure

_LONGEST = 60  # characters of a configuration, or of the reason why a run cannot be read

_HEAD = ("run", "begun", "ended", "time", "trials", "metric", "best", "best configuration")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run in the list of :func:`~maggy_like.list_runs`.

    Attributes:
        name: Name of the run.
        directory: The run's directory, for :func:`~maggy_like.load_run`.
        created: When it began, in Unix time. None if it cannot be read.
        ending: As :attr:`Result.ending <maggy_like.Result>`. None if it cannot be read.
        seconds: Wall time of all its drivers until now, as far as its journal has it.
        is_longer: If True, the run took longer than ``seconds``, because a killed driver recorded no end.
        optimizer: The optimizer and its options.
        trials: Number of trials.
        failed: Number of failed trials.
        training: State of the training after the search, or of a run without a search. None without a training run.
        objective: Name of the optimized metric. With several objectives, the first one.
        direction: ``max`` or ``min``.
        best_value: Value of the best trial, or of the training in a run without a search. None if there is no value,
            and with several objectives.
        best_config: Configuration of that trial.
        problem: Why the run cannot be read. Empty if it can be.
    """

    name: str
    directory: str
    created: float | None = None
    ending: Ending | None = None
    seconds: float = 0.0
    is_longer: bool = False
    optimizer: str = ""
    trials: int = 0
    failed: int = 0
    training: TrialState | None = None
    objective: str = ""
    direction: str = ""
    best_value: float | None = None
    best_config: Config | None = None
    problem: str = ""

    @classmethod
    def of(cls, name: str, directory: str, header: RunHeader, ending: Ending, totals: RunTotals) -> RunSummary:
        """Make the summary of a run that was read."""
        return cls(
            name=name,
            directory=directory,
            created=header.created,
            ending=ending,
            seconds=totals.seconds,
            is_longer=totals.is_longer,
            optimizer=header.optimizer,
            trials=totals.trials,
            failed=totals.failed,
            training=totals.training,
            objective=totals.objective,
            direction=totals.direction,
            best_value=totals.best_value,
            best_config=None if totals.best_config is None else config_of(totals.best_config),
        )

    @property
    def cells(self) -> list[str]:
        """The summary as the cells of a table."""
        if self.created is None:
            return [self.name, "-", "cannot be read", "-", "-", "-", "-", _cut(self.problem)]
        begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.created))
        config = "" if self.best_config is None else _cut(config_text(self.best_config))
        has_metric = self.trials or self.best_value is not None
        metric = _cut(f"{self.direction} {self.objective}") if has_metric else "-"
        seconds = duration(self.seconds) + " or more" * self.is_longer
        best = number(self.best_value)
        ended = "-" if self.ending is None else words(self.ending, self.training)
        return [self.name, begun, ended, seconds, self._counted(), metric, best, config]

    def _counted(self) -> str:
        """Return ``12``, ``12 (3 failed)``, ``12, training`` or ``training``."""
        trials = f"{self.trials}{f' ({self.failed} failed)' * bool(self.failed)}"
        if self.training is None:
            return trials
        return f"{trials}, training" if self.trials else "training"


class RunList(list[RunSummary]):
    """A list of :class:`RunSummary`, the newest first. Printed, it is a table.

    Example:
        >>> runs = list_runs("maggy_runs")
        >>> [run.name for run in runs]
        ['asha', 'random', 'august']
        >>> result = load_run(runs[0].directory)
    """

    def __init__(self, runs: Iterable[RunSummary], directory: str) -> None:
        super().__init__(runs)
        self._directory = directory

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with one row per run.

        Returns:
            The attributes of :class:`RunSummary` as columns.

        Raises:
            UserError: pandas is missing.
        """
        require("pandas", "to_pandas()")
        import pandas

        rows: list[dict[str, Any]] = [
            {**asdict(run), "ending": run.ending and str(run.ending), "training": run.training and str(run.training)}
            for run in self
        ]
        table = as_frame(rows, list(RunSummary.__slots__))
        table["created"] = pandas.to_datetime(table["created"], unit="s", utc=True)
        return table

    def __repr__(self) -> str:
        return aligned(_HEAD, [run.cells for run in self]) if self else f"no runs in {self._directory!r}"

    def _repr_html_(self) -> str:
        return as_html(_HEAD, [run.cells for run in self])


def read_runs(directory: str | PathLike[str]) -> RunList:
    """Implement :func:`maggy_like.list_runs`."""
    if not isinstance(directory, str | PathLike):
        raise ConfigError(f"directory must be the directory of all runs, got {short(directory)}; use a path or a URL")
    given = fspath(directory)
    where = check_directory("directory", given if "://" in given else str(Path(given).expanduser()))
    found = read_each(where, lambda name: _summary(f"{where}/{name}", name), names_in(where))
    runs = [summary for summary in found if summary is not None]
    return RunList(sorted(runs, key=lambda run: -(run.created or 0.0)), where)


def _summary(where: str, name: str) -> RunSummary | None:
    """Return the summary of a run, even if its journal is damaged or of another version. None if there is no run."""
    try:
        backend, directory = backend_of(where), str(directory_of(where))
        ends = read_ends(backend)
        if ends is None:
            return None
        if ends.header is not None and ends.ended is not None and ends.ended.totals is not None:
            return RunSummary.of(name, directory, ends.header, ends.ended.status, ends.ended.totals)
        contents, machine, status = open_run(backend)
        seconds = clock_of(contents, is_live=not status.status.is_over).total
        is_longer = bool(contents.unended) or status.status is Ending.KILLED
        totals = RunTotals.of(machine.study, seconds, is_longer=is_longer, finds_best=contents.header.finds_best)
        return RunSummary.of(name, directory, contents.header, status.status, totals)
    except MaggyError as error:
        return RunSummary(name, where, problem=str(error))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


class RunComparison:
    """Runs of one objective, side by side. Printed, it is a table.

    Args:
        runs: Results of the runs.

    Attributes:
        runs: The results in the given order.
        names: Names of the runs, or their directories if two have the same name.

    Raises:
        ConfigError: There are no runs, one is an ablation, or their objectives differ.
        UserError: The journal of a run is missing.

    Example:
        >>> comparison = compare_runs(["maggy_runs/random", "maggy_runs/asha"])
        >>> comparison.to_pandas()["trials"].tolist()
        [4, 6]
        >>> comparison.plot().write_html("comparison.html")
    """

    def __init__(self, runs: Sequence[Result]) -> None:
        if not runs:
            raise ConfigError("runs must have at least one run, got none; use list_runs() to find runs")
        _check(runs)
        self.runs = list(runs)
        names = [run.name for run in runs]
        self.names = names if len(set(names)) == len(names) else [str(run.directory) for run in runs]
        self._records = [read_record(run) for run in runs]
        for name, record in self._pairs():
            if not record.contents.header.finds_best:
                raise ConfigError(
                    f"{name!r} is an ablation, so it has no best trial; compare the answers of ablate(...), or combine "
                    "those of several data sets with Ablation.across"
                )

    def best_over_time(self) -> dict[str, list[tuple[float, Trial, float]]]:
        """Return the improvements of each run.

        Returns:
            By name of the run, the trials that were better than all before them: the seconds from the begin of the run
            to the trial's end, the trial, and its value.
        """
        return {name: improvements(it.ended(), it.result.direction) for name, it in self._pairs()}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with one row per run.

        Returns:
            Optimizer, ending, trials, seconds, best value and best configuration of each run. ``worker_seconds`` is
            the time of all its trials, ``best_after`` the seconds until its best trial ended.

        Raises:
            UserError: pandas is missing.
        """
        require("pandas", "to_pandas()")
        return as_frame(self._rows())

    def plot(self) -> Figure:
        """Plot the best value of each run over the time.

        Returns:
            The figure.

        Raises:
            UserError: plotly is missing.
        """
        require("plotly", "plot()")
        from maggy_like.results.figures.values import comparison

        return comparison(self.best_over_time(), self.runs[0], self._seconds())

    def _pairs(self) -> list[tuple[str, Record]]:
        return list(zip(self.names, self._records, strict=True))

    def _seconds(self) -> dict[str, float]:
        return {name: record.clock.total for name, record in self._pairs()}

    def _rows(self) -> list[dict[str, Any]]:
        best = self.best_over_time()
        return [
            {
                "run": name,
                "optimizer": record.contents.header.optimizer,
                "ending": str(record.result.ending),
                "trials": len(record.result.trials),
                "seconds": record.clock.total,
                "worker_seconds": sum(trial.seconds * trial.world_size for trial in record.result.trials),
                "best_value": record.result.best_value,
                "best_after": best[name][-1][0] if best[name] else None,
                "best_config": record.result.best_config,
            }
            for name, record in self._pairs()
        ]

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        head = ["run", "ended", "trials", "time", "worker time", f"best {self.runs[0].objective}", "after"]
        rows = [
            [
                row["run"],
                row["ending"],
                str(row["trials"]),
                duration(row["seconds"]),
                duration(row["worker_seconds"]),
                number(row["best_value"]),
                duration(row["best_after"]),
                _cut(config_text(row["best_config"] or {})),
            ]
            for row in self._rows()
        ]
        return [*head, "best configuration"], rows

    def __repr__(self) -> str:
        return aligned(*self._cells())

    def _repr_html_(self) -> str:
        return as_html(*self._cells())


def _check(runs: Sequence[Result]) -> None:
    """Check that the runs can be compared."""
    first = runs[0]
    for run in runs:
        if run.others:
            raise ConfigError(
                f"{run.name!r} has several objectives, so it has no best trial; compare the trials in result.pareto"
            )
        if (run.direction, run.objective) != (first.direction, first.objective):
            raise ConfigError(
                f"{run.name!r} has {run.direction} {run.objective}, and {first.name!r} {first.direction} "
                f"{first.objective}; compare runs of one objective"
            )
