"""A loader of global batches, of which each rank receives its share."""

from __future__ import annotations

import copy
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Sampler
from torch.utils.weak import WeakIdKeyDictionary

from maggy_like.distributed.rendezvous import meeting

_CALM = 0.005
"""Seconds between the last communication of the ranks and the fork of loader workers. A thread of gloo that releases
it at that moment holds a lock of Python, and a child forked meanwhile waits for the lock forever (Python 3.11)."""

_CHUNK = 256  # batches whose order the ranks agree on at once: few messages, and endless samplers work


class PrepareError(ValueError):
    """An object cannot be prepared for several ranks or a device."""


class Share(NamedTuple):
    """A rank's share of a global batch."""

    samples: int = 1  # number of samples that count on this rank; 0 if the rank received a repeated one
    total: int = 1  # number of samples of the global batch
    ranks: int = 1  # number of ranks that share it

    @property
    def weight(self) -> float:
        """Factor that makes the mean over ranks of means over shares the mean over the global batch."""
        return self.samples * self.ranks / self.total


WHOLE = Share()


class _Latest:
    """The share that counts now: the last one yielded by a loop over a prepared loader that has not ended.

    Loops may be nested or interleaved. When one ends, the batch of the other counts again. A batch that was kept or
    drawn ahead is recognized by its tensors.
    """

    def __init__(self) -> None:
        self._shares: dict[object, Share] = {}  # by loop, in the order of being given
        self._batches = WeakIdKeyDictionary()  # tensors of batches, as they were yielded, with their shares

    @property
    def share(self) -> Share:
        """The current share; :data:`WHOLE` outside of prepared loaders."""
        return (WHOLE, *self._shares.values())[-1]

    def give(self, loop: object, share: Share, batch: Any) -> None:
        """Record a batch that a loop yields."""
        self._shares.pop(loop, None)
        self._shares[loop] = share
        if share.ranks > 1:
            for tensor in tensors_in(batch):
                self._batches[tensor] = share

    def share_of(self, *inputs: Any) -> Share:
        """Return the share of the batch with one of the tensors in ``inputs``, or else the current share."""
        known = (self._batches.get(tensor) for tensor in tensors_in(inputs))  # type: ignore[no-untyped-call]
        return next((share for share in known if share is not None), self.share)

    def end(self, loop: object) -> None:
        """Record that a loop has ended, or was left."""
        self._shares.pop(loop, None)


latest = _Latest()


def is_stand_in() -> bool:
    """Whether the last batch of a prepared loader is a repeated sample that must not count.

    If a global batch has fewer samples than ranks, some ranks have none. They receive its first sample, so that no rank
    skips a collective or takes a mean over nothing. Its gradients have no weight. Leave it out of metrics too.
    """
    return latest.share.samples == 0


@runtime_checkable
class Shareable(Protocol):
    """A loader that distributes itself over ranks, as :class:`maggy_like.ml.ParquetLoader` does."""

    def share_out(self, device: torch.device, rank: int, ranks: int) -> Any:
        """Return the loader of a rank, with batches on a device."""


class GlobalLoader(DataLoader[Any]):
    """Yield this rank's share of each batch of another loader, on a device.

    The batches are those that a single process would draw. Rank 0 draws them from the loader's sampler and sends their
    indices to the others, whose random streams do not change. A batch of 32 is split over three ranks into 11, 11 and
    10 samples, in order. A rank without a sample receives a repeated one (see :func:`is_stand_in`).

    ``len``, ``batch_size``, ``sampler``, ``drop_last`` and ``dataset`` are those of the given loader, so
    ``loader.sampler.set_epoch(n)`` works. Every rank must iterate it, must leave a loop after the same batch, and must
    create an identical dataset.

    Raises:
        PrepareError: The loader has no global batches to split.
    """

    def __init__(self, loader: DataLoader[Any], device: torch.device, rank: int, ranks: int) -> None:
        _check(loader)
        self._device = device
        self._rank = rank  # rank of this process, from 0
        self._epoch = 0
        # Workers of other ranks must not augment as rank 0's do, nor draw from the random streams of their ranks.
        generator = loader.generator if rank == 0 else torch.Generator()
        self._shares = _Shares(loader.batch_sampler, rank, ranks)
        super().__init__(
            loader.dataset,
            batch_sampler=self._shares,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            pin_memory_device=loader.pin_memory_device,
        )  # in_order stays true: each rank would have another order
        for name in ("batch_size", "sampler", "drop_last"):  # DataLoader refuses to set them, since it has no effect
            object.__setattr__(self, name, getattr(loader, name))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self.num_workers and self._shares.ranks > 1:
            self._epoch += 1
            if self._rank:
                seed = torch.initial_seed() + self._rank + self._epoch * self._shares.ranks
                self.generator.manual_seed(seed % (1 << 63))
            time.sleep(_CALM)
        batches = super().__iter__()
        return self._yield(batches, self._shares.drawn)

    def _yield(self, batches: Iterator[Any], drawn: deque[Share]) -> Iterator[Any]:
        loop = object()
        try:
            for batch in batches:
                moved = to_device(batch, self._device)
                latest.give(loop, drawn.popleft(), moved)
                yield moved
        finally:  # also where it was left by break: Python closes a generator without references
            latest.end(loop)


