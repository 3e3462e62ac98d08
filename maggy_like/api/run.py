"""Training one configuration on the whole gang: after a search, of a result, or any function at all."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from maggy_like.api.engine_choice import choose_engine
from maggy_like.api.settings import Settings, check_least, check_settings, whole
from maggy_like.cluster_driver.client import carry_out_in_cluster
from maggy_like.cluster_driver.remote_run import FOLLOW
from maggy_like.display import make_display
from maggy_like.driver.monitor import Callback
from maggy_like.driver.run_handle import Experiment
from maggy_like.driver.runner import Job, Outcome, carry_out, check_watchers
from maggy_like.driver.state_machine import StateMachine
from maggy_like.engines.base import Engine
from maggy_like.errors import ConfigError, MaggyError, TrainingError
from maggy_like.protocol.fields import UNBOUNDED
from maggy_like.protocol.texts import shortened
from maggy_like.results.result import Result
from maggy_like.results.runs import make_result, training_of
from maggy_like.results.training import Training
from maggy_like.storage.checkpoints import load_state, returned_url, save_state
from maggy_like.storage.run_paths import check_name
from maggy_like.train_function.modules import RENDEZVOUS, TORCH_LATE, modules_of
from maggy_like.train_function.names import name_of
from maggy_like.train_function.parameters import check_parameters
from maggy_like.train_function.pickling import pickle_train_fn
from maggy_like.train_function.reporter_use import uses_budget
from maggy_like.train_function.sources import sources_of
from optimizers.checks.arguments import explains_arguments
from optimizers.core.direction import Direction
from optimizers.core.trial import TrialState
from optimizers.samplers.enumeration import Enumeration
from optimizers.space.config import Config
from optimizers.space.domains import Constant
from optimizers.space.scalars import plain, read_value
from optimizers.space.search_space import SearchSpace


@explains_arguments
def run(
    train_fn: Callable[..., Any],
    config: Mapping[str, Any] | None = None,
    *,
    workers: int | None = None,
    min_workers: int | None = None,
    budget: int | None = None,
    engine: str | Engine = "auto",
    name: str | None = None,
    directory: str | Path = "maggy_runs",
    journal: str | Path | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    max_attempts: int = 3,
    report_timeout: float | None = None,
    keep_checkpoints: int = 2,
    callbacks: Sequence[Callback] = (),
    progress: bool | str = True,
    experiment: Experiment | None = None,
) -> Any:
    """Run a function on all workers of a gang together, and return what it returned on rank 0.

    Each worker has torchrun's environment (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``, ...), so code
    written for torchrun, Horovod-like runners, Accelerate or Fabric runs as it is; so does a training function of
    :func:`maggy_like.lagom`. What all ranks print appears live, with their rank. The death of one rank ends the
    attempt for all, and the next goes on from the last checkpoint, if the function saves and restores some.

    Args:
        train_fn: The function. Its parameters are filled by name, as for :func:`maggy_like.lagom`: those of
            ``config``, and ``reporter``, ``config`` or ``budget``. It may return anything; what is not plain data
            (numbers, text, lists and dicts of them) must pickle, and travels through ``store``.
        config: Arguments by name: numbers, text, booleans or None, or tuples or lists of them. For others, use
            :func:`functools.partial`.
        workers: Size of the gang; by default all slots of the engine.
        min_workers: How many workers will do, where lost ones do not come back within 30 s.
        budget: Steps to train for, if ``train_fn`` asks ``reporter.budget`` for them; else it runs as long as it likes.
        engine: As for :func:`maggy_like.lagom`.
        name: The run's name; made up if not given.
        directory: Where runs are kept, a path or a URL; as for :func:`maggy_like.lagom`.
        journal: As for :func:`maggy_like.lagom`.
        store: As for :func:`maggy_like.lagom`.
        resume: Go on with the run called ``name``.
        max_attempts: How many attempts there are; one that fails just as the one before is the last.
        report_timeout: Seconds that an attempt may go on without a report or a checkpoint.
        keep_checkpoints: How many of the newest checkpoints to keep, beside that of the best value.
        callbacks: Functions that take each event.
        progress: Show a live display.
        experiment: A new handle by which another thread can stop it.

    Raises:
        UserError: An argument or the function is wrong; told before anything starts.
        EngineError: The engine cannot provide the gang.
        TrainingError: The function failed, with the traceback of the rank that was the first to fail.
        KeyboardInterrupt: After Ctrl-C or SIGTERM, once all workers have left.

    Example:
        >>> def hello():
        ...     torch.distributed.init_process_group()
        ...     ranks = torch.ones(1)
        ...     torch.distributed.all_reduce(ranks)
        ...     return ranks.item()
        >>> maggy_like.run(hello, workers=2)
        2.0
    """
    given = check_config(config)
    space = SearchSpace({key: Constant(value) for key, value in given.items()})
    check_parameters(train_fn, space, source="config")
    if budget is None and uses_budget(train_fn):
        raise ConfigError(f"{name_of(train_fn)} asks for its budget, and nobody says what it is; pass budget=STEPS")
    steps = UNBOUNDED if budget is None else whole("budget", budget, least=1)
    settings = check_settings(
        train_fn,
        space=space,
        optimizer=Enumeration(),
        options={},
        metric=None,
        direction=None,
        value="best",
        n_trials=1,
        timeout=None,
        target=None,
        max_budget=steps,
        workers=workers,
        seed=0,
        name=name,
        directory=directory,
        journal=journal,
        store=store,
        resume=resume,
        isolation="process",
        max_attempts=max_attempts,
        trial_timeout=None,
        report_timeout=report_timeout,
        points_to_evaluate=(),
        warm_start=(),
        workers_per_trial=1,
        train_best=True,
        min_workers=min_workers,
        max_workers=None,
        keep_checkpoints=keep_checkpoints,
    )
    check_watchers(callbacks, experiment)
    provider = choose_engine(engine)
    job = Job(
        settings=replace(settings, n_trials=0, train_config=given, optimizer_name="training"),
        engine=provider,
        payload=pickle_train_fn(train_fn),
        preload=modules_of(train_fn, wide=True),
        display=make_display(False if provider.name == "inline" else progress),
        callbacks=callbacks,
        handle=experiment,
        keep=partial(keep_answer, settings.store),
        sources=sources_of(train_fn),
    )
    outcome = carry_out(job)
    if outcome.error is not None:
        raise outcome.error
    return _answer(outcome.machine, settings)


def _answer(machine: StateMachine, settings: Settings) -> Any:
    """What rank 0 returned.

    Raises:
        TrainingError: Nothing.
    """
    trial = machine.study.trials[-1]
    if trial.state is TrialState.FAILED and trial.failure is not None:
        error = TrainingError(f"{trial.failure.message}\n{trial.failure.traceback}".rstrip())
        error.add_note(f"logs of all ranks are in {settings.paths.logs}")
        raise error
    if machine.ending == "interrupted":
        raise KeyboardInterrupt
    if trial.state is not TrialState.COMPLETED:
        by = f" ({machine.stopped_by})" if machine.stopped_by else ""
        again = f"run(..., name={settings.name!r}, resume=True) goes on with it"
        raise TrainingError(f"it was {machine.ending}{by} before it returned; {again}")
    return read_answer(settings.store)


def keep_answer(store: str, returned: Any) -> None:
    """Put a value that a worker sent where workers put those that cannot be sent.

    Raises:
        TrainingError: It cannot be written.
    """
    url = returned_url(store)
    try:
        save_state(url, returned)
    except Exception as error:  # of whatever file system it is
        raise TrainingError(
            f"what the function returned cannot be written to {url} ({type(error).__name__}: {error}); make room or "
            "mend the access, then go on with resume=True"
        ) from error


def read_answer(store: str) -> Any:
    """The value that the function returned.

    Raises:
        TrainingError: It cannot be read.
    """
    url = returned_url(store)
    try:
        return load_state(url)
    except Exception as error:  # reading it runs code of what was returned
        raise TrainingError(
            f"what the function returned cannot be read from {url} ({type(error).__name__}: {error}); return plain "
            "data (numbers, text, lists and dicts of them), or pass store=URL of a place that all hosts share"
        ) from error


def check_config(config: Mapping[str, Any] | None) -> Config:
    """The arguments of a function that is run.

    Raises:
        ConfigError: They are no plain values by name.
    """
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"config must be a dict of arguments by name, got {config!r}")
    given = dict(config or {})
    for name, value in given.items():
        for item in _items(value):
            if item is not None and not isinstance(item, bool | int | float | str):
                raise ConfigError(
                    f"config[{name!r}] is {' '.join(shortened(value).split())} of type {type(value).__name__}; pass "
                    "numbers, text, booleans or None, or tuples or lists of them, there, and other objects by "
                    "functools.partial(train_fn, ...)"
                )
            if isinstance(item, float) and not math.isfinite(item):
                raise ConfigError(
                    f"config[{name!r}] is {value!r}, which the journal cannot hold; pass a finite number or None "
                    "there, or functools.partial(train_fn, ...)"
                )
    return {name: read_value(value) for name, value in given.items()}


def _items(value: Any) -> Iterator[Any]:
    """The plain values in a value of :func:`~optimizers.space.scalars.read_value`."""
    if type(value) in (tuple, list):
        for inner in value:
            yield from _items(inner)
    else:
        yield plain(value)


def search(job: Job) -> Result:
    """Carry a search out, and the training that follows it.

    Raises:
        MaggyError: Something ended it early; the error has the result so far.
    """
    outcome = carry_out_anywhere(job)
    result = result_of(job, outcome)
    if outcome.error is None:
        return result
    if isinstance(outcome.error, MaggyError):
        outcome.error.result = result
    raise outcome.error


def carry_out_anywhere(job: Job) -> Outcome:
    """Run a job whose driver is in this process, or in a task of the cluster."""
    return carry_out_in_cluster(job) if job.driver == "cluster" else carry_out(job)


def result_of(job: Job, outcome: Outcome) -> Result:
    """What came of a search, and of the training that followed it."""
    machine, settings = outcome.machine, job.settings
    return make_result(
        machine,
        settings.paths,
        objective=machine.objective,
        others=settings.others,
        ending=outcome.ending,
        seconds=outcome.seconds,
        actions=replace(FOLLOW, train=_Again(job, machine.objective, machine.study.direction)),
    )


@dataclass(frozen=True)
class _Again:
    """How a result trains its best configuration: with the function, engine and settings of its search."""

    job: Job
    objective: str | None
    direction: Direction | None

    def __call__(
        self,
        config: Config,
        workers: int | None,
        budget: int | None,
        min_workers: int | None,
        name: str | None,
        resume: bool,
        progress: bool | str,
    ) -> Training:
        before = self.job.settings
        if resume and name is None:
            raise ConfigError("resume=True needs the name of the training; pass name=training.name")
        name = check_name(name) if name is not None else f"{before.name}-train-{secrets.token_hex(2)}"
        places = before.paths.of_sibling(name)
        settings = replace(
            before,
            optimizer=Enumeration(),
            optimizer_name="training",
            metrics=before.metrics or ((self.objective,) if self.objective else ()),
            directions=(self.direction,),
            n_trials=0,
            timeout=None,
            target=None,
            workers=before.workers if workers is None else whole("workers", workers, least=1),
            name=name,
            directory=places.directory,
            journal=places.journal,
            store=places.store,
            resume=resume,
            points=(),
            earlier=(),
            hints=(),
            workers_per_trial=1,
            train_steps=before.max_budget if budget is None else whole("budget", budget, least=1),
            train_config=config,
            min_workers=check_least(min_workers, before.workers if workers is None else workers, 1),
        )
        preload = (*self.job.preload, RENDEZVOUS, TORCH_LATE)
        job = replace(
            self.job, settings=settings, preload=preload, display=make_display(progress), callbacks=(), handle=None
        )
        outcome = carry_out_anywhere(job)
        if outcome.error is not None:
            raise outcome.error
        return training_of(outcome.machine, settings.paths, outcome.machine.objective or "value")
