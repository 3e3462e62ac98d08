"""From what is to be run to its result: here or in the background, with the driver here or in the cluster.

The driver, its server and its engines are loaded when a run starts, so that importing ``lagom`` stays quick.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from maggy_like.api.train_again import TrainAgain
from maggy_like.argument_checks import flag
from maggy_like.driver.callbacks import Callback
from maggy_like.driver.run_handle import RunHandle
from maggy_like.driver.run_spec import Outcome, RunSpec
from maggy_like.errors import TrainingError, UserError
from maggy_like.results.result import Result, RunActions
from maggy_like.results.training import failed_training

T = TypeVar("T")


def start(spec: RunSpec, finish: Callable[[RunSpec], T], *, block: bool) -> T | RunHandle[T]:
    """Execute a run: here, or with ``block=False`` in a thread, and give its handle.

    Args:
        finish: Executes it, and makes of it what the caller gets.

    Raises:
        ConfigError: ``block`` is neither True nor False.
        UserError: Multiprocessing imports the caller's script into a child just now.
    """
    flag("block", block, "use block=False for a run in the background")
    _check_not_importing_main()
    if spec.driver == "client":
        spec.engine.begin_imports(spec.preload)
    if block:
        return finish(spec)
    handle: RunHandle[T] = RunHandle(spec.settings.files.name, spec.settings.paths.directory, spec.stop)
    recorded = replace(spec, displays=(handle.recorder, *spec.displays))
    handle.begin(lambda: finish(recorded), spec.engine, outlives=spec.driver == "cluster")
    return handle


def _check_not_importing_main() -> None:
    """Raise as multiprocessing does when the import of a script starts a process: here it would start a second run."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UserError(
            "a child process of multiprocessing imports this script and would start a second run; put the calls of "
            "maggy_like, and what follows them, under if __name__ == '__main__':"
        )


def _watch(run: Result, progress: bool | str, callbacks: Sequence[Callback]) -> Result:
    from maggy_like.cluster_driver.remote_run import watch_run

    return watch_run(run, progress, callbacks, FOLLOW)


def _stop(journal: str) -> None:
    from maggy_like.cluster_driver.remote_run import stop_run

    stop_run(journal)


FOLLOW = RunActions(train=None, watch=_watch, stop=_stop)
"""What a result does with a run whose function is not known here."""


def search(spec: RunSpec) -> Result:
    """Execute a search, and the training that follows it.

    Raises:
        TrainingError: The training failed for good; the error has the search's result.
        Exception: Something ended it early, such as a MaggyError; the error has the result so far.
    """
    outcome = execute_anywhere(spec)
    result = _result_of(spec, outcome)
    error = outcome.error or _error_of_training(spec, outcome, result)
    if error is None:
        return result
    error.__dict__["result"] = result  # it may be of any kind: an optimizer's own, say
    raise error


def _error_of_training(spec: RunSpec, outcome: Outcome, result: Result) -> TrainingError | None:
    """The error of the training that followed the search, if it failed; whoever stops a run has its result."""
    if spec.settings.training is None or result.training is None or not outcome.ending.is_planned:
        return None
    error = failed_training(result.training.trial, spec.settings.paths.logs)
    if error is not None:
        error.add_note("error.result has what the search found; resume=True trains the best configuration again")
    return error


def execute_anywhere(spec: RunSpec) -> Outcome:
    """Execute a run whose driver is in this process, or in a task of the cluster."""
    if spec.driver == "cluster":
        from maggy_like.cluster_driver.client import execute_in_cluster

        return execute_in_cluster(spec)
    return execute_here(spec)


def execute_here(spec: RunSpec) -> Outcome:
    """Execute a run whose driver is in this process."""
    from maggy_like.driver.runner import execute

    return execute(spec)


def _result_of(spec: RunSpec, outcome: Outcome) -> Result:
    """What came of a search, and of the training that followed it."""
    from maggy_like.results.runs import make_result

    machine, settings = outcome.machine, spec.settings
    return make_result(
        machine,
        settings.paths,
        objective=machine.objective,
        others=settings.search.others,
        ending=outcome.ending,
        seconds=outcome.seconds,
        is_longer=outcome.is_longer,
        is_ablation=settings.search.is_ablation,
        actions=replace(FOLLOW, train=TrainAgain(spec, execute_anywhere, machine.objective, machine.study.direction)),
    )
