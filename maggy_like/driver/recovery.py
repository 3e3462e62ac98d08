"""The journal of a run: begun, or taken up where it ends."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from maggy_like.driver.settings import FileSettings, SearchSettings, Settings
from maggy_like.driver.state_machine import StateMachine
from maggy_like.errors import ConfigError, JournalError
from maggy_like.protocol.endings import Ending
from maggy_like.storage.control_files import ControlFiles
from maggy_like.storage.file_systems import remove_folder
from maggy_like.storage.folders import local_path, probe, probe_path, url_of, within
from maggy_like.storage.journal import (
    FORMAT_VERSION,
    Journal,
    JournalBackend,
    Repairer,
    RunHeader,
    RunStatus,
    backend_of,
    read_header,
    reading,
    to_records,
)
from maggy_like.storage.run_paths import RunPaths
from maggy_like.storage.store_marks import is_marked, mark_store, unmark_store
from maggy_like.train_function.code_hash import is_comparable
from maggy_like.version import __version__
from optimizers.core.initial_points import initial_points
from optimizers.core.study import Study
from optimizers.core.trial import Trial
from optimizers.space.search_space import SearchSpace

PACKAGES = (
    "accelerate",
    "jax",
    "keras",
    "lightgbm",
    "lightning",
    "numpy",
    "optuna",
    "pandas",
    "pyspark",
    "scikit-learn",
    "tensorflow",
    "torch",
    "transformers",
    "xgboost",
)
"""Packages whose versions are recorded where they are installed."""


def environment() -> dict[str, str]:
    """The driver's machine and versions; nothing is imported for it.

    Example:
        >>> environment()["python"]
        '3.11.9'
    """
    known = {
        "host": platform.node(),
        "system": platform.platform(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "maggy_like": __version__,
    }
    return known | {package: found for package in PACKAGES if (found := _version(package))}


def _version(package: str) -> str:
    """The version of a package; empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


_log = logging.getLogger(__name__)

_FOLDERS = ("checkpoints", "logs", "workers", "tensorboard")
"""What a run has in its folder beside its journal and control files; other files there are the user's."""
_MOST_CHANGES = 3
"""Parameters that an error names of a search space that is another one."""

_MOST_SHOWN = 5
"""Sentences about a damaged journal that the display shows; the log has all."""


def open_journal(settings: Settings, machine: StateMachine, run_id: str) -> tuple[Journal, list[str]]:
    """A new run's journal, or an old one replayed into the state machine; the run's store has its mark then.

    Args:
        run_id: The mark.

    Returns:
        The journal, and hints about its damage and its repair.

    Raises:
        ConfigError: The name is taken, the run's folder or store cannot be written, or the run was another search.
        JournalError: There is nothing to resume, or its journal is in use or damaged beyond repair.
    """
    files, paths = settings.files, settings.paths
    folder = local_path(paths.directory)
    if folder is None:
        probe(str(paths.directory))
    backend = backend_of(paths.journal)
    where = backend.name.removesuffix(f"/{files.name}")
    exists = _check_name_is_free(files, backend, where)
    if files.overwrite and exists:
        _check_can_be_deleted(files, backend)
    if files.resume and not exists:
        raise JournalError(f"there is no run named {files.name!r} in {where} to resume")
    if folder is not None:
        probe_path(folder)
    with ExitStack() as undo:
        journal = Journal(backend, run_id)  # first: of two drivers that begin a run, one alone touches anything of it
        undo.callback(journal.close)
        hints: list[str] = []
        header = _header(files.name, settings.search)
        if files.resume:
            with no_collections():
                hints = replay(journal, header, machine)
            ControlFiles(paths.journal).clear(run_id)
            _check_direction(read_header(backend), header, machine.study)
            _check_training(settings, machine.study.trials)
            _check_room(settings.search, machine.study)
            hints += _more_than_asked(settings.search, machine.study.trials)
            hints += _other_code(journal.code, files.code)
            _mark(files, run_id, folder)
        else:
            # Another driver may have begun it, and be through with it.
            if _check_name_is_free(files, backend, where):
                _check_can_be_deleted(files, backend)
                _remove(paths, journal, run_id)
            _mark(files, run_id, folder)  # before the header: a run that cannot begin does not take its name
            undo.callback(unmark_store, paths.store)
            journal.begin(header)
        store = paths.recorded_store
        begun = RunStatus(Ending.RUNNING, time.time(), store=store, environment=environment(), code=files.code)
        journal.note(begun)
        undo.pop_all()
    return journal, hints


def _check_name_is_free(files: FileSettings, backend: JournalBackend, where: str) -> bool:
    """Whether there is a journal.

    Raises:
        ConfigError: There is one, which is neither to be resumed nor to be overwritten.
    """
    with reading(backend):
        exists = backend.exists()
    if exists and not (files.resume or files.overwrite):
        way = ", overwrite=True to delete it and start over," * (files.overwrite is not None)
        raise ConfigError(
            f"there is a run named {files.name!r} in {where} already; pass resume=True to continue it{way} or another "
            "name to keep both"
        )
    return exists


