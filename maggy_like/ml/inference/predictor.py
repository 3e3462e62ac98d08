"""Inference in Spark's Python workers, from batches of columns to structs of results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import nn

from maggy_like.errors import DataError
from maggy_like.ml.columns.arrays import precision_of, to_tensor, vector_lengths
from maggy_like.ml.columns.column import Column, column_of_type, is_vector
from maggy_like.ml.inference.read_ahead import read_ahead
from maggy_like.ml.inference.results import FIELDS, NOT_FINITE, Kinds, read_outputs, to_struct, types_of
from maggy_like.ml.inference.rows import fault, usable_rows
from maggy_like.ml.inference.shipped import ShippedNetwork, task_device

Rows = npt.NDArray[np.int64]
_Values: TypeAlias = Any | dict[int, torch.Tensor]
"""A column as it arrived, or its decoded values by row."""
_Outputs: TypeAlias = list[dict[str, torch.Tensor]]
"""Values of some rows, by field, of each output."""


_VECTOR_BYTES = 64 << 20
"""Memory of the sparse vectors that are filled with zeros and computed at once."""

_log = logging.getLogger(__name__)


class _Group(NamedTuple):
    """Rows whose values have one shape, so that they can be one batch of the network."""

    rows: Rows
    tensors: list[torch.Tensor]

    def on(self, device: torch.device) -> _Group:
        return _Group(self.rows, [tensor.to(device) for tensor in self.tensors])


class _Prepared(NamedTuple):
    """Rows that are ready to be computed."""

    size: int
    groups: list[_Group]
    errors: dict[int, str]


@dataclass(frozen=True)
class Predictor:
    """Computes the output of a network for batches of rows, while a thread prepares the next batch.

    A row that the network cannot take has an error in place of a result: a null, an array of another length, bytes
    that cannot be decoded, an index out of range, or a result that is not finite. Arrays of open length (a shape with
    -1) and decoded values of several shapes are computed separately for each shape.

    Attributes:
        network: Network, loaded once per worker.
        inputs: Inputs of the network, in order.
        kind: Kind of its output, or of each of several by name; the results then have a field for each.
        batch_size: Maximum number of rows of a batch; fewer if they are long vectors, which are sparse until then.
        decode: Functions from the bytes of a row to a tensor or array, by column.
        fields: Fields of the results of an output.
        device: Device of the network. Default: the GPU of the Spark task if it has one, otherwise the CPU.
    """

    network: ShippedNetwork
    inputs: tuple[Column, ...]
    kind: Kinds
    batch_size: int = 1024
    decode: Mapping[str, Callable[[bytes], Any]] = field(default_factory=dict)
    fields: tuple[str, ...] = tuple(FIELDS)
    device: torch.device | None = None

    def __call__(self, batches: Iterator[Sequence[pa.Array]]) -> Iterator[pa.StructArray]:
        """Yield results for batches of columns, row by row, in one or more parts for each batch."""
        device = self.device or task_device()
        prepared = read_ahead(self._prepare(part, device) for batch in batches for part in self._parts(batch))
        network = self.network.load(device)  # while the first batch is fetched
        is_told = False
        for batch in prepared:
            if batch.errors and len(batch.errors) == batch.size and not is_told:
                is_told = True
                _log.warning(
                    "none of %d rows has a prediction; the first error is: %s; use the field 'error', or errorCol of a "
                    "TorchModel, to see the error of each row",
                    batch.size,
                    batch.errors[0],
                )
            yield self._results(network, batch)

    def _parts(self, batch: Sequence[pa.Array]) -> Iterator[Sequence[pa.Array]]:
        for array, column in zip(batch, self.inputs, strict=True):
            if not pa.types.is_null(array.type):  # NULL, as SQL has it
                check_type(column_of_type(column.name, array.type), column)
        vectors = [it for it in zip(batch, self.inputs, strict=True) if is_vector(it[0].type)]
        row_bytes = sum(
            int(vector_lengths(array).max(initial=0)) * np.dtype(column.dtype).itemsize for array, column in vectors
        )
        rows = max(min(self.batch_size, _VECTOR_BYTES // max(row_bytes, 1)), 1)
        for start in range(0, len(batch[0]), rows):
            yield [array.slice(start, rows) for array in batch]

    def _prepare(self, batch: Sequence[pa.Array], device: torch.device) -> _Prepared:
        usable = np.logical_and.reduce([usable_rows(*it) for it in zip(batch, self.inputs, strict=True)])
        errors = {int(row): self._fault(batch, int(row)) for row in np.flatnonzero(~usable)}
        values: list[_Values] = [
            self._decoded(array, column, usable, errors) if column.name in self.decode else array
            for array, column in zip(batch, self.inputs, strict=True)
        ]
        shapes = [_shapes(it, column, usable) for it, column in zip(values, self.inputs, strict=True)]
        groups = [
            group.on(device)
            for rows in _by_shape(shapes, np.flatnonzero(usable))
            for group in self._tensors(values, rows, errors)
        ]
        return _Prepared(len(usable), groups, errors)

    def _tensors(self, values: Sequence[_Values], rows: Rows, errors: dict[int, str]) -> Iterator[_Group]:
        """Yield rows of one shape as tensors; values that do not fit the type are found by halving."""
        try:
            yield _Group(rows, [_taken(it, column, rows) for it, column in zip(values, self.inputs, strict=True)])
        except DataError as error:
            if len(rows) == 1:
                errors[int(rows[0])] = str(error)
                return
            for half in np.array_split(rows, 2):
                yield from self._tensors(values, half, errors)

    def _fault(self, batch: Sequence[pa.Array], row: int) -> str:
        found = (fault(array[row], column) for array, column in zip(batch, self.inputs, strict=True))
        return next(filter(None, found), "")

    def _decoded(
        self, array: pa.Array, column: Column, usable: npt.NDArray[np.bool_], errors: dict[int, str]
    ) -> dict[int, torch.Tensor]:
        """Return the decoded values by row; those that fail become errors, and are no longer usable."""
        decode, values = self.decode[column.name], {}
        for row in np.flatnonzero(usable):
            try:
                value = decode(array[row].as_py())
                values[int(row)] = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
            except Exception as error:  # of the user's function, about this row's bytes
                usable[row], errors[int(row)] = False, f"column {column.name!r} cannot be decoded: {_first_line(error)}"
        return values

    def _results(self, network: nn.Module, batch: _Prepared) -> pa.StructArray:
        row_of: Rows = np.full(batch.size, -1)
        found: list[_Outputs] = []
        n_found = 0
        with torch.inference_mode():
            for group in batch.groups:
                for rows, values in self._computed(network, group, batch.errors):
                    row_of[rows] = np.arange(n_found, n_found + len(rows))
                    n_found += len(rows)
                    found.append(values)
        if len(found) == 1 and batch.size == n_found and len(batch.groups) == 1:
            row_of = np.arange(n_found)
        types = types_of(self.fields, self.network.fractions)
        if isinstance(self.kind, str):
            return to_struct([it[0] for it in found], row_of, batch.errors, types)
        structs = [
            to_struct([it[number] for it in found], row_of, batch.errors, types) for number in range(len(self.kind))
        ]
        return pa.StructArray.from_arrays(structs, names=list(self.kind))

    def _computed(self, network: nn.Module, group: _Group, errors: dict[int, str]) -> Iterator[tuple[Rows, _Outputs]]:
        """Yield rows and their results; rows on which a network fails on the CPU are found by halving."""
        rows, tensors = group
        try:
            output = network(*in_precision_of(network, tensors))
        except (IndexError, RuntimeError, ValueError) as error:
            if tensors[0].is_cuda:
                raise  # after a failed kernel, CUDA cannot be used
            if len(rows) == 1:
                errors[int(rows[0])] = f"the network failed: {_first_line(error)}"
                return
            half = len(rows) // 2
            for part in (slice(None, half), slice(half, None)):
                yield from self._computed(network, _Group(rows[part], [it[part] for it in tensors]), errors)
            return
        outputs = read_outputs(output, self.kind, len(rows))
        is_finite = torch.stack([torch.isfinite(values["vector"]).all(1) for values in outputs]).all(0)
        if not bool(is_finite.all()):
            errors.update(dict.fromkeys(map(int, rows[~is_finite.numpy()]), NOT_FINITE))
            rows = rows[is_finite.numpy()]
            outputs = [{name: it[is_finite] for name, it in values.items()} for values in outputs]
        yield rows, outputs


def in_precision_of(network: nn.Module, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Convert inputs of floats to the precision of the network's parameters."""
    dtype = precision_of(network)
    return [it.to(dtype) if it.is_floating_point() else it for it in tensors]


