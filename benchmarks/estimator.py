"""What ``TorchEstimator`` costs beside a script that is written by hand for torchrun, on the same Parquet file.

Both train the same network from the same seed, with the same optimizer and global batch, on one rank and on two. The
Estimator reads the file in every epoch; the script reads it into memory once. They take turns; figures are medians.

- ``epochs_per_second.*``: epochs after the first, per second of wall time.
- ``ratio_to_torchrun``: the Estimator's epochs per second over the script's on two ranks, of each pair of turns (aim:
  0.9); ``ratio_to_torchrun.alone`` on one.
- ``loss_difference``: how far the two loss curves are apart at most, relative to the script's. Each has batches of its
  own shuffle.
- ``loss_difference.whole``: the same where a batch is all rows, so that no shuffle matters: rounding is all there is.
- ``seconds_around.*``: seconds that are not between the first epoch's end and the last one's: checks, start of the
  workers, the first epoch, reading the weights.

    python -m benchmarks.estimator [--quick] [--json PATH]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from torch import nn

from benchmarks import estimator_torchrun
from benchmarks.common import parser, publish
from benchmarks.estimator_torchrun import WIDTH, network
from maggy_like import spark_session
from maggy_like.ml import TorchEstimator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = 512
SCRIPT = Path(estimator_torchrun.__file__)


class Curve(NamedTuple):
    """Mean losses of the epochs, epochs per second after the first, and seconds of everything else."""

    losses: list[float]
    epochs_per_second: float
    seconds_around: float


class Pair(NamedTuple):
    """The Estimator's turn and the script's."""

    mine: Curve
    its: Curve

    @property
    def ratio(self) -> float:
        """The Estimator's epochs per second over the script's."""
        return self.mine.epochs_per_second / self.its.epochs_per_second

    @property
    def difference(self) -> float:
        """How far the losses are apart at most, relative to the script's."""
        return max(abs(a - b) / b for a, b in zip(self.mine.losses, self.its.losses, strict=True))


class Clock:
    """A callback that writes down when each epoch ended."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, epoch: int, metrics: dict[str, float], network: nn.Module) -> None:
        """Append a line."""
        with self._file.open("a") as file:
            file.write(json.dumps([epoch, time.time(), metrics["loss"]]) + "\n")


def write_data(file: Path, rows: int) -> None:
    """Rows of a smooth function with noise, in row groups of a tenth."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, WIDTH)).astype(np.float32)
    y = (np.sin(x[:, :4]).sum(1) + 0.1 * random.normal(size=rows)).astype(np.float32)
    features = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), WIDTH).cast(pa.list_(pa.float32()))
    pq.write_table(pa.table({"features": features, "label": y}), file, row_group_size=rows // 10)


def by_estimator(spark: SparkSession, data: Path, epochs: int, batch: int, ranks: int, folder: Path) -> Curve:
    """The Estimator's turn, on processes of this machine."""
    marks = folder / "marks.jsonl"
    estimator = TorchEstimator(
        model=network,
        loss="mse",
        optimizer="sgd",
        learningRate=0.01,
        batchSize=batch,
        epochs=epochs,
        keepWeights="last",
        callbacks=[Clock(marks)],
        workers=ranks,
        engine="local",
        directory=str(folder),
        runOptions={"progress": False},
    )
    began = time.time()
    estimator.fit(spark.read.parquet(str(data)))
    return curve_of([json.loads(line) for line in marks.read_text().splitlines()], time.time() - began)


def by_torchrun(data: Path, epochs: int, batch: int, ranks: int, folder: Path) -> Curve:
    """The script's turn."""
    out = folder / "marks.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    began = time.time()
    subprocess.run([*torchrun, str(SCRIPT), str(data), str(epochs), str(batch), str(out)], check=True)
    return curve_of(json.loads(out.read_text()), time.time() - began)


def curve_of(marks: list[tuple[int, float, float]], seconds: float) -> Curve:
    """The curve of what was written down at the end of each epoch."""
    between = marks[-1][1] - marks[0][1]
    return Curve([loss for _, _, loss in marks], (len(marks) - 1) / between, seconds - between)


def turn(spark: SparkSession, data: Path, epochs: int, batch: int, ranks: int) -> Pair:
    """A turn of each."""
    with tempfile.TemporaryDirectory() as folder:
        mine = by_estimator(spark, data, epochs, batch, ranks, Path(folder))
        return Pair(mine, by_torchrun(data, epochs, batch, ranks, Path(folder)))


def main() -> None:
    """Take turns, and publish the figures."""
    arguments = parser(__doc__).parse_args()
    rows, epochs, turns = (100_000, 4, 2) if arguments.quick else (200_000, 5, 3)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun sets it for several ranks
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.parquet")
        write_data(data, rows)
        spark = spark_session("local[2]")
        turn(spark, data, 2, BATCH, 1)  # which warms files and Spark up
        whole = turn(spark, data, epochs, rows, 2)
        taken = [(turn(spark, data, epochs, BATCH, 1), turn(spark, data, epochs, BATCH, 2)) for _ in range(turns)]
        spark.stop()
    alone, two = zip(*taken, strict=True)
    median = statistics.median
    figures = {
        "epochs_per_second.estimator": median(pair.mine.epochs_per_second for pair in two),
        "epochs_per_second.torchrun": median(pair.its.epochs_per_second for pair in two),
        "ratio_to_torchrun": median(pair.ratio for pair in two),
        "ratio_to_torchrun.alone": median(pair.ratio for pair in alone),
        "seconds_around.estimator": median(pair.mine.seconds_around for pair in two),
        "seconds_around.torchrun": median(pair.its.seconds_around for pair in two),
        "loss_difference": max(pair.difference for pair in two),
        "loss_difference.whole": whole.difference,
    }
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
