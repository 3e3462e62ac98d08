"""LightGBM on a Spark DataFrame: the search trains on its rows, and the best model predicts on Spark.

The DataFrame is written to Parquet once, and each worker reads the files. The workers are tasks of the same Spark
application.

    pip install "maggy_like[spark,java,lightgbm]"
    python examples/lightgbm_spark.py [--master spark://host:7077 --directory /shared/sales]

For your own data, change ``make_rows``. On a cluster, ``--directory`` must be a path or URL that all workers can reach.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from typing import Any

import lightgbm
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from maggy_like import Float, Integer, Reporter, lagom, spark_session
from maggy_like.callbacks import LightGBMReport

FEATURES = ["store", "weekday", "price", "distance"]
SPACE = {
    "learning_rate": Float(0.02, 0.5, log=True),
    "num_leaves": Integer(4, 63),
    "min_child_samples": Integer(2, 50),
}


def make_rows(spark: SparkSession, rows: int) -> DataFrame:
    """Return synthetic sales, of which a quarter is for validation."""
    sales = spark.range(rows).select(
        (F.col("id") % 20).cast("int").alias("store"),
        (F.col("id") % 7).cast("int").alias("weekday"),
        (F.rand(0) * 10).alias("price"),
        F.rand(1).alias("distance"),
        (F.col("id") % 4 == 0).alias("is_validation"),
    )
    effect = F.sin("store") + 0.3 * F.col("weekday") - 0.2 * F.col("price") + F.sqrt("distance")
    return sales.withColumn("sales", effect + 0.1 * F.randn(2))


def train(directory: str, reporter: Reporter, **config: Any) -> None:
    """Boost on the training rows. Report the error on the validation rows after each round."""
    rows = pd.read_parquet(directory)
    fit, held_out = rows[~rows["is_validation"]], rows[rows["is_validation"]]
    report = LightGBMReport(reporter)
    model = lightgbm.LGBMRegressor(n_estimators=report.num_boost_round, n_jobs=1, verbose=-1, metric="rmse", **config)
    model.fit(
        fit[FEATURES],
        fit["sales"],
        eval_set=[(held_out[FEATURES], held_out["sales"])],
        categorical_feature=["store", "weekday"],
        init_model=report.init_model,
        callbacks=[report],
    )


def main(spark: SparkSession, directory: str, n_rows: int, n_trials: int) -> None:
    """Write the rows, search, and predict with the best model."""
    rows = make_rows(spark, n_rows)
    rows.write.mode("overwrite").parquet(f"{directory}/rows")
    result = lagom(
        train,
        {"directory": [f"{directory}/rows"], **SPACE},
        metric="valid_0_rmse",
        n_trials=n_trials,
        max_budget=81,
        directory=f"{directory}/runs",
        seed=1,
    )
    print(result)
    model = lightgbm.Booster(model_str=result.load_best()["model"])

    def predict(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield batch.assign(prediction=model.predict(batch[FEATURES]))

    schema = f"{rows.schema.simpleString()[len('struct<') : -1]},prediction:double"
    predicted = rows.where("is_validation").mapInPandas(predict, f"struct<{schema}>")
    error = predicted.select(F.sqrt(F.avg((F.col("prediction") - F.col("sales")) ** 2))).first()
    assert error is not None
    print(f"error of the predictions on Spark: {error[0]:.3f}; in the search: {result.best_value:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Tune LightGBM on the rows of a DataFrame.")
    parser.add_argument("--master", default="local[2]", help="Spark master (default: %(default)s)")
    parser.add_argument("--directory", help="directory for rows and runs; by default a temporary one")
    parser.add_argument("--rows", type=int, default=20_000, help="number of rows (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=16, help="configurations to try (default: %(default)s)")
    given = parser.parse_args()
    session = spark_session(given.master, app_name="LightGBM")
    with tempfile.TemporaryDirectory() as temporary:
        main(session, given.directory or temporary, given.rows, given.trials)
    session.stop()
