"""The journal of a run: a new one, or an old one that is resumed."""

from __future__ import annotations

import logging
import os
import platform
import time
from contextlib import ExitStack
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from maggy_like.driver.settings import FileSettings, SearchSettings, Settings
from maggy_like.driver.state_machine import StateMachine
from maggy_like.errors import ConfigError, JournalError
from maggy_like.processes.garbage import no_collections
from maggy_like.protocol.endings import Ending
from maggy_like.storage.control_files import ControlFiles
from maggy_like.storage.file_systems import (
    is_marked,
    local_path,
    mark_store,
    parent_of,
    probe,
    probe_path,
    remove_directory,
    unmark_store,
    url_of,
    within,
)
from maggy_like.storage.journal import (
    FORMAT_VERSION,
    Journal,
    JournalBackend,
    RunHeader,
    RunStatus,
    backend_of,
    read_header,
    reading,
    to_records,
)
from maggy_like.storage.run_paths import LEFT, WORK, RunPaths, mount_hints
from maggy_like.train_function.code import is_comparable
from maggy_like.version import __version__
from optimizers.core.study import Study, initial_points
from optimizers.core.trial import Trial, TrialState
from optimizers.space.search_space import SearchSpace

_log = logging.getLogger(__name__)

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
"""Packages whose versions are recorded if they are installed."""


def environment() -> dict[str, str]:
    """Return the driver's machine and versions, without importing anything."""
    known = {
        "host": platform.node(),
        "system": platform.platform(),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "maggy_like": __version__,
    }
    return known | {package: found for package in PACKAGES if (found := _version(package))}


@cache  # to read and parse all of the packages' metadata takes 30 ms, most of the cost of a short search
def _version(package: str) -> str:
    """Return the version of a package. Empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


_DIRECTORIES = ("checkpoints", "files", "logs", "workers", "tensorboard", WORK, WORK + LEFT)
"""Directories of a run next to its journal and control files. Other files in its directory belong to the user."""
_MOST_CHANGES = 3
"""Changed parameters that an error about another search space has."""

_MOST_SHOWN = 5
"""Sentences about a damaged journal that the display shows. The log has all of them."""


def open_journal(settings: Settings, machine: StateMachine, run_id: str) -> tuple[Journal, list[str]]:
    """Begin a journal, or replay an old one into the state machine. Afterwards the run's store is marked.

    Return the journal, and hints about damage and repair.
    """
    files, paths = settings.files, settings.paths
    directory = local_path(paths.directory)
    if directory is None:
        probe(str(paths.directory))
    backend = backend_of(paths.journal)
    if check_existing(files, backend) and files.overwrite:
        _check_can_be_deleted(files, backend)
    if directory is not None:
        probe_path(directory)
    with ExitStack() as undo:
        journal = Journal(backend, run_id)  # first: of two drivers that begin a run, only one may change its files
        undo.callback(journal.close)
        hints = mount_hints(paths.directory)
        header = _header(files.name, settings.search)
        if files.resume:
            with no_collections():
                hints += restore(journal, header, machine)
            ControlFiles(paths.journal).clear(run_id)
            _check_direction(read_header(backend), header, machine.study)
            _check_confirmation(settings, machine.study.repeats)
            _check_training(settings, machine.study.trials)
            _check_new_points(settings.search, machine.study)
            hints += _progress(settings.search, machine.study.trials)
            if journal.begun is not None:
                hints += _other_code(journal.begun.code, files.code)
                _check_store(files, journal.begun.store)
            _mark(files, run_id, directory)
        else:
            # Another driver may have begun and ended it meanwhile.
            if check_existing(files, backend):
                _check_can_be_deleted(files, backend)
                _remove(paths, journal, run_id)
            _mark(files, run_id, directory)  # before the header: a run that cannot begin leaves its name free
            undo.callback(unmark_store, paths.store)
            journal.begin(header)
        store = paths.recorded_store
        begun = RunStatus(
            Ending.RUNNING,
            time.time(),
            store=store,
            environment=environment(),
            code=files.code,
            function=files.function,
        )
        journal.note(begun)
        undo.pop_all()
    return journal, hints


def check_existing(files: FileSettings, backend: JournalBackend) -> bool:
    """Check that there is a run of that name, or none, as ``resume`` and ``overwrite`` expect. Return which."""
    with reading(backend):
        exists = backend.exists()
    where = backend.name.removesuffix(f"/{files.name}")
    if exists and not (files.resume or files.overwrite):
        way = ", overwrite=True to delete it and start over," * (files.overwrite is not None)
        raise ConfigError(
            f"there is a run named {files.name!r} in {where} already; pass resume=True to continue it{way} or another "
            "name to keep both"
        )
    if files.resume and not exists:
        raise JournalError(
            f"there is no run named {files.name!r} in {where} to resume; leave resume out to start it, or pass the "
            "name and the directory of an earlier one"
        )
    return exists


def _check_can_be_deleted(files: FileSettings, backend: JournalBackend) -> None:
    """Check that the directory to overwrite has a run, by its journal's header, with all its states."""
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
            "another name, or remove the directory yourself"
        ) from error


