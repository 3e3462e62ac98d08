"""Executes a run and makes its result: here or in the background, with the driver here or in the cluster.

The driver, its server and its engines are loaded when a run starts, so that importing ``lagom`` stays quick.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from maggy_like.api.options import RunOptions
from maggy_like.api.run_settings import check_size
from maggy_like.argument_checks import flag, whole
from maggy_like.display import make_display
from maggy_like.display.base import Shown
from maggy_like.display.dashboard_link import Dashboard
from maggy_like.driver.followers import Callback
from maggy_like.driver.run_spec import RunSpec, StopSwitch, count_workers
from maggy_like.driver.settings import FailurePolicy, LimitSettings, TrainingSettings, read_policy
from maggy_like.errors import ConfigError, TrainingError, TrialsFailedError, UserError
from maggy_like.processes.garbage import no_collections
from maggy_like.protocol.endings import Ending
from maggy_like.results.data import Training, failed_training, training_of
from maggy_like.results.result import Result, RunActions, make_result
from maggy_like.storage.file_systems import local_path
from maggy_like.storage.run_paths import check_name
from maggy_like.train_function.first_load import load_first
from maggy_like.train_function.load import is_loading
from maggy_like.train_function.modules import RENDEZVOUS
from optimizers.core.direction import Direction
from optimizers.core.trial import TrialState
from optimizers.samplers.non_adaptive import Enumeration
from optimizers.space import Config

if TYPE_CHECKING:
    from maggy_like.driver.run_handle import RunHandle
    from maggy_like.driver.runner import Outcome


@dataclass(frozen=True)
class TrainAgain:
    """Trains the best configuration of a search with its function, engine and settings (``result.train``)."""

    spec: RunSpec
    execute: Callable[[RunSpec], Outcome]  # executes a run
    objective: str | None  # name of the search's objective
    direction: Direction | None  # direction of the objective

    def __call__(
        self,
        config: Config,
        workers: int | None,
        budget: int | None,
        failures: FailurePolicy | None,
        name: str | None,
        resume: bool,
        progress: bool | str,
    ) -> Training:
        before = self.spec.settings
        if resume and name is None:
            raise ConfigError("resume=True needs the name of the training; use name=training.name")
        name = check_name(name) if name is not None else f"{before.files.name}-train-{secrets.token_hex(2)}"
        policy = replace(before.failures, min_workers=None) if failures is None else read_policy(failures)
        size = before.size.workers if workers is None else workers
        most = before.size.max_workers if size is None else None
        steps = before.search.max_budget if budget is None else whole("budget", budget, least=1)
        settings = replace(
            before,
            search=replace(
                before.search,
                open_ended=before.search.open_ended and budget is None,
                optimizer=Enumeration(),
                optimizer_name="training",
                metrics=before.search.metrics or ((self.objective,) if self.objective else ()),
                directions=(self.direction,),
                n_trials=0,
                points=(),
                earlier=(),
                comparisons={},
            ),
            files=replace(before.files, name=name, paths=before.paths.of_sibling(name), resume=resume, overwrite=None),
            limits=LimitSettings(),
            size=check_size(size, max_workers=most, min_workers=policy.min_workers),
            failures=policy,
            confirmation=None,
            training=TrainingSettings(steps, config),
            hints=(),
            warnings=(),
        )
        spec = replace(
            self.spec,
            settings=settings,
            engine=self.spec.engine.renewed(),
            preload=(*self.spec.preload, RENDEZVOUS),
            displays=[make_display(progress)],
            callbacks=(),
            stop=StopSwitch(),
            began=time.monotonic(),
        )
        outcome = self.execute(spec)
        if outcome.error is not None:
            raise outcome.error
        objective = outcome.machine.objective or "value"
        training = training_of(outcome.machine.study, settings.paths, objective, outcome.ending, outcome.created)
        if (error := failed_training(training.trial, settings.paths.logs)) is not None:
            error.add_note(f"use result.train(..., name={name!r}, resume=True) to continue the training")
            raise error
        return training


T = TypeVar("T")


def start(options: RunOptions, spec: RunSpec, finish: Callable[[RunSpec], T]) -> T | RunHandle[T]:
    """Execute a run here, or with ``block=False`` in a thread. Return what ``finish`` returns, or the run's handle."""
    block = flag("block", options.block, "use block=False for a run in the background")
    _check_not_importing_main()
    _check_early(spec)
    if spec.driver == "client":
        spec.engine.begin_imports(spec.preload)
    if spec.engine.isolation != "none":
        load_first(options.train_fn, spec.payload, partial(_import_for, spec))
    if block:
        return finish(spec)
    from maggy_like.driver.run_handle import RunHandle

    files = spec.settings.files
    handle: RunHandle[T] = RunHandle(files.name, files.paths.directory, spec.stop, FOLLOW.dashboard)
    recorded = replace(spec, displays=(handle.recorder, *spec.displays))
    handle.begin(lambda: finish(recorded), spec.engine, outlives=spec.driver == "cluster")
    return handle


def _check_early(spec: RunSpec) -> None:
    """Check what the driver checks later, too, where that is quick: loading the function can take seconds."""
    if spec.engine.is_on_this_machine:
        count_workers(spec.settings, spec.engine)
    files = spec.settings.files
    directory = local_path(files.paths.directory) if spec.driver == "client" else None
    if directory is not None and os.path.exists(directory) is not files.resume:
        from maggy_like.driver.recovery import check_existing
        from maggy_like.storage.journal import backend_of

        check_existing(files, backend_of(files.paths.journal))


