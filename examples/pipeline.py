"""From tables to predictions in one Spark application: joins, a search, training on GPUs, batch and stream.

The tables are synthetic, and the GPUs of the standalone cluster that the script starts are simulated. Spark joins the
tables on executors without a GPU. Only the search and the training run on executors with one.

    pip install "maggy_like[ml,java]"
    python examples/pipeline.py
    python examples/pipeline.py --master spark://host:7077 --directory /shared/retail  # on a cluster with GPUs

For your own tables, change ``write_tables``, ``prepare``, and the names of the features.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from torch import Tensor, nn

from maggy_like import Choice, Float, SparkEngine, StandaloneCluster, spark_session
from maggy_like.ml import TorchEstimator

VALIDATE_FROM = dt.date(2025, 7, 1)
PREDICT_FROM = dt.date(2025, 8, 1)
NOISE = 0.1  # standard deviation of what nothing explains in log sales
CATEGORIES, NUMBERS = ["assortment", "weekday"], ["promo", "rain", "season"]
CONF = {
    "spark.dynamicAllocation.enabled": "true",  # executors come for the joins, and others, with GPUs, for the search
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "2",  # of either kind
    "spark.dynamicAllocation.executorIdleTimeout": "5min",  # none leaves and is started again in this program
    "spark.executor.cores": "2",
    "spark.executor.memory": "1g",
    "spark.sql.shuffle.partitions": "2",  # these tables are small
}


def write_tables(stores: int, directory: Path) -> None:
    """Write sales, stores and weather. Log sales are a sum of effects that no single table has, and noise."""
    random = np.random.default_rng(0)
    states, days = ["BE", "BY", "HE"], pd.date_range("2025-01-06", "2025-09-02")
    places = {"store": range(stores), "state": random.choice(states, stores)}
    shops = pd.DataFrame({**places, "assortment": random.choice(["basic", "extra", "extended"], stores)})
    weather = pd.MultiIndex.from_product([states, days], names=["state", "date"]).to_frame(index=False)
    weather["rain"] = random.exponential(6, len(weather))
    rows = shops.merge(weather, on="state")
    rows["promo"] = random.random(len(rows)) < 0.5
    log_sales = (
        random.normal(8.5, 0.4, stores)[rows["store"]]
        + np.array([0.25, 0.1, 0.0, 0.0, 0.1, -0.15, -0.4])[rows["date"].dt.dayofweek]
        + rows["promo"] * rows["assortment"].map({"basic": 0.2, "extra": 0.35, "extended": 0.5})
        - 0.01 * rows["rain"]
        + 0.1 * np.sin(2 * np.pi * rows["date"].dt.dayofyear / 365)
    )
    rows["sales"] = np.exp(log_sales + random.normal(0, NOISE, len(rows)))
    sales = rows[["store", "date", "promo", "sales"]]
    for name, table in {"sales": sales, "stores": shops, "weather": weather}.items():
        write(table, directory / f"{name}.parquet")
    for week, arriving in sales[sales["date"].dt.date >= PREDICT_FROM].groupby(sales["date"].dt.isocalendar().week):
        write(arriving, directory / "new" / f"week{week}.parquet")


def write(table: pd.DataFrame, path: Path) -> None:
    """Write a table with days as dates."""
    path.parent.mkdir(parents=True, exist_ok=True)
    days = {"date": table["date"].dt.date} if "date" in table else {}
    table.assign(**days).to_parquet(path, index=False)


def prepare(sales: DataFrame, tables: dict[str, DataFrame]) -> DataFrame:
    """Join sales with what the other tables say; ``sales`` may be a stream."""
    rows = sales.join(tables["stores"], "store").join(tables["weather"], ["state", "date"])
    rows = rows.join(tables["levels"], "store")
    return rows.select(
        "store", "date", "level", "assortment", "rain",
        F.date_format("date", "E").alias("weekday"),
        F.col("promo").cast("double").alias("promo"),
        F.sin(2 * np.pi * F.dayofyear("date") / 365).alias("season"),
        (F.log("sales") - F.col("level")).alias("label"),
        (F.col("date") >= VALIDATE_FROM).alias("is_validation"),
    )  # fmt: skip


class SalesNetwork(nn.Module):
    """An embedding for each category, and two layers over these and the numbers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 4) for size in (4, 8))  # one more than there are: unknown
        self.layers = nn.Sequential(
            nn.Linear(4 * len(CATEGORIES) + len(NUMBERS), hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
            nn.Linear(hidden, 1),
        )  # fmt: skip

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        indexes = categories.long()
        embedded = [embedding(indexes[:, column]) for column, embedding in enumerate(self.embeddings)]
        output: Tensor = self.layers(torch.cat([*embedded, numbers.float()], dim=1))
        return output.squeeze(1)


def make_pipeline(engine: SparkEngine, n_trials: int, directory: Path) -> Pipeline:
    """Index, scale, search, and train the best on all workers."""
    indexes = [f"{name}_index" for name in CATEGORIES]
    return Pipeline(
        stages=[
            StringIndexer(inputCols=CATEGORIES, outputCols=indexes, handleInvalid="keep"),
            VectorAssembler(inputCols=indexes, outputCol="categories"),
            VectorAssembler(inputCols=NUMBERS, outputCol="raw_numbers"),
            StandardScaler(inputCol="raw_numbers", outputCol="numbers", withMean=True),
            TorchEstimator(
                model=SalesNetwork,
                loss="mse",
                featuresCol=["categories", "numbers"],
                labelCol="label",
                validationIndicatorCol="is_validation",
                batchSize=128,
                epochs=8,
                engine=engine,
                workers=2,
                directory=str(directory / "runs"),
                search={"hidden": Choice([16, 48]), "learningRate": Float(1e-3, 1e-2, log=True)},
                runOptions={"n_trials": n_trials, "optimizer": "random", "seed": 1},
                callbacks=[tell_gpu],
            ),
        ]
    )


def tell_gpu(epoch: int, metrics: dict[str, float], network: nn.Module) -> None:
    """Print once in each training which GPUs it sees: if several workers share a machine, those of all."""
    if epoch == 1:
        print(f"GPU {os.environ.get('CUDA_VISIBLE_DEVICES', 'none')}")


def predict(model: PipelineModel, rows: DataFrame) -> DataFrame:
    """Predict the sales of each store and day."""
    sales = F.exp(F.col("level") + F.col("prediction")).alias("sales")
    return model.transform(rows).select("store", "date", "label", "prediction", sales)


def predict_stream(model: PipelineModel, tables: dict[str, DataFrame], directory: Path) -> DataFrame:
    """Predict for the files that arrive in a directory; here for those that are there."""
    spark = tables["sales"].sparkSession
    arriving = (
        spark.readStream.schema(tables["sales"].schema).option("maxFilesPerTrigger", 2).parquet(f"{directory}/new")
    )
    stream = predict(model, prepare(arriving, tables)).writeStream.format("parquet").trigger(availableNow=True)
    options = {"path": f"{directory}/stream", "checkpointLocation": f"{directory}/stream-state"}
    stream.options(**options).start().awaitTermination()
    return spark.read.parquet(f"{directory}/stream")


def predict_without_spark(model: PipelineModel, rows: pd.DataFrame) -> pd.DataFrame:
    """Predict with pandas and torch only, by the numbers of the fitted stages."""
    stages: list[Any] = model.stages
    indexer, _, _, scaler, trained = stages
    categories = [
        rows[name].map({label: index for index, label in enumerate(labels)}).to_numpy()
        for name, labels in zip(CATEGORIES, indexer.labelsArray, strict=True)
    ]
    numbers = (rows[NUMBERS].to_numpy() - scaler.mean.toArray()) / scaler.std.toArray()
    with torch.inference_mode():
        found = trained.network.eval()(torch.tensor(np.stack(categories, axis=1)), torch.tensor(numbers)).numpy()
    return rows[["store", "date"]].assign(expected=found)


def main(spark: SparkSession, stores: int, n_trials: int, directory: Path) -> None:
    """Join, search, train, and predict in three ways."""
    write_tables(stores, directory)
    tables = {name: spark.read.parquet(f"{directory}/{name}.parquet") for name in ("sales", "stores", "weather")}
    known = tables["sales"].where(F.col("date") < VALIDATE_FROM)
    known.groupBy("store").agg(F.avg(F.log("sales")).alias("level")).write.parquet(f"{directory}/levels")
    tables["levels"] = spark.read.parquet(f"{directory}/levels")
    prepare(tables["sales"], tables).write.parquet(f"{directory}/rows")  # once, and not again in each stage
    rows = spark.read.parquet(f"{directory}/rows")
    before, after = rows.where(F.col("date") < PREDICT_FROM), rows.where(F.col("date") >= PREDICT_FROM)

    engine = SparkEngine(spark, resources={"gpu": 1, "cpu": 1, "memory": "1g"})
    model = make_pipeline(engine, n_trials, directory).fit(before)
    trained: Any = model.stages[-1]
    print(f"searched {len(trained.result.trials)} networks; the best has {trained.config}")

    batch, stream = predict(model, after).toPandas(), predict_stream(model, tables, directory).toPandas()
    expected = predict_without_spark(model, after.toPandas())
    for name, predicted in {"batch": batch, "stream of files": stream}.items():
        both = predicted.merge(expected, on=["store", "date"], how="outer")
        difference = (both["prediction"] - both["expected"]).abs().max(skipna=False)
        print(f"{name}: {len(both)} predictions, differing from those without Spark by {difference:.1e} at most")
    error, without = ((values**2).mean() ** 0.5 for values in (batch["label"] - batch["prediction"], batch["label"]))
    print(
        f"error of log sales on {len(batch)} rows that no training has seen: {error:.3f}; by the stores' levels alone "
        f"{without:.3f}, and at best {NOISE:.3f}, which is the noise in the tables"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="From tables to predictions in one Spark application.")
    parser.add_argument("--stores", type=int, default=60, help="number of stores (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=4, help="number of networks to try (default: %(default)s)")
    parser.add_argument("--master", help="a cluster with GPUs (default: one is started here, with simulated GPUs)")
    parser.add_argument("--directory", type=Path, help="an empty one that all machines share (default: temporary)")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = Path(options.directory or stack.enter_context(tempfile.TemporaryDirectory())).absolute()
        conf, master = CONF | dict(setting.split("=", 1) for setting in options.conf), options.master
        if master is None:
            print("Starting a standalone cluster: a Master, and a Worker with two simulated GPUs ...")
            cluster = stack.enter_context(StandaloneCluster(1, cores=6, memory="4g", gpus=2, dynamic=True))
            conf, master = cluster.conf | conf, cluster.master_url
        session = spark_session(master, app_name="From tables to predictions", conf=conf)
        try:
            main(session, options.stores, options.trials, place)
        finally:
            session.stop()
