"""The systems of :mod:`benchmarks.overhead`, one a run: trials of no work, five reports each, two at once.

Run by the interpreter that has the system: ``python overhead_systems.py NAME TRIALS FOLDER``. Each trial writes the
time at which it begins to ``FOLDER/marks``; the system's own files go to ``FOLDER`` too.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKERS = 2
REPORTS = 5

ENTRY = f"""
import argparse, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from overhead_systems import REPORTS, mark
from syne_tune import Reporter

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--marks")
arguments, _ = parser.parse_known_args()
mark(arguments.marks)
report = Reporter()
for step in range(REPORTS):
    report(loss=arguments.x, step=step + 1)
"""
"""A trial of Syne Tune is a program."""


def mark(marks: str) -> None:
    """Write down that a trial begins."""
    descriptor = os.open(marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{time.monotonic()!r}\n".encode())
    os.close(descriptor)


# -- ours ------------------------------------------------------------------------------------------------


def ours(engine: Callable[[], Any]) -> Callable[[int, str], None]:
    """``lagom`` with random search."""

    def run(trials: int, folder: str) -> None:
        from maggy_like import Float, Reporter, lagom

        marks = f"{folder}/marks"

        def train(x: float, reporter: Reporter) -> None:
            mark(marks)
            for step in range(REPORTS):
                reporter.report(loss=x, step=step + 1)

        lagom(
            train,
            {"x": Float(0, 1)},
            optimizer="random",
            direction="min",
            n_trials=trials,
            max_budget=REPORTS,
            workers=WORKERS,
            engine=engine(),
            directory=folder,
            progress=False,
        )

    return run


def local(isolation: Any) -> Callable[[], Any]:
    """Processes of this machine."""

    def make() -> Any:
        from maggy_like import LocalEngine

        return LocalEngine(isolation=isolation)

    return make


def spark(isolation: Any) -> Callable[[], Any]:
    """A barrier stage on ``local[2]``."""

    def make() -> Any:
        from maggy_like import SparkEngine, spark_session

        return SparkEngine(spark_session(f"local[{WORKERS}]"), isolation=isolation)

    return make


# -- others ----------------------------------------------------------------------------------------------


def ray(reuse: bool) -> Callable[[int, str], None]:
    """Ray Tune; an actor a trial, or two that are used again."""

    def run(trials: int, folder: str) -> None:
        import ray
        from ray import tune

        def train(config: dict[str, float]) -> None:
            mark(f"{folder}/marks")
            for _ in range(REPORTS):
                tune.report({"loss": config["x"]})

        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {
            "PYTHONPATH": str(Path(__file__).parent)}})  # fmt: skip
        tune.Tuner(
            train,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(
                metric="loss", mode="min", num_samples=trials, max_concurrent_trials=WORKERS, reuse_actors=reuse
            ),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        ).fit()
        ray.shutdown()

    return run


def optuna(storage: Callable[[str], Any], server: Callable[[str], None] | None = None) -> Callable[[int, str], None]:
    """Optuna: two processes that share a storage, and need no more."""

    def run(trials: int, folder: str) -> None:
        import optuna as library

        library.logging.set_verbosity(library.logging.ERROR)
        context = multiprocessing.get_context("spawn")
        host = context.Process(target=server, args=(folder,), daemon=True) if server is not None else None
        if host is not None:
            host.start()
        library.create_study(study_name="overhead", storage=storage(folder), sampler=library.samplers.RandomSampler())
        parts = [
            context.Process(target=optimize, args=(storage, trials // WORKERS + (i < trials % WORKERS), folder))
            for i in range(WORKERS)
        ]
        for part in parts:
            part.start()
        for part in parts:
            part.join()
        if host is not None:
            host.terminate()
            host.join()

    return run


def optimize(storage: Callable[[str], Any], trials: int, folder: str) -> None:
    """One of Optuna's processes."""
    import optuna as library

    library.logging.set_verbosity(library.logging.ERROR)

    def objective(trial: Any) -> float:
        mark(f"{folder}/marks")
        x = float(trial.suggest_float("x", 0, 1))
        for step in range(REPORTS):
            trial.report(x, step)
            trial.should_prune()
        return x

    study = library.load_study(study_name="overhead", storage=storage(folder), sampler=library.samplers.RandomSampler())
    study.optimize(objective, n_trials=trials)