def _check_can_be_deleted(files: FileSettings, backend: JournalBackend) -> None:
    """Check that what is to be overwritten is a run, by its journal's header, and has all its states in its folder.

    Raises:
        JournalError: It is none, or its driver is a task of the cluster, whose next attempt would take it up.
        ConfigError: It has states elsewhere, which may be another run's of that name.
    """
    driver = ControlFiles(files.paths.journal).driver()
    if driver is not None and not driver.is_over:
        raise JournalError(
            f"the run in {backend.name} has a driver in the cluster, on {driver.host}, that has not recorded its end; "
            "stop it, or pass another name; if it is dead, resume=True continues the run"
        )
    if not files.paths.has_own_store:
        _check_store_is_free(files)
    try:
        read_header(backend)
    except JournalError as error:
        raise JournalError(
            f"overwrite=True deletes runs only, and what is in {backend.name} cannot be read as one ({error}); pass "
            "another name, or remove the folder yourself"
        ) from error


def _remove(paths: RunPaths, journal: Journal, run_id: str) -> None:
    """Delete a run, which this driver holds; its journal comes last, so that it can be deleted again after a fault.

    Raises:
        ConfigError: A part of it cannot be deleted.
    """
    try:
        for name in _FOLDERS:
            remove_folder(url_of(within(paths.directory, name)))
    except Exception as error:  # of whatever file system it is
        raise ConfigError(
            f"the run in {paths.directory} cannot be deleted ({type(error).__name__}: {error}); fix the access, or "
            "pass another name"
        ) from error
    ControlFiles(paths.journal).clear(run_id)
    journal.clear()


def _mark(files: FileSettings, run_id: str, folder: Path | None) -> None:
    """Leave the mark in the store by which workers see that it is the same place, and in a folder of logs of its own.

    Raises:
        ConfigError: The store of a new run is another's already, or it cannot be written.
    """
    store, paths = files.paths.store, files.paths
    if not files.resume:
        _check_store_is_free(files)
    try:
        mark_store(store, run_id)
        if folder is not None and paths.log_copies:
            mark_store(url_of(paths.logs), run_id)
    except Exception as error:  # of whatever file system it is
        raise _refused(store, error) from None  # its own text says it all, and the chain below it is of file systems


def _check_store_is_free(files: FileSettings) -> None:
    """Check that the store has no run's states; an overwritten run's are deleted in its own folder only.

    Raises:
        ConfigError: It has some, or it cannot be read.
    """
    store = files.paths.store
    try:
        is_taken = is_marked(store)
    except Exception as error:  # of whatever file system it is
        raise _refused(store, error) from None
    if is_taken:
        whose = (
            ", and overwrite=True deletes none outside of the run's folder"
            if files.overwrite
            else (", which has its journal elsewhere")
        )
        raise ConfigError(
            f"there are checkpoints of a run named {files.name!r} in {store} already{whose}; pass another name, or "
            "remove them if that run is gone"
        )


def _refused(store: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"the store {store!r} cannot be written ({type(error).__name__}: {error}); pass another store=URL"
    )


def replay(journal: Journal, header: RunHeader, machine: StateMachine) -> list[str]:
    """Take a journal up, and repair it if it is damaged; what was done.

    Raises:
        ConfigError: It is of another search.
        JournalError: It is damaged beyond repair.
    """
    taken = 0
    for contents in journal.read_each():
        if not taken:
            _check_same(contents.header, header)
        if contents.damage:
            break
        taken += len(contents.events)
        machine.replay(contents.events, journal.written())
        contents.events = []  # so that the journal is never held whole
    else:
        return []
    contents = journal.read()  # the repaired one is written whole
    repairer = Repairer(machine.study, contents.events, taken)
    events = contents.events[:taken]
    try:
        for event in repairer.events():
            machine.replay([event])
            events.append(event)
    except JournalError as error:
        error.add_note("; ".join(contents.damage))
        raise
    kept = journal.replace(contents.header, events)
    findings = (*contents.damage, *repairer.inferred, f"the damaged one is kept as {kept}")
    hints = [f"journal: {text}" for text in findings]
    for text in hints:
        _log.warning("%s", text)
    return (
        hints
        if len(hints) <= _MOST_SHOWN
        else [*hints[: _MOST_SHOWN - 1], f"... and {len(hints) - _MOST_SHOWN + 1} more"]
    )


def _check_room(search: SearchSettings, study: Study) -> None:
    """Raise if there is no room for the points that a resume brings.

    Raises:
        ConfigError: There is none.
    """
    automatic = {search.space.key(point) for point in initial_points(search.problem, ())}
    new = [point for point in study.points_left if search.space.key(point) not in automatic]
    wanted = study.size + len(new)
    if new and search.n_trials is not None and wanted > search.n_trials:
        raise ConfigError(
            f"n_trials must be at least {wanted} to try the {len(new)} new points_to_evaluate after {study.size} "
            f"trials, got {search.n_trials}; pass n_trials={wanted}, or leave the points out"
        )


