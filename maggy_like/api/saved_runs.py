"""Runs from their files, without their functions: opened, listed and compared."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from maggy_like.api.execution import FOLLOW
from maggy_like.errors import ConfigError
from maggy_like.results.result import Result
from maggy_like.results.run_tables import RunComparison, RunList, read_runs
from maggy_like.results.runs import read_run


def load_run(run: str | PathLike[str]) -> Result:
    """Open a run that was made before, or goes on in another process, from its files alone.

    Its function is not needed, and nothing is locked or written. Of a damaged journal, what is whole is read, and a
    warning is logged. All that a result offers works, but for :meth:`Result.train`, which needs the function. Of an
    ablation there are the trials; ``ablate(train_fn, study, ..., resume=True)`` makes its answer.

    Args:
        run: The run's folder, a path or a URL: ``result.directory``.

    Returns:
        Its result. ``ending`` is ``running`` while its driver lives, and ``killed`` if that ended without a word;
        ``lagom(..., name=NAME, resume=True)`` goes on with such a run.

    Raises:
        UserError: There is no run; the message names those that are near.
        JournalError: Its journal cannot be read.

    Example:
        >>> result = load_run("maggy_runs/train-20260102-101500-1a2b")
        >>> result.best_config, result.to_pandas()
    """
    return read_run(run, FOLLOW)


def list_runs(directory: str | PathLike[str] = "maggy_runs") -> RunList:
    """The runs in a folder, as a table, the newest first: those that go on too, and those that cannot be read.

    Args:
        directory: As for :func:`~maggy_like.lagom`: a path, or the URL of any fsspec file system.

    Returns:
        A list of :class:`~maggy_like.results.run_tables.RunSummary`, empty where there are no runs.

    Raises:
        ConfigError: ``directory`` is no path and no URL.
        JournalError: The folder cannot be read.

    Example:
        >>> list_runs()
        run                begun  ended      time  trials         metric         best  best configuration
        august  2026-08-31 10:15  completed  4:07  50 (2 failed)  max accuracy  0.973  lr=0.0121, units=64
        >>> list_runs("s3://bucket/runs").to_pandas()
    """
    return read_runs(directory, FOLLOW)


def compare_runs(runs: Sequence[str | PathLike[str] | Result]) -> RunComparison:
    """Several runs of one objective side by side: how good each was, and when.

    Args:
        runs: Results, or folders of runs (paths or URLs).

    Returns:
        Printed, it is a table; ``.plot()`` draws the best value of each over the time.

    Raises:
        ConfigError: One of them is no run, or they optimise different things.

    Example:
        >>> compare_runs(["maggy_runs/random", "maggy_runs/asha"])
        run     ended      trials  time  of workers  best accuracy  after  best configuration
        random  completed      50  4:12        8:10          0.961   3:40  lr=0.00412, units=241
        asha    completed      50  1:31        2:51          0.973   0:58  lr=0.00499, units=256
        >>> compare_runs([first, second]).plot()
    """
    if isinstance(runs, str | PathLike | Result) or not isinstance(runs, Sequence):
        raise ConfigError(f"compare_runs takes a list of runs, got {runs!r}; write compare_runs([first, second])")
    return RunComparison([run if isinstance(run, Result) else read_run(run, FOLLOW) for run in runs])
