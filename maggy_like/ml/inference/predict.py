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
from maggy_like.ml.columns import Column
from maggy_like.ml.inference.predictor import (
    FIELDS,
    RAW,
    Kinds,
    Predictor,
    ShippedNetwork,
    check_kinds,
    check_type,
    fields_for,
    in_precision_of,
    read_outputs,
    types_of,
)
from maggy_like.ml.spark_columns import as_told_apart, check_frame, check_one, columns_of_spark, quoted
from maggy_like.spark.engine.job import check_local_workers
from maggy_like.spark.engine.task import Sent
from maggy_like.spark.session import active_session
from optimizers.checks import short

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
    """Add columns with the output of a network for each row, in batch or on a stream.

    A row that the network cannot take is kept, with nulls in these columns. The field ``error`` has the reason.

    Args:
        df: DataFrame with the input columns: numbers, arrays, vectors of pyspark.ml, or bytes.
        network: Network. It takes one tensor of shape ``[rows, *shape]`` for each input, in order, and returns a
            tensor with one row for each.
        inputs: Inputs of the network. A shape that begins with -1 stands for arrays of any length.
        kind: Kind of the output: ``classes`` (logits), ``binary`` (a logit), ``probability``, ``values`` or ``other``.
            For several outputs, a dict from names that you choose to kinds.
        into: New columns, and the field for each: ``label`` (the number of the class, or the value), ``score`` (the
            probability of the label), ``vector`` (all probabilities, or the output), ``error``, or ``struct`` for all
            of these. For several outputs, a pair of the output's name and its field.
        batch_size: Maximum number of rows that the network computes at once. Spark passes up to 10000
            (``spark.sql.execution.arrow.maxRecordsPerBatch``).
        decode: Functions from the bytes of a row to a tensor or array, by column.

    Returns:
        The DataFrame with the new columns.

    Raises:
        DataError: A column is missing, has a type that the network cannot take, or exists already.
        ConfigError: The network cannot take such inputs or cannot be pickled, or an argument is invalid.
        EngineError: The workers of a local master would run another version of Python.

    Example:
        >>> network, inputs = nn.Linear(4, 3), [Column("features", (4,), "float32")]
        >>> made = predict(df, network, inputs, "classes", into={"prediction": "label", "why_not": "error"})
        >>> made.columns[-2:]
        ['prediction', 'why_not']
    """
    check_frame(df, "predict")
    if not isinstance(into, Mapping):
        raise ConfigError(f"into must be a dict, got {into!r}; use the names of new columns: {{'prediction': 'label'}}")
    wanted = {name: _checked(df, name, part, kind) for name, part in into.items()}
    taken = {field for _, field in wanted.values()}
    results = as_udf(network, inputs, kind, batch_size=batch_size, decode=decode, fields=fields_for(taken))
    given = [_input(df, column) for column in inputs]
    made = f"results_{uuid.uuid4().hex}"
    df = _in_rows(df, inputs[0].name)
    columns = {}
    for name, (output, field) in wanted.items():
        struct = F.col(made) if output is None else F.col(made)[output]
        columns[name] = struct if field == "struct" else struct[field]
    return df.withColumn(made, results(*given)).withColumns(columns).drop(made)


