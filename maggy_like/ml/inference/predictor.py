"""Inference in Spark's Python workers: the network that is sent to them, and results from batches of columns."""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import os
import pickle
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import nn

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns import (
    Column,
    column_of_type,
    decoded_tensor,
    fractions_of,
    is_bytes,
    is_list,
    is_vector,
    precision_of,
    to_tensor,
    vector_lengths,
    with_fractions,
)
from maggy_like.processes.pickles import dumps
from optimizers.checks import short

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
    """Return the types of fields of a result, some of :data:`FIELDS`.

    ``fractions`` is the precision in which the network computes; its numbers are not rounded.

    Example:
        >>> types_of(["label", "vector"], "float64")
        {'label': DataType(double), 'vector': ListType(list<item: double>)}
    """
    vector = pa.list_(pa.float64()) if fractions == "float64" else FIELDS["vector"]
    return {name: vector if name in ("vector", RAW) else FIELDS[name] for name in fields}


def fields_for(taken: Collection[str]) -> tuple[str, ...]:
    """Return the fields that a result needs for columns of the fields ``taken``; ``struct`` is the whole result.

    Example:
        >>> fields_for({"raw", "label"})
        ('label', 'raw')
    """
    whole = tuple(name for name in FIELDS if "struct" in taken or name in taken)
    return (*whole, RAW) if RAW in taken else whole


def check_kinds(kinds: Kinds) -> None:
    """Check that there is an output, and that the kind of each is known."""
    if not kinds:
        raise ConfigError(
            "kind must have at least one output, got none; use the kind of the output, or a dict for several"
        )
    for kind in (kinds,) if isinstance(kinds, str) else kinds.values():
        if kind not in get_args(Kind):
            raise ConfigError(f"kind must be one of {', '.join(map(repr, get_args(Kind)))}, got {kind!r}")


def check_network(network: object) -> None:
    """Check that it is a module of torch, and neither a class of one nor the weights for one."""
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"the network must be a torch module, got {short(network)}; make it from its class, and load its weights "
            "with load_state_dict"
        )


def read_outputs(output: Any, kinds: Kinds, rows: int) -> list[dict[str, torch.Tensor]]:
    """Return :func:`read_output` of each output, of which there must be one for each kind."""
    if isinstance(kinds, str):
        return [read_output(output, kinds, rows)]
    outputs = list(output) if isinstance(output, tuple | list) else [output]
    if len(outputs) != len(kinds):
        names = ", ".join(kinds)
        raise DataError(f"the network must give {len(kinds)} outputs, one for each kind ({names}), got {len(outputs)}")
    return [read_output(one, kind, rows) for one, kind in zip(outputs, kinds.values(), strict=True)]


def read_output(output: Any, kind: Kind, rows: int) -> dict[str, torch.Tensor]:
    """Return label, score and vector of each row, on the CPU, as far as the kind has them.

    Several outputs of the kind ``other`` are concatenated to one vector. Each must be a tensor with one row for each of
    the rows, otherwise DataError is raised.
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
    if numbers.dtype != torch.float64:  # in which even large integers are exact
        numbers = numbers.float() if numbers.is_floating_point() else numbers.double()
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

    ``found`` has the values of the rows that have a result, by field, in parts. ``row_of`` has the position of each row
    among those, or -1 if it has no result. ``errors`` are by row, and ``fields`` as :func:`types_of` returns them.
    """
    rows, missing = len(row_of), row_of < 0
    places = pa.array(row_of, mask=missing) if missing.any() or len(found) > 1 else None
    made = []
    for name, kind in fields.items():
        parts = [_to_arrow(part[name], name) for part in found if name in part]
        if name == "error":
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


_KEPT = 3
"""Number of networks that a worker keeps, as in ``pyspark.ml.functions.predict_batch_udf``."""

_loaded: OrderedDict[tuple[str, str], nn.Module] = OrderedDict()


