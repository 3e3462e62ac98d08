"""``ablate``: measure how much each part of a training contributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from maggy_like.api.options import OTHER_SPELLINGS_OF_ABLATE, TrialsOptions, takes
from maggy_like.argument_checks import real, seconds, whole
from maggy_like.errors import ConfigError
from maggy_like.processes.garbage import no_collections
from optimizers.checks import explains_init, short

if TYPE_CHECKING:
    from maggy_like.ablation.design import DesignName
    from maggy_like.ablation.outcome import Ablation
    from maggy_like.ablation.study import AblationStudy
    from maggy_like.driver.run_handle import RunHandle
    from optimizers.core.base import Optimizer
    from optimizers.space.search_space import SearchSpace


@explains_init
@dataclass(frozen=True)
class Tuning:
    """Tuning of each variant of an ablation study: in each repeat, its best configuration represents it.

    Each repeat is a new search, so that the luck of a search is part of the noise that the tests measure. A study takes
    ``n_trials + 1`` trials per variant and repeat.

    Args:
        searchspace: Domains by name, as for :func:`maggy_like.lagom`.
        n_trials: Number of configurations per variant and repeat. Default 8.
        optimizer: Name or object of an optimizer without rungs and early stops, since only full trainings are compared.
            Default ``"random"``.

    Raises:
        UserError: An argument is not valid.

    Example:
        >>> answer = ablate(train_fn, study, tune=Tuning({"lr": Float(1e-4, 1e-1, log=True)}, n_trials=4))
    """

    searchspace: SearchSpace | Mapping[str, Any]
    n_trials: int = 8
    optimizer: str | Optimizer | type[Optimizer] = "random"

    def __post_init__(self) -> None:
        from optimizers.registry import make_optimizer
        from optimizers.space.search_space import SearchSpace

        space = self.searchspace if isinstance(self.searchspace, SearchSpace) else SearchSpace(self.searchspace)
        if not space.names:
            raise ConfigError("the search space of a Tuning is empty; give at least one parameter, or leave tune out")
        object.__setattr__(self, "searchspace", space)
        object.__setattr__(self, "n_trials", whole("n_trials", self.n_trials, least=1))
        object.__setattr__(self, "optimizer", make_optimizer(self.optimizer))

    @property
    def space(self) -> SearchSpace:
        """The search space as an object."""
        return cast("SearchSpace", self.searchspace)

    @property
    def proposer(self) -> Optimizer:
        """The optimizer as an object."""
        return cast("Optimizer", self.optimizer)


@dataclass(frozen=True)
class _OfStudy:
    """The options that only an ablation study has."""

    train_fn: Callable[..., Any]
    study: AblationStudy
    _: KW_ONLY
    design: DesignName = "leave_one_out"
    repeats: int | Literal["auto"] = 5
    tune: Tuning | None = None
    resampled: float = 0.0
    negligible: float | None = None
    metric: str | None = None
    direction: str | None = None


@dataclass(frozen=True)
class AblationOptions(TrialsOptions, _OfStudy):
    """The options of an ablation study. :func:`ablate` describes each one."""


@takes(AblationOptions, OTHER_SPELLINGS_OF_ABLATE)
def ablate(options: AblationOptions) -> Ablation | RunHandle[Ablation]:
    """Measure how much each part of a training contributes, by training every variant with several seeds.

    Args:
        train_fn: Function that trains one variant. In addition to the parameters of :func:`maggy_like.lagom`, it may
            take ``variant``, ``model``, ``features``, ``n_features`` and ``seed``. Its last value counts, not its best.
        study: Parts to remove or change: features, modules, configuration, or anything else.
        design: Variants to try: ``"leave_one_out"``, ``"leave_one_group_out"``, ``"add_one_in"``, ``"pairs"``
            (for interactions) or ``"factorial"``.
        repeats: Number of seeds per variant. ``"auto"`` gives more seeds to undecided comparisons.
        tune: Tuning of each variant in each repeat (:class:`~maggy_like.Tuning`). The best of each are compared.
        resampled: Rows of the test set divided by those of the training set, such as ``0.3 / 0.7``, if each seed splits
            the same rows again. The tests then hold for new data of the same kind. Default 0: they hold for this data.
        negligible: Difference in the metric that does not matter, such as ``0.005``. If an interval lies within it, the
            answer reports that.
        metric: Name of the objective, needed if more than one metric is reported.
        direction: ``"max"`` or ``"min"``. By default it follows from the metric's name.
        timeout: Seconds, counted from this call, after which the study ends with the result so far.
        max_budget: Steps of a training (``reporter.budget``), as for :func:`maggy_like.lagom`.
        workers: Number of workers, as for :func:`maggy_like.lagom`.
        max_workers: Upper limit of the number of workers, if ``workers`` is not given.
        workers_per_trial: Number of workers that run one trial together.
        engine: Engine, as for :func:`maggy_like.lagom`.
        driver: Place of the driver, as for :func:`maggy_like.lagom`.
        failures: Retries, time limits, and when failures end the study.
        seed: First of the seeds with which each variant is trained.
        name: Name of the run.
        directory: Path or URL of the directory of all runs.
        store: Place of the checkpoints, if they should not be in the run's directory.
        resume: If True, continue the run called ``name``. Default False.
        overwrite: If True, first delete an earlier run called ``name``. A run that is active raises an error. Default
            False.
        callbacks: Functions of one event, and trackers, as for :func:`maggy_like.lagom`.
        progress: If True, show a live display.
        block: If True, wait for the end. If False, run the study in the background and return a handle.

    Returns:
        The answer, with one row per comparison. ``answer.result`` has the trials. After Ctrl-C or a timeout it is the
        answer of the trials so far. With ``block=False`` a :class:`~maggy_like.RunHandle`.

    Raises:
        UserError: An argument, the study or the function is wrong. This is raised before anything starts.
        MaggyError: As for :func:`maggy_like.lagom`.

    Example:
        >>> study = AblationStudy().config(dropout=0.0, augment=False)
        >>> answer = ablate(train_fn, study, repeats=10)
        >>> print(answer.to_pandas()[["component", "verdict"]])
          component           verdict
        0   dropout  worse without it
        1   augment  worse without it
    """
    with no_collections():  # nearly all that is imported and made here stays
        # Loaded when a study starts, so that importing ablate stays quick.
        from maggy_like.ablation.checks import check_negligible
        from maggy_like.ablation.search import AblatedFunction, plan_ablation
        from maggy_like.api.execution import search, start
        from maggy_like.api.lagom import SearchOptions, check_search
        from maggy_like.api.run_settings import check_files, check_size, make_spec
        from maggy_like.driver.settings import LimitSettings, Settings, read_policy
        from maggy_like.train_function.modules import modules_of

        train_fn, metric, tune = options.train_fn, options.metric, options.tune
        if metric is not None and not isinstance(metric, str):
            raise ConfigError(f"metric must be the name of one metric, got {short(metric)}; an ablation compares one")
        if tune is not None and not isinstance(tune, Tuning):
            raise ConfigError(f"tune must be a Tuning, got {short(tune)}; use tune=Tuning(searchspace, n_trials=8)")
        negligible = check_negligible(options.negligible)
        resampled = real(options.resampled)
        if resampled is None or not 0.0 <= resampled < math.inf:
            raise ConfigError(
                "resampled must be the rows of the test set divided by those of the training set, such as 0.3 / 0.7, "
                f"got {options.resampled!r}; leave it out if the seeds do not split the data"
            )
        timeout = seconds("timeout", options.timeout)
        policy = read_policy(options.failures)
        planned = plan_ablation(
            train_fn,
            options.study,
            design=options.design,
            repeats=options.repeats,
            first_seed=whole("seed", options.seed, least=0),
            searched=None if tune is None else tune.space,
            n_configs=0 if tune is None else tune.n_trials,
            tuner=None if tune is None else tune.proposer,
            resampled=resampled,
            negligible=negligible,
        )
        files = check_files(options)
        as_search = SearchOptions(
            train_fn,
            planned.space,
            optimizer=planned.optimizer,
            metric=metric,
            direction=options.direction,
            value="last",
            n_trials=planned.n_trials,
            max_budget=options.max_budget,
            seed=options.seed,
        )
        searched, hints = check_search(as_search, planned.space, files)
        settings = Settings(
            search=replace(
                searched,
                optimizer_name=planned.name,
                kind="ablation",
                groups=planned.design.described,
                comparisons=planned.comparisons,
            ),
            files=replace(files, function=""),  # a trial calls it with the arguments of its variant
            limits=LimitSettings(timeout),
            size=check_size(
                options.workers,
                max_workers=options.max_workers,
                workers_per_trial=options.workers_per_trial,
                min_workers=policy.min_workers,
            ),
            failures=policy,
            hints=hints,
        )
        spec = make_spec(
            options,
            settings,
            (*modules_of(train_fn, multi_worker=options.workers_per_trial > 1), *planned.preload),
            function=AblatedFunction(train_fn, planned.design),
            driver=options.driver,
        )
    return start(options, spec, lambda spec: planned.outcome(search(spec)))
