"""A run of another process, shown from its files, and asked to stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from maggy_like.cluster_driver.follow import RunFiles
from maggy_like.cluster_driver.tasks import from_record
from maggy_like.display import make_display
from maggy_like.driver.followers import Callback, Followers, read_callbacks
from maggy_like.errors import UserError
from maggy_like.protocol.endings import Ending
from maggy_like.results.result import Result, RunActions
from maggy_like.results.runs import read_run
from maggy_like.storage.control_files import ControlFiles, StopRequestRecord
from maggy_like.storage.journal import backend_of, read_ends
from maggy_like.storage.run_paths import RunPaths

POLL = 0.1
"""Seconds between two snapshots."""


def watch_run(run: Result, progress: bool | str, callbacks: Sequence[Callback], actions: RunActions) -> Result:
    """Implement :meth:`maggy_like.Result.watch`.

    Args:
        run: The run as it was loaded.
        progress: Display, as for :func:`maggy_like.lagom`.
        callbacks: Callbacks for all events.
        actions: Actions of the result.

    Raises:
        MaggyError: The error that a driver in the cluster recorded.
        JournalError: The journal could not be read for ten minutes.
    """
    display = make_display(progress)
    listeners = read_callbacks(callbacks, str(run.directory))
    source = RunFiles(str(run.directory))
    stops: list[BaseException] = []
    followers = Followers(source, listeners, stops.append, in_threads=True)
    header, paths = source.reader.contents.header, RunPaths(run.directory, run.store)
    followers.begin(header.name, header.optimizer, paths, is_resumed=True, knows_all=True)
    followers.show_on([display])
    try:
        is_over = False
        while not stops and (not is_over or followers.are_behind):  # a slow callback gets all events, however late
            is_over = source.is_over()
            source.look(now=is_over)
            followers.look()
            time.sleep(POLL * (not is_over or followers.are_behind))
        if stops:
            raise stops[0]
    except KeyboardInterrupt:
        return read_run(str(run.directory), actions)
    finally:
        followers.finish(source.ended.status if source.ended is not None else Ending.STOPPED)
    result, record = read_run(str(run.directory), actions), source.driver()
    if result.ending is Ending.ERROR and record is not None and record.error is not None:
        error = from_record(record.error)
        error.result = result
        raise error
    return replace(result, _is_shown=display.has_shown_summary)


def stop_run(journal: str) -> None:
    """Implement :meth:`maggy_like.Result.stop`.

    Raises:
        UserError: No driver would read the request.
    """
    backend, files = backend_of(journal), ControlFiles(journal)
    record, ends = files.driver(), read_ends(backend)
    if record is not None and not record.is_over and ends is not None and ends.ended is None:
        files.ask_to_stop(StopRequestRecord(record.run, Ending.STOPPED))
        return
    if backend.is_held():
        raise UserError(
            f"the driver of the run in {journal} is a process that cannot be stopped from elsewhere, unlike one with "
            "driver='cluster'; press Ctrl-C in that process, or call stop() of the handle of lagom(..., block=False)"
        )
    raise UserError(f"the run in {journal} has ended; there is nothing to stop")
