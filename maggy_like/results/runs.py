"""Finding runs, and reading their results from their files."""

from __future__ import annotations

import contextlib
import difflib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike, fspath
from pathlib import Path
from typing import TypeVar

from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.stream import replay
from maggy_like.errors import ConfigError, JournalError
from maggy_like.protocol.endings import Ending
from maggy_like.results.result import Result, RunActions, make_result
from maggy_like.storage.file_systems import Directory, check_directory, open_url, try_local_path
from maggy_like.storage.journal import (
    Contents,
    JournalBackend,
    RunStatus,
    backend_of,
    read_journal,
    reading,
)
from maggy_like.storage.run_paths import RunPaths, kept_at
from optimizers.checks import short
from optimizers.core.study import Study
from optimizers.samplers.non_adaptive import RandomSearch

_log = logging.getLogger(__name__)

T = TypeVar("T")

READERS = 8
"""Runs in a store that are read in parallel."""

_MOST_LISTED = 200
"""Entries of a directory that are checked when a message suggests runs."""

_MOST_NAMED = 8
"""Runs, or damages of a journal, that a message lists."""


def read_run(run: str | PathLike[str], actions: RunActions) -> Result:
    """Implement :func:`maggy_like.load_run`."""
    if not isinstance(run, str | PathLike):
        raise ConfigError(f"run must be the directory of a run, got {short(run)}; use its path or URL")
    where = fspath(run) if "://" in fspath(run) else str(Path(run).expanduser())
    contents, machine, status = open_run(find_run(where))
    return recorded_result(where, contents, machine.study, status, actions)


def recorded_result(
    where: str, contents: Contents, study: Study, status: RunStatus, actions: RunActions | None
) -> Result:
    """Return the result of the run at a path or URL, of whose journal the other arguments were read."""
    header = contents.header
    return make_result(
        study,
        RunPaths.recorded(directory_of(where), status.store),
        objective=header.metrics[0] if header.metrics else None,
        others=tuple(zip(study.objectives.directions[1:], header.metrics[1:], strict=True)),
        ending=status.status,
        seconds=contents.earlier_seconds + status.seconds,
        created=header.created,
        is_longer=bool(contents.unended) or status.status is Ending.KILLED,
        finds_best=header.finds_best,
        actions=actions,
    )


def open_run(backend: JournalBackend) -> tuple[Contents, StateMachine, RunStatus]:
    """Read a whole journal. Return its contents, the state machine and the status of the run."""
    is_held = backend.is_held()  # first: so everything that it writes until its end is read
    contents = read_journal(backend)
    machine = replay(contents, RandomSearch())
    if contents.damage and not (is_held and contents.damage[0].endswith("is torn")):  # a line that is being written
        shown = contents.damage[:_MOST_NAMED]
        more = [f"and {len(contents.damage) - len(shown)} more"] if len(contents.damage) > len(shown) else []
        damage = "; ".join([*shown, *more])
        _log.warning("%s: the journal is damaged, so only its intact part was read: %s", backend.name, damage)
    return contents, machine, status_of(contents, Ending.RUNNING if is_held else Ending.KILLED)


def find_run(where: str) -> JournalBackend:
    """Find the journal of the run at a path or URL. The error of a missing run suggests similar names."""
    backend = backend_of(check_directory("", where))
    with reading(backend):
        exists = backend.exists()
    if not exists:
        raise ConfigError(_no_run(where.rstrip("/")))
    return backend


def status_of(contents: Contents, otherwise: Ending) -> RunStatus:
    """Return the status of the run: ``otherwise`` if no driver has recorded its end."""
    begun = contents.begun or RunStatus(Ending.RUNNING, contents.header.created)
    if contents.ended is not None:
        ended = contents.ended
        return RunStatus(ended.status, ended.time, ended.seconds, begun.store)
    last = time.time() if not otherwise.is_over else max((end for _, end in contents.sessions), default=0.0)
    return RunStatus(otherwise, 0.0, max(0.0, last - begun.time), begun.store)


def directory_of(where: str) -> Directory:
    """Return the absolute path or the URL of a directory."""
    return where.rstrip("/") if "://" in where else kept_at(Path(open_url(where)[1]))


def _no_run(where: str) -> str:
    """Return the message for a missing run, with the runs that may be meant."""
    if runs := _near(where):
        named = ", ".join(repr(f"{where}/{name}") for name in runs[:_MOST_NAMED])
        more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
        return f"{where!r} is a directory of runs, not a run; use the directory of one: {named}{more}"
    directory, _, name = where.rpartition("/")
    if directory and _may_be_run(directory):
        return f"{where!r} is in the directory of a run; use that directory: {directory!r}"
    around = directory or "maggy_runs"
    is_there = not directory and _may_be_run(f"{around}/{name}")
    names = [name] if is_there else difflib.get_close_matches(name, _near(around))
    near = [repr(f"{around}/{run}") for run in names]
    meant = f" (did you mean {' or '.join(near)}?)" if near else ""
    return f"there is no run in {where!r}; use the directory of one, as in result.directory{meant}"


def _near(directory: str) -> list[str]:
    """Return the names of the first runs in a directory. Empty if it cannot be read, which another message reports."""
    with contextlib.suppress(JournalError):
        return runs_in(directory, _MOST_LISTED)
    return []


def runs_in(directory: str, most: int | None = None) -> list[str]:
    """Return the names of the runs among the first ``most`` entries of a directory, in order; none if it is missing."""
    names = names_in(directory)[:most]
    may_be = read_each(directory, _may_be_run, [f"{directory}/{name}" for name in names])
    return [name for name, is_one in zip(names, may_be, strict=True) if is_one]


def names_in(directory: str) -> list[str]:
    """Return the names of all entries of a directory, in order. Empty if there is no such directory."""
    try:
        fs, path = open_url(directory)
        return sorted(entry.rstrip("/").rpartition("/")[2] for entry in fs.ls(path, detail=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except Exception as error:  # of any file system
        said = str(error) or type(error).__name__
        raise JournalError(f"the directory {directory!r} cannot be read: {said}; fix the access") from error


def read_each(directory: str, read: Callable[[str], T], names: Sequence[str]) -> list[T]:
    """Call ``read`` with each name: in parallel if the directory is in a store, whose answers take long."""
    if try_local_path(directory) is not None:
        return [read(name) for name in names]
    with ThreadPoolExecutor(READERS, "maggy-list") as pool:
        return list(pool.map(read, names))


def _may_be_run(where: str) -> bool:
    """Return whether there may be a run. If that is unknown, reading it will report the reason."""
    try:
        return backend_of(where).exists()
    except Exception:  # of any file system; a run of another user may be in a directory that only they can read
        return True
