"""Libraries in their usual form, with one worker and with one per core: what a fit takes, beside plain processes.

    python -m benchmarks.libraries [--quick] [--json PATH]

A library chooses its number of threads by itself, so fits in parallel may ask for more threads than there are cores.
Each fit runs in a plain process (``alone``), in two plain processes at the same time (``plain``), in a search with one
worker (``one``) and in one with a worker per core (``per_core``). The figures are medians of the seconds of a fit,
without imports, and of what ended within the patience. Libraries that are not installed are left out.

``search_cv`` is the whole of a search with eight small boosted models and five folds: by ``RandomizedSearchCV`` in one
process and with ``n_jobs`` of one per core, and by ``SearchCV``.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from benchmarks import common
from maggy_like import Integer
from maggy_like.processes.cores import usable_cores

PATIENCE = 60.0
"""Seconds that the fits of one cell of the table may take."""


def data() -> Any:
    """The breast cancer data that scikit-learn ships: features, labels, and both for validation."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    return train_test_split(*load_breast_cancer(return_X_y=True), random_state=0)


Fit = Callable[[int], object]


def lightgbm() -> Fit:
    """As its scikit-learn API is used: with early stopping."""
    from lightgbm import LGBMClassifier, early_stopping

    x, x_test, y, y_test = data()
    stop = early_stopping(20, verbose=False)
    return lambda seed: LGBMClassifier(n_estimators=200, random_state=seed, verbose=-1).fit(
        x, y, eval_X=x_test, eval_y=y_test, callbacks=[stop]
    )


def lightgbm_native() -> Fit:
    """By ``lightgbm.train``."""
    import lightgbm

    x, _, y, _ = data()
    return lambda seed: lightgbm.train(
        {"objective": "binary", "seed": seed, "verbose": -1}, lightgbm.Dataset(x, y), num_boost_round=100
    )


def xgboost() -> Fit:
    """On all cores."""
    from xgboost import XGBClassifier

    x, _, y, _ = data()
    return lambda seed: XGBClassifier(n_estimators=50, n_jobs=-1, random_state=seed).fit(x, y)


def forest() -> Fit:
    """On all cores."""
    from sklearn.ensemble import RandomForestClassifier

    x, _, y, _ = data()
    return lambda seed: RandomForestClassifier(100, n_jobs=-1, random_state=seed).fit(x, y)


def boosted_histograms() -> Fit:
    """scikit-learn's own boosting, which takes all cores by default."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    x, _, y, _ = data()
    return lambda seed: HistGradientBoostingClassifier(max_iter=50, random_state=seed).fit(x, y)


def folds() -> Fit:
    """Cross-validation on all cores."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, _, y, _ = data()
    model = make_pipeline(StandardScaler(), LogisticRegression())
    return lambda seed: cross_val_score(model, x, y, cv=4, n_jobs=-1)


def torch() -> Fit:
    """One epoch of a small network with AdamW."""
    from benchmarks.real_work import torch_epoch

    torch_epoch(0.5)  # its imports
    return lambda seed: torch_epoch(0.1 + seed % 10 / 20)


def catboost() -> Fit:
    """As its scikit-learn API is used."""
    from catboost import CatBoostClassifier

    x, _, y, _ = data()
    return lambda seed: CatBoostClassifier(50, verbose=0, random_seed=seed, allow_writing_files=False).fit(x, y)


def polars() -> Fit:
    """A group-by of a million rows."""
    import numpy as np
    import polars as pl

    frame = pl.DataFrame({"key": np.arange(1_000_000) % 1000, "value": np.arange(1_000_000) / 7})
    return lambda seed: frame.group_by("key").agg(pl.col("value").mean(), pl.col("value").std())


def numba() -> Fit:
    """A parallel loop, compiled before."""
    import numba
    import numpy as np

    @numba.njit(parallel=True)  # type: ignore[untyped-decorator]
    def total(values: Any) -> float:
        found = 0.0
        for index in numba.prange(len(values)):
            found += values[index] ** 0.5
        return found

    values = np.arange(3_000_000, dtype=float)
    total(values)
    return lambda seed: total(values)


