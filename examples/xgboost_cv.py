"""XGBoost with cross-validation and early stopping: find a learning rate, a depth and regularization.

Each trial runs ``xgboost.cv``. It reports the mean over the folds after each round, so the search can stop a bad trial
before XGBoost's own early stopping does.

    pip install "maggy_like[xgboost,sklearn]"
    python examples/xgboost_cv.py

For your own data, change ``load``. For a regression, change ``objective`` and ``eval_metric`` in ``params``.
"""

from __future__ import annotations

import argparse
from typing import Any

import xgboost
from sklearn.datasets import load_breast_cancer

from maggy_like import Float, Integer, Reporter, lagom
from maggy_like.callbacks import XGBoostReport
from optimizers import ASHA

SPACE = {
    "learning_rate": Float(0.01, 0.5, log=True),
    "max_depth": Integer(2, 8),
    "min_child_weight": Float(0.1, 10.0, log=True),
    "reg_lambda": Float(1e-2, 10.0, log=True),
}


def load() -> xgboost.DMatrix:
    """Return the training data."""
    features, labels = load_breast_cancer(return_X_y=True)
    return xgboost.DMatrix(features, labels)


def params(config: dict[str, Any]) -> dict[str, Any]:
    """Return XGBoost's parameters for a configuration."""
    return {"objective": "binary:logistic", "eval_metric": "logloss", "nthread": 1, "seed": 0, **config}


def train(reporter: Reporter, **config: Any) -> dict[str, Any]:
    """Cross-validate a configuration. Return the rounds after which early stopping ended."""
    report = XGBoostReport(reporter)
    table = xgboost.cv(
        params(config),
        load(),
        num_boost_round=report.num_boost_round,
        nfold=4,
        stratified=True,
        early_stopping_rounds=10,
        callbacks=[report],
        seed=0,
    )
    return {"test_logloss": table["test-logloss-mean"].min(), "rounds": len(table)}


def main() -> None:
    """Search, then train the best configuration on all rows."""
    parser = argparse.ArgumentParser(description="Tune XGBoost by cross-validation.")
    parser.add_argument("--trials", type=int, default=24, help="configurations to try (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=81, help="boosting rounds at most (default: %(default)s)")
    given = parser.parse_args()
    result = lagom(
        train,
        SPACE,
        optimizer=ASHA(mode="stopping"),
        metric="test_logloss",
        n_trials=given.trials,
        max_budget=given.rounds,
        seed=1,
    )
    print(result)
    best = result.best_trial
    if best is None or best.value_step is None:
        print("no trial has a value")
        return
    model = xgboost.train(params(best.config), load(), best.value_step)
    print(f"log loss of the folds: {best.value:.4f} after {model.num_boosted_rounds()} rounds")


if __name__ == "__main__":
    main()
