"""The systems of :mod:`benchmarks.race`, each as its documentation advises: one search of one task.

``python -m benchmarks.race_systems NAME SEED DEADLINE DIRECTORY`` runs one search in the interpreter that has the
system. DEADLINE is by ``time.monotonic``, and the files of the system go to DIRECTORY. The name of the task
is in the environment (see :mod:`benchmarks.race_tasks`).

Each system has two functions. The first searches a training with epochs and stops bad trainings early if the system
can. The second searches a function that only returns a value. They stand for the script of a user, so their lines are
counted. The spaces are not: each system needs one line per parameter.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import math
import multiprocessing
import os
import random
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

if __name__ == "__main__" and sys.argv[1] == "maggy_like":
    # As help(warm_up) advises for a script: its workers import what it imports below, at the same time.
    from maggy_like import warm_up

    if not os.environ["RACE_TASK"].startswith("recorded"):
        warm_up("lightgbm" if os.environ["RACE_TASK"].startswith("boosting") else "torch", "sklearn.model_selection")

from benchmarks.race_tasks import NAME, TASKS, Choice, Config, Float, Integer, Space, State, Task

MASTER = os.environ.get("RACE_MASTER", "")
"""The address of a Spark cluster; empty if there is none."""

Train = Callable[..., float]
Left = Callable[[], float]
"""Returns the seconds until the deadline, at least a millisecond: no system takes a time limit of 0."""

Search = Callable[[Train, Task, Left, int, str], None]
"""Searches with a training function of a task, the time that is left, a seed and a directory."""


def written(
    space: Space, *, choice: Callable[..., Any], real: Callable[..., Any], whole: Callable[..., Any]
) -> dict[str, Any]:
    """Write a space by functions of a name and what its domain has: options, or low, high and whether it is by logs."""
    write = {Choice: choice, Float: real, Integer: whole}
    return {name: write[type(domain)](name, *domain) for name, domain in space.items()}


# -- maggy_like ------------------------------------------------------------------------------------------


def maggy_like(train: Train, task: Task, left: Left, seed: int, directory: str) -> None:
    """``lagom`` with its default optimizer, ASHA over a Gaussian process, which stops trials."""
    from maggy_like import Reporter, lagom

    def trial(config: dict[str, Any], reporter: Reporter) -> None:
        def report(epoch: int, value: float, save: Callable[[], State]) -> None:
            reporter.report(value, step=epoch)

        train(config, report, epochs=reporter.budget)

    lagom(
        trial,
        maggy_like_space(task.space),
        metric=task.metric,
        direction=task.direction,
        timeout=left(),
        max_budget=task.epochs,
        workers=task.workers,
        seed=seed,
        progress=False,
        directory=directory,
    )


def maggy_like_recorded(train: Train, task: Task, left: Left, seed: int, directory: str) -> None:
    """The same with checkpoints, for long trainings: trials pause, and the best ones continue."""
    from maggy_like import Reporter, lagom

    def trial(config: dict[str, Any], reporter: Reporter) -> None:
        def report(epoch: int, value: float, save: Callable[[], State]) -> None:
            reporter.checkpoint(save())
            reporter.report(value, step=epoch)

        train(config, report, reporter.restore(), reporter.budget)

    lagom(
        trial,
        maggy_like_space(task.space),
        metric=task.metric,
        direction=task.direction,
        timeout=left(),
        max_budget=task.epochs,
        workers=task.workers,
        engine="spark" if MASTER else "local",
        seed=seed,
        progress=False,
        directory=directory,
    )


def maggy_like_values(score: Train, task: Task, left: Left, seed: int, directory: str) -> None:
    """``lagom`` with its Gaussian process over full trainings."""
    from maggy_like import lagom

    def trial(config: dict[str, Any]) -> float:
        return score(config)

    lagom(
        trial,
        maggy_like_space(task.space),
        optimizer="bayesian",
        metric=task.metric,
        direction=task.direction,
        timeout=left(),
        workers=task.workers,
        engine="spark" if MASTER else "local",
        seed=seed,
        progress=False,
        directory=directory,
    )


def maggy_like_space(space: Space) -> dict[str, Any]:
    """Write a space as ``lagom`` expects it."""
    import maggy_like as library

    return written(
        space,
        choice=lambda name, options: list(options),
        real=lambda name, low, high, log: library.Float(low, high, log=log),
        whole=lambda name, low, high, log: library.Integer(low, high, log=log),
    )


# -- Optuna ----------------------------------------------------------------------------------------------


def optuna(train: Train, task: Task, left: Left, seed: int, directory: str) -> None:
    """TPE with Hyperband's pruner, in a process per worker, which share a journal file."""
    import optuna as library
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    def objective(trial: Any) -> float:
        def report(epoch: int, value: float, save: Callable[[], State]) -> None:
            trial.report(value, epoch)
            if trial.should_prune():
                raise library.TrialPruned

        return train(optuna_config(trial, task.space), report)

    def work(number: int) -> None:
        study = library.create_study(
            study_name="race",
            storage=JournalStorage(JournalFileBackend(f"{directory}/journal.log")),
            sampler=library.samplers.TPESampler(multivariate=True, constant_liar=True, seed=1000 * seed + number),
            pruner=library.pruners.HyperbandPruner(min_resource=1, max_resource=task.epochs, reduction_factor=3),
            direction="maximize" if task.direction == "max" else "minimize",
            load_if_exists=True,
        )
        study.optimize(objective, timeout=left())

    processes = [multiprocessing.Process(target=work, args=(number,)) for number in range(task.workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def optuna_values(score: Train, task: Task, left: Left, seed: int, directory: str) -> None:
    """TPE without a pruner."""
    import optuna as library
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    def work(number: int) -> None:
        study = library.create_study(
            study_name="race",
            storage=JournalStorage(JournalFileBackend(f"{directory}/journal.log")),
            sampler=library.samplers.TPESampler(multivariate=True, constant_liar=True, seed=1000 * seed + number),
            direction="maximize" if task.direction == "max" else "minimize",
            load_if_exists=True,
        )
        study.optimize(lambda trial: score(optuna_config(trial, task.space)), timeout=left())

    processes = [multiprocessing.Process(target=work, args=(number,)) for number in range(task.workers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def optuna_config(trial: Any, space: Space) -> Config:
    """Ask a trial of Optuna for its configuration."""
    return written(
        space,
        choice=trial.suggest_categorical,
        real=lambda name, low, high, log: trial.suggest_float(name, low, high, log=log),
        whole=lambda name, low, high, log: trial.suggest_int(name, low, high, log=log),
    )


# -- Ray Tune --------------------------------------------------------------------------------------------


def ray(train: Train, task: Task, left: Left, seed: int, directory: str) -> None:
    """ASHA over the proposals of Optuna, in actors that are reused."""
    import ray as library
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    metric = task.metric

    def trial(config: dict[str, Any]) -> None:
        def report(epoch: int, value: float, save: Callable[[], State]) -> None:
            tune.report({metric: value})

        train(config, report)

    library.init(num_cpus=task.workers, include_dashboard=False, log_to_driver=False)
    tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space=ray_space(task.space),
        tune_config=tune.TuneConfig(
            metric=metric,
            mode=task.direction,
            search_alg=OptunaSearch(seed=seed),
            scheduler=ASHAScheduler(max_t=task.epochs, grace_period=1, reduction_factor=3),
            num_samples=-1,
            max_concurrent_trials=task.workers,
            time_budget_s=left(),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=directory, verbose=0),
    ).fit()


def ray_values(score: Train, task: Task, left: Left, seed: int, directory: str) -> None:
    """The proposals of Optuna, without a scheduler."""
    import ray as library
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    metric = task.metric

    def trial(config: dict[str, Any]) -> dict[str, float]:
        return {metric: score(config)}

    library.init(num_cpus=task.workers, include_dashboard=False, log_to_driver=False)
    tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space=ray_space(task.space),
        tune_config=tune.TuneConfig(
            metric=metric,
            mode=task.direction,
            search_alg=OptunaSearch(seed=seed),
            num_samples=-1,
            max_concurrent_trials=task.workers,
            time_budget_s=left(),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(storage_path=directory, verbose=0),
    ).fit()


def ray_space(space: Space) -> dict[str, Any]:
    """Write a space as Ray Tune expects it. Its upper bounds of whole numbers are excluded."""
    from ray import tune

    return written(
        space,
        choice=lambda name, options: tune.choice(list(options)),
        real=lambda name, low, high, log: (tune.loguniform if log else tune.uniform)(low, high),
        whole=lambda name, low, high, log: (tune.lograndint if log else tune.randint)(low, high + 1),
    )


# -- Syne Tune -------------------------------------------------------------------------------------------


def syne_tune(train: Train, task: Task, left: Left, seed: int, directory: str) -> None:
    """ASHA with conformal quantile regression (Syne Tune 0.16 no longer has MOBSTER), one program per trial."""
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend import LocalBackend
    from syne_tune.optimizer.baselines import ASHACQR

    scheduler = ASHACQR(
        syne_tune_space(task.space),
        metric=task.metric,
        do_minimize=task.direction == "min",
        time_attr="epoch",
        max_t=task.epochs,
        random_seed=seed,
    )
    Tuner(
        trial_backend=LocalBackend(entry_point=__file__),
        scheduler=scheduler,
        stop_criterion=StoppingCriterion(max_wallclock_time=left()),
        n_workers=task.workers,
        sleep_time=0.1,  # seconds between two looks at the trials; the default of 5 is longer than most of them
    ).run()


def syne_tune_trial(train: Train, task: Task, config: Config) -> None:
    """Run one trial of Syne Tune."""
    from syne_tune import Reporter

    reporter = Reporter()

    def report(epoch: int, value: float, save: Callable[[], State]) -> None:
        reporter(epoch=epoch, **{task.metric: value})

    train(config, report)


def syne_tune_values(score: Train, task: Task, left: Left, seed: int, directory: str) -> None:
    """Bayesian optimisation by BoTorch."""
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend import LocalBackend
    from syne_tune.optimizer.baselines import BOTorch

    scheduler = BOTorch(
        syne_tune_space(task.space), metric=task.metric, do_minimize=task.direction == "min", random_seed=seed
    )
    Tuner(
        trial_backend=LocalBackend(entry_point=__file__),
        scheduler=scheduler,
        stop_criterion=StoppingCriterion(max_wallclock_time=left()),
        n_workers=task.workers,
        sleep_time=0.1,
    ).run()


def syne_tune_values_trial(score: Train, task: Task, config: Config) -> None:
    """Run one trial of Syne Tune that reports a single value."""
    from syne_tune import Reporter

    Reporter()(**{task.metric: score(config)})


def syne_tune_space(space: Space) -> dict[str, Any]:
    """Write a space as Syne Tune expects it."""
    from syne_tune import config_space

    return written(
        space,
        choice=lambda name, options: config_space.choice(list(options)),
        real=lambda name, low, high, log: (config_space.loguniform if log else config_space.uniform)(low, high),
        whole=lambda name, low, high, log: (config_space.lograndint if log else config_space.randint)(low, high),
    )


def syne_tune_config(space: Space) -> Config:
    """Parse the configuration of a trial of Syne Tune, which is a program."""
    parser = argparse.ArgumentParser()
    for name, domain in space.items():
        parser.add_argument(f"--{name}", type=float if isinstance(domain, Float) else int)
    return vars(parser.parse_known_args()[0])


# -- Hyperopt on Spark -----------------------------------------------------------------------------------


def spark_trials(train: Train, task: Task, left: Left, seed: int, directory: str) -> None:
    """Hyperopt's TPE with SparkTrials, whose trainings cannot be stopped early."""
    import numpy as np
    from hyperopt import SparkTrials, fmin, tpe
    from pyspark.sql import SparkSession

    sign = -1.0 if task.direction == "max" else 1.0
    SparkSession.builder.master(MASTER or f"local[{task.workers}]").getOrCreate()
    fmin(
        lambda config: sign * train(config),
        spark_trials_space(task.space),
        algo=tpe.suggest,
        trials=SparkTrials(parallelism=task.workers, timeout=left()),
        rstate=np.random.default_rng(seed),
    )


def spark_trials_space(space: Space) -> dict[str, Any]:
    """Write a space as Hyperopt expects it."""
    from hyperopt import hp
    from hyperopt.pyll import scope

    def real(name: str, low: float, high: float, log: bool) -> Any:
        return hp.loguniform(name, math.log(low), math.log(high)) if log else hp.uniform(name, low, high)

    def whole(name: str, low: int, high: int, log: bool) -> Any:
        if log:
            return scope.int(hp.qloguniform(name, math.log(low), math.log(high), 1))
        return hp.uniformint(name, low, high)

    return written(space, choice=hp.choice, real=real, whole=whole)


# -- by hand ---------------------------------------------------------------------------------------------


def random_search(train: Train, task: Task, left: Left, seed: int, directory: str) -> None:
    """Random search with full trainings in a pool of processes."""
    configs = itertools.islice(random_configs(task.space, seed), 10_000)
    best = None
    with multiprocessing.Pool(task.workers) as pool:
        for value in pool.imap_unordered(train, configs):
            best = value if best is None else (max if task.direction == "max" else min)(best, value)
            if left() < 0.01:
                break


def random_configs(space: Space, seed: int) -> Iterator[Config]:
    """Draw configurations."""
    generator = random.Random(seed)

    def real(name: str, low: float, high: float, log: bool) -> float:
        if log:
            return math.exp(generator.uniform(math.log(low), math.log(high)))
        return generator.uniform(low, high)

    def whole(name: str, low: int, high: int, log: bool) -> int:
        return round(real(name, low, high, log)) if log else generator.randint(low, high)

    while True:
        yield written(space, choice=lambda name, options: generator.choice(options), real=real, whole=whole)


# -- all of them -----------------------------------------------------------------------------------------


class System(NamedTuple):
    """A system of the race."""

    search: Search
    search_values: Search
    packages: tuple[str, ...] = ()
    """What its interpreter needs, apart from the libraries of the task."""

    parts: tuple[Callable[..., Any], ...] = ()
    """The functions besides ``search`` that its user writes for a training with epochs."""


SYSTEMS = {
    "maggy_like": System(
        maggy_like_recorded if NAME.startswith("recorded") else maggy_like, maggy_like_values, ("maggy_like",)
    ),
    "optuna": System(optuna, optuna_values, ("optuna",)),
    "ray": System(ray, ray_values, ("ray", "optuna")),
    "syne_tune": System(syne_tune, syne_tune_values, ("syne-tune", "botorch", "huggingface_hub"), (syne_tune_trial,)),
    "spark_trials": System(spark_trials, spark_trials, ("hyperopt", "pyspark")),
    "random": System(random_search, random_search),
}


def lines_of(system: System) -> int:
    """Count the lines that a user writes for a training with epochs: no blank lines, comments and docstrings."""
    count = 0
    for function in (system.search, *system.parts):
        lines = textwrap.dedent(inspect.getsource(function)).splitlines()
        definition = ast.parse("\n".join(lines)).body[0]
        if isinstance(definition, ast.FunctionDef) and ast.get_docstring(definition) is not None:
            del lines[definition.body[0].lineno - 1 : definition.body[0].end_lineno]
        count += sum(bool(line) and not line.startswith("#") for line in map(str.strip, lines))
    return count


def main() -> None:
    """Run one search, or one trial of Syne Tune's."""
    task = TASKS[NAME]
    if sys.argv[1].startswith("--"):
        trial = syne_tune_trial if task.epochs else syne_tune_values_trial
        trial(task.train, task, syne_tune_config(task.space))
        return
    name, seed, deadline, directory = sys.argv[1:]
    system = SYSTEMS[name]
    if MASTER and name == "maggy_like":  # the session that its user has already
        from maggy_like import spark_session

        spark_session(MASTER)
    search = system.search if task.epochs else system.search_values
    search(task.train, task, lambda: max(float(deadline) - time.monotonic(), 1e-3), int(seed), directory)


if __name__ == "__main__":
    main()