def check_type(found: Column, wanted: Column) -> None:
    """Check that a column can be an input.

    Raises:
        DataError: It has another number of dimensions, and cannot be reshaped.
    """
    if found.shape is None or wanted.shape is None:
        fits = found.shape is None  # of one length, or decoded
    else:
        is_fixed = len(found.shape) < 2 and -1 not in wanted.shape
        fits = len(found.shape) == len(wanted.shape) or is_fixed
    if not fits:
        have, want = (
            "bytes" if shape is None else f"an array of {len(shape)} dimensions" if shape else "a number"
            for shape in (found.shape, wanted.shape)
        )
        raise DataError(f"column {wanted.name!r} must be {want} for the network, got {have}")


def _taken(values: _Values, column: Column, rows: Rows) -> torch.Tensor:
    if isinstance(values, dict):
        return torch.stack([values[int(row)] for row in rows])
    return to_tensor(values if len(rows) == len(values) else values.take(pa.array(rows)), column)


def _shapes(values: _Values, column: Column, usable: npt.NDArray[np.bool_]) -> Sequence[Hashable] | None:
    """Return the shape of each usable row, if the column leaves it open."""
    rows = np.flatnonzero(usable)
    if isinstance(values, dict):
        return [values[int(row)].shape for row in rows]
    if column.shape and column.shape[0] == -1:
        if is_vector(values.type):
            found: list[int] = vector_lengths(values)[rows].tolist()
            return found
        lengths: list[int] = pc.list_value_length(values).take(pa.array(rows)).to_pylist()
        return lengths
    return None


def _by_shape(shapes: Sequence[Sequence[Hashable] | None], rows: Rows) -> list[Rows]:
    """Group rows by shape, if a column leaves it open."""
    told = [it for it in shapes if it is not None]
    if not told:
        return [rows] if len(rows) else []
    groups: dict[Hashable, list[int]] = {}
    for row, key in zip(rows, zip(*told, strict=True), strict=True):
        groups.setdefault(key, []).append(int(row))
    return [np.array(group) for group in groups.values()]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