def sqlite(folder: str) -> Any:
    """One file, by SQL."""
    return f"sqlite:///{folder}/optuna.db"


def journal(folder: str) -> Any:
    """One file of lines."""
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(f"{folder}/optuna.log"))


def proxy(folder: str) -> Any:
    """A server before the SQLite file."""
    from optuna.storages import GrpcStorageProxy

    made = GrpcStorageProxy(host="127.0.0.1", port=port_of(folder))
    made.wait_server_ready(timeout=60)
    return made


def serve_proxy(folder: str) -> None:
    """That server."""
    from optuna.storages import RDBStorage, run_grpc_proxy_server

    run_grpc_proxy_server(RDBStorage(sqlite(folder)), host="127.0.0.1", port=port_of(folder))


def port_of(folder: str) -> int:
    """A free port, chosen by the first who asks."""
    import socket

    chosen = Path(folder, "port")
    if not chosen.exists():
        with socket.create_server(("127.0.0.1", 0)) as server:
            chosen.write_text(str(server.getsockname()[1]))
    return int(chosen.read_text())


def hyperopt(trials: int, folder: str) -> None:
    """Hyperopt's SparkTrials, whose trials cannot report: a job a trial."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import numpy as np
    from hyperopt import SparkTrials, fmin, hp, rand
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master(f"local[{WORKERS}]").config("spark.ui.enabled", "false").getOrCreate()
    marks = f"{folder}/marks"

    def objective(x: float) -> float:
        mark(marks)
        return x

    fmin(objective, hp.uniform("x", 0, 1), algo=rand.suggest, max_evals=trials, trials=SparkTrials(parallelism=WORKERS),
         rstate=np.random.default_rng(0), show_progressbar=False)  # fmt: skip
    session.stop()


def syne_tune(trials: int, folder: str) -> None:
    """Syne Tune's local backend, which looks for news ten times a second here (by default every five seconds)."""
    os.environ["SYNETUNE_FOLDER"] = folder
    import logging

    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend import LocalBackend
    from syne_tune.config_space import uniform
    from syne_tune.optimizer.baselines import RandomSearch

    logging.getLogger().setLevel(logging.ERROR)
    entry = Path(folder, "entry.py")
    entry.write_text(ENTRY)
    Tuner(
        trial_backend=LocalBackend(entry_point=str(entry)),
        scheduler=RandomSearch({"x": uniform(0, 1), "marks": f"{folder}/marks"}, metrics=["loss"]),
        stop_criterion=StoppingCriterion(max_num_trials_finished=trials),
        n_workers=WORKERS,
        sleep_time=0.1,
        print_update_interval=1e6,
        save_tuner=False,
    ).run()


SYSTEMS: dict[str, Callable[[int, str], None]] = {
    "local.process": ours(local("process")),
    "local.worker": ours(local("worker")),
    "spark.process": ours(spark("process")),
    "spark.worker": ours(spark("worker")),
    "ray.fresh": ray(False),
    "ray.reused": ray(True),
    "optuna.sqlite": optuna(sqlite),
    "optuna.journal": optuna(journal),
    "optuna.grpc": optuna(proxy, serve_proxy),
    "hyperopt.spark": hyperopt,
    "syne_tune.local": syne_tune,
}


if __name__ == "__main__":
    name, trials, folder = sys.argv[1:]
    os.chdir(folder)  # where Syne Tune leaves a file
    SYSTEMS[name](int(trials), folder)
