"""One run from its checked settings to its end: a search, a training, or one after the other."""

from __future__ import annotations

import contextlib
import inspect
import logging
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from maggy_like.api.sequences import listed
from maggy_like.api.settings import Settings
from maggy_like.display import Display
from maggy_like.display.base import LogLine, Snapshot
from maggy_like.driver.gang_size import gang_size, least_workers, size_hints
from maggy_like.driver.loop import Driver
from maggy_like.driver.monitor import Callback, run_search
from maggy_like.driver.proposer.base import DirectProposer
from maggy_like.driver.proposer.process import ProcessProposer
from maggy_like.driver.recovery import open_journal
from maggy_like.driver.run_handle import Experiment
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.inputs import StopRequested
from maggy_like.driver.state_machine.training_phase import TrainingPlan
from maggy_like.engines.base import Engine
from maggy_like.errors import ConfigError, JournalError, JournalLostError
from maggy_like.protocol.identity import WorkerId
from maggy_like.protocol.task import KeyPair, WorkerTask
from maggy_like.rpc.server import Server
from maggy_like.storage.folders import is_in_memory, parent_of
from maggy_like.storage.journal import Journal, RunStatus
from maggy_like.storage.scratch import OutputFolder
from maggy_like.train_function.caller_logging import read_logging
from maggy_like.train_function.names import name_of
from optimizers.core.study import Study

_log = logging.getLogger(__name__)

DriverSide = Literal["client", "cluster"]
"""Where the driver of a run is."""


@dataclass(frozen=True)
class Job:
    """What to run, where, and who watches.

    Attributes:
        settings: The search and the training, checked.
        engine: Provides the workers.
        payload: The training function, pickled.
        preload: Modules that workers import once.
        display: Shows the run.
        callbacks: Get each recorded event.
        sources: Text of the files and notebook cells that the function's code is from.
        handle: By which other threads stop the run.
        keep: Takes what the function returned, where it is no training (see :attr:`WorkerTask.returns_anything`).
        driver: Where the driver runs: in this process, the ``client``, or in a task of the ``cluster``.
    """

    settings: Settings
    engine: Engine
    payload: bytes
    preload: tuple[str, ...]
    display: Display
    callbacks: Sequence[Callback] = ()
    handle: Experiment | None = None
    keep: Callable[[Any], None] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    driver: DriverSide = "client"


