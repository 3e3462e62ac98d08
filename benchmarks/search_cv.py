"""``SearchCV`` beside the searches of scikit-learn: how long each needs for the same score.

    python -m benchmarks.search_cv [--quick] [--json PATH]

A support vector machine on the digits that scikit-learn brings, five folds, ``C`` and ``gamma`` over many orders of
magnitude. Each search runs with 5, 10, 20 and 40 configurations on two cores (``HalvingRandomSearchCV``, whose resource
is samples, with as many candidates), and the seeds 0, 1 and 2 (10 and 40, and seed 0, with ``--quick``). A choice is
scored on ten other folds, the same for all, so that no search is judged by the folds that it chose by.

``score.NAME`` and ``seconds.NAME`` are those of the most configurations: the median over the seeds. The least of these
scores is one that all reach, and ``seconds_to_same.NAME`` the time of the smallest search that reached it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from scipy.stats import loguniform
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.experimental import enable_halving_search_cv  # noqa: F401  # the next import needs it
from sklearn.model_selection import HalvingRandomSearchCV, RandomizedSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.common import parser, publish
from maggy_like.sklearn import SearchCV

FOLDS, CORES = 5, 2
SPACE = {"svc__C": loguniform(1e-3, 1e4), "svc__gamma": loguniform(1e-6, 1e1)}
PIPELINE = make_pipeline(StandardScaler(), SVC())

Search = Callable[[int, int], Any]
"""Makes a search of so many configurations, with a seed."""


SEARCHES: dict[str, Search] = {
    "search_cv": lambda n, seed: SearchCV(
        PIPELINE, SPACE, n_trials=n, cv=FOLDS, random_state=seed, engine="local", workers=CORES
    ),
    "randomized": lambda n, seed: RandomizedSearchCV(
        PIPELINE, SPACE, n_iter=n, cv=FOLDS, random_state=seed, n_jobs=CORES
    ),
    "halving": lambda n, seed: HalvingRandomSearchCV(
        PIPELINE, SPACE, n_candidates=n, cv=FOLDS, random_state=seed, n_jobs=CORES
    ),
}


def main() -> None:
    """Run and print."""
    options = parser(__doc__).parse_args()
    sizes, seeds = ((10, 40), (0,)) if options.quick else ((5, 10, 20, 40), (0, 1, 2))
    x, y = load_digits(return_X_y=True)
    judges = StratifiedKFold(10, shuffle=True, random_state=1234)
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for name, make in SEARCHES.items():
        found[name] = {}
        for size in sizes:
            runs = []
            for seed in seeds:
                search = make(size, seed)
                begin = time.perf_counter()
                search.fit(x, y)
                seconds = time.perf_counter() - begin
                score = cross_val_score(clone(search.best_estimator_), x, y, cv=judges, n_jobs=CORES).mean()
                runs.append((seconds, float(score)))
                print(f"{name}, {size} configurations, seed {seed}: {seconds:.1f} s, {score:.4f}", flush=True)
            seconds, score = map(statistics.median, zip(*runs, strict=True))
            found[name][size] = seconds, score
    publish(figures_of(found), options.json)


def figures_of(found: dict[str, dict[int, tuple[float, float]]]) -> dict[str, float]:
    """The figures of seconds and scores, by search and number of configurations."""
    figures: dict[str, float] = {}
    same = min(by_size[max(by_size)][1] for by_size in found.values())
    for name, by_size in found.items():
        figures[f"seconds.{name}"], figures[f"score.{name}"] = by_size[max(by_size)]
        figures[f"seconds_to_same.{name}"] = min(seconds for seconds, score in by_size.values() if score >= same)
    return {**figures, "score.same": same}


if __name__ == "__main__":
    main()