FITS: dict[str, tuple[str, Callable[[], Fit]]] = {
    "lightgbm": ("lightgbm", lightgbm),
    "lightgbm_native": ("lightgbm", lightgbm_native),
    "xgboost": ("xgboost", xgboost),
    "forest": ("sklearn", forest),
    "boosted_histograms": ("sklearn", boosted_histograms),
    "folds": ("sklearn", folds),
    "torch": ("torch", torch),
    "catboost": ("catboost", catboost),
    "polars": ("polars", polars),
    "numba": ("numba", numba),
}
"""The package of each fit, and what imports it and returns the fit."""


def seconds_of(name: str, seed: int) -> float:
    """Run a fit once, and return its seconds."""
    fit = FITS[name][1]()
    began = time.perf_counter()
    fit(seed)
    return time.perf_counter() - began


def trial(seed: int, name: str) -> dict[str, float]:
    """The training function of the searches."""
    return {"seconds": seconds_of(name, seed)}


def in_search(name: str, repeats: int, workers: int) -> float:
    """Return the median seconds of the fits of a search; infinite if none has ended."""
    found = common.search(
        trial,
        {"seed": Integer(0, 1000), "name": name},
        metric="seconds",
        direction="min",
        n_trials=repeats * workers,
        workers=workers,
        timeout=PATIENCE,
        engine="local",
    )
    done = [each.value for each in found.trials if each.value is not None]
    return statistics.median(done) if done else math.inf


def in_processes(name: str, repeats: int, processes: int) -> float:
    """Return the median seconds of the fits of processes that run at the same time; infinite if none has ended."""
    command = [sys.executable, "-m", "benchmarks.libraries", "--alone", name, str(repeats)]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    deadline, done = time.monotonic() + PATIENCE, []
    for process in running:
        try:
            out, _ = process.communicate(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
        done += [json.loads(line) for line in out.splitlines()]
    return statistics.median(done) if done else math.inf


def whole_searches(models: int, cores: int) -> dict[str, float]:
    """Return the seconds of whole searches over a pipeline of LightGBM, as scikit-learn's users write it."""
    from lightgbm import LGBMClassifier
    from scipy.stats import loguniform
    from sklearn.model_selection import RandomizedSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from maggy_like.sklearn import SearchCV

    x, _, y, _ = data()
    pipeline = make_pipeline(StandardScaler(), LGBMClassifier(n_estimators=50, verbose=-1)).set_output(
        transform="pandas"
    )
    space = {"lgbmclassifier__learning_rate": loguniform(0.01, 0.3)}
    common_options: dict[str, Any] = {"cv": 5, "random_state": 0}
    searches: dict[str, Any] = {
        "search_cv.sequential": RandomizedSearchCV(pipeline, space, n_iter=models, **common_options),
        "search_cv.n_jobs": RandomizedSearchCV(pipeline, space, n_iter=models, n_jobs=cores, **common_options),
        "search_cv.maggy_like": SearchCV(
            pipeline, space, n_trials=models, engine="local", workers=cores, **common_options
        ),
    }
    figures = {}
    for name, search in searches.items():
        began = time.perf_counter()
        search.fit(x, y)
        figures[name] = time.perf_counter() - began
        print(f"{name}: {figures[name]:.2f} s", flush=True)
    return figures


def main() -> None:
    """Run and print."""
    parser = common.parser(__doc__)
    parser.add_argument("--alone", nargs=2, metavar=("NAME", "REPEATS"), help="only time a fit in this process")
    options = parser.parse_args()
    if options.alone:
        for seed in range(int(options.alone[1])):
            print(seconds_of(options.alone[0], seed), flush=True)
        return
    os.environ.pop("OMP_NUM_THREADS", None)  # as users start it
    repeats, cores = (3 if options.quick else 7), usable_cores()
    figures: dict[str, float] = {}
    for name, (package, _) in FITS.items():
        if find_spec(package) is None:
            print(f"{name}: not installed")
            continue
        row = {
            "alone": in_processes(name, repeats, 1),
            "plain": in_processes(name, repeats, cores),
            "one": in_search(name, repeats, 1),
            "per_core": in_search(name, repeats, cores),
        }
        row["ratio"] = row["per_core"] / row["one"]
        print(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in row.items()), flush=True)
        figures |= {f"{name}.{key}": value for key, value in row.items()}
    figures |= whole_searches(8, cores)
    figures["search_cv.ratio"] = figures["search_cv.maggy_like"] / figures["search_cv.sequential"]
    common.publish(figures, options.json)


if __name__ == "__main__":
    main()
