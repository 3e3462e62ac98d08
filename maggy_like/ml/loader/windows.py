"""The rows of an epoch that each rank reads, and its windows: the rows of a few steps, shuffled."""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from maggy_like.distributed.loader import Share, share_of
from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns import (
    Column,
    SparseRows,
    Values,
    alike_columns,
    check_nulls,
    sparse_rows,
    to_numpy,
    values_together,
)

_STREAM = (0, 0, 1)
"""Last number of the seeds of the order, because numpy pads seeds with zeros and other seeds begin the same way."""


class Piece(NamedTuple):
    """Rows ``start`` to ``stop`` of a row group."""

    group: int
    start: int
    stop: int


class WindowPlan:
    """Distribution of an epoch's rows over ranks and steps.

    The row groups are concatenated in the epoch's order. Each rank reads one contiguous part, as long as its shares of
    all batches. So each row is read once by exactly one rank, all ranks have the same number of steps, and at most two
    row groups of a rank are read by another rank too.

    ``batch_size`` is that of all ranks together, whose shares differ by at most one row. ``drop_last`` leaves out the
    rows of an incomplete last batch. A last batch with fewer than ``least_share`` rows for each rank is joined with the
    one before it. There must be a row for each rank in a batch (ConfigError) and in the table (DataError).
    """

    def __init__(
        self, group_rows: Sequence[int], batch_size: int, ranks: int, drop_last: bool = False, least_share: int = 0
    ) -> None:
        there = sum(group_rows)
        if batch_size < ranks:
            raise ConfigError(
                f"batch_size, which is that of all ranks together, must be at least {ranks}, got {batch_size}"
            )
        self._group_rows = np.asarray(group_rows, np.int64)
        self._batch_size = batch_size
        self._ranks = ranks
        self._full, self._last = divmod(there, batch_size)
        if drop_last:
            self._last = 0
        elif self._full and 0 < self._last < least_share * ranks:
            self._full, self._last = self._full - 1, self._last + batch_size
        self.rows = self._full * batch_size + self._last  # of an epoch
        self.steps = self._full + (self._last > 0)  # of an epoch, on each rank
        if there < ranks or not self.rows:
            least = f"a batch of {batch_size} (drop_last=True)" if there >= ranks else f"{ranks} ranks"
            raise DataError(f"the table must have enough rows for {least}, got {there}")

    def share(self, step: int, rank: int) -> Share:
        """Return a rank's share of a step's batch; no samples if the last batch has fewer rows than there are ranks."""
        total = self._batch_size if step < self._full else self._last
        start, stop = share_of(total, rank, self._ranks)
        return Share(stop - start, total, self._ranks)

    def rows_before(self, step: int, rank: int) -> int:
        """Return the number of rows that a rank gets in all steps before one."""
        full = min(step, self._full) * self.share(0, rank).samples if self._full else 0
        return full + (self.share(self._full, rank).samples if step > self._full else 0)

    def run(self, rank: int) -> tuple[int, int]:
        """Return the first and past-the-last of a rank's rows, in the epoch's order."""
        start = sum(self.rows_before(self.steps, before) for before in range(rank))
        return start, start + self.rows_before(self.steps, rank)

    def windows(self, rows: int) -> list[range]:
        """Return the steps whose rows are shuffled with each other, the same on all ranks.

        A window has about ``rows`` rows of each rank. An incomplete last batch is in the window of the one before it,
        because ranks may have no share of it.
        """
        size = max(rows // self.share(0, rank=0).samples, 1)
        starts = list(range(0, max(self._full, 1), size))
        return [range(start, stop) for start, stop in zip(starts, [*starts[1:], self.steps], strict=True)]

    def order(self, seed: int | None, epoch: int) -> list[int]:
        """Return the order of row groups in an epoch, counted from 0: that of the table if ``seed`` is None."""
        count = len(self._group_rows)
        order = np.arange(count) if seed is None else np.random.default_rng([seed, epoch, *_STREAM]).permutation(count)
        return [int(group) for group in order]

    def pieces(self, order: Sequence[int], start: int, stop: int) -> list[Piece]:
        """Return the pieces of row groups with the rows from ``start`` to ``stop`` of an epoch's order."""
        ends = np.cumsum(self._group_rows[list(order)])
        pieces = []
        place = int(np.searchsorted(ends, start, side="right"))
        while start < stop:
            group = order[place]
            first = int(ends[place] - self._group_rows[group])
            end = min(int(ends[place]), stop)
            if end > start:
                pieces.append(Piece(group, start - first, end - first))
            start, place = end, place + 1
        return pieces


Positions = npt.NDArray[np.int64]


class Buffers:
    """Memory of an epoch's windows, which is used again as soon as no batch refers to it.

    The first write to fresh memory of this size costs more than the copy of the rows.
    """

    def __init__(self) -> None:
        self._free: defaultdict[tuple[tuple[int, ...], str], list[Values]] = defaultdict(list)

    def take(self, shape: tuple[int, ...], dtype: str) -> Values:
        """Return an array of any content."""
        free = self._free[shape, dtype]
        block = free.pop() if free else np.empty(shape, dtype)
        view = block.view()  # tensors refer to the view, so the block is free once the view is gone
        weakref.finalize(view, free.append, block).atexit = False
        return view


class Window:
    """The buffer being filled: each row is written to its shuffled position as it is read, which is the only copy.

    ``positions`` are those of the rows in the order of reading. Vectors with names in ``sparse`` are stored without
    their zeros until their batch is made. ``buffers`` is None for pinned memory, so that copies to a GPU overlap with
    its computations.
    """

    def __init__(
        self, columns: Sequence[Column], positions: Positions, sparse: Set[str], buffers: Buffers | None
    ) -> None:
        self._columns = list(columns)
        self._positions = positions
        self._rows = len(positions)
        self._buffers = buffers
        self._sparse: dict[str, list[SparseRows]] = {name: [] for name in sparse}
        self._filled = 0
        self._tensors: dict[str, torch.Tensor] = {}
        self._arrays: dict[str, Values] = {}
        self._together: list[list[int]] | None = None
        self._bytes: dict[str, npt.NDArray[np.object_]] = {}

    @property
    def missing(self) -> int:
        """Number of rows that are not read yet."""
        return self._rows - self._filled

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows to their positions."""
        stop = self._filled + len(batch)
        here = self._positions[self._filled : stop]
        if self._together is None:
            self._together = alike_columns(batch.schema, self._columns)
        together = values_together(batch, self._together)
        for place, column in enumerate(self._columns):
            if (values := together.get(place)) is not None:
                self._array(column, ())[here] = values
                continue
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
            self._array(column, values.shape[1:])[here] = values
            if -1 in column.shape:
                self._columns[place] = column.with_shape(values.shape[1:])
        self._filled = stop

    def _array(self, column: Column, shape: tuple[int, ...]) -> Values:
        """Return the memory of a column's tensor."""
        if column.name not in self._arrays:
            whole = (self._rows, *shape)
            if self._buffers is None:
                tensor = torch.empty(whole, dtype=getattr(torch, column.dtype), pin_memory=True)
                self._tensors[column.name], self._arrays[column.name] = tensor, tensor.numpy()
            else:
                array = self._buffers.take(whole, column.dtype)
                self._tensors[column.name], self._arrays[column.name] = torch.from_numpy(array), array
        return self._arrays[column.name]

    def batches(self, sizes: list[int]) -> Iterator[dict[str, Any]]:
        """Yield the rows in batches of these sizes: tensors that share the window's memory, and lists of bytes."""
        parts = [self._parts(column, sizes) for column in self._columns]
        names = [column.name for column in self._columns]
        return (dict(zip(names, values, strict=True)) for values in zip(*parts, strict=True))

    def _parts(self, column: Column, sizes: list[int]) -> Iterable[Any]:
        """Return a column's values in batches of these sizes."""
        if column.name in self._sparse:
            return self._filled_in(self._sparse[column.name], sizes)
        if column.name in self._bytes:
            return self._bytes_in(column.name, sizes)
        return torch.split(self._tensors[column.name], sizes)

    def _filled_in(self, parts: list[SparseRows], sizes: list[int]) -> Iterator[torch.Tensor]:
        """Yield the rows of a sparse column, each batch made when it is needed."""
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
    """Yield windows in turn, each with the next rows.

    The columns of ``batches`` are in the order of ``columns``. ``places`` has the position of each row, window after
    window, and ``sparse`` the names of vectors that are mostly zeros.
    """
    left: pa.RecordBatch | None = None
    buffers = None if pinned else Buffers()
    try:
        for positions in places:
            window = Window(columns, positions, sparse, buffers)
            while window.missing:
                batch = next(batches) if left is None else left
                taken = min(window.missing, len(batch))
                window.add(batch.slice(0, taken))
                left = batch.slice(taken) if taken < len(batch) else None
            yield window
    finally:
        batches.close()
