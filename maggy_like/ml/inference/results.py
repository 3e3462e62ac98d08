"""The output of a network for rows, as structs for Spark: a label, a score, a vector, or an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from maggy_like.errors import ConfigError, DataError

Kind = Literal["classes", "binary", "probability", "values", "other"]
"""Kind of an output: logits of classes, a logit of "yes", the probability of "yes", numbers, or anything."""

Kinds = Kind | Mapping[str, Kind]
"""Kind of the only output of a network, or of each of several, in order and by name."""

FIELDS = {"label": pa.float64(), "score": pa.float64(), "vector": pa.list_(pa.float32()), "error": pa.string()}
"""Fields of a result, and their types in Arrow where the network computes in single precision."""

RAW = "raw"
"""A further field, which is computed only if a column asks for it: the output before it became probabilities."""

NOT_FINITE = "the network gave a number that is not finite"


def types_of(fields: Sequence[str], fractions: str) -> dict[str, pa.DataType]:
    """Return the types of fields of a result.

    Args:
        fields: Some of :data:`FIELDS`.
        fractions: The precision in which the network computes; its numbers are not rounded.

    Example:
        >>> types_of(["label", "vector"], "float64")
        {'label': DataType(double), 'vector': ListType(list<item: double>)}
    """
    vector = pa.list_(pa.float64()) if fractions == "float64" else FIELDS["vector"]
    return {name: vector if name in ("vector", RAW) else FIELDS[name] for name in fields}


def fields_for(taken: Collection[str]) -> tuple[str, ...]:
    """Return the fields of a result that columns need.

    Args:
        taken: Their fields, or ``struct`` for the whole result.

    Example:
        >>> fields_for({"raw", "label"})
        ('label', 'raw')
    """
    whole = tuple(name for name in FIELDS if "struct" in taken or name in taken)
    return (*whole, RAW) if RAW in taken else whole


def check_kinds(kinds: Kinds) -> None:
    """Check the names of kinds of outputs.

    Raises:
        ConfigError: A name is unknown, or there is no output.
    """
    if not kinds:
        raise ConfigError(
            "kind must have at least one output, got none; use the kind of the output, or a dict for several"
        )
    for kind in (kinds,) if isinstance(kinds, str) else kinds.values():
        if kind not in get_args(Kind):
            raise ConfigError(f"kind must be one of {', '.join(map(repr, get_args(Kind)))}, got {kind!r}")


def read_outputs(output: Any, kinds: Kinds, rows: int) -> list[dict[str, torch.Tensor]]:
    """Return :func:`read_output` of each output.

    Raises:
        DataError: The number of outputs is not that of kinds, or an output is malformed.
    """
    if isinstance(kinds, str):
        return [read_output(output, kinds, rows)]
    outputs = list(output) if isinstance(output, tuple | list) else [output]
    if len(outputs) != len(kinds):
        names = ", ".join(kinds)
        raise DataError(f"the network must give {len(kinds)} outputs, one for each kind ({names}), got {len(outputs)}")
    return [read_output(one, kind, rows) for one, kind in zip(outputs, kinds.values(), strict=True)]


def read_output(output: Any, kind: Kind, rows: int) -> dict[str, torch.Tensor]:
    """Return label, score and vector of each row, on the CPU, as far as the kind has them.

    Several outputs of the kind ``other`` are concatenated to one vector.

    Raises:
        DataError: The output is not a tensor, or does not have one row for each row.
    """
    outputs = list(output) if isinstance(output, tuple | list) else [output]
    if len(outputs) > 1 and kind != "other":
        raise DataError(f"the network must give one output of kind {kind!r}, got {len(outputs)}")
    for one in outputs:
        if not isinstance(one, torch.Tensor) or one.shape[:1] != (rows,):
            found = tuple(one.shape) if isinstance(one, torch.Tensor) else type(one).__name__
            raise DataError(f"the network's output must be a tensor with one row for each of {rows} rows, got {found}")
    if kind == "classes" and outputs[0].dim() != 2:
        raise DataError(
            f"the network's output must have shape (rows, classes) for the kind 'classes', got "
            f"{tuple(outputs[0].shape)}; use the kind 'other', which returns the numbers unchanged"
        )
    numbers = torch.cat([one.detach().reshape(rows, -1) for one in outputs], 1).to("cpu")
    numbers = numbers if numbers.dtype == torch.float64 else numbers.float()
    if kind == "classes":
        vector = numbers.softmax(1)
        score, label = vector.max(1)
        return {"label": label, "score": score, "vector": vector, RAW: numbers}
    if kind in ("binary", "probability"):
        if numbers.shape[1] != 1:
            raise DataError(
                f"the network's output must have one number per row for the kind {kind!r}, got {numbers.shape[1]}; use "
                "the kind 'other', which returns the numbers unchanged"
            )
        yes = numbers[:, 0].sigmoid() if kind == "binary" else numbers[:, 0]
        vector, label = torch.stack([1 - yes, yes], 1), yes >= 0.5
        raw = torch.cat([-numbers, numbers], 1) if kind == "binary" else vector
        return {"label": label, "score": vector.amax(1), "vector": vector, RAW: raw}
    is_one = kind == "values" and numbers.shape[1] == 1
    return {"vector": numbers, **({"label": numbers[:, 0]} if is_one else {})}


def to_struct(
    found: Sequence[Mapping[str, torch.Tensor]],
    row_of: npt.NDArray[np.int64],
    errors: Mapping[int, str],
    fields: Mapping[str, pa.DataType],
) -> pa.StructArray:
    """Return structs for all rows: for a row without a result, nulls and its error.

    Args:
        found: Values of the rows that have a result, by field, in parts.
        row_of: For each row, its position among those; -1 if it has no result.
        errors: Errors by row.
        fields: Fields of the structs and their types, as :func:`types_of` returns them.
    """
    rows, missing = len(row_of), row_of < 0
    places = pa.array(row_of, mask=missing) if missing.any() or len(found) > 1 else None
    made = []
    for field, kind in fields.items():
        parts = [_to_arrow(part[field], field) for part in found if field in part]
        if field == "error":
            array = pa.array([errors.get(row) for row in range(rows)]) if errors else pa.nulls(rows)
        elif not parts:
            array = pa.nulls(rows)
        else:
            array = pa.concat_arrays(parts) if len(parts) > 1 else parts[0]
            array = array if places is None else array.take(places)
        made.append(array.cast(kind))
    return pa.StructArray.from_arrays(made, names=list(fields))


def _to_arrow(values: torch.Tensor, field: str) -> pa.Array:
    if field not in ("vector", RAW):
        return pa.array(values.double().numpy())
    rows, width = values.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(offsets, values.contiguous().numpy().reshape(-1))