def _more_than_asked(search: SearchSettings, trials: list[Trial]) -> list[str]:
    """A hint where a resume asks for fewer trials than there are."""
    there = sum(not trial.training for trial in trials)
    if search.n_trials is None or there <= search.n_trials:
        return []
    return [
        f"there are {there} trials already, and n_trials={search.n_trials}: no other is tried; pass a larger n_trials"
    ]


def _other_code(before: str, now: str) -> list[str]:
    """A hint where a resume has another training function than the newest trials had."""
    if before == now or not is_comparable(before, now):
        return []
    return [
        "the training function, or one that it calls, has changed since the run was last driven: trials from before it "
        "are compared with later ones; pass another name to keep them apart"
    ]


def _check_training(settings: Settings, trials: list[Trial]) -> None:
    """Raise if a training is to be resumed as another one.

    Raises:
        ConfigError: It is.
    """
    now = settings.training
    for trial in trials:
        config = (now.config if now is not None else None) or trial.config
        if now is not None and trial.training and (trial.training, trial.config) != (now.steps, config):
            raise ConfigError(
                f"the training of the run {settings.files.name!r} was started with {trial.training} steps of "
                f"{trial.config}, not {now.steps} of {config}; resume it with the same, or choose another name"
            )


def _header(name: str, search: SearchSettings) -> RunHeader:
    return RunHeader(
        version=FORMAT_VERSION,
        name=name,
        created=time.time(),
        space=search.space.to_json(),
        optimizer=_described(search),
        directions=list(search.directions),
        metrics=list(search.metrics),
        value=search.value,
        seed=search.seed,
        max_budget=search.max_budget,
        constrained=search.space.has_constraint,
        earlier=to_records(search.earlier),
        variants=list(search.variants),
    )


def _described(search: SearchSettings) -> str:
    """The optimizer and its options; of an ablation its design, since ``variants`` has what is in it."""
    if not search.is_ablation:
        return search.optimizer.describe()
    tuner = getattr(search.optimizer, "optimizer", None)  # which searches for each variant
    return search.optimizer_name if tuner is None else f"{search.optimizer_name} of {tuner.describe()}"


def _check_same(known: RunHeader, now: RunHeader) -> None:
    """Raise if a run is to be resumed as another search.

    Raises:
        ConfigError: It is.
    """
    arguments = {"directions": "direction", "metrics": "metric"}
    for field in ("optimizer", "space", "directions", "metrics", "value", "seed", "max_budget", "constrained"):
        before, given = getattr(known, field), getattr(now, field)
        if field == "directions" and before == [None]:
            continue  # the first measurement may have settled it: see _check_direction
        if before != given:
            if field == "space":
                raise _other_space(known, now)
            was, now_is = (before, given) if field == "optimizer" else (_written(before), _written(given))
            raise _differs(known, arguments.get(field, field), was, now_is)
    for before, given in zip(known.variants, now.variants, strict=False):  # an old journal has none
        if before != given:
            raise ConfigError(
                f"the run {known.name!r} was started with the variant {before!r}, not {given!r}; resume it with the "
                "same study, or choose another name"
            )


def _check_direction(known: RunHeader, now: RunHeader, study: Study) -> None:
    """Raise if a run that began without a direction is given another than its first measurement has settled.

    Raises:
        ConfigError: It is.
    """
    if known.directions != [None] or now.directions == [None]:
        return
    is_measured = any(trial.objective is not None for trial in study.trials)
    if is_measured and now.directions != [study.objectives.settled]:
        raise _differs(known, "direction", _written(known.directions), _written(now.directions))


def _differs(known: RunHeader, argument: str, was: str, now: str) -> ConfigError:
    return ConfigError(
        f"the run {known.name!r} was started with {argument}={was}, not {now}; resume it with the same, or choose "
        "another name"
    )


def _other_space(known: RunHeader, now: RunHeader) -> ConfigError:
    before, given = (SearchSpace.from_json(header.space).domains for header in (known, now))
    changes = [f"{name!r} is gone" for name in before if name not in given]
    for name, domain in given.items():
        if name not in before:
            changes.append(f"{name!r} is new")
        elif known.space[name] != now.space[name]:
            changes.append(f"{name!r} was {before[name]!r} and is {domain!r}")
    shown = ", ".join(changes[:_MOST_CHANGES]) + ", ..." * (len(changes) > _MOST_CHANGES)
    return ConfigError(
        f"the run {known.name!r} was started with another search space: {shown}; pass another name, and warm_start="
        f"[FOLDER OF {known.name!r}] to use its results"
    )


def _written(value: object) -> str:
    """A setting as a caller writes it: one metric or direction by itself, and none as None."""
    if isinstance(value, list):
        return repr(value if len(value) > 1 else next(iter(value), None))
    return repr(value)


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """For what makes very many objects that stay, such as a replay: no collection finds anything in them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
