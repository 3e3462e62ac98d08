"""A network's results as columns of a DataFrame, and as a function of SQL."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import torch
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # as all of Spark's documentation calls it
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType
from torch import nn

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns.column import Column
from maggy_like.ml.columns.spark_columns import as_told_apart, check_one, columns_of_spark, quoted
from maggy_like.ml.inference.predictor import Predictor, check_type, in_precision_of
from maggy_like.ml.inference.results import FIELDS, Kinds, check_kinds, read_outputs, types_of
from maggy_like.ml.inference.shipped import ShippedNetwork
from maggy_like.spark.engine.job import check_local_workers
from maggy_like.spark.engine.task import Sent
from maggy_like.spark.session import active_session

Decode = Mapping[str, Callable[[bytes], Any]]


def predict(
    df: DataFrame,
    network: nn.Module,
    inputs: Sequence[Column],
    kind: Kinds = "other",
    *,
    into: Mapping[str, str | tuple[str, str]],
    batch_size: int = 1024,
    decode: Decode | None = None,
) -> DataFrame:
    """Add columns with what a network gives for each row, in batch or on a stream.

    A row that the network cannot take stays, with nulls in these columns and the reason in the field ``error``.

    Args:
        df: With the input columns: numbers, arrays, vectors of pyspark.ml, bytes.
        network: Takes a tensor of shape ``[rows, *shape]`` of each input, in order, and gives one with a row for each.
        inputs: Its inputs. A shape whose first number is -1 stands for arrays of any length.
        kind: What its output is: ``classes`` (logits), ``binary`` (a logit), ``probability``, ``values``, ``other``;
            or what each of several is, by names that you give them.
        into: Columns to be made, and the field that each gets: ``label`` (the class as a number, or the value),
            ``score`` (the probability of the label), ``vector`` (all probabilities, or the output), ``error``, or
            ``struct`` for all of these together. Of several outputs, the name of one and its field.
        batch_size: Rows that the network gets at once, at most; Spark itself hands over 10000
            (``spark.sql.execution.arrow.maxRecordsPerBatch``).
        decode: By names of columns of bytes, functions that make a tensor or array of a row's bytes.

    Raises:
        DataError: A column is missing, is of a type that the network does not take, or exists already.
        ConfigError: The network does not take such inputs, cannot be pickled, or a name or number is not valid.
        EngineError: The workers of a local master would run another version of Python.

    Example:
        >>> predict(df, network, [Column("features", (4,), "float32")], "classes",
        ...         into={"prediction": "label", "why_not": "error"})  # doctest: +SKIP
    """
    wanted = {name: _checked(df, name, part, kind) for name, part in into.items()}
    taken = {field for _, field in wanted.values()}
    fields = tuple(name for name in FIELDS if "struct" in taken or name in taken)
    results = as_udf(network, inputs, kind, batch_size=batch_size, decode=decode, fields=fields)
    given = [_input(df, column) for column in inputs]
    made = f"results_{uuid.uuid4().hex}"
    df = _in_rows(df, inputs[0].name)
    columns = {}
    for name, (output, field) in wanted.items():
        struct = F.col(made) if output is None else F.col(made)[output]
        columns[name] = struct if field == "struct" else struct[field]
    return df.withColumn(made, results(*given)).withColumns(columns).drop(made)


def _checked(df: DataFrame, name: str, part: str | tuple[str, str], kind: Kinds) -> tuple[str | None, str]:
    """The output (None for the only one) and the field that a new column gets.

    Raises:
        DataError: The column exists already.
        ConfigError: There is no such output or field.
    """
    if as_told_apart(df, [name])[0] in as_told_apart(df, df.columns):
        raise DataError(f"column {name!r} exists already; drop it, or name the new one otherwise")
    output, field = (None, part) if isinstance(part, str) else part
    if field not in (*FIELDS, "struct"):
        raise ConfigError(f"into: {field!r} is no field of a result; there are {', '.join(FIELDS)} and struct")
    outputs = [None] if isinstance(kind, str) else list(kind)
    if output not in outputs:
        there = "one output; give the field alone" if isinstance(kind, str) else f"the outputs {', '.join(kind)}"
        raise ConfigError(f"into: column {name!r} is to get {part!r}, and the network has {there}")
    return output, field


def as_udf(
    network: nn.Module,
    inputs: Sequence[Column],
    kind: Kinds = "other",
    *,
    batch_size: int = 1024,
    decode: Decode | None = None,
    fields: Sequence[str] = tuple(FIELDS),
) -> Callable[..., SparkColumn]:
    """A function of the input columns, for ``select`` or, registered, for SQL; it gives a struct.

    It takes numbers, arrays and bytes; make arrays of vectors before
    (``pyspark.ml.functions.vector_to_array``).

    Args:
        network: As :func:`predict` takes it.
        inputs: Its inputs; their names stand in errors alone.
        kind: What its output is. Of several outputs, what each is by name: the struct has a field for each, a struct.
        batch_size: Rows that the network gets at once, at most.
        decode: By names of columns of bytes, functions that make a tensor or array of a row's bytes.
        fields: Fields of the struct.

    Raises:
        ConfigError: The network does not take such inputs, cannot be pickled, or a name or number is not valid.
        EngineError: The workers of a local master would run another version of Python.

    Example:
        >>> spark.udf.register("churn", as_udf(network, inputs, "binary"))  # doctest: +SKIP
        >>> spark.sql("SELECT id, churn(features).label FROM customers")  # doctest: +SKIP
    """
    predictor = _predictor(network, inputs, kind, batch_size, dict(decode or {}), tuple(fields))
    types = types_of(fields, predictor.network.fractions)
    schema = StructType([StructField(name, from_arrow_type(of)) for name, of in types.items()])
    if not isinstance(kind, str):
        schema = StructType([StructField(name, schema) for name in kind])

    if (session := active_session()) is not None:
        check_local_workers(session)  # before Spark notes which Python is to run the function
    compute = Sent(predictor, "cannot compute predictions")

    def of_one(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return compute((batch,) for batch in batches)  # type: ignore[no-any-return]

    def of_several(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        return compute(batches)  # type: ignore[no-any-return]

    of_one.__name__ = of_several.__name__ = "prediction"  # so Spark names a column that gets no name
    # Spark tells from the type hints what a function takes.
    made = arrow_udf(of_one if len(inputs) == 1 else of_several, schema)  # type: ignore[call-overload]
    return made  # type: ignore[no-any-return]


def _predictor(
    network: nn.Module,
    inputs: Sequence[Column],
    kind: Kinds,
    batch_size: int,
    decode: dict[str, Callable[[bytes], Any]],
    fields: tuple[str, ...],
) -> Predictor:
    check_kinds(kind)
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
    if not inputs:
        raise ConfigError("inputs is empty; a network takes at least one column")
    for column in inputs:
        if column.shape is None and column.name not in decode:
            raise ConfigError(
                f"column {column.name!r} is of bytes; say how to decode it: decode={{{column.name!r}: ...}}"
            )
        if column.shape and -1 in column.shape[1:]:
            raise ConfigError(
                f"column {column.name!r} has arrays of shape {list(column.shape)}; give the numbers for -1: "
                "Column(name, shape, dtype)"
            )
    shipped = ShippedNetwork.of(network)
    _try_on_zeros(shipped, inputs, kind)
    return Predictor(shipped, tuple(inputs), kind, batch_size, decode, fields)


def _try_on_zeros(shipped: ShippedNetwork, inputs: Sequence[Column], kind: Kinds) -> None:
    """Run the network once where the shapes of its inputs are known.

    Raises:
        ConfigError: It does not take them.
        DataError: Its output has no row for each.
    """
    if any(column.shape is None or -1 in column.shape for column in inputs):
        return
    network = shipped.made()
    zeros = [torch.zeros(2, *(it.shape or ()), dtype=getattr(torch, it.dtype)) for it in inputs]
    try:
        with torch.inference_mode():
            output = network(*in_precision_of(network, zeros))
    except Exception as error:
        taken = ", ".join(f"{it.name!r} as {it.dtype} {[2, *(it.shape or ())]}" for it in inputs)
        raise ConfigError(f"the network does not take {taken}: {type(error).__name__}: {error}") from error
    read_outputs(output, kind, 2)


def _in_rows(df: DataFrame, name: str) -> DataFrame:
    """The same rows, which Spark does not hand on as whole columns of a Parquet file where vectors are among them.

    Spark 4.3 cannot read a file's columns straight into a function of Arrow when one has a type of its own (a vector):
    ``[UNSUPPORTED_DATATYPE]``. A condition that always holds, and that the optimizer neither drops nor hands to the
    file's reader, makes rows of them. Being deterministic, it lets other conditions pass to the reader.
    """
    if '"udt"' not in df.schema.json():
        return df
    return df.where(F.hash(F.isnull(df[quoted(name)])).bitwiseAND(0) == 0)


def _input(df: DataFrame, column: Column) -> SparkColumn:
    """The column of a DataFrame as the network's function takes it.

    Raises:
        DataError: It is missing, of another type, or has vectors of another length.
    """
    (there,) = columns_of_spark(df.schema, [column.name])
    check_one(df, column.name)
    check_type(there, column)
    field, expected = df.schema[column.name], math.prod(column.shape or ())
    told = field.metadata.get("ml_attr", {}).get("num_attrs")  # by the stage of pyspark.ml that made the vectors
    if isinstance(field.dataType, VectorUDT) and -1 not in (column.shape or ()) and told not in (None, expected):
        raise DataError(
            f"column {column.name!r} has vectors of {told} numbers, and the network takes {expected}; make them with "
            "the stages that made those of the training"
        )
    return df[quoted(column.name)]