def _remove(paths: RunPaths, journal: Journal, run_id: str) -> None:
    """Delete a run that this driver holds. Its journal is the last part, so that a failed deletion can be retried."""
    try:
        for name in _DIRECTORIES:
            remove_directory(url_of(within(paths.directory, name)))
    except Exception as error:  # of any file system
        raise ConfigError(
            f"the run in {paths.directory} cannot be deleted ({type(error).__name__}: {error}); fix the access, or "
            "pass another name"
        ) from error
    ControlFiles(paths.journal).clear(run_id)
    journal.clear()


def _mark(files: FileSettings, run_id: str, directory: Path | None) -> None:
    """Mark the store, so that workers can check that they see the same place, and a separate directory of logs."""
    store, paths = files.paths.store, files.paths
    if not files.resume:
        _check_store_is_free(files)
    try:
        mark_store(store, run_id)
        if directory is not None and paths.log_copies:
            mark_store(url_of(paths.logs), run_id)
    except Exception as error:  # of any file system
        raise _refused(store, error) from None  # its text is complete, and the chain has only errors of file systems


def _check_store_is_free(files: FileSettings) -> None:
    """Check that the store has no states of a run, since states outside of the run's directory are never deleted."""
    store = files.paths.store
    if _has_mark(store):
        whose = (
            ", and overwrite=True deletes none outside of the run's directory"
            if files.overwrite
            else (", which has its journal elsewhere")
        )
        raise ConfigError(
            f"there are checkpoints of a run named {files.name!r} in {store} already{whose}; pass another name, or "
            "remove them if that run is deleted"
        )


def _check_store(files: FileSettings, before: str) -> None:
    """Check that a resumed run has its states where the driver before, which has recorded the place, had them.

    They may have been moved to another place, with the mark.
    """
    paths = files.paths
    known = RunPaths.recorded(paths.directory, before)
    if known.store == paths.store or _has_mark(paths.store):
        return
    how = "without store=" if known.has_own_store else f"with store={parent_of(known.store)!r}"
    raise ConfigError(
        f"the run {files.name!r} has its checkpoints in {known.store}, not in {paths.store}; resume it {how}, or move "
        "that directory first"
    )


def _has_mark(store: str) -> bool:
    try:
        return is_marked(store)
    except Exception as error:  # of any file system
        raise _refused(store, error) from None


def _refused(store: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"the store {store!r} cannot be written ({type(error).__name__}: {error}); pass another store=URL"
    )


def restore(journal: Journal, header: RunHeader, machine: StateMachine) -> list[str]:
    """Replay a journal, and repair it if it is damaged. Return hints about the repair."""
    taken = 0
    for contents in journal.read_each():
        if not taken:
            _check_same(contents.header, header)
        if contents.damage:
            break
        taken += len(contents.events)
        machine.replay(contents.events, journal.written())
        contents.events = []  # so that the whole journal is never in memory
    else:
        return []
    contents = journal.read()  # the repaired journal is written as a whole
    from maggy_like.storage.journal.repair import Repairer

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


def _check_new_points(search: SearchSettings, study: Study) -> None:
    """Check that ``n_trials`` suffices for the points of a resumed search."""
    automatic = {search.space.key(point) for point in initial_points(search.problem, ())}
    new = [point for point in study.points_left if search.space.key(point) not in automatic]
    wanted = study.size + len(new)
    if new and search.n_trials is not None and wanted > search.n_trials:
        raise ConfigError(
            f"n_trials must be at least {wanted} to try the {len(new)} new points_to_evaluate after {study.size} "
            f"trials, got {search.n_trials}; pass n_trials={wanted}, or leave the points out"
        )


