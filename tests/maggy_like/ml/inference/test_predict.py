from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from pyspark.errors import PythonException
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, IntegerType, StructType
from torch import nn

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns import Column
from maggy_like.ml.inference.predict import as_udf, predict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

X = Column("x", (2,), "float32")
INTO = {"prediction": "label", "probability": "vector", "why_not": "error"}


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))


def expected(network: nn.Module, rows: list[list[float]]) -> list[tuple[int, list[float]]]:
    with torch.no_grad():
        found = network(torch.tensor(rows, dtype=torch.float32)).softmax(1)
    return [(int(row.argmax()), row.tolist()) for row in found]


def test_predictions_stand_beside_all_columns_and_rows(spark_local: SparkSession, network: nn.Module) -> None:
    rows = [[float(i), float(i % 7)] for i in range(50)]
    df = spark_local.createDataFrame(
        [(i, row, f"row {i}") for i, row in enumerate(rows)], "id int, x array<double>, t string"
    )
    df = df.union(spark_local.createDataFrame([(50, None, "bad")], df.schema)).repartition(3)
    made = predict(df, network, [X], "classes", into=INTO, batch_size=8)
    assert made.columns == ["id", "x", "t", *INTO]
    *found, bad = made.orderBy("id").collect()
    for row, (label, probability) in zip(found, expected(network, rows), strict=True):
        assert (row.prediction, row.t, row.why_not) == (label, f"row {row.id}", None)
        assert row.probability == pytest.approx(probability, abs=1e-6)
    assert bad.asDict() == {
        "id": 50, "x": None, "t": "bad", "prediction": None, "probability": None, "why_not": "column 'x' is null"
    }  # fmt: skip


def test_vectors_dense_sparse_and_null_and_names_with_dots(spark_local: SparkSession, network: nn.Module) -> None:
    schema = StructType().add("a.b", VectorUDT())
    df = spark_local.createDataFrame([(Vectors.dense(1, 2),), (Vectors.sparse(2, [1], [3.0]),), (None,)], schema)
    made = predict(df, network, [Column("a.b", (2,), "float32")], "classes", into=INTO | {"all": "struct"}).collect()
    assert [row.prediction for row in made[:2]] == [label for label, _ in expected(network, [[1, 2], [0, 3]])]
    assert made[2].all.asDict() == {"label": None, "score": None, "vector": None, "error": "column 'a.b' is null"}


def test_vectors_of_another_length_are_told_before_anything_starts(
    spark_local: SparkSession, network: nn.Module
) -> None:
    made = VectorAssembler(inputCols=["id", "id", "id"], outputCol="v").transform(spark_local.range(2))
    with pytest.raises(DataError, match="column 'v' must have vectors of 2 numbers, got 3; make them with"):
        predict(made, network, [Column("v", (2,), "float32")], "classes", into=INTO)


def test_vectors_are_read_from_a_file_in_batch_and_on_a_stream(
    spark_local: SparkSession, network: nn.Module, tmp_path: Path
) -> None:
    """Spark 4.3 cannot hand a file's vectors on as whole columns; other conditions still reach the file's reader."""
    rows, vectors = str(tmp_path / "rows"), [Vectors.dense(1, 2), Vectors.sparse(2, [1], [3.0]), None]
    schema = StructType().add("id", IntegerType()).add("x", ArrayType(DoubleType())).add("v", VectorUDT())
    spark_local.createDataFrame([(i, [1.0, 2.0], v) for i, v in enumerate(vectors)], schema).write.parquet(rows)
    stored = spark_local.read.parquet(rows)
    (answer, _), *_ = expected(network, [[1, 2]])
    beside = predict(stored, network, [X], "classes", into=INTO).where("id < 2")
    assert [row.prediction for row in beside.collect()] == [answer] * 2
    plan = spark_local._jvm.PythonSQLUtils.explainString(beside._jdf.queryExecution(), "simple")  # type: ignore[union-attr]
    assert "LessThan(id,2)" in plan
    v = Column("v", (2,), "float32")
    streamed = predict(spark_local.readStream.schema(schema).parquet(rows), network, [v], "classes", into=INTO)
    query = streamed.writeStream.format("memory").queryName("of_vectors").trigger(availableNow=True).start()
    query.awaitTermination(60)
    found = {row.id: (row.prediction, row.why_not) for row in spark_local.table("of_vectors").collect()}
    assert found == {
        0: (answer, None), 1: (expected(network, [[0, 3]])[0][0], None), 2: (None, "column 'v' is null")
    }  # fmt: skip