@dataclass(frozen=True)
class ShippedNetwork:
    """A network as bytes; equal bytes are one network."""

    content: bytes  # pickled, with the classes of a notebook or script
    digest: str  # key of the network in a worker's cache
    fractions: str  # precision in which it computes: ``"float32"`` or ``"float64"``

    @classmethod
    def of(cls, network: nn.Module) -> ShippedNetwork:
        """Pickle a network on the CPU."""
        check_network(network)
        held = [*network.parameters(), *network.buffers()]
        on_cpu = network if all(it.device.type == "cpu" for it in held) else copy.deepcopy(network).cpu()
        try:
            content = dumps(on_cpu)
        except Exception as error:
            raise ConfigError(
                f"the network of type {type(network).__name__} cannot be sent to Spark's workers: {error}"
            ) from error
        return cls(content, hashlib.sha256(content).hexdigest(), fractions_of(network))

    def made(self) -> nn.Module:
        """Make the network again, in evaluation mode on the CPU."""
        network: nn.Module = pickle.loads(self.content)  # noqa: S301  # comes with Spark's own closure
        return network.eval()

    def load(self, device: torch.device) -> nn.Module:
        """Return the network in evaluation mode on a device, loaded once per process for all tasks."""
        key = (self.digest, str(device))
        if key not in _loaded:
            _loaded[key] = self.made().to(device)
            if len(_loaded) > _KEPT:
                _loaded.popitem(last=False)
        _loaded.move_to_end(key)
        return _loaded[key]


def task_device() -> torch.device:
    """Return the first GPU that Spark gave this task, or the CPU."""
    from pyspark import TaskContext  # here, so that a server of MLflow's predicts without it

    context = TaskContext.get()
    gpu = context.resources().get("gpu") if context is not None else None
    if gpu is None or not gpu.addresses:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        warnings.warn(
            f"torch cannot use GPU {gpu.addresses[0]}, which Spark gave this task; the CPU is used", stacklevel=1
        )
        return torch.device("cpu")
    return torch.device("cuda", device_index(gpu.addresses[0], os.environ.get("CUDA_VISIBLE_DEVICES")))


def device_index(address: str, visible: str | None) -> int:
    """Return torch's number of the GPU at an address; ``visible`` is ``CUDA_VISIBLE_DEVICES``, which CUDA counts by."""
    known = visible.split(",") if visible else []
    return known.index(address) if address in known else int(address)


Mask = npt.NDArray[np.bool_]


def usable_rows(values: pa.Array, column: Column) -> Mask:
    """Return which rows have all values of the column's shape and no null, without a loop over rows."""
    if column.shape is not None and is_bytes(values.type):
        length = math.prod(column.shape) * np.dtype(column.dtype).itemsize
        return np.array(pc.fill_null(pc.equal(pc.binary_length(values), length), False).to_numpy(zero_copy_only=False))
    if is_vector(values.type):
        is_there = np.array(values.is_valid().to_numpy(zero_copy_only=False))
        (length,) = _lengths(values.type, column)
        return is_there if length < 0 else is_there & (vector_lengths(values) == length)
    return _usable(values, _lengths(values.type, column))


def fault(value: pa.Scalar, column: Column) -> str | None:
    """Return why a row's value cannot be used, by the rules of :func:`usable_rows`; None if it can be."""
    plain = value.as_py()
    if plain is not None and is_vector(value.type):
        plain = range(len(plain["values"]) if plain["size"] is None else plain["size"])
    found = _fault(plain, _lengths(value.type, column))
    if found is None and column.shape is not None and is_bytes(value.type):
        found = f"has {len(value.as_py())} bytes, which do not fill the shape {column.shape} of {column.dtype}"
    return found and f"column {column.name!r} {found}"


def _lengths(kind: pa.DataType, column: Column) -> tuple[int, ...]:
    """Return the required lengths of nested lists; flat ones have all values of a shape."""
    depth = 1 if is_vector(kind) else 0
    while is_list(kind):
        depth, kind = depth + 1, kind.value_type
    shape = column.shape or ()
    return shape if depth == len(shape) else (math.prod(shape),) * depth


