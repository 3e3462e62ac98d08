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
        "must be a torch module, got <class 'torch": {"layer": "1", "model": nn.Linear},
    }.items():
        with pytest.raises(ConfigError, match=match):
            TorchFeaturizer(**{"model": network, **options})  # type: ignore[arg-type]


def test_a_param_that_it_does_not_have_is_told(network: nn.Module) -> None:
    with pytest.raises(ConfigError, match=r"no Param 'inputCl', got inputCl='y' .did you mean 'inputCol'"):
        TorchFeaturizer(network, "1").setParams(inputCl="y")


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


class Words(nn.Module):
    """Takes integers only, up to 9."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(10, 1), nn.Flatten()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.words(x))
        return found


@pytest.mark.spark
def test_integers_are_fractions_only_if_the_network_takes_no_integers(
    network: nn.Module, spark_local: SparkSession
) -> None:
    rows = [[1, 2, 3, 4], [5, 6, 7, 88]]
    df = spark_local.createDataFrame([(row, bytearray(row)) for row in rows], "x array<int>, bytes binary")
    computed = [pytest.approx(row) for row in expected(network, [[float(it) for it in row] for row in rows])]
    for options in ({"inputCol": "x"}, {"inputCol": "x", "inputShape": [4]}, {"inputCol": "bytes", "inputShape": [4]}):
        featurizer = TorchFeaturizer(network, "1", **options)  # type: ignore[arg-type]
        assert [row.embedding for row in featurizer.transform(df).collect()] == computed
    words = Words()
    with torch.no_grad():
        first = words(torch.tensor(rows[:1])).flatten().tolist()
    found = [row.embedding for row in TorchFeaturizer(words, "last", inputCol="x").transform(df).collect()]
    assert found == [pytest.approx(first), None]  # there is no word 88


@pytest.mark.long
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