class _Shares(Sampler[list[Any]]):
    """A batch sampler that yields this rank's share of another sampler's batches."""

    def __init__(self, batches: Any, rank: int, ranks: int) -> None:
        self._batches = batches
        self._rank = rank
        self.ranks = ranks  # number of ranks
        self.drawn: deque[Share] = deque()  # of the newest iteration: drawn, possibly ahead, but not yielded yet

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[Any]]:
        self.drawn = deque()
        return self._draw(self.drawn)

    def _draw(self, drawn: deque[Share]) -> Iterator[list[Any]]:
        batches = iter(self._batches) if self._rank == 0 else iter(())
        while True:
            chunk = [list(batch) for batch in itertools.islice(batches, _CHUNK)]
            if self.ranks > 1:
                chunk = _from_rank_0(chunk)
            for batch in chunk:
                start, stop = share_of(len(batch), self._rank, self.ranks)
                drawn.append(Share(stop - start, len(batch), self.ranks))
                yield batch[start:stop] or batch[:1]
            if len(chunk) < _CHUNK:
                return


def share_of(total: int, rank: int, ranks: int) -> tuple[int, int]:
    """Return the first and past-the-last sample of a rank's share. Shares differ by at most one sample."""
    size, more = divmod(total, ranks)
    start = rank * size + min(rank, more)
    return start, start + size + (rank < more)


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a batch, through mappings, lists and tuples."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_in(part)


def to_device(batch: Any, device: torch.device) -> Any:
    """Move all parts of a batch with a ``to`` method, through mappings, lists and tuples."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        moved: Any = copy.copy(batch)
        for key, value in batch.items():
            moved[key] = to_device(value, device)
        return moved
    if isinstance(batch, list | tuple):
        values = [to_device(value, device) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return batch


def _check(loader: DataLoader[Any]) -> None:
    """Check that a loader has global batches to split; the error has the remedy."""
    by_hand = "leave the loader out of prepare(), and move this rank's part to its device yourself"
    if isinstance(loader.dataset, IterableDataset):
        raise PrepareError(
            f"the loader must have a dataset with indices, got {type(loader.dataset).__name__}, an IterableDataset; "
            f"use another dataset, or {by_hand}"
        )
    if not isinstance(loader.batch_sampler, Iterable):
        raise PrepareError(
            f"the loader must have a batch_size, got None, so there are no global batches to split; set it, or "
            f"{by_hand}"
        )
    for sampler in (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)):
        if isinstance(sampler, DistributedSampler):
            raise PrepareError(
                "the loader must not have a DistributedSampler, because prepare() would split each share again; use "
                "shuffle=True or a plain sampler, and the global batch size"
            )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise PrepareError(
            f"the loader must be a plain DataLoader, got {type(loader).__name__} with its own iteration; use "
            f"collate_fn to change batches, or {by_hand}"
        )


def _from_rank_0(value: Any) -> Any:
    """Return rank 0's ``value`` on every rank."""
    values = [value]
    with meeting("a prepared loader"):
        dist.broadcast_object_list(values, src=0)
    return values[0]