def _progress(search: SearchSettings, trials: list[Trial]) -> list[str]:
    """Return a hint about the trials that a resumed search has already."""
    states = [trial.state for trial in trials if not trial.training]
    if not states:
        return []
    unfinished = sum(state in (TrialState.PENDING, TrialState.RUNNING) for state in states)
    if search.n_trials is not None and not unfinished and len(states) >= search.n_trials:
        return [
            f"there are {len(states)} trials already, and n_trials={search.n_trials}: no more are tried; use a larger "
            "n_trials"
        ]
    tried, total = len(states) - unfinished, search.n_trials
    of = "" if total is None else f" of {total}"
    noun = f"configuration{'s' * ((total or tried) != 1)}"
    continued = f", and {unfinished} continue{'s' * (unfinished == 1)}" if unfinished else ""
    return [f"resumed: {tried}{of} {noun} {'was' if tried == 1 else 'were'} tried before{continued}"]


def _other_code(before: str, now: str) -> list[str]:
    """Return a hint if a resumed search has another training function than its newest trials."""
    if before == now or not is_comparable(before, now):
        return []
    return [
        "the training function, or one that it calls, has changed since the last start of this run: earlier trials are "
        "compared with later ones; use another name to keep them apart"
    ]


def _check_confirmation(settings: Settings, repeats: list[Trial]) -> None:
    """Check that a resumed confirmation has the same number of configurations and repeats."""
    now = settings.confirmation
    for trial in repeats:
        before = trial.repeat
        if now is not None and before is not None and (before.top, before.repeats) != (now.top, now.repeats):
            raise ConfigError(
                f"the run {settings.files.name!r} was confirmed with Confirmation(top={before.top}, "
                f"repeats={before.repeats}), not {now!r}; resume it with the same, or choose another name"
            )


def _check_training(settings: Settings, trials: list[Trial]) -> None:
    """Check that a resumed training has the same steps and configuration."""
    now = settings.training
    for trial in trials:
        config = (now.config if now is not None else None) or trial.config
        if now is not None and trial.is_final_training and (trial.training, trial.config) != (now.steps, config):
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
        groups=list(search.groups),
        comparisons=dict(search.comparisons),
        began_with=search.began_with,
    )


def _described(search: SearchSettings) -> str:
    """Return the optimizer with its options. Groups of trials are not among these, since the header has them itself."""
    if search.finds_best:
        return search.optimizer.describe()
    tuner = getattr(search.optimizer, "optimizer", None)  # which tunes each group
    return search.optimizer_name if tuner is None else f"{search.optimizer_name} of {tuner.describe()}"


def _check_same(known: RunHeader, now: RunHeader) -> None:
    """Check that a resumed run is the same search."""
    arguments = {"directions": "direction", "metrics": "metric"}
    for field in ("optimizer", "space", "directions", "metrics", "value", "seed", "max_budget", "constrained"):
        before, given = getattr(known, field), getattr(now, field)
        if field == "directions" and before == [None]:
            continue  # the first measurement may have decided it: see _check_direction
        if before != given:
            if field == "space":
                raise _other_space(known, now)
            was, now_is = (before, given) if field == "optimizer" else (_written(before), _written(given))
            raise _differs(known, arguments.get(field, field), was, now_is)
    for before, given in zip(known.groups, now.groups, strict=False):  # an old journal does not have them
        if before != given:
            raise ConfigError(
                f"the run {known.name!r} was started to compare {before!r}, not {given!r}; resume it with the "
                "same study, or choose another name"
            )


def _check_direction(known: RunHeader, now: RunHeader, study: Study) -> None:
    """Check that the direction of a resumed run is the one that its first measurement decided."""
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
    changes = [f"{name!r} is missing" for name in before if name not in given]
    for name, domain in given.items():
        if name not in before:
            changes.append(f"{name!r} is new")
        elif known.space[name] != now.space[name]:
            changes.append(f"{name!r} was {before[name]!r} and is {domain!r}")
    shown = ", ".join(changes[:_MOST_CHANGES]) + ", ..." * (len(changes) > _MOST_CHANGES)
    learn = f", and warm_start=[DIRECTORY OF {known.name!r}] to use its results" if known.finds_best else ""
    return ConfigError(
        f"the run {known.name!r} was started with another search space: {shown}; pass another name{learn}"
    )


def _written(value: object) -> str:
    """Format a setting as a caller writes it: a single metric or direction without a list, and None without any."""
    if isinstance(value, list):
        return repr(value if len(value) > 1 else next(iter(value), None))
    return repr(value)
