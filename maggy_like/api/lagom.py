"""``lagom``: search for the best configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from maggy_like.api.options import OTHER_SPELLINGS, TrialsOptions, takes
from maggy_like.argument_checks import one_of, seconds, whole
from maggy_like.errors import ConfigError
from maggy_like.processes.garbage import no_collections

if TYPE_CHECKING:
    from maggy_like.driver.run_handle import RunHandle
    from maggy_like.driver.settings import Confirmation, FileSettings, SearchSettings, TrainingSettings
    from maggy_like.results.result import Result
    from maggy_like.storage.journal import Earlier
    from optimizers.core.base import Optimizer
    from optimizers.core.objectives import Directions
    from optimizers.core.study_state import ValueRule
    from optimizers.space.search_space import SearchSpace


@dataclass(frozen=True)
class _OfSearch:
    """The options that only a search has."""

    train_fn: Callable[..., Any]
    searchspace: SearchSpace | Mapping[str, Any]
    _: KW_ONLY
    optimizer: str | Optimizer | type[Optimizer] = "asha"
    metric: str | Sequence[str] | None = None
    direction: Directions = None
    value: ValueRule = "best"
    n_trials: int | None = None
    target: float | None = None
    points_to_evaluate: Sequence[Mapping[str, Any]] = ()
    warm_start: Sequence[Result | str | Path] = ()
    confirm: bool | Confirmation = False
    train_best: bool | int = False


@dataclass(frozen=True)
class SearchOptions(TrialsOptions, _OfSearch):
    """The options of a search. :func:`lagom` describes each one."""


@takes(SearchOptions, OTHER_SPELLINGS)
def lagom(options: SearchOptions) -> Result | RunHandle[Result]:
    """Search for the best configuration of ``train_fn``, asynchronously, on a fixed set of workers.

    Args:
        train_fn: Function that trains with one configuration. Its parameters are filled by name: those of the search
            space, and ``reporter``, ``config`` (all values as a dict) or ``budget``. It reports metrics with
            ``reporter.report(accuracy=..., step=...)`` and returns the objective, a dict with it, or None.
        searchspace: Domains by name: ``Float(1e-4, 1e-1, log=True)``, ``Integer(16, 256)``, a list such as
            ``["relu", "gelu"]`` for a choice, or a plain value for a constant.
        optimizer: Name, class or object, such as ``"asha"`` or ``ASHA(eta=4)``. ``"asha"``, ``"mobster"``,
            ``"hyperband"`` and ``"bohb"`` stop poor trials early. ``"random"``, ``"grid"``, ``"sobol"``,
            ``"bayesian"``, ``"tpe"`` and ``"skopt"`` train each trial in full. ``"pbt"`` changes configurations
            during the training. Default ``"asha"``.
        metric: Name of the objective, needed if more than one metric is reported. A list of names gives a Pareto set.
        direction: ``"max"`` or ``"min"``, or one per objective. By default it follows from the metric's name.
        value: Value of a trial: its ``"best"`` or its ``"last"`` report. Default ``"best"``.
        n_trials: Number of configurations to try. Default 50, all of a grid, or no limit with a ``timeout``.
        timeout: Seconds, counted from this call, after which the search ends with the result so far. Default no limit.
        target: Value of the objective at which the search ends.
        max_budget: Steps of a full training. ``reporter.budget`` is the step up to which a trial should train. Default
            27; without it, a function that does not read ``reporter.budget`` may train for longer.
        points_to_evaluate: Configurations to try first; constants may be left out. A resumed run tries those that it
            has not tried yet.
        warm_start: Earlier runs to learn from, as results or as directories.
        workers: Number of workers. Default all slots of the engine.
        max_workers: Upper limit of the number of workers, if ``workers`` is not given.
        workers_per_trial: Number of workers that run one trial together, data-parallel, in torchrun's environment.
        confirm: If True, train the best five configurations again with other seeds after the search, to find out which
            one is the best (see :class:`~maggy_like.Confirmation`, which also sets the numbers). Default False.
        train_best: If True, train the best configuration on all workers after the search, or the one that ``confirm``
            recommends. An int sets the number of steps. Default False.
        engine: ``"local"``, ``"spark"``, ``"inline"`` (for a debugger), ``"auto"`` (Spark if a session is active), or
            an object such as ``SparkEngine(barrier=False)`` or ``LocalEngine(isolation="worker")``.
        driver: Place of the driver: ``"client"`` for this process, or ``"cluster"`` for a task of the Spark
            application. With ``"cluster"`` this process may end before the search (see the page on Spark Connect).
        failures: Retries, time limits, and when failures end the search (:class:`~maggy_like.FailurePolicy`).
        seed: Seed of the optimizer. The same seed proposes the same sequence of configurations, and after other
            earlier runs (``warm_start``) another one.
        name: Name of the run. Default a name made of the function's name and the time.
        directory: Path or URL of the directory of all runs. The run's directory in it has its journal, checkpoints and
            logs.
        store: Path, URL or :class:`~maggy_like.Store` of the checkpoints, if they should not be in the run's directory.
        resume: If True, continue the run called ``name`` from the end of its journal. Default False.
        overwrite: If True, first delete an earlier run called ``name``. A run that is active raises an error. Default
            False.
        callbacks: Functions of one event (``optimizers.TrialCreated``, ``AttemptStarted``, ``Measured``,
            ``CheckpointSaved`` or ``AttemptEnded``), each in its own thread, and trackers: ``"mlflow"``,
            ``"tensorboard"``, or an object such as ``maggy_like.trackers.MLflow(experiment="digits")``.
        progress: If True, show a live display that fits the terminal or notebook. ``"plain"``, ``"terminal"`` and
            ``"notebook"`` choose one. With False, only warnings about mistakes are logged.
        block: If True, wait for the end. If False, run the search in the background and return a handle.

    Returns:
        The result. After Ctrl-C, SIGTERM, a stop or a timeout it is the result so far, and a second Ctrl-C does not
        wait for the workers. With ``block=False`` a :class:`~maggy_like.RunHandle`.

    Raises:
        UserError: An argument or the function is wrong. This is raised before anything starts.
        TrialsFailedError: The first trials all failed in the same way.
        EngineError: The engine cannot provide the workers.
        JournalError: The run's files are in use, damaged, or those of another search.
        StoreError: A disk or store refused for ten minutes to write or read the run's files.
        TrainingError: The training after the search failed for good.

    An error that ends a running search has the result so far as ``error.result``.

    Example:
        >>> def train(lr, units, reporter):
        ...     for step in range(1, reporter.budget + 1):
        ...         reporter.report(accuracy=1 - abs(lr - 0.01) - 1 / (units + step), step=step)
        >>> result = lagom(train, {"lr": Float(1e-4, 1e-1, log=True), "units": Integer(16, 256)})
        >>> result.best_config
        {'lr': 0.010, 'units': 256}
    """
    with no_collections():  # nearly all that is imported and made here stays
        # Loaded when a search starts, so that importing lagom stays quick.
        from maggy_like.api.execution import search, start
        from maggy_like.api.run_settings import check_files, check_size, check_target, make_spec
        from maggy_like.driver.settings import LimitSettings, Settings, read_confirmation, read_policy
        from maggy_like.train_function.modules import modules_of
        from maggy_like.train_function.parameters import check_order, check_parameters
        from optimizers.space.search_space import SearchSpace

        train_fn, searchspace = options.train_fn, options.searchspace
        check_order(train_fn, searchspace)
        space = searchspace if isinstance(searchspace, SearchSpace) else SearchSpace(searchspace)
        if not space.names:
            raise ConfigError("the search space is empty; give at least one parameter, or use maggy_like.run(train_fn)")
        check_parameters(train_fn, space)
        timeout = seconds("timeout", options.timeout)
        policy = read_policy(options.failures)
        files = check_files(options)
        searched, hints = check_search(options, space, files)
        settings = Settings(
            search=searched,
            files=files,
            limits=LimitSettings(timeout, check_target(options.target, searched.metrics)),
            size=check_size(
                options.workers,
                max_workers=options.max_workers,
                workers_per_trial=options.workers_per_trial,
                min_workers=policy.min_workers,
            ),
            failures=policy,
            confirmation=_check_confirmation(read_confirmation(options.confirm), train_fn, searched),
            training=_check_training(options.train_best, searched),
            hints=hints,
        )
        preload = modules_of(train_fn, multi_worker=options.workers_per_trial > 1 or settings.training is not None)
        spec = make_spec(options, settings, preload, driver=options.driver)
    return start(options, spec, search)


def check_search(
    options: SearchOptions, space: SearchSpace, files: FileSettings
) -> tuple[SearchSettings, tuple[str, ...]]:
    """Check the settings of a search, and fill in defaults. Return the settings, and hints for the user.

    A resumed run has its directions, what it learned from earlier runs, and the number of trials with which it began,
    in its files.
    """
    from maggy_like.api import run_settings as checks
    from maggy_like.driver.settings import SearchSettings
    from optimizers.core.study_state import VALUE_RULES

    n_trials, max_budget = options.n_trials, options.max_budget
    n_trials = None if n_trials is None else whole("n_trials", n_trials, least=1, remedy="leave it out for the default")
    open_ended = max_budget is None
    max_budget = checks.DEFAULT_BUDGET if max_budget is None else whole("max_budget", max_budget, least=1)
    seed = whole("seed", options.seed, least=0, most=None, remedy="leave it out for 0")
    made = checks.build_optimizer(options.optimizer, options.train_fn)
    checks.check_constraints(space)
    direction = options.direction
    metrics, directions = checks.check_objectives(options.metric, direction)
    value_rule = cast("ValueRule", one_of("value", options.value, VALUE_RULES))
    earlier: Earlier = ()
    hint = ""
    began_with: int | None = n_trials or 0
    if files.resume:
        from maggy_like.api.warm_start import recorded

        earlier, known, began_with = recorded(files.paths.journal, options.warm_start, space)
        directions = known if direction is None and len(known) == len(directions) else directions
    elif options.warm_start != ():
        from maggy_like.api.warm_start import gather

        earlier, hint, directions = gather(options.warm_start, space, metrics, directions)
    guessed = direction is None and (bool(metrics) or directions == (None,))
    points = checks.check_points(options.points_to_evaluate, space, earlier)
    if n_trials is not None and n_trials < (given := len(options.points_to_evaluate)):
        raise ConfigError(
            f"n_trials must be at least {given} to try all points_to_evaluate, got {n_trials}; use n_trials={given}, "
            "or give fewer points"
        )
    if n_trials is None:
        size = made.size(space)
        n_trials = size + len(points) if size else None if options.timeout is not None else checks.DEFAULT_TRIALS
    settings = SearchSettings(
        space=space,
        optimizer=made,
        optimizer_name=options.optimizer if isinstance(options.optimizer, str) else type(made).__name__,
        metrics=metrics,
        directions=directions,
        guessed=guessed,
        value=value_rule if len(directions) == 1 else "last",
        seed=seed,
        max_budget=max_budget,
        open_ended=open_ended,
        n_trials=n_trials,
        began_with=began_with,
        is_timed=n_trials is None,
        points=points,
        earlier=earlier,
    )
    made.check(settings.problem)
    n_configs, count_hint = checks.count_configurations(made, settings.problem)
    hints = (
        *made.remarks(settings.problem),
        *checks.scale_hints(space),
        count_hint,
        checks.reach_hint(settings.optimizer_name, made, settings.problem),
        *checks.direction_hints(metrics, directions, direction),
        hint,
    )
    return replace(settings, n_configs=n_configs), tuple(filter(None, hints))


def _check_confirmation(
    confirmation: Confirmation | None, train_fn: Callable[..., Any], searched: SearchSettings
) -> Confirmation | None:
    """Return the confirmation, after a check that the search can be confirmed."""
    from maggy_like.train_function.parameters import check_seed

    if confirmation is None:
        return None
    if len(searched.directions) > 1:
        raise ConfigError(
            f"confirm= compares values of one objective, got a search of {len(searched.directions)}; leave it out"
        )
    _check_configurations("confirm=", searched)
    check_seed(train_fn, searched.space)
    return confirmation


def _check_configurations(argument: str, searched: SearchSettings) -> None:
    """Check that a trial's configuration is that of its whole training, since ``argument`` trains it again."""
    if searched.optimizer.needs_checkpoints:
        raise ConfigError(
            f"{argument} trains a configuration from its first step, and optimizer={searched.optimizer_name!r} changes "
            "configurations during the training; leave one of them out"
        )


def _check_training(train_best: bool | int, searched: SearchSettings) -> TrainingSettings | None:
    """Return the training that follows the search, if there is one."""
    from maggy_like.driver.settings import TrainingSettings

    if train_best is False:
        return None
    if len(searched.directions) > 1:
        raise ConfigError(
            f"train_best={train_best!r} needs a best configuration, and a search of {len(searched.directions)} "
            "objectives has a Pareto set; leave it out, and pass the one you choose to maggy_like.run"
        )
    _check_configurations(f"train_best={train_best!r}", searched)
    is_default = train_best is True
    steps = searched.max_budget if is_default else whole("train_best", train_best, least=1, remedy="use True")
    return TrainingSettings(steps)