@dataclass(frozen=True)
class Site:
    """How a driver and its workers meet.

    Attributes:
        run_id: What the run's store is marked with.
        server: Opens the server.
        task: What the workers are told, once the server is there.
        admit: Lets an incarnation of a worker in.
        begun: Is given the driver before that starts.
    """

    run_id: str
    server: Callable[[], Server]
    task: Callable[[Server], WorkerTask]
    admit: Callable[[Server, WorkerId], KeyPair]
    begun: Callable[[Driver], None]


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        machine: With the study.
        ending: How it ended (see :attr:`maggy_like.Result.ending`).
        seconds: Wall time.
        error: What ended it early, to be raised by the caller once it has the result so far.
    """

    machine: StateMachine
    ending: str
    seconds: float
    error: Exception | None = None


def check_watchers(callbacks: Sequence[Callback], handle: Experiment | None) -> None:
    """Check by what a caller wants to watch and stop a run.

    Raises:
        ConfigError: Something is no callback, or no new handle.
    """
    for callback in listed("callbacks", callbacks, "functions of one event"):
        if not callable(callback):
            raise ConfigError(f"callbacks must be functions of one event, got {callback!r}")
        try:
            inspect.signature(callback).bind(None)
        except TypeError:
            takes = inspect.signature(callback)
            raise ConfigError(
                f"a callback takes one event, and {name_of(callback)}{takes} takes others; use def f(event): ..."
            ) from None
        except ValueError:  # a built-in function that says nothing of its arguments
            continue
    if handle is not None and not isinstance(handle, Experiment):
        raise ConfigError(f"experiment must be an Experiment, got {handle!r}; pass experiment=Experiment()")
    if handle is not None and handle.is_taken:
        raise ConfigError("experiment is the handle of another search already; make a new Experiment() for each")


def carry_out(job: Job, site: Site | None = None) -> Outcome:
    """Run a job; Ctrl-C ends it with what there is, and so does an error once it has begun (:attr:`Outcome.error`).

    Args:
        site: How its driver and its workers meet, if not as the engine does it by itself.

    Raises:
        EngineError: The engine cannot provide the gang.
        JournalError: The run's files are in use, damaged, or of another search.
        StoreError: A disk or store refused for ten minutes what the run had to write or read.
        UserError: The optimizer or the configuration cannot be used.
    """
    with contextlib.ExitStack() as interrupts:
        size = gang_size(job.settings, job.engine)
        if site is not None:
            return _carry_out(job, size, site, interrupts)
        endpoint = job.engine.endpoint()
        server = Server(endpoint.host, bind=endpoint.bind, ports=endpoint.ports)  # a wrong address leaves no files
        try:
            return _carry_out(job, size, _own_site(job, server), interrupts)
        finally:
            server.close()


def _own_site(job: Job, server: Server) -> Site:
    """The driver is in this process, and the engine launches the workers."""
    run_id = secrets.token_hex(8)

    def begun(driver: Driver) -> None:
        if job.handle is not None:
            job.handle.attach(lambda: driver.post(StopRequested("stopped")))

    return Site(
        run_id,
        server=lambda: server,
        task=lambda server: worker_task(job, run_id, server.address, server.public_key, ipv6=server.is_ipv6),
        admit=lambda server, worker: server.admit(worker),
        begun=begun,
    )


def worker_task(job: Job, run_id: str, address: str, server_key: bytes, *, ipv6: bool = False) -> WorkerTask:
    """What the workers of a job are told."""
    settings, isolation = job.settings, job.engine.isolation or job.settings.isolation
    return WorkerTask(
        address=address,
        server_key=server_key,
        run_id=run_id,
        train_fn=job.payload,
        preload=job.preload,
        sys_path=tuple(sys.path),
        argv=tuple(sys.argv),
        store=settings.store,
        logs=str(settings.paths.logs),
        log_copies=settings.paths.log_copies,
        isolation=isolation,
        report_timeout=settings.report_timeout,
        returns_anything=job.keep is not None,
        logging=read_logging(),
        sources=dict(job.sources),
        ipv6=ipv6,
        rank_ports=job.engine.rank_ports,
        name=settings.name,
        about=_about(settings),
    )


def _carry_out(job: Job, size: int, site: Site, interrupts: contextlib.ExitStack) -> Outcome:
    settings, engine = job.settings, job.engine
    started = time.monotonic()
    machine = new_machine(settings, size, grows=engine.is_elastic)
    study = machine.study
    in_process = study.optimizer.adaptive and engine.isolation != "none"
    proposer = ProcessProposer(study) if in_process else DirectProposer(study)
    check_reach(settings, engine)
    journal, told = open_journal(settings, machine, site.run_id)
    output = OutputFolder(settings.directory)
    failure: Exception | None = None
    try:
        server = site.server()
        try:
            driver = Driver(
                machine,
                proposer,
                server,
                journal,
                first_snapshot(settings),
                0 if engine.is_elastic else size,
                keep=job.keep,
                timeout=settings.timeout,
            )
            driver.lines.extend(
                LogLine(None, hint)
                for hint in (
                    *settings.hints,
                    *engine.path_hints(settings.paths),
                    *size_hints(settings, engine, size),
                    *told,
                )
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
                display=job.display,
                callbacks=job.callbacks,
                interrupts=interrupts,
            )
            if (error := machine.error or driver.error) is not None:
                raise error
        except Exception as error:
            if not isinstance(error, JournalLostError):
                error.add_note(f"the run's files are in {settings.directory}; resume=True goes on with it")
            if note := output.move():
                error.add_note(note)
            failure = error
        finally:
            server.close()
        seconds = time.monotonic() - started
        ending = _ending(machine, failure)
        if not isinstance(failure, JournalError):
            failure = _end(journal, RunStatus(ending, time.time(), seconds)) or failure
    finally:
        journal.close()
        output.move()
    return Outcome(machine, ending, seconds, failure)


def _about(settings: Settings) -> str:
    if settings.train_config is not None:
        return "training"
    kind = "ablation" if settings.is_ablation else "search"
    return kind if settings.n_trials is None else f"{kind} of {settings.n_trials} trial{'s' * (settings.n_trials != 1)}"


def _ending(machine: StateMachine, failure: Exception | None) -> str:
    return "error" if failure is not None else machine.ending or "stopped"


def _end(journal: Journal, status: RunStatus) -> JournalLostError | None:
    """Say in the journal how the run ended; that it is gone, if that is only seen now. No other fault undoes a run."""
    try:
        journal.note(status)
    except JournalLostError as error:
        return error
    except JournalError as error:
        _log.warning("how the run ended is not in its journal: %s", error)
    return None


def new_machine(settings: Settings, size: int, *, grows: bool) -> StateMachine:
    """The state machine of a search that has not begun."""
    study = Study(
        settings.space,
        settings.optimizer,
        direction=settings.directions,
        objectives=settings.metrics,
        value=settings.value,
        seed=settings.seed,
        max_budget=settings.max_budget,
        n_trials=settings.n_trials,
        points=settings.points,
        earlier=settings.earlier,
    )
    plan = None
    if settings.train_steps:
        plan = TrainingPlan(settings.train_steps, size, settings.min_workers or size, settings.train_config)
    return StateMachine(
        study,
        objective=settings.metrics[0] if settings.metrics else None,
        workers=size,
        width=settings.workers_per_trial,
        training=plan,
        keep=settings.keep_checkpoints,
        max_attempts=settings.max_attempts,
        alike=settings.failures.enough if grows else settings.failures.enough(size // settings.workers_per_trial),
        expected=settings.failures.names,
        trial_timeout=settings.trial_timeout,
        target=settings.target,
    )


def check_reach(settings: Settings, engine: Engine) -> None:
    """Check that other processes can see the run's folder, where its workers are some.

    Raises:
        ConfigError: They cannot.
    """
    if engine.isolation != "none" and is_in_memory(settings.directory):
        raise ConfigError(
            f"directory={parent_of(settings.directory)!r} is in this process's memory, which no worker sees; pass a "
            "URL that they share, or engine='inline'"
        )


def first_snapshot(settings: Settings) -> Snapshot:
    """What is shown before anything has happened."""
    return Snapshot(
        name=settings.name,
        directory=str(settings.directory),
        optimizer=settings.optimizer_name,
        direction=settings.directions[0],
        phase="starting",
        elapsed=0.0,
        objective=settings.metrics[0] if settings.metrics else None,
        others=settings.others,
        n_trials=settings.n_trials,
        timeout=settings.timeout,
        is_ablation=settings.is_ablation,
    )
