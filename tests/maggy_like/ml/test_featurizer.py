from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.classification import LogisticRegression
from pyspark.ml.linalg import Vectors
from torch import nn

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml import TorchFeaturizer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def expected(network: nn.Module, rows: list[list[float]]) -> list[list[float]]:
    with torch.no_grad():
        found: list[list[float]] = network[:2](torch.tensor(rows)).tolist()  # type: ignore[index]
    return found


def test_arguments_are_checked(network: nn.Module) -> None:
    featurizer = TorchFeaturizer(network, "1", inputCol="x")
    assert "layer" in featurizer.explainParams()
    for match, options in {
        "a module of the network, got '7'": {"layer": "7"},
        "layer must be the name of a module": {},
        "outputType must be": {"layer": "1", "outputType": "list"},
        "batchSize": {"layer": "1", "batchSize": "many"},
    }.items():
        with pytest.raises(ConfigError, match=match):
            TorchFeaturizer(network, **options)  # type: ignore[arg-type]


@pytest.fixture
def df(spark_local: SparkSession) -> DataFrame:
    rows = [(float(i % 2), [float(i), 1.0, -float(i), float(i % 2)]) for i in range(20)]
    return spark_local.createDataFrame([*rows, (0.0, None)], "label double, x array<double>")


class Since(nn.Module):
    """Seconds since a moment, from seconds since 1970, which single precision rounds to minutes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - 1_764_028_800) * self.weight


@pytest.mark.spark
def test_a_network_in_double_precision_computes_in_it(spark_local: SparkSession) -> None:
    numbers = [[1_764_028_800.0 + 10 * row] for row in range(5)]
    arrays = spark_local.createDataFrame([(row,) for row in numbers], "x array<double>")
    vectors = spark_local.createDataFrame([(Vectors.dense(row),) for row in numbers], ["x"])
    featurizer = TorchFeaturizer(nn.Sequential(Since(), nn.Identity()), "1", inputCol="x", outputCol="f")
    for rows in (arrays, vectors):
        assert [row.f for row in featurizer.transform(rows).collect()] == [[0.0], [10.0], [20.0], [30.0], [40.0]]


@pytest.mark.spark
def test_a_pipeline_with_a_featurizer_is_fitted_saved_and_loaded(
    network: nn.Module, df: DataFrame, tmp_path: Path
) -> None:
    featurizer = TorchFeaturizer(network, "1", inputCol="x", outputCol="features", outputType="vector")
    rows = [(row.x, row.features) for row in featurizer.transform(df).collect()]
    assert rows.pop() == (None, None)
    found = [features.toArray() for _, features in rows]
    np.testing.assert_allclose(found, expected(network, [x for x, _ in rows]), rtol=1e-6)

    fitted = Pipeline(stages=[featurizer, LogisticRegression()]).fit(df.dropna())
    fitted.save(str(tmp_path / "model"))
    loaded: Any = PipelineModel.load(str(tmp_path / "model"))
    assert loaded.stages[0].uid == featurizer.uid
    assert loaded.transform(df.dropna()).collect() == fitted.transform(df.dropna()).collect()


@pytest.mark.spark
def test_bytes_become_arrays_by_decode_or_shape(spark_local: SparkSession) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Identity())
    images = spark_local.createDataFrame([(bytearray(range(12)),), (bytearray(b"torn"),)], "image binary")

    def decode(content: bytes) -> np.ndarray[Any, Any]:
        return np.frombuffer(content, np.uint8).reshape(3, 2, 2)

    for options in ({"decode": decode}, {"inputShape": [3, 2, 2]}):
        featurizer = TorchFeaturizer(network, "0", inputCol="image", **options)  # type: ignore[arg-type]
        assert [row.embedding for row in featurizer.transform(images).collect()] == [list(range(12)), None]
    with pytest.raises(DataError, match="no column 'picture'"):
        TorchFeaturizer(network, "0", inputCol="picture").transform(images)
