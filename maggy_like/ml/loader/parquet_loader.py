"""A loader of tables: batches of tensors from Parquet, distributed over ranks."""

from __future__ import annotations

import contextlib
import copy
import math
import os
from collections import Counter, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from maggy_like.argument_checks import whole
from maggy_like.distributed.loader import latest, to_device
from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns import Column, check_names, columns_of_arrow
from maggy_like.ml.loader.sources import RowSource, row_bytes, source_of
from maggy_like.ml.loader.windows import Positions, Window, WindowPlan, fill_windows

_WINDOW_BYTES = 32 << 20
"""Memory of a buffer if its number of rows is not given; there are ``prefetch + 2`` at a time."""

_MOST_ROWS = 1 << 15  # of such a buffer: narrow tables gain nothing from more, and the first batch comes sooner

_READ_BYTES = 4 << 20
"""Memory of the rows that are decoded at a time."""

_READ_ROWS = 1 << 14  # that are decoded at a time

T = TypeVar("T")

_CPU = torch.device("cpu")


class ParquetLoader:
    """Load a table in batches, as dicts from column to tensor.

    Each row comes once per epoch, on exactly one rank, and all ranks take the same number of steps, for any sizes of
    row groups. The order depends only on the seed and the epoch: row groups are shuffled, and so are the rows within a
    buffer. The next buffers are read in the background.

    In a training function, call ``reporter.prepare(loader)``, which returns the loader of this rank and its device. In
    other scripts, pass ``rank`` and ``ranks``.

    Each iteration is the next epoch, as with a DataLoader; ``set_epoch`` chooses the epoch. After ``load_state_dict``,
    the loader continues with the batch after the last one that was yielded before ``state_dict``.

    Args:
        data: URL of a Parquet file or directory (on any file system of fsspec), a list of URLs, or a table of Arrow,
            pandas or Spark that fits in memory.
        columns: Columns to read, by name or as :class:`~maggy_like.ml.columns.Column`. Default: all.
        batch_size: Number of rows of a batch of all ranks together. The shares of ranks differ by at most one row.
        fractions: Type for floats, doubles and decimals of columns given by name: ``"float32"``, or ``"float64"``,
            which does not round doubles.
        shuffle: If True, each epoch has its own order. If False, the order is that of the table.
        seed: Seed of all orders.
        buffer_rows: Number of rows of a rank that are shuffled with each other. Default: as many as take 32 MB, and at
            most 32,768.
        prefetch: Number of buffers that are read ahead in the background.
        drop_last: If True, an incomplete last batch is left out.
        least_share: Minimum number of rows that each rank needs of the last batch. A batch with fewer is joined with
            the one before it. Batch normalization needs 2. With 0, a rank without a row receives a repeated one.
        rank: Rank of this process, from 0.
        ranks: Number of ranks.

    Attributes:
        columns: Columns that are read, with their shapes as far as they are known.
        rows: Number of rows of an epoch, on all ranks together.
        epoch: Epoch of the current iteration, or of the next one.

    Raises:
        ConfigError: An argument is invalid.
        DataError: There are no files or too few rows, or a column is missing, has nulls, or has a type that no tensor
            has. While iterating: rows have different lengths, or values that the type cannot hold.

    Example:
        >>> import pyarrow as pa
        >>> table = pa.table({"x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "y": [0, 1, 0]})
        >>> loader = ParquetLoader(table, ["x", "y"], batch_size=2, shuffle=False)
        >>> [batch["x"].shape for batch in loader]
        [torch.Size([2, 2]), torch.Size([1, 2])]
    """

    def __init__(
        self,
        data: Any,
        columns: Sequence[str | Column] | None = None,
        *,
        batch_size: int,
        fractions: str = "float32",
        shuffle: bool = True,
        seed: int = 0,
        buffer_rows: int | None = None,
        prefetch: int = 1,
        drop_last: bool = False,
        least_share: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.batch_size = whole("batch_size", batch_size, least=1)
        self._seed = whole("seed", seed, least=0)
        self._shuffle = shuffle
        self._prefetch = whole("prefetch", prefetch, least=1)
        self._drop_last = drop_last
        self._least_share = whole("least_share", least_share, least=0)
        self._source = source_of(data)
        measured = self._source.measured(_wanted(columns, self._source, fractions))
        self.columns, self._sparse = measured.columns, measured.sparse
        default = max(min(_WINDOW_BYTES // max(measured.row_bytes, 1), _MOST_ROWS), 1)
        self._buffer_rows = default if buffer_rows is None else whole("buffer_rows", buffer_rows, least=1)
        self._read_rows = max(min(_READ_BYTES // max(measured.row_bytes, 1), _READ_ROWS), 1)
        self._device = _CPU
        self.epoch = 0
        self._step = 0
        self._resumed = True  # the first iteration is of the epoch that is set
        self._deal(rank, ranks)

    def _deal(self, rank: int, ranks: int) -> None:
        self._ranks = whole("ranks", ranks, least=1)
        self._rank = whole("rank", rank, least=0)
        if rank >= ranks:
            raise ConfigError(f"rank must be less than ranks={ranks}, got {rank}")
        self._plan = WindowPlan(self._source.group_rows, self.batch_size, ranks, self._drop_last, self._least_share)
        check_fits(self.columns, self._plan.share(0, 0).samples)
        self.rows = self._plan.rows
        self._windows = self._plan.windows(self._buffer_rows)

    def share_out(self, device: torch.device, rank: int, ranks: int) -> ParquetLoader:
        """Return the loader of a rank, with batches on a device. Called by ``reporter.prepare``.

        Args:
            device: Device of the batches.
            rank: Rank of the process, from 0.
            ranks: Number of ranks.

        Raises:
            ConfigError: A batch has fewer rows than there are ranks.
            DataError: The table has fewer rows than there are ranks.
        """
        shared = copy.copy(self)
        shared._device = device
        shared._deal(rank, ranks)
        return shared

    def __len__(self) -> int:
        """Return the number of steps of an epoch, the same on all ranks."""
        return self._plan.steps

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. If the loader was resumed within this epoch, it continues there.

        Args:
            epoch: Number of the epoch, from 0.
        """
        whole("epoch", epoch, least=0)
        if not (self._resumed and epoch == self.epoch):
            self._step = 0
        self.epoch, self._resumed = epoch, True

    def state_dict(self) -> dict[str, int]:
        """Return the position of the loader after the batch that it yielded last; the same on all ranks."""
        over = self._step == len(self)
        return {"epoch": self.epoch + over, "step": 0 if over else self._step, **self._identity()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after the last batch that was yielded before :meth:`state_dict`. No row is lost or repeated.

        Args:
            state: Result of :meth:`state_dict`.

        Raises:
            ConfigError: The state is of other data, or of a loader with other batches, seed or number of ranks.
        """
        for name, mine in self._identity().items():
            if (its := state.get(name)) != mine:
                raise ConfigError(f"the state must be of a loader with {name}={mine}, got {name}={its}")
        self.epoch, self._step, self._resumed = state["epoch"], state["step"], True

    def _identity(self) -> dict[str, int]:
        return {
            "rows": self.rows,
            "row_groups": len(self._source.group_rows),
            "batch_size": self.batch_size,
            "ranks": self._ranks,
            "seed": self._seed if self._shuffle else -1,
            "window_steps": len(self._windows[0]),
        }

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self._resumed:
            self.epoch, self._step = self.epoch + 1, 0
        self._resumed = False
        return self._iterate(self.epoch, self._step)

    def _iterate(self, epoch: int, start: int) -> Iterator[dict[str, Any]]:
        loop = object()
        due = [steps for steps in self._windows if steps.stop > start]
        windows = _Ahead(self._read(epoch, due), self._prefetch + 1)
        try:
            for steps in due:
                window, is_next_begun = windows.take(), False
                assert window is not None
                shares = [self._plan.share(step, self._rank) for step in steps]
                batch: dict[str, Any] = {}
                for step, share, own in zip(steps, shares, window.batches([it.samples for it in shares]), strict=True):
                    # Where this rank has no share of the last batch, a row of the one before is a stand-in.
                    batch = own if share.samples else {name: values[:1] for name, values in batch.items()}
                    if step < start:
                        continue
                    self._step = step + 1
                    moved = to_device(batch, self._device)
                    latest.give(loop, share, moved)
                    yield moved
                    if not is_next_begun:  # whoever asks for a second batch has let go of the window before this one
                        windows.begin_another()
                        is_next_begun = True
        finally:
            latest.end(loop)
            windows.close()

    def _read(self, epoch: int, windows: list[range]) -> Generator[Window]:
        """Read the windows of this rank in turn, from the first to the end of the epoch."""
        plan, rank = self._plan, self._rank
        start, stop = plan.run(rank)
        begin = start + plan.rows_before(windows[0].start if windows else plan.steps, rank)
        pieces = plan.pieces(plan.order(self._seed if self._shuffle else None, epoch), begin, stop)
        batches = _ahead(self._source.read(iter(pieces), [column.name for column in self.columns], self._read_rows), 1)
        places = (self._places(epoch, steps) for steps in windows)
        is_cuda = self._device.type == "cuda"
        return fill_windows(batches, self.columns, places, sparse=self._sparse, pinned=is_cuda)

    def _places(self, epoch: int, steps: range) -> Positions:
        """Return the position of each row in its window, in the order of reading."""
        start, stop = (self._plan.rows_before(step, self._rank) for step in (steps.start, steps.stop))
        if not self._shuffle:
            return np.arange(stop - start)
        return np.random.default_rng([self._seed, epoch, self._rank, steps.start]).permutation(stop - start)


def check_fits(columns: Sequence[Column], rows: int) -> None:
    """Check that this machine's memory can hold a batch of ``rows`` rows, with all zeros of its vectors."""
    largest = max(columns, key=row_bytes)
    size, memory = rows * sum(map(row_bytes, columns)), _memory()
    if size > memory:
        raise DataError(
            f"a batch must fit in {memory / 2**30:.1f} GiB of memory, got {size / 2**30:.1f} GiB for {rows} rows with "
            f"{math.prod(largest.shape or ())} numbers in column {largest.name!r}; use smaller batches or fewer "
            "features"
        )


def _memory() -> int:
    """Return the bytes of memory of this machine, or of the container of this process."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):  # there is no such file, or it says "max"
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found)


def _wanted(columns: Sequence[str | Column] | None, source: RowSource, fractions: str) -> tuple[Column, ...]:
    """Return the requested columns, in order; all if ``columns`` is None."""
    if columns is None:
        return columns_of_arrow(source.schema, fractions=fractions)
    if isinstance(columns, str) or not columns:
        raise ConfigError(f"columns must be a list, got {columns!r}; use [{columns or 'features'!r}]")
    names = [column if isinstance(column, str) else column.name for column in columns]
    for name in names:
        if name in source.partitions and name not in source.schema.names:
            raise DataError(
                f"column {name!r} must be in the files, got it only in names of directories ({name}=...) written by "
                "partitionBy; write the rows without partitionBy, or partition by a copy of the column"
            )
    check_names(names, source.schema.names)
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"columns must have different names, got {name!r} {count} times; use it once")
    by_name = iter(columns_of_arrow(source.schema, [it for it in columns if isinstance(it, str)], fractions))
    return tuple(next(by_name) if isinstance(it, str) else it for it in columns)


class _Ahead(Generic[T]):
    """Items that a thread makes in advance, ``count`` at first; an error is raised at the position of its item."""

    def __init__(self, items: Generator[T], count: int) -> None:
        self._items = items
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="parquet-loader")
        self._due: deque[Future[T | None]] = deque()
        for _ in range(count):
            self.begin_another()

    def begin_another(self) -> None:
        """Request one more item from the thread."""
        self._due.append(self._pool.submit(next, self._items, None))

    def take(self) -> T | None:
        """Wait for the next item; None after the last."""
        return self._due.popleft().result()

    def close(self) -> None:
        """End the thread and the generator of items."""
        self._pool.shutdown(cancel_futures=True)
        self._items.close()


def _ahead(items: Generator[T], count: int) -> Generator[T]:
    """Yield the items, of which ``count`` are made in advance."""
    ahead = _Ahead(items, count + 1)
    try:
        while (item := ahead.take()) is not None:
            ahead.begin_another()
            yield item
    finally:
        ahead.close()
