"""Rows a second that a network is applied to on Spark, and what reading ahead gains.

``as_udf``, on which ``predict`` stands, is put beside pyspark's own ``predict_batch_udf``. They call the same network
on the same Parquet file with one partition, in batches of the same size, and take turns; a ratio is the median of those
of the rounds. Nothing is written (Spark's ``noop``).

``prefetch_gain`` is what ``as_udf`` gains on ``predict_batch_udf`` where making a batch's inputs of bytes takes as
long as computing it: each takes 50 ms by the clock, as a remote store or an accelerator would, so that two cores
suffice. 2 is the most that reading ahead can give.

    python -m benchmarks.inference [--quick] [--json PATH]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql.functions import col
from pyspark.sql.types import ArrayType, FloatType
from torch import nn

from benchmarks.common import parser, publish
from maggy_like import spark_session
from maggy_like.ml import Column, as_udf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WIDTH = 64
BATCH = 1024
ARRAYS = ArrayType(FloatType())
SLOW_ROWS, WAIT = 10, 0.05
"""Rows of a slow batch, and the seconds that it takes to make its inputs, and again to compute it."""

Way = Callable[["DataFrame"], "DataFrame"]


def make_network() -> nn.Module:
    """A small network, so that what lies around it counts."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 10)).eval()


def ways() -> dict[str, Way]:
    """The same predictions, twice."""
    network = make_network()

    def compute(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            made: np.ndarray[Any, Any] = network(torch.from_numpy(rows)).numpy()
        return made

    by_batch = predict_batch_udf(lambda: compute, return_type=ARRAYS, batch_size=BATCH, input_tensor_shapes=[[WIDTH]])
    ours = as_udf(network, [Column("x", (WIDTH,), "float32")], batch_size=BATCH, fields=["vector"])
    return {
        "as_udf": lambda df: df.withColumn("y", ours(col("x")).vector),
        "predict_batch_udf": lambda df: df.withColumn("y", by_batch(col("x"))),
    }


class Waiting(nn.Module):
    """Computes for as long as a batch takes on an accelerator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The input, later."""
        time.sleep(WAIT)
        return x


def decode(content: bytes) -> np.ndarray[Any, Any]:
    """Make numbers of bytes, as slowly as a batch is computed."""
    time.sleep(WAIT / SLOW_ROWS)
    return np.frombuffer(content, np.float32)


def slow_ways() -> dict[str, Way]:
    """The same predictions of bytes, with and without reading ahead."""

    def make() -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
        network = Waiting()

        def compute(contents: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            rows = np.stack([decode(content) for content in contents])
            made: np.ndarray[Any, Any] = network(torch.from_numpy(rows)).numpy()
            return made

        return compute

    by_batch = predict_batch_udf(make, return_type=ARRAYS, batch_size=SLOW_ROWS)
    ours = as_udf(
        Waiting(), [Column("x", None, "uint8")], batch_size=SLOW_ROWS, decode={"x": decode}, fields=["vector"]
    )
    return {
        "as_udf": lambda df: df.withColumn("y", ours(col("x")).vector),
        "predict_batch_udf": lambda df: df.withColumn("y", by_batch(col("x"))),
    }


def in_turns(df: DataFrame, applied: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """Seconds that each way takes in each round, after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in applied}
    for number in range(rounds + 1):
        for name in sorted(applied, reverse=bool(number % 2)):
            start = time.perf_counter()
            applied[name](df).write.format("noop").mode("overwrite").save()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> float:
    """How many times as fast this one is: the median over rounds."""
    return statistics.median(b / a for a, b in zip(ours, theirs, strict=True))


def write_rows(path: Path, rows: int) -> None:
    """A file of arrays of floats."""
    values = np.random.default_rng(0).random(rows * WIDTH, np.float32)
    offsets = np.arange(rows + 1, dtype=np.int32) * WIDTH
    pq.write_table(pa.table({"id": np.arange(rows), "x": pa.ListArray.from_arrays(offsets, values)}), path)


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    rows, rounds, slow = (200_000, 3, 60) if arguments.quick else (600_000, 7, 120)
    spark = spark_session("local[2]")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_rows(folder / "rows.parquet", rows)
        seconds = in_turns(spark.read.parquet(str(folder / "rows.parquet")).coalesce(1), ways(), rounds)
        contents = pa.array([bytes(4 * WIDTH)] * (slow * SLOW_ROWS))
        pq.write_table(pa.table({"x": contents}), folder / "bytes.parquet")
        waits = in_turns(spark.read.parquet(str(folder / "bytes.parquet")).coalesce(1), slow_ways(), min(rounds, 3))
    spark.stop()
    publish(
        {
            **{f"rows_per_second.{name}": rows / statistics.median(it) for name, it in seconds.items()},
            "ratio_to_predict_batch_udf": ratio(seconds["as_udf"], seconds["predict_batch_udf"]),
            "prefetch_gain": ratio(waits["as_udf"], waits["predict_batch_udf"]),
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()
