"""The result of a run, from its state machine or from its files alone."""

from __future__ import annotations

import contextlib
import difflib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike, fspath
from pathlib import Path
from typing import TypeVar, cast

from maggy_like.driver.state_machine import StateMachine
from maggy_like.errors import ConfigError, JournalError
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.state_names import state_url
from maggy_like.results.data import ParetoSet, Training
from maggy_like.results.result import Result, RunActions
from maggy_like.storage.file_systems import open_url, try_local_path
from maggy_like.storage.folders import Folder, check_folder
from maggy_like.storage.journal import (
    Contents,
    JournalBackend,
    Repairer,
    RunStatus,
    backend_of,
    read_journal,
    reading,
)
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.base import Optimizer
from optimizers.core.ranking import Worth
from optimizers.core.study import Study
from optimizers.samplers.random_search import RandomSearch
from optimizers.space.search_space import SearchSpace

_log = logging.getLogger(__name__)

T = TypeVar("T")

READERS = 8
"""Runs in a store that are read at a time."""

_MOST_LISTED = 200
"""Entries of a folder that are looked at for runs."""

_MOST_NAMED = 8
"""Runs that a message names."""


def read_run(run: str | PathLike[str], actions: RunActions) -> Result:
    """The result of a run, from its files; see :func:`maggy_like.load_run`."""
    if not isinstance(run, str | PathLike):
        raise ConfigError(f"load_run takes the folder of a run, a path or a URL, got {run!r}")
    where = fspath(run) if "://" in fspath(run) else str(Path(run).expanduser())
    return open_run(where, find_run(where), actions)[0]


def open_run(where: str, backend: JournalBackend, actions: RunActions) -> tuple[Result, Contents]:
    """The result of a run, and what its journal holds.

    Raises:
        JournalError: It cannot be read.
    """
    is_held = backend.is_held()  # first: what it writes until it ends is read
    contents = read_journal(backend)
    machine = replay(contents, RandomSearch())
    if contents.damage and not (is_held and contents.damage[0].endswith("is torn")):  # a line that is being written
        _log.warning("%s: the journal is damaged, and what is whole was read: %s", where, "; ".join(contents.damage))
    header, status = contents.header, _status(contents, Ending.RUNNING if is_held else Ending.KILLED)
    result = make_result(
        machine,
        _paths(where, status),
        objective=header.metrics[0] if header.metrics else None,
        others=tuple(zip(machine.study.objectives.directions[1:], header.metrics[1:], strict=True)),
        ending=status.status,
        seconds=contents.earlier_seconds + status.seconds,
        is_longer=bool(contents.unended) or status.status is Ending.KILLED,
        is_ablation=bool(header.variants),
        actions=actions,
    )
    return result, contents


def find_run(where: str) -> JournalBackend:
    """The journal of a run.

    Args:
        where: Its folder, a path or a URL.

    Raises:
        ConfigError: There is none; the message says which runs are near.
        JournalError: It cannot be read.
    """
    backend = backend_of(check_folder("", where))
    with reading(backend):
        exists = backend.exists()
    if not exists:
        raise ConfigError(_no_run(where.rstrip("/")))
    return backend


def replay(contents: Contents, optimizer: Optimizer) -> StateMachine:
    """The state machine as it was when the journal ends; damage is repaired in memory.

    Args:
        optimizer: Its scheduler sees the trials; it is not asked.

    Raises:
        JournalError: It is damaged beyond repair.
    """
    header = contents.header
    study = Study(
        SearchSpace.from_json(header.space),
        optimizer,
        direction=header.directions,
        objectives=header.metrics,
        value=cast(Worth, header.value),
        max_budget=header.max_budget,
    )
    machine = StateMachine(study)
    for event in Repairer(study, contents.events).events() if contents.damage else contents.events:
        machine.replay([event])
    return machine


def make_result(
    machine: StateMachine,
    paths: RunPaths,
    *,
    objective: str | None,
    others: tuple[tuple[str, str], ...],
    ending: Ending,
    seconds: float,
    is_longer: bool = False,
    is_ablation: bool = False,
    actions: RunActions | None = None,
) -> Result:
    """The result of a search or training, from its state machine.

    Args:
        objective: Name of the metric that is optimised; by default that of the trials.
        actions: What the result does with its run.
    """
    study = machine.study
    trainings = [trial for trial in study.trials if trial.training]
    name = objective or next((trial.objective for trial in study.trials if trial.objective), "value")
    return Result(
        trials=[trial for trial in study.trials if not trial.training],
        best_trial=None if is_ablation else study.best,
        objective=name,
        direction=study.direction or "max",
        ending=ending,
        seconds=seconds,
        is_longer=is_longer,
        directory=paths.directory,
        space=study.problem.space,
        others=others,
        pareto=ParetoSet(study.pareto, [name, *(other for _, other in others)]),
        store=paths.store,
        training=training_of(machine, paths, name) if trainings else None,
        _worth=study.worth,
        _actions=actions,
    )


