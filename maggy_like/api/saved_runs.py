"""Runs from their files, without their functions: opened, listed and compared."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from maggy_like.api.execution import FOLLOW
from maggy_like.errors import ConfigError
from maggy_like.results.result import Result
from maggy_like.results.run_tables import RunComparison, RunList, read_runs
from maggy_like.results.runs import read_run
from optimizers.checks import explains_arguments, short


@explains_arguments({})
def load_run(run: str | PathLike[str]) -> Result:
    """Load the result of a run from its files, after its end or while it runs in another process.

    The training function is not needed, and nothing is locked or written. Of a damaged journal the intact part is read,
    and a warning is logged. Everything on the result works except :meth:`Result.train`, which needs the function. An
    ablation has its trials. Its answer comes from ``ablate(train_fn, study, ..., resume=True)``.

    Args:
        run: Path or URL of the run's directory (``result.directory``).

    Returns:
        The result. Its ``ending`` is ``running`` while the driver is alive, and ``killed`` if the driver died without a
        record. ``lagom(..., name=NAME, resume=True)`` continues a killed run.

    Raises:
        UserError: There is no run; the message suggests similar names.
        JournalError: The run's journal cannot be read.

    Example:
        >>> result = load_run("maggy_runs/august")
        >>> result.best_config, len(result.trials)
        ({'lr': 0.0050266, 'units': 253}, 120)
    """
    return read_run(run, FOLLOW)


@explains_arguments({})
def list_runs(directory: str | PathLike[str] = "maggy_runs") -> RunList:
    """List the runs in a directory, the newest first, including active ones and those that cannot be read.

    Args:
        directory: Path or URL of the directory of all runs, as for :func:`~maggy_like.lagom`. Default ``"maggy_runs"``.

    Returns:
        A list of :class:`~maggy_like.results.run_tables.RunSummary`, which may be empty. Printed, it is a table.

    Raises:
        ConfigError: ``directory`` is not a path or URL.
        JournalError: The directory cannot be read.

    Example:
        >>> list_runs()
        run                begun  ended      time  trials  metric           best  best configuration
        asha    2026-09-02 09:40  completed  1:31      50  max accuracy  0.88717  lr=0.0016977, units=248
        random  2026-09-01 17:22  completed  4:12      50  max accuracy  0.8857   lr=0.0081449, units=81
        august  2026-08-31 10:15  completed  9:53     120  max accuracy  0.89058  lr=0.0050266, units=253
        >>> table = list_runs("maggy_runs").to_pandas()
    """
    return read_runs(directory)


def compare_runs(runs: Sequence[str | PathLike[str] | Result]) -> RunComparison:
    """Compare several runs of one objective.

    Args:
        runs: Results, or paths or URLs of runs.

    Returns:
        The comparison. Printed, it is a table. Its ``plot()`` draws the best value of each run over the time.

    Raises:
        ConfigError: An item is not a run, or the objectives differ.
        JournalError: A journal cannot be read.

    Example:
        >>> compare_runs(["maggy_runs/random", "maggy_runs/asha"])
        run     ended      trials  time  worker time  best accuracy  after  best configuration
        random  completed      50  4:12         8:10         0.8857   3:40  lr=0.0081449, units=81
        asha    completed      50  1:31         2:51        0.88717   0:58  lr=0.0016977, units=248
    """
    if isinstance(runs, str | PathLike | Result) or not isinstance(runs, Sequence):
        raise ConfigError(f"runs must be a list of runs, got {short(runs)}; use compare_runs([first, second])")
    return RunComparison([run if isinstance(run, Result) else read_run(run, FOLLOW) for run in runs])
