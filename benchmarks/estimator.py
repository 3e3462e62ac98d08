"""What ``TorchEstimator`` costs beside a script that is written by hand for torchrun, on the same Parquet file.

Both train the same network from the same seed on two ranks, with the same optimizer and global batch. The Estimator
reads the file in every epoch; the script reads it into memory once. They take turns, and each figure is a median.

- ``epochs_per_second.*``: epochs after the first, per second of wall time.
- ``ratio_to_torchrun``: the Estimator's epochs per second over the script's, of each pair of turns (aim: 0.9).
- ``loss_difference``: how far the two loss curves are apart at most, relative to the script's.
- ``seconds_around``: seconds of ``fit`` that are not between the first epoch's end and the last one's: checks, start of
  the workers, the first epoch, reading the weights.

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

RANKS, BATCH = 2, 512
SCRIPT = Path(estimator_torchrun.__file__)


class Curve(NamedTuple):
    """Mean losses of the epochs, epochs per second after the first, and seconds of everything else."""

    losses: list[float]
    epochs_per_second: float
    seconds_around: float


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


def by_estimator(spark: SparkSession, data: Path, epochs: int, folder: Path) -> Curve:
    """The Estimator's turn, on processes of this machine."""
    marks = folder / "marks.jsonl"
    estimator = TorchEstimator(
        model=network,
        loss="mse",
        optimizer="sgd",
        learningRate=0.01,
        batchSize=BATCH,
        epochs=epochs,
        keepWeights="last",
        callbacks=[Clock(marks)],
        workers=RANKS,
        engine="local",
        directory=str(folder),
        runOptions={"progress": False},
    )
    began = time.time()
    estimator.fit(spark.read.parquet(str(data)))
    return curve_of([json.loads(line) for line in marks.read_text().splitlines()], time.time() - began)


def by_torchrun(data: Path, epochs: int, folder: Path) -> Curve:
    """The script's turn."""
    out = folder / "marks.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    began = time.time()
    # Its status is not asked for: some torch versions abort now and then as they exit, with all done and written.
    subprocess.run([*torchrun, str(SCRIPT), str(data), str(epochs), str(BATCH), str(out)], check=False)
    return curve_of(json.loads(out.read_text()), time.time() - began)


def curve_of(marks: list[tuple[int, float, float]], seconds: float) -> Curve:
    """The curve of what was written down at the end of each epoch."""
    between = marks[-1][1] - marks[0][1]
    return Curve([loss for _, _, loss in marks], (len(marks) - 1) / between, seconds - between)


def main() -> None:
    """Take turns, and publish the figures."""
    arguments = parser(__doc__).parse_args()
    rows, epochs, turns = (40_000, 6, 3) if arguments.quick else (200_000, 8, 5)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun sets it for several ranks
    pairs: list[tuple[Curve, Curve]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.parquet")
        write_data(data, rows)
        spark = spark_session("local[2]")
        for turn in range(turns):
            here = Path(folder, str(turn))
            here.mkdir()
            pairs.append((by_estimator(spark, data, epochs, here), by_torchrun(data, epochs, here)))
        spark.stop()
    figures = {
        "epochs_per_second.estimator": statistics.median(mine.epochs_per_second for mine, _ in pairs),
        "epochs_per_second.torchrun": statistics.median(its.epochs_per_second for _, its in pairs),
        "ratio_to_torchrun": statistics.median(mine.epochs_per_second / its.epochs_per_second for mine, its in pairs),
        "seconds_around.estimator": statistics.median(mine.seconds_around for mine, _ in pairs),
        "seconds_around.torchrun": statistics.median(its.seconds_around for _, its in pairs),
        "loss_difference": max(
            abs(a - b) / b for mine, its in pairs for a, b in zip(mine.losses, its.losses, strict=True)
        ),
    }
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
