"""From tables to predictions in one Spark application: joins, a search, training on GPUs, batch and stream.

The tables are made up (``retail_tables.py``), and so are the GPUs, but Spark's Master, Worker and executors are real
processes: the tables are joined on executors without a GPU, and only the search and the training run on those that have
one, as Spark's own log of events shows at the end. The predictions are computed again with pandas and torch, without
Spark, and compared.

    pip install "maggy_like[ml]"
    python examples/pipeline.py
    python examples/pipeline.py --master spark://host:7077 --folder /shared/retail  # on a cluster with GPUs
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from retail_tables import NOISE, make_tables, write_tables
from torch import Tensor, nn

from maggy_like import Choice, Float, SparkEngine, StandaloneCluster, spark_session
from maggy_like.ml import TorchEstimator

DAYS = 240
VALIDATE_FROM = dt.date(2025, 7, 1)
PREDICT_FROM = dt.date(2025, 8, 1)

CATEGORIES = ["assortment", "state", "weekday"]
NUMBERS = ["promo", "rain", "temperature", "rival_distance", "has_rival", "season"]

CONF = {
    "spark.dynamicAllocation.enabled": "true",  # executors come for the joins, and others, with GPUs, for the search
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "2",  # of either kind
    "spark.dynamicAllocation.executorIdleTimeout": "5min",  # none goes, and is started again, within this program
    "spark.executor.cores": "2",
    "spark.executor.memory": "1g",
    "spark.sql.shuffle.partitions": "2",  # these tables are small
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}


class SalesNetwork(nn.Module):
    """An embedding for each category, and two layers over these and the numbers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 4) for size in (4, 6, 8))  # one more: what was never seen
        self.layers = nn.Sequential(
            nn.Linear(4 * len(CATEGORIES) + len(NUMBERS), hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
            nn.Linear(hidden, 1),
        )  # fmt: skip

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        indexes = categories.long()
        embedded = [embedding(indexes[:, column]) for column, embedding in enumerate(self.embeddings)]
        output: Tensor = self.layers(torch.cat([*embedded, numbers.float()], dim=1))
        return output.squeeze(1)


def read_tables(spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
    """The tables as they lie in their files."""
    return {name: spark.read.parquet(f"{folder}/{name}.parquet") for name in ("sales", "stores", "states", "weather")}


def keep(rows: DataFrame, path: Path) -> DataFrame:
    """The rows, computed once: written to Parquet, and read from there."""
    rows.write.parquet(str(path))
    return rows.sparkSession.read.parquet(str(path))


def store_levels(sales: DataFrame) -> DataFrame:
    """The mean log sales of each store before anything is predicted."""
    known = sales.where(F.col("open") & (F.col("date") < VALIDATE_FROM))
    return known.groupBy("store").agg(F.avg(F.log("sales")).alias("level"))


def prepare(sales: DataFrame, tables: dict[str, DataFrame]) -> DataFrame:
    """Sales with all that the other tables say, a row for each open day; ``sales`` may be a stream."""
    rows = sales.where("open").join(tables["stores"], "store").join(tables["states"], "store")
    rows = rows.join(tables["weather"], ["state", "date"]).join(tables["levels"], "store")
    has_rival = F.coalesce(F.datediff("date", "competition_since") > 0, F.lit(False))
    return rows.select(
        "store", "date", "level", "assortment", "state", "rain", "temperature",
        F.date_format("date", "E").alias("weekday"),
        F.col("promo").cast("double").alias("promo"),
        has_rival.cast("double").alias("has_rival"),
        F.when(has_rival, F.log1p("competition_distance")).otherwise(12.0).alias("rival_distance"),
        F.sin(2 * np.pi * F.dayofyear("date") / 365).alias("season"),
        (F.log("sales") - F.col("level")).alias("label"),
        (F.col("date") >= VALIDATE_FROM).alias("is_validation"),
    )  # fmt: skip


def make_pipeline(engine: SparkEngine, n_trials: int, folder: Path) -> Pipeline:
    """Indexes, scales, searches, and trains the best on all workers."""
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
                directory=str(folder / "runs"),
                search={"hidden": Choice([16, 48]), "learningRate": Float(1e-3, 1e-2, log=True)},
                runOptions={"n_trials": n_trials, "optimizer": "random", "seed": 1},
                callbacks=[tell_gpu],
            ),
        ]
    )


