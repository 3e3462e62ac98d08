"""From DataFrame to predictions over Spark Connect."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from maggy_like import ConnectServer

SCRIPT = """
import json, sys
import torch
from pyspark.ml.functions import array_to_vector
from pyspark.sql import functions as F
from torch import nn
from maggy_like import spark_session
from maggy_like.ml import TorchEstimator, TorchModel

if __name__ == "__main__":
    spark = spark_session(sys.argv[1])
    rows = spark.range(60).select("id", (F.col("id") % 2).cast("double").alias("label"))
    rows = rows.select("*", array_to_vector(F.array(F.col("label") - 0.5, F.lit(1.0))).alias("features"))
    rows.write.parquet(sys.argv[2] + "/rows")
    stored = spark.read.parquet(sys.argv[2] + "/rows")
    torch.manual_seed(0)
    estimator = TorchEstimator(model=nn.Linear(2, 2), loss="cross_entropy", learningRate=0.1, epochs=5, workers=1,
                               directory="runs", errorCol="why_not", runOptions={"progress": False})
    estimator.fit(stored).save(sys.argv[2] + "/model")
    TorchModel.load(sys.argv[2] + "/model").write().overwrite().save(sys.argv[2] + "/model")
    model = TorchModel.load(sys.argv[2] + "/model")
    found = model.transform(stored).orderBy("id").select("label", "prediction", "why_not").collect()
    spark.udf.register("told", model.as_udf())
    (of_sql,) = spark.sql("SELECT told(array(0.5, 1.0)).label AS label").collect()
    estimator.copy({estimator.loss: "mse", estimator.model: nn.Linear(2, 1)}).fit(stored).transform(stored).collect()
    print(json.dumps([len(found), sum(it.label == it.prediction for it in found), of_sql.label, len(model.history)]))
    spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
def test_a_session_afar_trains_and_predicts(
    connect_server: ConnectServer, run_script: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = run_script(SCRIPT, connect_server.url, tmp_path)  # paths are the server's, which has a directory of its own
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [60, 60, 1, 5]
