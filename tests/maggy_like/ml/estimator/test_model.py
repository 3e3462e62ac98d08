"""Fitted models: the names of their outputs, and how they are saved and read, also those of earlier versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from maggy_like.errors import ConfigError, DataError, PlatformError
from maggy_like.ml import TorchEstimator, TorchModel
from maggy_like.ml.columns import Column
from maggy_like.ml.inference.predict import predict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


class TwoAnswers(nn.Module):
    """The numbers as logits, and their sum."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x.sum(1)


@pytest.fixture
def model() -> TorchModel:
    made = TorchModel()
    made.network, made.inputs = TwoAnswers(), (Column("features", (2,), "float32"),)
    made.outputs = {"kind": "classes", "price": "values"}
    return made.setParams(featuresCol="x", errorCol="why_not")


def test_the_outputs_of_a_network_come_from_one_function(spark_local: SparkSession, model: TorchModel) -> None:
    df = spark_local.createDataFrame([(1, [1.0, 3.0]), (2, None)], "id int, x array<double>").coalesce(1)
    made = model.transform(df)
    good, bad = made.orderBy("id").collect()
    assert (good.prediction_kind, good.prediction_price, good.why_not_kind) == (1, 4, None)
    assert good.probability_kind.toArray().tolist() == pytest.approx([0.1192, 0.8808], abs=1e-4)
    assert (bad.prediction_kind, bad.probability_kind, bad.prediction_price) == (None, None, None)
    assert (bad.why_not_kind, bad.why_not_price) == ("column 'x' is null",) * 2
    plan = spark_local._jvm.PythonSQLUtils.explainString(made._jdf.queryExecution(), "simple")  # type: ignore[union-attr]
    assert plan.count("ArrowEvalPython") == 1


def test_a_model_answers_in_sql(spark_local: SparkSession, model: TorchModel) -> None:
    spark_local.udf.register("told", model.as_udf())
    (row,) = spark_local.sql("SELECT told(array(1, 3)) AS it, told(NULL).price.error AS why").collect()
    assert (row.it.kind.label, row.it.price.label, row.why) == (1, 4, "column 'x' is null")


def test_an_output_that_is_not_there_is_named(spark_local: SparkSession, model: TorchModel) -> None:
    df = spark_local.createDataFrame([([1.0, 3.0],)], "x array<double>")
    inputs, kinds = model._inputs(), model._kinds()
    with pytest.raises(
        ConfigError,
        match="'p' must have an output of the network, got 'label'; the network has the outputs kind, price",
    ):
        predict(df, model.network, inputs, kinds, into={"p": "label"})
    with pytest.raises(ConfigError, match="the network has one output; use only the field"):
        predict(df, nn.Identity(), inputs, into={"p": ("kind", "label")})
    with pytest.raises(DataError, match=r"must give 1 outputs, one for each kind \(kind\), got 2"):
        predict(df, model.network, inputs, {"kind": "classes"}, into={"p": ("kind", "label")})


def test_columns_that_are_not_as_many_as_the_inputs_are_told(spark_local: SparkSession, model: TorchModel) -> None:
    df = spark_local.createDataFrame([([1.0, 3.0],)], "x array<double>")
    with pytest.raises(ConfigError, match=r"featuresCol must have one column for each .* 1 \(features\), got x, y"):
        model.setParams(featuresCol=["x", "y"]).transform(df)


# -- what earlier versions saved ---------------------------------------------------------------------


SAVED = Path(__file__).parent / "saved"


def test_what_version_0_1_saved_is_read(spark_local: SparkSession) -> None:
    estimator = TorchEstimator.load((SAVED / "estimator").as_uri())
    assert estimator.uid == "TorchEstimator_12f8784a3fa1"
    assert (estimator.getOrDefault("epochs"), estimator.getOrDefault("classWeights")) == (3, [1.0, 2.0])
    assert isinstance(estimator.getOrDefault("model")[0], nn.Linear)
    assert isinstance(estimator.getOrDefault("loss"), nn.CrossEntropyLoss)
    model = TorchModel.load((SAVED / "model").as_uri())
    assert (model.uid, model.best_epoch, [row["epoch"] for row in model.history]) == (estimator.uid, 3, [1, 2, 3])
    with torch.no_grad():
        found = model.network(torch.tensor([[1.0, 2.0], [-1.0, 0.5]])).softmax(1)
    assert found[:, 1].tolist() == pytest.approx([0.9074, 0.218], abs=1e-4)
    df = spark_local.createDataFrame([([1.0, 2.0],), ([-1.0, 0.5],)], ["features"])
    assert [row["prediction"] for row in model.transform(df).collect()] == [1.0, 0.0]


def test_a_format_of_a_later_version_is_told(spark_local: SparkSession, tmp_path: Path) -> None:
    for kind in (TorchEstimator, TorchModel):
        directory = tmp_path / kind.__name__
        shutil.copytree(SAVED / kind.__name__.removeprefix("Torch").lower(), directory)
        (file,) = (directory / "metadata").glob("part-*")
        file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2, "version": "9.1"}) + "\n")
        with pytest.raises(PlatformError, match=r"a format up to 1 for maggy_like .*, got 2; install maggy_like 9.1"):
            kind.load(directory.as_uri())


def test_what_is_of_another_class_is_told_by_its_name(spark_local: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"must have a saved TorchModel, got maggy_like.ml.TorchEstimator; load it"):
        TorchModel.load((SAVED / "estimator").as_uri())


class Mine(TorchEstimator):
    """A kind of somebody's own."""


def test_a_stage_of_one_s_own_kind_is_loaded_by_its_name(spark_local: SparkSession, tmp_path: Path) -> None:
    from pyspark.ml import Pipeline

    Pipeline(stages=[Mine(model=nn.Linear(2, 2), loss="cross_entropy")]).save(f"{tmp_path}/pipeline")
    (stage,) = Pipeline.load(f"{tmp_path}/pipeline").getStages()
    assert type(stage).__name__ == "Mine"
    assert Mine.load((SAVED / "estimator").as_uri()).uid == "TorchEstimator_12f8784a3fa1"


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_to_overwrite_removes_what_was_there(
    spark_local: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, mode: str
) -> None:
    spark_local.conf.set("spark.sql.sources.partitionOverwriteMode", mode)
    request.addfinalizer(lambda: spark_local.conf.unset("spark.sql.sources.partitionOverwriteMode"))
    directory = tmp_path / "model"
    model = TorchModel.load((SAVED / "model").as_uri())
    model.config = {"sizes": (8, (4, 2)), "act": "relu", "splits": [0.5, 1.0]}
    model.save(directory.as_uri())
    (directory / "old").touch()
    model.write().overwrite().save(directory.as_uri())
    assert sorted(path.name for path in directory.iterdir() if path.suffix != ".crc") == [
        "_SUCCESS",
        "data",
        "metadata",
    ]
    again = TorchModel.load(directory.as_uri())
    assert (again.uid, again.config) == (model.uid, model.config)
