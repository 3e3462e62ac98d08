"""``lagom``: check, dispatch, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from maggy_like.ablation.design import DesignName
from maggy_like.ablation.search import AblatedFunction, plan_ablation
from maggy_like.ablation.study import AblationStudy
from maggy_like.api.engine_choice import choose_engine
from maggy_like.api.run import search
from maggy_like.api.settings import check_settings, one_of, whole
from maggy_like.display import make_display
from maggy_like.driver.failure_policy import FailurePolicy, read_policy
from maggy_like.driver.monitor import Callback
from maggy_like.driver.run_handle import Experiment
from maggy_like.driver.runner import DriverSide, Job, check_watchers
from maggy_like.engines.base import Engine
from maggy_like.errors import ConfigError
from maggy_like.results.result import Result
from maggy_like.train_function.modules import modules_of
from maggy_like.train_function.parameters import check_order, check_parameters
from maggy_like.train_function.pickling import pickle_train_fn
from maggy_like.train_function.sources import sources_of
from optimizers.checks.arguments import explains_arguments
from optimizers.core.base import Optimizer
from optimizers.core.objectives import Directions
from optimizers.core.ranking import Worth
from optimizers.registry import make_optimizer
from optimizers.space.search_space import SearchSpace


@explains_arguments
def lagom(
    train_fn: Callable[..., Any],
    searchspace: SearchSpace | Mapping[str, Any] | None = None,
    *,
    optimizer: str | Optimizer | type[Optimizer] = "asha",
    metric: str | Sequence[str] | None = None,
    direction: Directions = None,
    value: Worth = "best",
    n_trials: int | None = None,
    timeout: float | None = None,
    target: float | None = None,
    max_budget: int = 27,
    min_budget: int | None = None,
    eta: int | None = None,
    mode: Literal["promotion", "stopping"] | None = None,
    workers: int | None = None,
    engine: str | Engine = "auto",
    driver: DriverSide = "client",
    seed: int = 0,
    name: str | None = None,
    directory: str | Path = "maggy_runs",
    journal: str | Path | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    isolation: Literal["process", "worker"] = "process",
    max_attempts: int = 3,
    failures: FailurePolicy | None = None,
    trial_timeout: float | None = None,
    report_timeout: float | None = None,
    points_to_evaluate: Sequence[Mapping[str, Any]] = (),
    warm_start: Sequence[Result | str | Path] = (),
    workers_per_trial: int = 1,
    train_best: bool | int = False,
    min_workers: int | None = None,
    max_workers: int | None = None,
    keep_checkpoints: int = 2,
    ablation: AblationStudy | None = None,
    design: DesignName = "leave_one_out",
    repeats: int | Literal["auto"] = 5,
    tune: bool | int = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | str = True,
    experiment: Experiment | None = None,
) -> Result:
    """Search for the best configuration of ``train_fn``, asynchronously, on a gang of workers.

    Args:
        train_fn: Trains with one configuration. Its parameters are filled by name: those of the
            search space, and ``reporter``, ``config`` (all as a dict) or ``budget``. It reports
            as it goes (``reporter.report(accuracy=..., step=...)``) and returns the objective, a
            dict of metrics with the objective in it, or None. A value that it returns is one more measurement of the
            objective, at the last step that it has reported. What is no number in the dict is kept in the trial's
            ``attributes``.
        searchspace: Domains by name: ``Float(1e-4, 1e-1, log=True)``, ``Integer(16, 256)``,
            ``["relu", "gelu"]`` for a choice, a plain value for a constant.
        optimizer: A name, or an :class:`~optimizers.core.base.Optimizer` (or its class). ``"asha"`` halves at
            ``max_budget // eta`` steps, after glances below, over the proposals of a Gaussian process; ``"mobster"``
            does so from one step on, ``"hyperband"`` and ``"bohb"`` in brackets, over random configurations or a
            density model; ``"bayesian"`` is the Gaussian process with full trainings; ``"pbt"`` is population-based
            training (needs checkpoints); ``"tpe"`` is Optuna's, ``"skopt"`` scikit-optimize's; ``"random"``,
            ``"grid"`` and ``"sobol"`` learn nothing. The extra ``optuna`` brings ``"tpe"`` and ``"bohb"``, the extra
            ``skopt`` ``"skopt"``.
        metric: Name of the objective; may be left out when only one metric is reported. Or a list of several:
            then the result has a Pareto set, ``result.pareto``, and no best trial.
        direction: ``"max"`` if larger values of the objective are better, ``"min"`` if smaller ones are; a list for
            several objectives. By default it follows from the metric's name (``val_loss`` is minimised, ``accuracy``
            maximised); a metric whose name does not say it is maximised, and the display says so.
        value: What a trial is worth: the ``"best"`` of its reports, so that the best of the search never gets worse,
            or the ``"last"`` of its last ended attempt (while it runs for the first time, its newest report). Trials
            of several objectives and of an ablation always count by what they end with.
        n_trials: How many configurations to try, over all workers. By default 50; all of them with an
            optimizer that goes through all (``"grid"``); no bound when ``timeout`` is given.
        timeout: Seconds after which the search ends with what it has.
        target: The search is over once a trial has this value of the objective, or a better one.
        max_budget: Steps of a full training: ``reporter.budget`` tells the function its share.
        min_budget: ASHA and its kin: steps of the lowest rung; by default ``max_budget // eta**3`` for ``"asha"``,
            1 for the others.
        eta: ASHA and its kin: one in ``eta`` goes on at each rung.
        mode: ASHA and its kin: ``"promotion"`` pauses trials and runs the best on from their checkpoints;
            ``"stopping"`` decides once at each rung. By default promotion if ``train_fn`` both
            saves and restores checkpoints, stopping otherwise.
        workers: Size of the gang; by default all slots of the engine. On a Spark cluster with dynamic allocation the
            gang begins with what there is, and grows as executors come.
        engine: ``"local"`` (processes of this machine), ``"spark"``, ``"inline"`` (one worker in
            this process, for a debugger), or ``"auto"``: Spark where a session is active, else local; inside a
            Spark task it is refused.
        driver: Where the search is driven from: in this process, the ``"client"``, which the workers must be able to
            reach; or in a task of the Spark application, in the ``"cluster"``, which takes one slot. Then
            ``directory`` must be a URL, or a path that all hosts share; this process shows what the journal there
            says, and may go away: ``load_run(URL).watch()`` follows the search from anywhere, for as long as the Spark
            application lives.
        seed: Source of all randomness of the search; the same seed proposes the same sequence. Of an ablation it is
            the first of the seeds with which each variant runs.
        name: The run's name, a folder in ``directory``; made up if not given.
        directory: Where runs are kept, each in a folder of its name: journal, logs, checkpoints. A path, or a URL of
            any fsspec file system, such as ``"s3://bucket/runs"``: then a run outlives the driver's machine, and needs
            no folder that all hosts share. The package that opens such a URL (``s3fs``) and the credentials must be
            there where the driver and the workers run.
        journal: Path or URL of a folder that gets the journal, in a folder of the run's name; by default it is in
            ``directory``.
        store: Path or URL of a folder that gets the checkpoints, in a folder of the run's name, where ``directory``
            is not shared by all hosts; by default they are in ``directory``.
        resume: Go on with the run called ``name`` where its journal ends. Damaged lines of the journal are told
            of and left out; what they said is inferred as far as can be.
        isolation: ``"process"`` gives each trial a fresh process (a crash costs that trial alone,
            memory never leaks on); ``"worker"`` keeps one process per worker, for trials of
            milliseconds.
        max_attempts: How many attempts a trial has: whatever it fails of (an exception, a crash, a time limit, a
            lost worker), it runs again from its last checkpoint. An attempt that fails just as the one before, and
            got no further, is the last; so is one that reported what is no number.
        failures: When failures end the whole search: by default once as many trials as run at a time, and at least 3,
            have failed alike and none has succeeded. A :class:`~maggy_like.FailurePolicy` says how many, or never, and
            which exceptions are expected.
        trial_timeout: Seconds that one attempt may take; one that does not report then is killed
            5 seconds later.
        report_timeout: Seconds, 1 at least, that an attempt may go on without a report or a checkpoint; one that
            does not report for as long again is killed, after 5 seconds at most.
        points_to_evaluate: Configurations to try first. After them come the one of all priors of the
            search space, if it has any, and the best of each run of ``warm_start``.
        warm_start: Earlier runs to learn from: their results, or their folders. They must have had the
            same metric and direction; trials that do not fit into the search space are left out. A
            resumed run knows what it was started with, and needs their folders no more. A folder may be a URL.
        workers_per_trial: How many workers run one trial together, data-parallel. Each has torchrun's environment, so
            plain DDP, FSDP, Accelerate and Fabric code runs as it is; :meth:`Reporter.prepare` needs no such code.
            Rank 0's reports count; all ranks are stopped in the same one.
        train_best: Whether the whole gang trains the best configuration together once the search is over, without
            giving its workers back; a number is that of its steps (by default ``max_budget``). See
            :attr:`Result.training`.
        min_workers: How many workers will do. Lost ones that do not come back within 30 s are no longer waited for
            then, and the training goes on from its checkpoint with fewer; :meth:`Reporter.prepare` keeps the batch.
        max_workers: How many workers there may be where ``workers`` is not given. By default all slots of the engine;
            with dynamic allocation as many as ``n_trials`` and ``spark.dynamicAllocation.maxExecutors`` have a use for,
            and no more than 64.
        keep_checkpoints: How many of a trial's newest checkpoints to keep, beside that of its best value.
        ablation: Study what the parts of the training are worth, instead of searching: every variant of the study runs
            with several seeds, and :attr:`Result.ablation` has the answer. Besides, ``train_fn`` takes ``variant``,
            ``model``, ``features``, ``n_features`` and ``seed``.
        design: Which variants an ablation tries: ``"leave_one_out"``, ``"leave_one_group_out"``, ``"add_one_in"``,
            ``"pairs"`` (for interactions) or ``"factorial"``.
        repeats: Seeds of each variant of an ablation; ``"auto"`` gives more to comparisons that are not decided.
        tune: Whether an ablation first tries 8 configurations of ``searchspace`` for each variant (or that many), and
            compares the best of each.
        callbacks: Functions that take each event of :mod:`optimizers.core.events`, as it is recorded.
        progress: Show a live display: in the notebook cell, in the terminal, or as plain lines,
            whichever fits; ``"plain"``, ``"terminal"`` or ``"notebook"`` insist on one.
        experiment: A new handle by which another thread can stop this search: ``experiment.stop()``.

    Returns:
        The result; after Ctrl-C, SIGTERM, a stop or a timeout, the result so far. Another Ctrl-C or SIGTERM does not
        wait for the workers. The process goes on either way: a script that was sent SIGTERM shows and saves its result.

    Raises:
        UserError: An argument or the function is wrong; told before anything starts.
        TrialsFailedError: The first trials failed alike; ``error.result`` has what there is.
        EngineError: The engine cannot provide the gang.
        JournalError: The run's files are in use, damaged, or of another search.
        StoreError: A disk or store refused for ten minutes what the run had to write or read.

    An error that ends a search which had begun has the result so far: ``error.result``.

    Example:
        >>> def train(lr, units, reporter):
        ...     for step in range(1, reporter.budget + 1):
        ...         reporter.report(accuracy=1 - abs(lr - 0.01) - 1 / (units + step), step=step)
        >>> result = lagom(train, {"lr": Float(1e-4, 1e-1, log=True), "units": Integer(16, 256)})
        >>> result.best_config
    """
    check_order(train_fn, searchspace)
    space = searchspace if isinstance(searchspace, SearchSpace) else SearchSpace(searchspace)
    study = None
    if ablation is None:
        if not space.names:
            raise ConfigError("the search space is empty; give at least one parameter, or use maggy_like.run(train_fn)")
        check_parameters(train_fn, space)
        if design != "leave_one_out" or repeats != 5 or tune:
            raise ConfigError("design, repeats and tune are those of an ablation; give its study too: ablation=study")
    else:
        check_no_search(
            optimizer=None if optimizer == "asha" or tune else optimizer,
            n_trials=n_trials,
            points_to_evaluate=points_to_evaluate,
            warm_start=warm_start,
            train_best=train_best,
            target=target,
            min_budget=min_budget,
            eta=eta,
            mode=mode,
            metric=None if metric is None or isinstance(metric, str) else metric,
        )
        study = plan_ablation(
            train_fn,
            ablation,
            design=design,
            repeats=repeats,
            first_seed=whole("seed", seed, least=0),
            searched=space if space.names else None,
            tune=tune,
            tuner=None if optimizer == "asha" else make_optimizer(optimizer),
        )
        space, optimizer, n_trials = study.space, study.optimizer, study.n_trials
    settings = check_settings(
        train_fn,
        space=space,
        optimizer=optimizer,
        options={"min_budget": min_budget, "eta": eta, "mode": mode},
        metric=metric,
        direction=direction,
        value=value if study is None else "last",
        n_trials=n_trials,
        timeout=timeout,
        target=target,
        max_budget=max_budget,
        workers=workers,
        seed=seed,
        name=name,
        directory=directory,
        journal=journal,
        store=store,
        resume=resume,
        isolation=isolation,
        max_attempts=max_attempts,
        trial_timeout=trial_timeout,
        report_timeout=report_timeout,
        points_to_evaluate=points_to_evaluate,
        warm_start=warm_start,
        workers_per_trial=workers_per_trial,
        train_best=train_best,
        min_workers=min_workers,
        max_workers=max_workers,
        keep_checkpoints=keep_checkpoints,
    )
    settings = replace(settings, failures=read_policy(failures))
    check_watchers(callbacks, experiment)
    preload = modules_of(train_fn, wide=workers_per_trial > 1 or bool(train_best))
    if study is not None:
        settings = replace(settings, optimizer_name=study.name, variants=study.design.described)
        preload = (*preload, *study.preload)
    provider = choose_engine(engine)
    job = Job(
        settings,
        provider,
        pickle_train_fn(train_fn if study is None else AblatedFunction(train_fn, study.design)),
        preload,
        make_display(False if provider.name == "inline" else progress),
        callbacks,
        experiment,
        sources=sources_of(train_fn),
        driver=cast(DriverSide, one_of("driver", driver, get_args(DriverSide))),
    )
    result = search(job)
    if study is None:
        return result
    answer = study.outcome(result.trials, result.objective, result.direction)
    return replace(result, ablation=answer, best_trial=None)  # the best of several variants and seeds says nothing


def check_no_search(**given: Any) -> None:
    """Check that nothing is asked of an ablation that only a search can do.

    Raises:
        ConfigError: Something is.
    """
    for name, value in given.items():
        if value or (name == "target" and value is not None):
            raise ConfigError(
                f"{name}={value!r} is for a search, and ablation=... goes through the variants of its study; leave one "
                "of the two out"
            )
