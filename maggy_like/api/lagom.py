"""``lagom``: search for the best configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from maggy_like.api.other_spellings import OTHER_SPELLINGS
from maggy_like.argument_checks import seconds, whole
from maggy_like.errors import ConfigError
from optimizers.checks.arguments import explains_arguments

if TYPE_CHECKING:
    from maggy_like.driver.callbacks import Callback
    from maggy_like.driver.failure_policy import FailurePolicy
    from maggy_like.driver.run_handle import RunHandle
    from maggy_like.driver.run_spec import DriverSide
    from maggy_like.driver.settings import SearchSettings, TrainingSettings
    from maggy_like.engines.base import Engine
    from maggy_like.results.result import Result
    from maggy_like.storage.store import Store
    from optimizers.core.base import Optimizer
    from optimizers.core.objectives import Directions
    from optimizers.core.ranking import Worth
    from optimizers.space.search_space import SearchSpace


@overload
def lagom(
    train_fn: Callable[..., Any],
    searchspace: SearchSpace | Mapping[str, Any],
    *,
    block: Literal[False],
    **options: Any,
) -> RunHandle[Result]: ...
@overload
def lagom(
    train_fn: Callable[..., Any],
    searchspace: SearchSpace | Mapping[str, Any],
    *,
    optimizer: str | Optimizer | type[Optimizer] = ...,
    metric: str | Sequence[str] | None = ...,
    direction: Directions = ...,
    value: Worth = ...,
    n_trials: int | None = ...,
    timeout: float | None = ...,
    target: float | None = ...,
    max_budget: int = ...,
    points_to_evaluate: Sequence[Mapping[str, Any]] = ...,
    warm_start: Sequence[Result | str | Path] = ...,
    workers: int | None = ...,
    max_workers: int | None = ...,
    workers_per_trial: int = ...,
    train_best: bool | int = ...,
    engine: str | Engine = ...,
    driver: DriverSide = ...,
    failures: FailurePolicy | None = ...,
    seed: int = ...,
    name: str | None = ...,
    directory: str | Path = ...,
    store: str | Path | Store | None = ...,
    resume: bool = ...,
    overwrite: bool = ...,
    callbacks: Sequence[Callback] = ...,
    progress: bool | str = ...,
    block: Literal[True] = True,
) -> Result: ...
@explains_arguments(OTHER_SPELLINGS)  # type: ignore[misc]  # the options of the first are those of the second
def lagom(
    train_fn: Callable[..., Any],
    searchspace: SearchSpace | Mapping[str, Any],
    *,
    optimizer: str | Optimizer | type[Optimizer] = "asha",
    metric: str | Sequence[str] | None = None,
    direction: Directions = None,
    value: Worth = "best",
    n_trials: int | None = None,
    timeout: float | None = None,
    target: float | None = None,
    max_budget: int = 27,
    points_to_evaluate: Sequence[Mapping[str, Any]] = (),
    warm_start: Sequence[Result | str | Path] = (),
    workers: int | None = None,
    max_workers: int | None = None,
    workers_per_trial: int = 1,
    train_best: bool | int = False,
    engine: str | Engine = "auto",
    driver: DriverSide = "client",
    failures: FailurePolicy | None = None,
    seed: int = 0,
    name: str | None = None,
    directory: str | Path = "maggy_runs",
    store: str | Path | Store | None = None,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | str = True,
    block: bool = True,
) -> Result | RunHandle[Result]:
    """Search for the best configuration of ``train_fn``, asynchronously, on a gang of workers.

    Args:
        train_fn: Trains with one configuration. Its parameters are filled by name: those of the search space, and
            ``reporter``, ``config`` (all as a dict) or ``budget``. It reports as it goes
            (``reporter.report(accuracy=..., step=...)``) and returns the objective, a dict with it, or None.
        searchspace: Domains by name: ``Float(1e-4, 1e-1, log=True)``, ``Integer(16, 256)``, ``["relu", "gelu"]`` for a
            choice, a plain value for a constant.
        optimizer: A name, or an :class:`~maggy_like.Optimizer` with options of its own, ``ASHA(eta=4)``; a name and
            the class of that name mean the same. ``"asha"``, ``"mobster"``, ``"hyperband"`` and ``"bohb"`` train the
            good ones longest; ``"random"``, ``"grid"``, ``"sobol"``, ``"bayesian"``, ``"tpe"`` and ``"skopt"`` train
            each in full; ``"pbt"`` changes configurations as they train.
        metric: Name of the objective, if more than one metric is reported; a list of several gives a Pareto set.
        direction: ``"max"`` or ``"min"``, one for each objective; by default the metric's name says it.
        value: What a trial is worth: the ``"best"`` of its reports, or the ``"last"``.
        n_trials: How many configurations to try; by default 50, all of a grid, or no bound with a ``timeout``.
        timeout: Seconds after which the search ends with what it has.
        target: The search is over once a trial has this value of the objective, or a better one.
        max_budget: Steps of a full training: ``reporter.budget`` tells the function its share.
        points_to_evaluate: Configurations to try first; a resumed run tries those that it has not tried yet.
        warm_start: Earlier runs to learn from: their results, or their folders.
        workers: Size of the gang; by default all slots of the engine.
        max_workers: How many workers there may be where ``workers`` is not given.
        workers_per_trial: How many workers run one trial together, data-parallel, with torchrun's environment.
        train_best: Whether the whole gang trains the best configuration in the end, or for how many steps.
        engine: ``"local"``, ``"spark"``, ``"inline"`` (for a debugger) or ``"auto"``; or an engine with options of its
            own, such as ``SparkEngine(barrier=False)`` or ``LocalEngine(isolation="worker")``.
        driver: Whether the driver runs in this process, the ``"client"``, or in a task of the Spark ``"cluster"``: then
            this process may go away (see the docs page on drivers in the cluster).
        failures: Attempts, time limits, and when failures end the search: a :class:`~maggy_like.FailurePolicy`.
        seed: Source of all randomness; the same seed proposes the same sequence.
        name: The run's name; made up if not given.
        directory: Path or URL of the folder of all runs: a run's folder there has its journal, states and logs.
        store: Path, URL or :class:`~maggy_like.Store` for the saved states, if they are to lie elsewhere.
        resume: Go on with the run called ``name`` where its journal ends.
        overwrite: If True, delete an earlier run called ``name`` first: what it has in its folder. One that is running
            is left alone, with an error. Default False.
        callbacks: Functions that take each event as it is recorded (``optimizers.TrialCreated``, ``AttemptStarted``,
            ``Measured``, ``CheckpointSaved`` or ``AttemptEnded``), and trackers: ``"mlflow"``, ``"tensorboard"``, or
            ``maggy_like.trackers.MLflow(experiment="digits")``.
        progress: Show a live display; ``"plain"``, ``"terminal"`` or ``"notebook"`` insist on one.
        block: Whether to wait for the end. With False the search goes on in the background.

    Returns:
        The result; after Ctrl-C, SIGTERM, a stop or a timeout, the result so far. Another Ctrl-C does not wait for the
        workers. With ``block=False`` a :class:`~maggy_like.RunHandle`.

    Raises:
        UserError: An argument or the function is wrong; this is found before anything starts.
        TrialsFailedError: The first trials failed alike.
        EngineError: The engine cannot provide the gang.
        JournalError: The run's files are in use, damaged, or of another search.
        StoreError: A disk or store refused for ten minutes what the run had to write or read.
        TrainingError: The training that follows the search failed for good.

    An error that ends a search which had begun has the result so far: ``error.result``.

    Example:
        >>> def train(lr, units, reporter):
        ...     for step in range(1, reporter.budget + 1):
        ...         reporter.report(accuracy=1 - abs(lr - 0.01) - 1 / (units + step), step=step)
        >>> result = lagom(train, {"lr": Float(1e-4, 1e-1, log=True), "units": Integer(16, 256)})
        >>> result.best_config
    """
    # Loaded when a search starts, so that importing lagom stays quick.
    from maggy_like.api.engine_choice import choose_engine, read_driver
    from maggy_like.api.execution import search, start
    from maggy_like.api.file_settings import check_files
    from maggy_like.api.gang_settings import check_gang
    from maggy_like.api.objectives import check_target
    from maggy_like.api.search_settings import check_search
    from maggy_like.display import check_progress, make_display
    from maggy_like.driver.callbacks import read_callbacks
    from maggy_like.driver.failure_policy import read_policy
    from maggy_like.driver.run_spec import RunSpec
    from maggy_like.driver.settings import LimitSettings, Settings
    from maggy_like.train_function.changed_state import state_hints
    from maggy_like.train_function.modules import modules_of
    from maggy_like.train_function.parameters import check_order, check_parameters
    from maggy_like.train_function.pickling import pickle_train_fn, size_hints
    from maggy_like.train_function.sources import sources_of
    from optimizers.space.search_space import SearchSpace

    check_order(train_fn, searchspace)
    space = searchspace if isinstance(searchspace, SearchSpace) else SearchSpace(searchspace)
    if not space.names:
        raise ConfigError("the search space is empty; give at least one parameter, or use maggy_like.run(train_fn)")
    check_parameters(train_fn, space)
    timeout = seconds("timeout", timeout)
    policy = read_policy(failures)
    files = check_files(train_fn, name=name, directory=directory, store=store, resume=resume, overwrite=overwrite)
    searched, hints = check_search(
        train_fn,
        space,
        files,
        optimizer=optimizer,
        metric=metric,
        direction=direction,
        value=value,
        n_trials=n_trials,
        is_timed=timeout is not None,
        max_budget=max_budget,
        seed=seed,
        points_to_evaluate=points_to_evaluate,
        warm_start=warm_start,
    )
    settings = Settings(
        search=searched,
        files=files,
        limits=LimitSettings(timeout, check_target(target, searched.metrics)),
        gang=check_gang(
            workers, max_workers=max_workers, workers_per_trial=workers_per_trial, min_workers=policy.min_workers
        ),
        failures=policy,
        training=_check_training(train_best, searched),
        hints=hints,
    )
    check_progress(progress)
    listeners = read_callbacks(callbacks, str(files.paths.directory))
    provider = choose_engine(engine)
    isolation = provider.isolation
    payload = pickle_train_fn(train_fn)
    spec = RunSpec(
        settings=replace(
            settings, hints=(*hints, *state_hints(train_fn, isolation), *size_hints(train_fn, payload, isolation))
        ),
        engine=provider,
        payload=payload,
        preload=modules_of(train_fn, wide=workers_per_trial > 1 or settings.training is not None),
        displays=[make_display(progress, beside_trials=isolation == "none")],
        callbacks=listeners,
        sources=sources_of(train_fn),
        driver=read_driver(driver),
    )
    return start(spec, search, block=block)


def _check_training(train_best: bool | int, searched: SearchSettings) -> TrainingSettings | None:
    """The training that follows, if one does."""
    from maggy_like.driver.settings import TrainingSettings

    if train_best is False:
        return None
    if len(searched.directions) > 1:
        raise ConfigError(
            f"train_best={train_best!r} needs a best configuration, and a search of {len(searched.directions)} "
            "objectives has a Pareto set; leave it out, and pass the one you choose to maggy_like.run"
        )
    return TrainingSettings(searched.max_budget if train_best is True else whole("train_best", train_best, least=1))
