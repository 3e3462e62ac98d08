"""A run that goes on elsewhere: followed from its files alone, and asked to stop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from maggy_like.cluster_driver.error_records import from_record
from maggy_like.cluster_driver.follow import Follower
from maggy_like.cluster_driver.log_lines import LogLineReader
from maggy_like.cluster_driver.watcher import Watcher
from maggy_like.display import make_display
from maggy_like.display.base import Snapshot
from maggy_like.driver.callbacks import Callback, read_callbacks
from maggy_like.errors import UserError
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.results.result import Result, RunActions
from maggy_like.results.runs import read_run
from maggy_like.storage.control_files import ControlFiles, DriverRecord, StopRequestRecord
from maggy_like.storage.journal import backend_of
from maggy_like.storage.run_paths import RunPaths

POLL = 0.1
"""Seconds between two pictures."""

HOLD_LOOK = 5.0
"""Seconds between two looks at whether a driver has the run."""

SUCCESSION_PATIENCE = 180.0
"""Seconds that Spark gets to start the driver's task, there or elsewhere, before the run counts as killed."""


def watch_run(run: Result, progress: bool | str, callbacks: Sequence[Callback], actions: RunActions) -> Result:
    """Show a run until it ends, wherever its driver is; Ctrl-C ends the watching alone.

    Args:
        run: As it was found.
        progress: As for :func:`maggy_like.lagom`.
        callbacks: Get each event from its first on.
        actions: Those of the result.

    Returns:
        Its result.

    Raises:
        MaggyError: What ended it, as its driver in a task has left it.
        JournalError: The journal could not be read for ten minutes.
    """
    display = make_display(progress)
    listeners = read_callbacks(callbacks, str(run.directory))
    files = ControlFiles(str(run.directory))
    follower = Follower(backend_of(str(run.directory)))
    record = _driver(files)
    base = _base(follower, run, record)
    began = record.began if record is not None else _begun(follower)
    stops: list[BaseException] = []
    watcher = Watcher(follower, base, began, [display], listeners, LogLineReader(files), stops.append)
    header, paths = follower.contents.header, RunPaths(run.directory, run.store)
    watcher.callbacks.begin(header.name, header.optimizer, paths, is_resumed=True, knows_all=True)
    watcher.begin()
    try:
        _follow(str(run.directory), files, follower, watcher, stops)
        watcher.look(now=True)
    except KeyboardInterrupt:
        return read_run(str(run.directory), actions)
    finally:
        watcher.finish(follower.ended.status if follower.ended is not None else Ending.STOPPED)
    result, record = read_run(str(run.directory), actions), _driver(files)
    if result.ending is Ending.ERROR and record is not None and record.error is not None:
        error = from_record(record.error)
        error.result = result
        raise error
    return result


def stop_run(journal: str) -> None:
    """Ask the driver of a run, a task of a Spark application, to end it.

    Raises:
        UserError: No driver would read the request.
    """
    backend, files = backend_of(journal), ControlFiles(journal)
    record = files.driver()
    if record is not None and not record.is_over and Follower(backend).ended is None:
        files.ask_to_stop(StopRequestRecord(record.run, Ending.STOPPED))
        return
    if backend.is_held():
        raise UserError(
            f"the driver of the run in {journal} is a process that takes no requests; press Ctrl-C there, or call "
            "stop() of what lagom(..., block=False) has returned there (only driver='cluster' can be stopped from "
            "elsewhere)"
        )
    raise UserError(f"the run in {journal} does not go on any more; there is nothing to stop")


def _follow(
    journal: str, files: ControlFiles, follower: Follower, watcher: Watcher, stops: Sequence[BaseException]
) -> None:
    """Show the run until it has ended, its driver is gone for good, or a callback ends the watching.

    Raises:
        BaseException: What the callback raised.
    """
    backend = backend_of(journal)
    held = looked = time.monotonic()
    while follower.ended is None:
        watcher.look()
        if stops:
            raise stops[0]
        time.sleep(POLL)
        if time.monotonic() - looked < HOLD_LOOK:
            continue
        looked = time.monotonic()
        with contextlib.suppress(Exception):  # of whatever file system it is; the watcher reports it
            record = files.driver()
            patience = SUCCESSION_PATIENCE if record is not None and not record.is_over else 0.0
            if backend.is_held():
                held = looked
            elif looked - held > patience:
                return


def _driver(files: ControlFiles) -> DriverRecord | None:
    """What the driver has said of itself."""
    with contextlib.suppress(Exception):  # of whatever file system it is: the journal says the rest
        return files.driver()
    return None


def _begun(follower: Follower) -> float:
    """When the driver began the run, or took it up: Unix time."""
    begun = follower.contents.begun
    return follower.contents.header.created if begun is None else begun.time


def _base(follower: Follower, run: Result, record: DriverRecord | None) -> Snapshot:
    header = follower.contents.header
    return Snapshot(
        name=header.name,
        directory=str(run.directory),
        optimizer=header.optimizer,
        direction=run.direction,
        phase=Phase.STARTING,
        elapsed=0.0,
        objective=header.metrics[0] if header.metrics else None,
        others=run.others,
        n_trials=record.n_trials if record is not None else None,
        timeout=record.timeout if record is not None else None,
        is_ablation=bool(header.variants),
        guessed=header.directions == [None],
    )