def _usable(values: pa.Array, lengths: tuple[int, ...]) -> Mask:
    usable: Mask = np.array(values.is_valid().to_numpy(zero_copy_only=False))
    if not lengths:
        return usable
    if lengths[0] >= 0:
        usable &= pc.fill_null(pc.list_value_length(values), -1).to_numpy() == lengths[0]
    inner = values.flatten()
    if len(lengths) > 1 or inner.null_count:
        of_inner = _usable(inner, lengths[1:])
        usable[pc.list_parent_indices(values).to_numpy()[~of_inner]] = False
    return usable


def _fault(value: Any, lengths: tuple[int, ...]) -> str | None:
    if value is None:
        return "is null"
    if not lengths:
        return None
    if lengths[0] not in (-1, len(value)):
        return f"has {len(value)} elements where {lengths[0]} are expected"
    inner = next((found for part in value if (found := _fault(part, lengths[1:]))), None)
    return "holds a null" if inner == "is null" else inner


T = TypeVar("T")


class _End(NamedTuple):
    """The last entry of a thread; ``error`` is what ended it."""

    error: BaseException | None = None


def read_ahead(items: Iterator[T], ahead: int = 1) -> Iterator[T]:
    """Yield the items of an iterator, while a thread, its only user from now on, fetches the next ones.

    The thread starts at once, and is never more than ``ahead`` items ahead of the caller. An error of the iterator is
    raised at its position. If the caller leaves early, the thread ends after the item that it is fetching.
    """
    fetched: SimpleQueue[T | _End] = SimpleQueue()
    places, is_left = threading.Semaphore(ahead), threading.Event()

    def fetch() -> None:
        while places.acquire() and not is_left.is_set():
            try:
                fetched.put(next(items))
            except StopIteration:
                return fetched.put(_End())
            except BaseException as error:
                return fetched.put(_End(error))

    threading.Thread(target=fetch, name="maggy_like-read-ahead", daemon=True).start()
    return _drain(fetched, places, is_left)


def _drain(fetched: SimpleQueue[T | _End], places: threading.Semaphore, is_left: threading.Event) -> Iterator[T]:
    try:
        while not isinstance(item := fetched.get(), _End):
            places.release()
            yield item
        if item.error is not None:
            raise item.error
    finally:
        is_left.set()
        places.release()


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

    A row that the network cannot take has an error in place of a result: a null, an array of another length, bytes that
    cannot be decoded, an index out of range, or a result that is not finite. Arrays of open length (a shape with -1)
    and decoded values of several shapes are computed separately for each shape.
    """

    network: ShippedNetwork  # loaded once per worker
    inputs: tuple[Column, ...]  # in the order in which the network takes them
    kind: Kinds  # of the output, or of each of several by name; the results then have a field for each
    batch_size: int = 1024  # maximum number of rows; fewer if they are long vectors, which are sparse until then
    # from the bytes of a row to a tensor or array, by column
    decode: Mapping[str, Callable[[bytes], Any]] = field(default_factory=dict)
    fields: tuple[str, ...] = tuple(FIELDS)  # of the results of an output
    device: torch.device | None = None  # default: the GPU of the Spark task if it has one, otherwise the CPU

    def __post_init__(self) -> None:
        # However the network is applied, its inputs are rounded no more than it computes.
        object.__setattr__(self, "inputs", with_fractions(self.inputs, self.network.fractions))

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
        if len(batch) != len(self.inputs):
            names = ", ".join(repr(column.name) for column in self.inputs)
            raise DataError(
                f"the function must get one column for each of {names}, {len(self.inputs)}, got {len(batch)}"
            )
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
                values[int(row)] = decoded_tensor(decode(array[row].as_py()))
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
    """Check that a column can be an input: it has as many dimensions, or can be reshaped."""
    if found.shape is None or wanted.shape is None:
        fits = found.shape is None  # of one length, or decoded
    else:
        is_fixed = len(found.shape) < 2 and -1 not in wanted.shape
        is_fixed &= found.shape != () or math.prod(wanted.shape) == 1
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