def training_of(machine: StateMachine, paths: RunPaths, objective: str) -> Training:
    """The result of the last training."""
    trial = [trial for trial in machine.study.trials if trial.training][-1]
    best = trial.best_checkpoint
    return Training(
        trial=trial,
        objective=objective,
        checkpoint=state_url(paths.store, trial.checkpoint.name) if trial.checkpoint is not None else None,
        best_checkpoint=state_url(paths.store, best.name) if best is not None else None,
        directory=paths.directory,
    )


def _status(contents: Contents, otherwise: Ending) -> RunStatus:
    """The status of the run; ``otherwise`` where no driver has recorded its end."""
    begun = contents.begun or RunStatus(Ending.RUNNING, contents.header.created)
    if contents.ended is not None:
        ended = contents.ended
        return RunStatus(ended.status, ended.time, ended.seconds, begun.store)
    times = [time.time()] if not otherwise.is_over else [getattr(event, "time", 0.0) for event in contents.events]
    return RunStatus(otherwise, 0.0, max(0.0, max(times, default=0.0) - begun.time), begun.store)


def _paths(where: str, status: RunStatus) -> RunPaths:
    folder: Folder = where.rstrip("/") if "://" in where else Path(open_url(where)[1])
    return RunPaths.recorded(folder, status.store)


def _no_run(where: str) -> str:
    """The message where there is no run: names the runs near by."""
    if runs := _near(where):
        named = ", ".join(repr(f"{where}/{name}") for name in runs[:_MOST_NAMED])
        more = f" and {len(runs) - _MOST_NAMED} more" if len(runs) > _MOST_NAMED else ""
        return f"{where!r} is a folder of runs, not a run; use the folder of one: {named}{more}"
    folder, _, name = where.rpartition("/")
    around = folder or "maggy_runs"
    near = [repr(f"{around}/{run}") for run in difflib.get_close_matches(name, _near(around))]
    meant = f" (did you mean {' or '.join(near)}?)" if near else ""
    return f"there is no run in {where!r}; use the folder of one, as result.directory{meant}"


def _near(folder: str) -> list[str]:
    """The names of the first runs in a folder; none where it cannot be read, which another message is about."""
    with contextlib.suppress(JournalError):
        return runs_in(folder, _MOST_LISTED)
    return []


def runs_in(folder: str, most: int | None = None) -> list[str]:
    """The names of the runs in a folder, in order; none where there is no such folder.

    Args:
        folder: A path or a URL.
        most: Entries that are looked at.

    Raises:
        JournalError: The folder cannot be read.
    """
    scheme = folder.partition("://")[0] + "://" if "://" in folder else ""
    try:
        fs, path = open_url(folder)
        entries = sorted(entry.rstrip("/") for entry in fs.ls(path, detail=False))[:most]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except Exception as error:  # of whatever file system it is
        said = str(error) or type(error).__name__
        raise JournalError(f"the folder {folder!r} cannot be read: {said}; fix the access") from error
    may_be = read_each(folder, _may_be_run, [scheme + entry for entry in entries])
    return [entry.rpartition("/")[2] for entry, is_one in zip(entries, may_be, strict=True) if is_one]


def read_each(folder: str, read: Callable[[str], T], names: Sequence[str]) -> list[T]:
    """What ``read`` gives for each name: of a store, whose answers take their time, several at a time.

    Args:
        folder: Where they are: a path or a URL.
        read: Reads something there.
        names: Of what.
    """
    if try_local_path(folder) is not None:
        return [read(name) for name in names]
    with ThreadPoolExecutor(READERS, "maggy-list") as pool:
        return list(pool.map(read, names))


def _may_be_run(where: str) -> bool:
    """Whether there is a run, or something of which that cannot be told: reading it says why."""
    try:
        return backend_of(where).exists()
    except Exception:  # of whatever file system it is; another user's run is in a folder that is theirs alone
        return True