def test_a_network_runs_once_for_all_columns_that_it_makes(spark_local: SparkSession, network: nn.Module) -> None:
    df = spark_local.range(10).select(F.array(F.col("id"), F.col("id")).alias("x"))
    made = predict(df, network, [X], "classes", into=INTO)
    plan = spark_local._jvm.PythonSQLUtils.explainString(made._jdf.queryExecution(), "simple")  # type: ignore[union-attr]
    assert plan.count("ArrowEvalPython") == 1


def test_as_udf_serves_sql(spark_local: SparkSession, network: nn.Module) -> None:
    spark_local.udf.register("classified", as_udf(network, [X], "classes"))
    found = spark_local.sql(
        "SELECT classified(array(1.0D, 2.0D)).label AS label, classified(NULL).error AS error"
    ).collect()
    assert found[0].asDict() == {"label": expected(network, [[1, 2]])[0][0], "error": "column 'x' is null"}


@pytest.mark.parametrize(("inputs", "columns"), [(1, 2), (2, 1)])
def test_as_udf_names_its_inputs_if_it_gets_others(spark_local: SparkSession, inputs: int, columns: int) -> None:
    function = as_udf(
        [nn.Linear(2, 1), nn.Bilinear(2, 2, 1)][inputs - 1], [X, Column("other", (2,), "float32")][:inputs]
    )
    row = spark_local.range(1).select(function(*[F.array(F.lit(1.0), F.lit(2.0))] * columns))
    names = ["'x'", "'x', 'other'"][inputs - 1]
    with pytest.raises(PythonException, match=f"one column for each of {names}, {inputs}, got {columns}"):
        row.collect()


