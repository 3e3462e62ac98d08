"""Executes one run from its settings to its end: a search, a training run, or both."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from maggy_like.display.base import LogLine, Snapshot
from maggy_like.driver.followers import Followers
from maggy_like.driver.loop import Driver
from maggy_like.driver.proposers import DirectProposer, Proposer
from maggy_like.driver.recovery import open_journal
from maggy_like.driver.run_spec import RunSpec, count_workers, least_workers, size_hints
from maggy_like.driver.settings import FileSettings, Settings
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.interface import StopRequested
from maggy_like.driver.supervisor import run_search
from maggy_like.engines.base import Engine
from maggy_like.errors import ConfigError, JournalError, JournalLostError
from maggy_like.processes.garbage import short_collections
from maggy_like.processes.imports import module_path, remember, remembered
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.protocol.task import KeyPair, WorkerId, WorkerTask
from maggy_like.rpc.server import Server
from maggy_like.storage.file_systems import is_in_memory, parent_of
from maggy_like.storage.journal import Journal, RunStatus, RunTotals
from maggy_like.storage.run_paths import WORK, OutputDirectory, RunPaths
from maggy_like.train_function.pickling import read_logging
from optimizers.core.objectives import Objectives
from optimizers.core.study import Study

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    machine: StateMachine  # the state machine with the study
    ending: Ending  # how the run ended (see :attr:`maggy_like.Result.ending`)
    seconds: float  # wall time of all drivers of the run
    error: Exception | None  # error that ended the run early. The caller raises it with the result so far
    created: float  # Unix time at which the run began
    is_longer: bool = False  # whether the run took longer than ``seconds``, because a killed driver recorded no end


@dataclass(frozen=True)
class Site:
    """How a driver and its workers connect."""

    run_id: str  # identifier of the run, with which its store is marked
    server: Callable[[], Server]  # opens the server
    task: Callable[[Server], WorkerTask]  # makes the task of all workers once the server is open
    admit: Callable[[Server, WorkerId], KeyPair]  # admits an incarnation of a worker, and returns its key pair
    begun: Callable[[Driver], None]  # called with the driver before it starts


def execute(spec: RunSpec, site: Site | None = None) -> Outcome:
    """Execute a run. After Ctrl-C, or an error of a run that has begun, the outcome is the one so far.

    The engine decides how the driver and the workers connect, unless ``site`` does.
    """
    with contextlib.ExitStack() as interrupts:
        size = count_workers(spec.settings, spec.engine)
        interrupts.enter_context(short_collections(size))
        if site is not None:
            return _execute(spec, size, site, interrupts)
        endpoint = spec.engine.endpoint()
        server = Server(endpoint.host, bind=endpoint.bind, ports=endpoint.ports)  # first, since it may fail
        try:
            return _execute(spec, size, _own_site(spec, size, server), interrupts)
        finally:
            server.close()


def _own_site(spec: RunSpec, size: int, server: Server) -> Site:
    """Return the site of a driver in this process, whose engine launches the workers."""
    run_id = secrets.token_hex(8)
    return Site(
        run_id,
        server=lambda: server,
        task=lambda server: worker_task(spec, size, run_id, server.address, server.public_key, ipv6=server.is_ipv6),
        admit=lambda server, worker: server.admit(worker),
        begun=lambda driver: spec.stop.attach(driver.stop),
    )


def worker_task(
    spec: RunSpec, size: int, run_id: str, address: str, server_key: bytes, *, ipv6: bool = False
) -> WorkerTask:
    """Make the task of all workers of a run."""
    settings = spec.settings
    return WorkerTask(
        address=address,
        server_key=server_key,
        run_id=run_id,
        train_fn=spec.payload,
        preload=spec.preload,
        sys_path=module_path(),
        argv=tuple(sys.argv),
        store=settings.paths.store,
        logs=str(settings.paths.logs),
        log_copies=settings.paths.log_copies,
        files=settings.paths.files,
        max_files=round(settings.files.kept.max_files_gb * 1e9),
        files_at_checkpoints=settings.files.kept.files_at_checkpoints,
        working_directory=spec.working_directory,
        isolation=spec.engine.isolation,
        report_timeout=settings.failures.report_timeout,
        load_timeout=settings.failures.load_timeout,
        returns_anything=spec.save_returned is not None,
        logging=read_logging(),
        sources=dict(spec.sources),
        ipv6=ipv6,
        rank_ports=spec.engine.rank_ports,
        name=settings.files.name,
        about=settings.about,
        workers=size,
    )


def _execute(spec: RunSpec, size: int, site: Site, interrupts: contextlib.ExitStack) -> Outcome:
    settings, engine = spec.settings, spec.engine
    machine = new_machine(settings, size, grows=engine.is_elastic)
    study = machine.study
    proposer = _proposer(study, in_process=study.optimizer.adaptive and engine.isolation != "none")
    check_reach(settings, engine)
    journal, journal_hints = open_journal(settings, machine, site.run_id)
    output = OutputDirectory(settings.paths.directory)
    failure: Exception | None = None
    driver: Driver | None = None
    exits: list[BaseException] = []  # raised by a callback to leave the program
    ended: float | None = None

    def close() -> None:
        try:
            output.move()
            remove_work(settings.paths)
        finally:
            journal.close()  # last, since the next driver of the run has its files in the same places

    try:
        server = site.server()
        try:
            driver = Driver(
                machine,
                proposer,
                server,
                journal,
                first_snapshot(spec, 0 if engine.is_elastic else size),
                0 if engine.is_elastic else size,
                keep=spec.save_returned,
                timeout=settings.limits.timeout,
                began=spec.began,
            )
            driver.lines.extend(LogLine(None, warning, is_warning=True) for warning in settings.warnings)
            driver.lines.extend(
                LogLine(None, hint)
                for hint in (
                    *settings.hints,
                    *engine.path_hints(settings.paths),
                    *size_hints(settings, engine, size),
                    *journal_hints,
                )
            )

            def stopped_by_callback(error: BaseException) -> None:
                exits.extend([error] * isinstance(error, SystemExit))
                driver.post(StopRequested(Ending.ERROR if exits else Ending.INTERRUPTED))

            followers = Followers(
                driver,
                spec.callbacks,
                stopped_by_callback,
                settings.files,
                study.optimizer.describe(),
                in_threads=engine.isolation != "none",
            )
            site.begun(driver)
            run_search(
                driver,
                engine,
                site.task(server),
                lambda worker: site.admit(server, worker),
                size,
                least=least_workers(settings, engine, size),
                logs=str(output.path),
                displays=spec.displays,
                followers=followers,
                interrupts=interrupts,
            )
            remember(driver.imported)
            # The run ends with its driver: callbacks and trackers that are slow get the rest of the events after that.
            ended = time.monotonic() - (driver.elapsed() - driver.snapshot.elapsed)
            if not exits and (error := machine.error or driver.error) is not None:
                raise error
        except Exception as error:
            if not isinstance(error, JournalLostError):
                error.add_note(f"the run's files are in {settings.paths.directory}; use resume=True to continue")
            if note := output.move(is_away=journal.is_away):
                error.add_note(note)
            failure = error
            vars(error).setdefault("result", None)  # it is of a run, and not of an argument
        finally:
            server.close()
        late = 0.0 if ended is None else time.monotonic() - ended
        ended_at = time.time() - late
        seconds = time.monotonic() - late - spec.began
        ending = _ending(machine, failure)
        if not (isinstance(failure, JournalError) or (driver is not None and driver.was_left)):
            totals = RunTotals.of(
                study,
                journal.earlier_seconds + seconds,
                is_longer=journal.is_longer,
                finds_best=settings.search.finds_best,
            )
            failure = _end(journal, RunStatus(ending, ended_at, seconds, totals=totals)) or failure
        if ending.is_planned:
            prune_files(study, settings.files)
    finally:
        if driver is None:
            close()
        else:
            driver.when_ended(close)
        if modules := remembered():
            engine.begin_imports(modules)
    if exits:
        raise exits[0]
    return Outcome(machine, ending, journal.earlier_seconds + seconds, failure, journal.created, journal.is_longer)


def prune_files(study: Study, files: FileSettings) -> None:
    """Remove the files of all trials except the best, if that was asked for; those of trainings are kept."""
    if (most := files.kept.keep_files) is None:
        return
    from maggy_like.storage.trial_files import remove_files

    of_search = [trial for trial in study.trials if not trial.training and trial.attempt]
    values = {trial.id: trial.value for trial in of_search if trial.value is not None and math.isfinite(trial.value)}
    best = sorted(values, key=values.__getitem__, reverse=study.direction == "max")
    kept = ([trial.id for trial in study.pareto] or best)[:most]
    try:
        remove_files(files.paths.files, (trial.id for trial in of_search if trial.id not in kept))
    except Exception as error:  # each file system raises its own
        _log.warning("files of trials that are not among the best %d could not be removed: %s", most, error)


def remove_work(paths: RunPaths) -> None:
    """Remove the directories of trials whose workers were killed."""
    if isinstance(paths.directory, Path):
        shutil.rmtree(paths.directory / WORK, ignore_errors=True)


def _proposer(study: Study, *, in_process: bool) -> Proposer:
    if not in_process:
        return DirectProposer(study)
    from maggy_like.driver.proposer_process import ProcessProposer  # starts a process, which few optimizers need

    return ProcessProposer(study)


def _ending(machine: StateMachine, failure: Exception | None) -> Ending:
    return Ending.ERROR if failure is not None else machine.ending or Ending.STOPPED


def _end(journal: Journal, status: RunStatus) -> JournalLostError | None:
    """Record the ending in the journal. Return only the error of a lost journal, since no other fault matters."""
    try:
        journal.note(status)
    except JournalLostError as error:
        return error
    except JournalError as error:
        _log.warning("how the run ended is not in its journal: %s", error)
    return None


def new_machine(settings: Settings, size: int, *, grows: bool) -> StateMachine:
    """Make the state machine of a run that has not begun."""
    search = settings.search
    objectives = Objectives(search.directions, search.metrics)
    study = Study.of_checked(search.problem, search.optimizer, objectives, search.points, search.value)
    return StateMachine(study, settings, size=size, grows=grows)


def check_reach(settings: Settings, engine: Engine) -> None:
    """Check that workers in other processes can see the run's directory."""
    directory = settings.paths.directory
    if engine.isolation != "none" and is_in_memory(directory):
        raise ConfigError(
            f"directory={parent_of(directory)!r} is in this process's memory, which workers cannot see; use a "
            "URL that they share, or engine='inline'"
        )


_OWN_PACKAGES = frozenset(("maggy_like", "optimizers", "fsspec"))
"""Packages that workers import in any run."""


def first_snapshot(spec: RunSpec, size: int) -> Snapshot:
    """Return the snapshot before the start. ``size`` is the number of workers, or 0 if it is not known."""
    settings, search = spec.settings, spec.settings.search
    packages = dict.fromkeys(module.partition(".")[0] for module in spec.preload)
    return Snapshot(
        name=settings.files.name,
        directory=str(settings.paths.directory),
        optimizer=search.optimizer_name,
        direction=search.directions[0],
        guessed=search.guessed,
        phase=Phase.STARTING,
        elapsed=0.0,
        objective=search.objective,
        others=search.others,
        n_trials=search.n_trials,
        timeout=settings.limits.timeout,
        finds_best=search.finds_best,
        resumes_all=search.optimizer.scheduler(search.problem).resumes_all,
        engine=spec.engine.name,
        n_workers=size,
        imports=tuple(name for name in packages if name not in sys.stdlib_module_names | _OWN_PACKAGES),
    )
