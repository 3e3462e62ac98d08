"""The columns that a model adds to a DataFrame: which Param names each, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.estimator.names import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from maggy_like.ml.estimator.params import PredictionParams


@dataclass(frozen=True)
class MadeColumn:
    """A column that a model adds.

    Attributes:
        name: The column's.
        param: The Param that names it, or the beginning of its name.
        output: The label whose output it is of; None where the network has one output.
        field: What of the output it gets, as ``predict`` calls it.
    """

    name: str
    param: str
    output: str | None
    field: str


def made_columns(params: PredictionParams, outputs: Mapping[str, Kind]) -> list[MadeColumn]:
    """The columns, in order.

    Args:
        params: Those of the model, or of the Estimator that is to make it.
        outputs: What the network's outputs are, by label.

    Raises:
        ConfigError: Two have one name.
    """
    made = []
    for label, kind in outputs.items():
        fields = [("predictionCol", "vector" if kind == "other" else "label")]
        if kind in ("classes", "binary", "probability"):
            fields.append(("probabilityCol", "vector"))
        fields += [(param, field) for param, field in (("errorCol", "error"), ("resultCol", "struct"))]
        output, ending = (label, f"_{label}") if len(outputs) > 1 else (None, "")
        made += [
            MadeColumn(f"{params._given(param)}{ending}", param, output, field)
            for param, field in fields
            if params._given(param) is not None
        ]
    params_by_name: dict[str, str] = {}
    for column in made:
        if column.name in params_by_name:
            raise ConfigError(
                f"{params_by_name[column.name]} and {column.param} both name the column {column.name!r}; "
                "name one of them otherwise"
            )
        params_by_name[column.name] = column.param
    return made


def into(made: Sequence[MadeColumn]) -> dict[str, str | tuple[str, str]]:
    """The same as ``predict`` takes it."""
    return {it.name: it.field if it.output is None else (it.output, it.field) for it in made}


def check_room(df: DataFrame, made: Sequence[MadeColumn]) -> None:
    """Refuse a DataFrame that has a column of a name that is to be made, as all of pyspark.ml does.

    Raises:
        DataError: It has one.
    """
    is_exact = df.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    there = {name if is_exact else name.lower() for name in df.columns}
    for column in made:
        if (column.name if is_exact else column.name.lower()) in there:
            raise DataError(
                f"{column.param}: the DataFrame has a column {column.name!r} already, and the model could not add it; "
                "drop it, or name the new one otherwise"
            )