def _checked(df: DataFrame, name: str, part: str | tuple[str, str], kind: Kinds) -> tuple[str | None, str]:
    """Check a new column, and return its output (None for the only one) and its field."""
    if as_told_apart(df, [name])[0] in as_told_apart(df, df.columns):
        raise DataError(f"into must have new columns, got {name!r}, which exists already; drop it, or use another name")
    output, field = (None, part) if isinstance(part, str) else part
    if field not in (*FIELDS, RAW, "struct"):
        known = ", ".join((*FIELDS, RAW))
        raise ConfigError(f"into must have fields of a result, got {field!r}; use {known} or struct")
    outputs = [None] if isinstance(kind, str) else list(kind)
    if output not in outputs:
        there = "one output; use only the field" if isinstance(kind, str) else f"the outputs {', '.join(kind)}"
        raise ConfigError(
            f"into: column {name!r} must have an output of the network, got {part!r}; the network has {there}"
        )
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
    """Return a network as a function of columns, for ``select`` or, once registered, for SQL.

    The function takes numbers, arrays and bytes, and returns a struct. Convert vectors to arrays first
    (``pyspark.ml.functions.vector_to_array``).

    Args:
        network: Network, as :func:`predict` takes it.
        inputs: Inputs of the network; their names appear only in errors.
        kind: Kind of the output. For several outputs, a dict from names to kinds; the struct then has one field for
            each, which is a struct.
        batch_size: Maximum number of rows that the network computes at once.
        decode: Functions from the bytes of a row to a tensor or array, by column.
        fields: Fields of the struct. Default: ``label``, ``score``, ``vector`` and ``error``.

    Returns:
        The function, which takes one column for each input.

    Raises:
        ConfigError: The network cannot take such inputs or cannot be pickled, or an argument is invalid.
        EngineError: The workers of a local master would run another version of Python.

    Example:
        >>> network, inputs = nn.Linear(4, 1), [Column("features", (4,), "float32")]
        >>> churn = spark.udf.register("churn", as_udf(network, inputs, "binary"))
        >>> df.createOrReplaceTempView("customers")
        >>> spark.sql("SELECT id, churn(features).label AS leaves FROM customers").columns
        ['id', 'leaves']
    """
    predictor = _predictor(network, inputs, kind, batch_size, decode or {}, tuple(fields))
    types = types_of(fields, predictor.network.fractions)
    schema = StructType([StructField(name, from_arrow_type(of)) for name, of in types.items()])
    if not isinstance(kind, str):
        schema = StructType([StructField(name, schema) for name in kind])

    if (session := active_session()) is not None:
        check_local_workers(session)  # before Spark notes which Python is to run the function
    compute = Sent(predictor, "cannot compute predictions")

    def columns_of(batch: Any) -> Sequence[pa.Array]:
        return (batch,) if isinstance(batch, pa.Array) else batch  # as many as the query gave, which is checked

    def of_one(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return compute(map(columns_of, batches))  # type: ignore[no-any-return]

    def of_several(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        return compute(map(columns_of, batches))  # type: ignore[no-any-return]

    of_one.__name__ = of_several.__name__ = "prediction"  # so Spark names a column that gets no name
    # Spark tells from the type hints what a function takes.
    made = arrow_udf(of_one if len(inputs) == 1 else of_several, schema)  # type: ignore[call-overload]
    return made  # type: ignore[no-any-return]


def _predictor(
    network: nn.Module,
    inputs: Sequence[Column],
    kind: Kinds,
    batch_size: int,
    decode: Decode,
    fields: tuple[str, ...],
) -> Predictor:
    check_kinds(kind)
    if batch_size < 1:
        raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
    if not inputs:
        raise ConfigError("inputs must have at least one column, got none")
    if not isinstance(inputs, list | tuple) or not all(isinstance(it, Column) for it in inputs):
        raise ConfigError(
            f"inputs must be a list of Column, one for each input of the network, got {short(inputs)}; use "
            "[Column(name, shape, dtype)]"
        )
    names = [column.name for column in inputs]
    if not isinstance(decode, Mapping) or decode.keys() - set(names):
        raise ConfigError(
            f"decode must be a dict from inputs ({', '.join(map(repr, names))}) to functions, got {short(decode)}"
        )
    for column in inputs:
        if column.shape is None and column.name not in decode:
            raise ConfigError(
                f"decode must have a function for the bytes of column {column.name!r}, got none; use "
                f"decode={{{column.name!r}: function}}"
            )
        if column.shape and -1 in column.shape[1:]:
            raise ConfigError(
                f"column {column.name!r} must have a known shape, got {list(column.shape)}; use numbers in place of "
                "-1: Column(name, shape, dtype)"
            )
    shipped = ShippedNetwork.of(network)
    _try_on_zeros(shipped, inputs, kind)
    return Predictor(shipped, tuple(inputs), kind, batch_size, dict(decode), fields)


def _try_on_zeros(shipped: ShippedNetwork, inputs: Sequence[Column], kind: Kinds) -> None:
    """Check that the network takes its inputs, if their shapes are known, and returns one row for each."""
    if any(column.shape is None or -1 in column.shape for column in inputs):
        return
    network = shipped.made()
    zeros = [torch.zeros(2, *(it.shape or ()), dtype=getattr(torch, it.dtype)) for it in inputs]
    try:
        with torch.inference_mode():
            output = network(*in_precision_of(network, zeros))
    except Exception as error:
        taken = ", ".join(f"{it.name!r} as {it.dtype} {[2, *(it.shape or ())]}" for it in inputs)
        raise ConfigError(f"the network failed with {taken}: {type(error).__name__}: {error}") from error
    read_outputs(output, kind, 2)


def _in_rows(df: DataFrame, name: str) -> DataFrame:
    """Return the same rows in a form that Spark does not read as whole Parquet columns if there are vectors.

    Spark 4.3 cannot pass a file's columns to an Arrow function if one has a user-defined type (a vector):
    ``[UNSUPPORTED_DATATYPE]``. A condition that always holds, and that the optimizer neither drops nor pushes down to
    the file's reader, turns them into rows. It is deterministic, so other conditions can still be pushed down.
    """
    if '"udt"' not in df.schema.json():
        return df
    return df.where(F.hash(F.isnull(df[quoted(name)])).bitwiseAND(0) == 0)


def _input(df: DataFrame, column: Column) -> SparkColumn:
    """Check a column of a DataFrame, and return it as the network's function takes it."""
    (there,) = columns_of_spark(df.schema, [column.name])
    check_one(df, column.name)
    check_type(there, column)
    field, expected = df.schema[column.name], math.prod(column.shape or ())
    told = field.metadata.get("ml_attr", {}).get("num_attrs")  # by the stage of pyspark.ml that made the vectors
    if isinstance(field.dataType, VectorUDT) and -1 not in (column.shape or ()) and told not in (None, expected):
        raise DataError(
            f"column {column.name!r} must have vectors of {expected} numbers, got {told}; make them with the stages of "
            "the training"
        )
    return df[quoted(column.name)]
