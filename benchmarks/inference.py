"""Rows a second that a network is applied to on Spark.

``as_udf``, on which ``predict`` stands, is put beside pyspark's own ``predict_batch_udf``. They call the same network
on the same Parquet file with one partition, in batches of the same size, and take turns; a ratio is the median of those
of the rounds. Nothing is written (Spark's ``noop``).

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


def write_rows(path: Path, rows: int) -> None:
    """A file of arrays of floats."""
    values = np.random.default_rng(0).random(rows * WIDTH, np.float32)
    offsets = np.arange(rows + 1, dtype=np.int32) * WIDTH
    pq.write_table(pa.table({"id": np.arange(rows), "x": pa.ListArray.from_arrays(offsets, values)}), path)


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    rows, rounds = (200_000, 3) if arguments.quick else (600_000, 7)
    spark = spark_session("local[2]")
    seconds: dict[str, list[float]] = {"as_udf": [], "predict_batch_udf": []}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "rows.parquet"
        write_rows(path, rows)
        df, applied = spark.read.parquet(str(path)).coalesce(1), ways()
        for number in range(rounds + 1):
            for name in sorted(applied, reverse=bool(number % 2)):
                start = time.perf_counter()
                applied[name](df).write.format("noop").mode("overwrite").save()
                if number:  # the first round loads the network
                    seconds[name].append(time.perf_counter() - start)
    spark.stop()
    ratios = [theirs / ours for ours, theirs in zip(seconds["as_udf"], seconds["predict_batch_udf"], strict=True)]
    publish(
        {
            **{f"rows_per_second.{name}": rows / statistics.median(took) for name, took in seconds.items()},
            "ratio_to_predict_batch_udf": statistics.median(ratios),
        },
        arguments.json,
    )


if __name__ == "__main__":
    main()
