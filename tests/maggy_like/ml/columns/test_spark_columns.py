"""Columns of Spark DataFrames."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DoubleType, StructType

from maggy_like.errors import DataError
from maggy_like.ml.columns.arrays import to_tensor
from maggy_like.ml.columns.column import Column
from maggy_like.ml.columns.spark_columns import arrays_of_vectors, columns_of_spark


def test_a_schema_says_what_its_columns_are() -> None:
    schema = (
        StructType().add("x", VectorUDT()).add("y", "integer").add("z", ArrayType(DoubleType())).add("image", "binary")
    )
    assert columns_of_spark(schema) == (
        Column("x", (-1,), "float32"),
        Column("y", (), "int32"),
        Column("z", (-1,), "float32"),
        Column("image", None, "uint8"),
    )
    with pytest.raises(DataError, match="there is no column 'w'"):
        columns_of_spark(schema, ["w"])


@pytest.mark.spark
def test_vectors_become_arrays_and_tensors(spark_local: SparkSession) -> None:
    df = spark_local.createDataFrame([(Vectors.dense(1, 2), 0), (Vectors.sparse(2, [1], [3.0]), 1)], ["a.b", "y"])
    arrow = arrays_of_vectors(df).toArrow()
    assert arrow.schema.field("a.b").type == pa.list_(pa.field("element", pa.float32(), nullable=False))
    assert to_tensor(arrow["a.b"], columns_of_spark(df.schema, ["a.b"])[0]).tolist() == [[1, 2], [0, 3]]