def tell_gpu(epoch: int, metrics: dict[str, float], network: nn.Module) -> None:
    """Say once in each training which GPUs it sees: of several workers on one machine, those of all."""
    if epoch == 1:
        print(f"GPU {os.environ.get('CUDA_VISIBLE_DEVICES', 'none')}")


def predict(model: PipelineModel, rows: DataFrame) -> DataFrame:
    """The expected sales of each store and day."""
    predicted = model.transform(rows)
    return predicted.select("store", "date", F.exp(F.col("level") + F.col("prediction")).alias("sales"), "prediction")


def predict_stream(model: PipelineModel, tables: dict[str, DataFrame], folder: Path) -> DataFrame:
    """The same for files that arrive in a folder; here for those that are there, and then it ends."""
    spark = tables["sales"].sparkSession
    arriving = spark.readStream.schema(tables["sales"].schema).option("maxFilesPerTrigger", 2).parquet(f"{folder}/new")
    query = (
        predict(model, prepare(arriving, tables))
        .writeStream.format("parquet")
        .option("path", f"{folder}/stream")
        .option("checkpointLocation", f"{folder}/stream-state")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(f"{folder}/stream")


def predict_without_spark(model: PipelineModel, folder: Path) -> pd.DataFrame:
    """The same predictions by pandas and torch alone, of the same files and the fitted stages' numbers."""
    tables = {name: pd.read_parquet(folder / f"{name}.parquet") for name in ("sales", "stores", "states", "weather")}
    rows = tables["sales"].query("open").merge(tables["stores"], on="store").merge(tables["states"], on="store")
    rows = rows.merge(tables["weather"], on=["state", "date"])
    known = rows[rows["date"] < VALIDATE_FROM]
    rows["level"] = rows["store"].map(np.log(known["sales"]).groupby(known["store"]).mean())
    rows = rows[rows["date"] >= PREDICT_FROM].copy()
    date = pd.to_datetime(rows["date"])
    has_rival = (date - pd.to_datetime(rows["competition_since"])).dt.days > 0
    rows["weekday"] = date.dt.strftime("%a")
    rows["has_rival"], rows["promo"] = has_rival.astype(float), rows["promo"].astype(float)
    rows["rival_distance"] = np.where(has_rival, np.log1p(rows["competition_distance"]), 12.0)
    rows["season"] = np.sin(2 * np.pi * date.dt.dayofyear / 365)

    stages: list[Any] = model.stages
    indexer, _, _, scaler, trained = stages
    categories = [
        rows[name].map({label: index for index, label in enumerate(labels)}).to_numpy()
        for name, labels in zip(CATEGORIES, indexer.labelsArray, strict=True)
    ]
    numbers = (rows[NUMBERS].to_numpy() - scaler.mean.toArray()) / scaler.std.toArray()
    with torch.inference_mode():
        inputs = torch.tensor(np.stack(categories, axis=1)), torch.tensor(numbers)
        rows["prediction"] = trained.network.eval()(*inputs).numpy()
    return rows[["store", "date", "prediction"]]


def compare(name: str, predicted: pd.DataFrame, reference: pd.DataFrame) -> None:
    """Print the largest difference; an error if there is one, or rows are missing."""
    both = predicted.merge(reference, on=["store", "date"], how="outer", suffixes=("", "_reference"))
    difference = (both["prediction"] - both["prediction_reference"]).abs()
    print(f"{name}: {len(both)} predictions, differing from those without Spark by {difference.max():.1e} at most")
    assert difference.notna().all()
    assert difference.max() < 1e-6


def tell_quality(predicted: pd.DataFrame, sales: pd.DataFrame) -> None:
    """Print how good the predictions are, beside the best that there can be, and beside none."""
    rows = predicted.merge(sales, on=["store", "date"], suffixes=("", "_actual"))
    error = np.log(rows["sales_actual"]) - np.log(rows["sales"])
    without = error + rows["prediction"]  # the level of the store alone
    print(
        f"error of log sales on {len(rows)} rows that no training has seen: {np.sqrt((error**2).mean()):.3f}; "
        f"by the stores' levels alone {np.sqrt((without**2).mean()):.3f}, "
        f"and at best {NOISE:.3f}, which is the noise in the tables"
    )


def tell_executors(log: Path) -> None:
    """Print what kinds of executors ran how many tasks, by the events that Spark has written."""
    gpus, profiles, tasks = dict[str, int](), dict[int, int](), Counter[tuple[str, int]]()
    for event in map(json.loads, log.read_text().splitlines()):
        match event["Event"]:
            case "SparkListenerExecutorAdded":
                owned = event["Executor Info"]["Resources"].get("gpu", {"addresses": []})
                gpus[event["Executor ID"]] = len(owned["addresses"])
            case "SparkListenerStageSubmitted":
                profiles[event["Stage Info"]["Stage ID"]] = event["Stage Info"]["Resource Profile Id"]
            case "SparkListenerTaskEnd":
                kind = "the search" if profiles[event["Stage ID"]] else "joins, indexing and predictions"
                tasks[kind, gpus[event["Task Info"]["Executor ID"]]] += 1
    for (kind, count), number in sorted(tasks.items()):
        print(f"{kind}: {number} tasks on executors with {count} GPU{'s' * (count != 1)}")


def main(spark: SparkSession, stores: int, n_trials: int, folder: Path) -> None:
    """The whole way, once."""
    generated = make_tables(stores, DAYS)
    write_tables(generated, folder)
    arriving = generated["sales"].query("date >= @PREDICT_FROM")
    for week, days in arriving.groupby(pd.to_datetime(arriving["date"]).dt.isocalendar().week):
        write_tables({f"week{week}": days}, folder / "new")

    tables = read_tables(spark, folder)
    tables["levels"] = keep(store_levels(tables["sales"]), folder / "levels")
    rows = keep(prepare(tables["sales"], tables), folder / "rows")

    engine = SparkEngine(spark, resources={"gpu": 1, "cpu": 1, "memory": "1g"})
    model = make_pipeline(engine, n_trials, folder).fit(rows.where(F.col("date") < PREDICT_FROM))
    trained: Any = model.stages[-1]
    print(f"searched {len(trained.result.trials)} networks; the best has {trained.config}")

    predicted = keep(predict(model, rows.where(F.col("date") >= PREDICT_FROM)), folder / "predictions").toPandas()
    reference = predict_without_spark(model, folder)
    compare("batch", predicted, reference)
    compare("stream of files", predict_stream(model, tables, folder).toPandas(), reference)
    tell_quality(predicted, generated["sales"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="From tables to predictions in one Spark application.")
    parser.add_argument("--stores", type=int, default=60, help="how many stores there are (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=4, help="how many networks to try (default: %(default)s)")
    parser.add_argument(
        "--master", help="a standalone cluster with GPUs (default: one is started here, with made-up GPUs)"
    )
    parser.add_argument(
        "--folder", type=Path, help="an empty folder that all machines share (default: a temporary one)"
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = Path(options.folder or stack.enter_context(tempfile.TemporaryDirectory())).absolute()
        conf = CONF | {"spark.eventLog.dir": (place / "events").as_uri()}
        if options.master is None:
            print("Starting a standalone cluster: a Master, and a Worker with two made-up GPUs ...")
            cluster = stack.enter_context(StandaloneCluster(1, cores=6, memory="4g", gpus=2, dynamic=True))
            conf = cluster.conf | conf
        (place / "events").mkdir(parents=True)
        session = spark_session(options.master or cluster.master_url, app_name="From tables to predictions", conf=conf)
        try:
            main(session, options.stores, options.trials, place)
        finally:
            session.stop()
        tell_executors(next((place / "events").iterdir()))
