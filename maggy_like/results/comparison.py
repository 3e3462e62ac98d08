"""Several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from maggy_like.display.text import config_text, duration, number
from maggy_like.errors import ConfigError
from maggy_like.extras import require
from maggy_like.results.record import Record, improvements, read_record
from maggy_like.results.result import Result
from maggy_like.results.text_table import aligned, as_html
from optimizers.core.trial import Trial

if TYPE_CHECKING:
    import pandas
    from plotly.graph_objects import Figure

_LONGEST = 60  # characters of a configuration


class RunComparison:
    """Runs of one objective side by side; printed, it is a table.

    Args:
        runs: Their results.

    Attributes:
        runs: The same, in the order given.
        names: How they are told apart: their names, or their folders where two have the same.

    Raises:
        ConfigError: There is none, or they optimise different things.
        UserError: The journal of one is gone.

    Example:
        >>> comparison = compare_runs(["maggy_runs/random", "maggy_runs/asha"])
        >>> comparison.to_pandas()
        >>> comparison.plot()
    """

    def __init__(self, runs: Sequence[Result]) -> None:
        if not runs:
            raise ConfigError("compare_runs got no runs; list_runs() shows those that there are")
        _check(runs)
        self.runs = list(runs)
        names = [run.name for run in runs]
        self.names = names if len(set(names)) == len(names) else [str(run.directory) for run in runs]
        self._records = [read_record(run) for run in runs]

    def best_over_time(self) -> dict[str, list[tuple[float, Trial, float]]]:
        """Of each run, by name: when a trial ended that was better than all before it, which, and its value.

        Times are in seconds since the run began.
        """
        return {name: improvements(it.ended(), it.result.direction) for name, it in self._pairs()}

    def to_pandas(self) -> pandas.DataFrame:
        """A row a run: what came out, after how many seconds, and the best configuration.

        ``worker_seconds`` is the time of all its trials, ``best_after`` the seconds until the best trial had ended.

        Raises:
            UserError: pandas is missing.
        """
        require("pandas", "to_pandas()")
        import pandas

        return pandas.DataFrame(self._rows())

    def plot(self) -> Figure:
        """The best value of each run over the time.

        Raises:
            UserError: plotly is missing.
        """
        require("plotly", "plot()")
        from maggy_like.results.figures import comparison

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
        head = ["run", "ended", "trials", "time", "of workers", f"best {self.runs[0].objective}", "after"]
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
                f"{run.name!r} has several objectives, of which none is the best; compare the sets in result.pareto"
            )
        if (run.direction, run.objective) != (first.direction, first.objective):
            raise ConfigError(
                f"{run.name!r} has {run.direction} {run.objective}, and {first.name!r} {first.direction} "
                f"{first.objective}; compare runs of one objective"
            )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