def _import_for(spec: RunSpec) -> None:
    """Import what the run needs, while other processes import what the function needs."""
    with no_collections():
        import maggy_like.driver.runner  # noqa: F401

        if spec.driver == "client":
            with contextlib.suppress(Exception):  # of a custom optimizer: its first proposal raises it again
                spec.settings.search.optimizer.load_libraries()


def _check_not_importing_main() -> None:
    """Raise an error if an import into a child of multiprocessing, or into a worker, would start a second run."""
    if is_loading():
        raise UserError(
            "this module is imported to load train_fn, which would start a second run; move the calls of maggy_like "
            "into a function, or under if __name__ == '__main__':"
        )
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UserError(
            "a child process of multiprocessing imports this script and would start a second run; move the calls of "
            "maggy_like, and what follows them, under if __name__ == '__main__':"
        )


def _watch(run: Result, progress: bool | str, callbacks: Sequence[Callback]) -> Result:
    from maggy_like.cluster_driver.follow import watch_run

    return watch_run(run, progress, callbacks, FOLLOW)


def _stop(journal: str) -> None:
    from maggy_like.cluster_driver.follow import stop_run

    stop_run(journal)


def _dashboard(where: str, port: int) -> Dashboard:
    from maggy_like.dashboard import open_dashboard

    return open_dashboard(where, port)


FOLLOW = RunActions(train=None, watch=_watch, stop=_stop, dashboard=_dashboard)
"""The actions of a result whose training function is not known."""


def search(spec: RunSpec) -> Result:
    """Execute a search, and the training that follows it."""
    outcome = execute_anywhere(spec)
    result = replace(_result_of(spec, outcome), _shown=(shown := Shown.by(spec.displays)))
    error = outcome.error or _error_of_training(spec, outcome, result)
    if error is None:
        return result
    if isinstance(error, TrialsFailedError):
        error.has_shown_traceback = shown.lines
    error.__dict__["result"] = result  # which may be of any type, such as a custom optimizer's
    raise error


def _error_of_training(spec: RunSpec, outcome: Outcome, result: Result) -> TrainingError | None:
    """Return the error of the training that followed the search, if it failed. A run that was stopped has none."""
    if spec.settings.training is None or result.training is None or not outcome.ending.is_planned:
        return None
    error = failed_training(result.training.trial, spec.settings.paths.logs)
    if error is not None:
        error.add_note("error.result is the result of the search; use resume=True to continue the training")
    return error


def execute_anywhere(spec: RunSpec) -> Outcome:
    """Execute a run with its driver in this process, or in a task of the cluster."""
    if spec.driver == "cluster":
        from maggy_like.cluster_driver.driver import execute_in_cluster

        return execute_in_cluster(spec)
    return execute_here(spec)


def execute_here(spec: RunSpec) -> Outcome:
    """Execute a run with its driver in this process."""
    from maggy_like.driver.runner import execute

    return execute(spec)


def _result_of(spec: RunSpec, outcome: Outcome) -> Result:
    """Make the result of a search and of the training that followed it."""
    machine, settings = outcome.machine, spec.settings
    return make_result(
        machine.study,
        settings.paths,
        objective=machine.objective,
        others=settings.search.others,
        ending=outcome.ending,
        seconds=outcome.seconds,
        created=outcome.created,
        is_longer=outcome.is_longer,
        finds_best=settings.search.finds_best,
        actions=replace(FOLLOW, train=TrainAgain(spec, execute_anywhere, machine.objective, machine.study.direction)),
    )


def save_returned(store: str, returned: Any) -> None:
    """Store a returned value that a worker sent, in the place for values that workers cannot send."""
    from maggy_like.storage.checkpoints import returned_url, save_state

    url = returned_url(store)
    try:
        save_state(url, returned)
    except Exception as error:  # of any file system
        raise TrainingError(
            f"the returned value cannot be written to {url} ({type(error).__name__}: {error}); free space or fix the "
            "access, then use resume=True"
        ) from error


def read_returned(store: str) -> Any:
    """Read the value that the function returned."""
    from maggy_like.storage.checkpoints import StateLostError, load_state, returned_url

    url = returned_url(store)
    try:
        return load_state(url)
    except StateLostError as error:
        raise TrainingError(f"the returned value is lost: {error}; run the function again with another name") from error
    except Exception as error:  # unpickling runs code of the value
        raise TrainingError(
            f"the returned value cannot be read from {url} ({type(error).__name__}: {error}); return plain data "
            "(numbers, text, lists and dicts of them), or use store=URL of a place that all hosts share"
        ) from error


def execute_and_return(spec: RunSpec) -> Any:
    """Execute a run, and return what its function returned on rank 0."""
    outcome, files = execute_here(spec), spec.settings.files
    if outcome.error is not None:
        raise outcome.error
    machine = outcome.machine
    trial = machine.study.trials[-1]
    if (error := failed_training(trial, files.paths.logs)) is not None:
        raise error
    if machine.ending is Ending.INTERRUPTED:
        raise KeyboardInterrupt
    if trial.state is not TrialState.COMPLETED:
        by = f" ({machine.stopped_by})" if machine.stopped_by else ""
        again = f"use run(..., name={files.name!r}, resume=True) to continue"
        raise TrainingError(f"the function was {machine.ending}{by} before it returned; {again}")
    return read_returned(files.paths.store)
