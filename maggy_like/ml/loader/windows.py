"""Windows of an epoch: the rows of a few steps, shuffled among each other, as tensors."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from maggy_like.ml.columns.arrays import SparseRows, check_nulls, sparse_rows, to_numpy
from maggy_like.ml.columns.column import Column

Positions = npt.NDArray[np.int64]


class Window:
    """The buffer that is filled: each row goes to its shuffled place as it is read, which is the only copy.

    Args:
        columns: What is read.
        positions: The place of each row, in the order of reading;
        sparse: Names of vectors that are held without their zeros, and get these in their batch.
        pinned: Whether the memory is pinned, for copies to a GPU beside its computations.
    """

    def __init__(self, columns: Sequence[Column], positions: Positions, sparse: Set[str], pinned: bool) -> None:
        self._columns = list(columns)
        self._positions = positions
        self._rows = len(positions)
        self._pinned = pinned
        self._sparse: dict[str, list[SparseRows]] = {name: [] for name in sparse}
        self._filled = 0
        self._tensors: dict[str, torch.Tensor] = {}
        self._bytes: dict[str, npt.NDArray[np.object_]] = {}

    @property
    def missing(self) -> int:
        """Rows that are not read yet."""
        return self._rows - self._filled

    def add(self, batch: pa.RecordBatch) -> None:
        """Put rows to their places.

        Raises:
            DataError: A column has nulls, or rows that are no tensor together.
        """
        stop = self._filled + len(batch)
        here = self._positions[self._filled : stop]
        for place, column in enumerate(self._columns):
            array = batch.column(place)
            if column.shape is None:
                check_nulls(array, column)
                held = self._bytes.setdefault(column.name, np.empty(self._rows, object))
                held[here] = array.to_numpy(zero_copy_only=False)
                continue
            if column.name in self._sparse:
                self._sparse[column.name].append(sparse_rows(array, column))
                continue
            values = to_numpy(array, column)
            self._tensor(column, values.shape[1:]).numpy()[here] = values
            if -1 in column.shape:
                self._columns[place] = column.with_shape(values.shape[1:])
        self._filled = stop

    def _tensor(self, column: Column, shape: tuple[int, ...]) -> torch.Tensor:
        if column.name not in self._tensors:
            kind = getattr(torch, column.dtype)
            self._tensors[column.name] = torch.empty((self._rows, *shape), dtype=kind, pin_memory=self._pinned)
        return self._tensors[column.name]

    def batches(self, sizes: list[int]) -> Iterator[dict[str, Any]]:
        """The rows in batches of these sizes: tensors that share the window's memory, and lists of bytes."""
        parts = [self._parts(column, sizes) for column in self._columns]
        names = [column.name for column in self._columns]
        return (dict(zip(names, values, strict=True)) for values in zip(*parts, strict=True))

    def _parts(self, column: Column, sizes: list[int]) -> Iterable[Any]:
        """A column's values in batches of these sizes."""
        if column.name in self._sparse:
            return self._filled_in(self._sparse[column.name], sizes)
        if column.name in self._bytes:
            return self._bytes_in(column.name, sizes)
        return torch.split(self._tensors[column.name], sizes)

    def _filled_in(self, parts: list[SparseRows], sizes: list[int]) -> Iterator[torch.Tensor]:
        """The rows of a column that is held without its zeros, each batch made when it is due."""
        counts, places, values = (np.concatenate(part) for part in list(zip(*parts, strict=True))[:3])
        whole = SparseRows(counts, places, values, parts[0].shape)
        rows, start = np.argsort(self._positions), 0
        for size in sizes:
            yield torch.from_numpy(whole.taken(rows[start : start + size]).filled())
            start += size

    def _bytes_in(self, name: str, sizes: list[int]) -> list[list[bytes]]:
        values = iter(self._bytes[name].tolist())
        return [list(itertools.islice(values, size)) for size in sizes]


def fill_windows(
    batches: Generator[pa.RecordBatch],
    columns: Sequence[Column],
    places: Iterator[Positions],
    *,
    sparse: Set[str],
    pinned: bool,
) -> Generator[Window]:
    """Windows one after the other, each of the next rows.

    Args:
        batches: The rows, with the columns in order.
        columns: What they are to a model.
        places: The place of each row, a window after the other.
        sparse: Names of vectors that are mostly zeros.
        pinned: Whether in pinned memory.
    """
    left: pa.RecordBatch | None = None
    try:
        for positions in places:
            window = Window(columns, positions, sparse, pinned)
            while window.missing:
                batch = next(batches) if left is None else left
                taken = min(window.missing, len(batch))
                window.add(batch.slice(0, taken))
                left = batch.slice(taken) if taken < len(batch) else None
            yield window
    finally:
        batches.close()
