from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml import TorchModel
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
