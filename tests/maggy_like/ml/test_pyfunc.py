"""Fitted networks as models of MLflow, loaded by MLflow itself."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml import Column, TorchModel, log_pyfunc, save_pyfunc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("mlflow"),
    # Of MLflow's own classes, as it is imported.
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning"),
]


@pytest.fixture
def model() -> TorchModel:
    torch.manual_seed(0)
    made = TorchModel()
    made.network, made.inputs = nn.Linear(2, 3).eval(), (Column("features", (2,), "float32"),)
    made.outputs = {"label": "classes"}
    return made.setParams(featuresCol="x", errorCol="why_not", batchSize=2)


def loaded(path: Path | str) -> Any:
    import mlflow.pyfunc

    return mlflow.pyfunc.load_model(str(path))


@pytest.mark.spark
def test_it_predicts_what_transform_does(spark_local: SparkSession, model: TorchModel, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    save_pyfunc(model, tmp_path / "model")
    rows = [[0.5, -1.0], [3.0, 2.0], None, [-2.0, 0.1], [1.0]]
    df = spark_local.createDataFrame([(row,) for row in rows], "x array<double>").coalesce(1)
    expected = model.transform(df).collect()
    found = loaded(tmp_path / "model").predict(pd.DataFrame({"x": rows}))
    assert found.columns.tolist() == ["prediction", "probability", "why_not"]
    assert [it.why_not for it in expected] == found["why_not"].tolist()
    for row, prediction, probability in zip(expected, found["prediction"], found["probability"], strict=True):
        if row.prediction is None:
            assert np.isnan(prediction)
            assert probability is None
        else:
            assert prediction == row.prediction
            assert probability == pytest.approx(row.probability.toArray())
    of_vectors = loaded(tmp_path / "model").predict(pd.DataFrame({"x": [Vectors.dense(row) for row in rows[:2]]}))
    assert of_vectors["prediction"].tolist() == found["prediction"][:2].tolist()
    joined = pd.DataFrame({"id": [0, 9]}).merge(pd.DataFrame({"id": [0], "x": [rows[0]]}), how="left")  # has a NaN
    missing = loaded(tmp_path / "model").predict(joined)
    assert missing["why_not"].tolist() == [None, "column 'x' is null"]
    assert missing["prediction"][0] == found["prediction"][0]


def test_it_is_logged_with_what_it_needs(model: TorchModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", None)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which needs no server, and no database to be made first
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    experiment = mlflow.create_experiment("e", artifact_location=(tmp_path / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=experiment):
        info = log_pyfunc(model, "network", pip_requirements=["torch"])
    predict = loaded(info.model_uri).predict
    found = predict(pd.DataFrame({"x": [np.zeros(2, "float32")], "more": [1]}, index=[7]))
    assert found.index.tolist() == [7]
    assert found["probability"][7] == pytest.approx(model.network(torch.zeros(2)).softmax(0).tolist())
    assert {name: str(kind) for name, kind in predict(pd.DataFrame({"x": []})).dtypes.items()} == {
        "prediction": "float64",
        "probability": "object",
        "why_not": "object",
    }
    with pytest.raises(DataError, match=r"must be a pandas DataFrame with 'x', got the columns 'y'"):
        predict(pd.DataFrame({"y": [1]}))


@pytest.mark.e2e
@pytest.mark.cold
def test_a_server_of_models_needs_no_pyspark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; from maggy_like.ml.pyfunc import _load_pyfunc"
    subprocess.run([sys.executable, "-c", code], check=True)


class TwoAnswers(nn.Module):
    """The length of each row's bytes as a logit, and twice that."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, 2 * x


def length(content: bytes) -> np.ndarray[Any, Any]:
    return np.array([len(content)], "float32")


def test_several_outputs_and_bytes(model: TorchModel, tmp_path: Path) -> None:
    model.network, model.inputs = TwoAnswers(), (Column("features", None, "uint8"),)
    model.outputs = {"kind": "binary", "price": "values"}
    model.setParams(decode={"x": length}, resultCol="all", errorCol="why")
    save_pyfunc(model, tmp_path / "model")
    found = loaded(tmp_path / "model").predict(pd.DataFrame({"x": [b"abc", b""]}))
    assert found["prediction_kind"].tolist() == [1, 1]
    assert found["prediction_price"].tolist() == [6, 0]
    assert found["all_price"][0] == {"label": 6.0, "score": None, "vector": [6.0], "error": None}


def test_mistakes_are_told(model: TorchModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model must be a fitted TorchModel, got TorchModel"):
        save_pyfunc(TorchModel(), tmp_path / "model")
    with pytest.raises(ConfigError, match="python_model must not be given, because save_pyfunc sets it; omit it"):
        save_pyfunc(model, tmp_path / "model", python_model=1)
    model.network.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="cannot be pickled"):
        save_pyfunc(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()