class Noting(nn.Module):
    """Notes each process that loads it."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        with Path(self.directory, str(os.getpid())).open("a") as file:
            file.write("loaded\n")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.long
def test_a_worker_loads_a_network_once(spark_local: SparkSession, tmp_path: Path) -> None:
    df = spark_local.range(0, 80, numPartitions=8).select(F.array(F.col("id"), F.col("id")).alias("x"))
    made = predict(df, Noting(str(tmp_path)), [X], into={"y": "vector"})
    for _ in range(2):
        assert made.count() == len(made.collect()) == 80
    noted = {path.name: path.read_text().count("loaded") for path in tmp_path.iterdir()}
    assert noted.pop(str(os.getpid())) == 1  # to check that it takes its inputs
    assert noted
    assert set(noted.values()) == {1}


def test_a_stream_gives_what_a_batch_gives_and_goes_on_after_a_restart(
    spark_local: SparkSession, tmp_path: Path
) -> None:
    """Bad rows stay, marked; no row comes twice; a worker loads the network once for all micro-batches."""
    rows, noted = str(tmp_path / "rows"), tmp_path / "noted"
    noted.mkdir()
    whole = spark_local.range(12).select("id", F.expr("array(id * 0.5D, if(id % 7 = 0, null, id % 3))").alias("x"))

    def predicted(df: DataFrame) -> DataFrame:
        return predict(df, Noting(str(noted)), [X], into={"y": "vector", "why_not": "error"})

    for part in (whole.where("id < 8").repartition(2), whole.where("id >= 8").coalesce(1)):
        part.write.mode("append").parquet(rows)
        stream = spark_local.readStream.schema(whole.schema).option("maxFilesPerTrigger", 1).parquet(rows)
        query = (
            predicted(stream)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "predictions"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
    streamed = spark_local.read.parquet(str(tmp_path / "predictions")).orderBy("id").collect()
    assert streamed == predicted(whole).orderBy("id").collect()
    assert {row.id: row.why_not for row in streamed if row.y is None} == dict.fromkeys(
        (0, 7), "column 'x' holds a null"
    )
    loads = [path.read_text().count("loaded") for path in noted.iterdir() if path.name != str(os.getpid())]
    assert set(loads) == {1}


def test_no_rows_make_no_rows(spark_local: SparkSession, network: nn.Module) -> None:
    df = spark_local.createDataFrame([], "x array<double>")
    assert predict(df, network, [X], "classes", into=INTO).collect() == []


def test_wrong_use_is_told_before_anything_starts(spark_local: SparkSession, network: nn.Module) -> None:
    df = spark_local.createDataFrame([(1, [1.0, 2.0], "a", b"b")], "n int, x array<double>, t string, image binary")

    def told(error: type[Exception], match: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(error, match=match):
            predict(df, network, *arguments, **{"into": INTO, **options})

    told(DataError, "no column 'z'", [Column("z", (2,), "float32")])
    told(DataError, "column 't'", [Column("t", (2,), "float32")])
    told(DataError, "column 'n' must be an array .*, got a number", [Column("n", (-1,), "float32")])
    told(DataError, "must have new columns, got 'x', which exists", [X], into={"x": "label"})
    told(DataError, "must have new columns, got 'X', which exists", [X], into={"X": "label"})  # Spark would replace it
    df = df.withColumn("y", df.x).select("*", df.x.alias("Y"))
    told(DataError, "must differ in more than case, got 'y', 'Y'; rename all but one", [Column("y", (2,), "float32")])
    told(ConfigError, "fields of a result, got 'labels'", [X], into={"p": "labels"})
    told(ConfigError, "kind must be one of 'classes'", [X], "logits")
    told(ConfigError, "batch_size must be at least 1, got 0", [X], batch_size=0)
    told(ConfigError, "inputs must have at least one column", [])
    told(ConfigError, "the network failed with 'x' as float32 .2, 3.", [Column("x", (3,), "float32")])
    told(ConfigError, "decode must have a function for the bytes of column 'image'", [Column("image", None, "uint8")])
    told(ConfigError, "inputs must be a list of Column, .* got .'x'.; use .Column", ["x"])
    told(ConfigError, "inputs must be a list of Column", X)
    told(ConfigError, "into must be a dict, got 'label'; use", [X], into="label")
    told(ConfigError, "decode must be a dict from inputs .'x'. to functions, got .'y'", [X], decode={"y": bytes})
    told(ConfigError, "decode must be a dict", [X], decode=bytes)
    with pytest.raises(ConfigError, match=r"network must be a torch module, got <class .*; make it from its class"):
        predict(df, nn.Linear, [X], into=INTO)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"predict must get a Spark DataFrame, got pandas.DataFrame; use spark.create"):
        predict(df.select("x").toPandas(), network, [X], into=INTO)
    told(ConfigError, "must have a known shape, got .3, -1.; use numbers", [Column("x", (3, -1), "float32")])


def test_the_workers_of_a_plain_local_session_run_this_python(
    spark_local: SparkSession, network: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setattr(spark_local.sparkContext, "pythonExec", "python3")  # as of a session made without us
    df = spark_local.sql("SELECT array(1D, 2D) AS x")
    made = df.select(as_udf(network, [X], "classes")("x"))
    assert spark_local.sparkContext.pythonExec == sys.executable
    assert made.columns == ["prediction(x)"]
    assert made.collect()[0][0].label == expected(network, [[1.0, 2.0]])[0][0]
