"""Opening a run from its files, without its function: after its end, or while it goes on."""

from __future__ import annotations

from os import PathLike

from maggy_like.api.execution import FOLLOW
from maggy_like.results.result import Result
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
