"""Global batches and their shares."""

from __future__ import annotations

import contextlib
import gc
import random
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from maggy_like.distributed.loader import (
    WHOLE,
    GlobalLoader,
    PrepareError,
    Share,
    is_stand_in,
    latest,
    share_of,
    to_device,
)

CPU, META = torch.device("cpu"), torch.device("meta")
DATA = TensorDataset(torch.arange(21))


@given(total=st.integers(1, 200), ranks=st.integers(1, 17))
def test_shares_hold_every_sample_once_in_order_and_are_even(total: int, ranks: int) -> None:
    shares = [share_of(total, rank, ranks) for rank in range(ranks)]
    assert [i for start, stop in shares for i in range(start, stop)] == list(range(total))
    sizes = [stop - start for start, stop in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sum(Share(size, total, ranks).weight for size in sizes) == pytest.approx(ranks)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4, "shuffle": True},
        {"batch_size": 4, "shuffle": True, "drop_last": True},
        {"batch_size": 5, "sampler": WeightedRandomSampler([1.0] * 21, 40)},
        {"batch_sampler": BatchSampler(RandomSampler(DATA, replacement=True), 3, False)},
    ],
)
def test_order_and_random_stream_are_those_of_the_plain_loader(options: dict[str, Any]) -> None:
    plain = DataLoader(DATA, **options)
    ours = GlobalLoader(plain, CPU, 0, 1)
    seen = []
    for loader in (plain, ours):
        torch.manual_seed(3)
        seen.append([[batch[0].tolist() for batch in loader] for _ in range(2)] + [torch.rand(1).item()])
    assert seen[0] == seen[1]
    assert seen[0][0] != seen[0][1]
    assert (len(ours), ours.batch_size, ours.drop_last) == (len(plain), plain.batch_size, plain.drop_last)
    assert ours.sampler is plain.sampler
    assert ours.dataset is plain.dataset


def test_settings_are_kept() -> None:
    generator = torch.Generator().manual_seed(1)
    settings = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True, "timeout": 5.0, "collate_fn": len}
    settings |= {"worker_init_fn": print, "generator": generator, "multiprocessing_context": "spawn"}
    ours = GlobalLoader(DataLoader(DATA, 4, **settings), CPU, 0, 1)  # type: ignore[arg-type]
    assert ours.multiprocessing_context.get_start_method() == settings.pop("multiprocessing_context")
    assert {name: getattr(ours, name) for name in settings} == settings


def test_two_iterations_of_one_loader_at_a_time() -> None:
    loader = GlobalLoader(DataLoader(DATA, 4), CPU, 0, 1)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(loader, loader, strict=True))
    assert sum(1 for _ in loader) == 6


def test_an_endless_sampler_is_drawn_as_it_goes() -> None:
    class Endless(Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            draw = random.Random(0)
            while True:
                yield [draw.randrange(21), draw.randrange(21)]

    plain = DataLoader(DATA, batch_sampler=Endless())
    ours = GlobalLoader(plain, CPU, 0, 1)
    pairs = zip(range(1000), plain, ours, strict=False)
    assert all(torch.equal(a[0], b[0]) for _, a, b in pairs)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class Own(DataLoader[Any]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(Stream()), "IterableDataset"),
        (DataLoader(DATA, batch_size=None), "must have a batch_size, got None"),
        (DataLoader(DATA, sampler=DistributedSampler(DATA, 2, 0)), "DistributedSampler"),
        (
            DataLoader(DATA, batch_sampler=BatchSampler(DistributedSampler(DATA, 2, 0), 4, False)),
            "DistributedSampler",
        ),
        (Own(DATA), "got Own with its own iteration"),
    ],
)
def test_loaders_without_global_batches_are_refused(loader: DataLoader[Any], message: str) -> None:
    with pytest.raises(PrepareError, match=message):
        GlobalLoader(loader, CPU, 0, 1)


def test_batches_go_to_the_device() -> None:
    pair = namedtuple("pair", ["x", "y"])
    tensor = torch.zeros(2)
    batch = {"a": [tensor, 3], "b": pair(tensor, "text"), "c": UserDict(d=(tensor,)), "module": torch.nn.Linear(1, 1)}
    moved = to_device(batch, META)
    assert moved["a"][0].is_meta
    assert moved["a"][1] == 3
    assert moved["b"].x.is_meta
    assert moved["b"].y == "text"
    assert type(moved["c"]) is UserDict
    assert moved["c"]["d"][0].is_meta
    assert not tensor.is_meta
    assert not batch["c"]["d"][0].is_meta  # type: ignore[index]
    assert moved["module"].weight.is_meta
    assert to_device(batch, CPU) is batch


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> int:
        return index**2


def test_loaders_yield_on_the_device() -> None:
    batches = list(GlobalLoader(DataLoader(Squares(), 4), META, 0, 1))
    assert [(len(batch), batch.is_meta) for batch in batches] == [(4, True)] * 5 + [(1, True)]
    assert not is_stand_in()


def loader_of(batch_size: int) -> GlobalLoader:
    return GlobalLoader(DataLoader(DATA, batch_size), CPU, 0, 1)


def run_through(loader: GlobalLoader) -> None:
    assert len(list(loader)) == len(loader)


def leave_early(loader: GlobalLoader) -> None:
    for number, _ in enumerate(loader):
        if number == 1:
            break


def fail_within(loader: GlobalLoader) -> None:
    with contextlib.suppress(LookupError):
        for _ in loader:
            raise LookupError


def nest(loader: GlobalLoader) -> None:
    for (batch,) in loader:
        leave_early(loader_of(2))
        assert latest.share.total == len(batch)


@pytest.mark.parametrize("evaluate", [run_through, leave_early, fail_within, nest])
def test_a_loop_within_a_loop_leaves_the_share_of_the_outer_batch(evaluate: Callable[[GlobalLoader], None]) -> None:
    seen = []
    for (batch,) in loader_of(4):
        evaluate(loader_of(3))
        seen.append((len(batch), latest.share.total))
    assert seen == [(4, 4)] * 5 + [(1, 1)]
    assert latest.share is WHOLE


def test_an_iterator_that_is_held_counts_when_it_was_used_last_and_until_it_is_closed() -> None:
    held = iter(loader_of(3))
    for (batch,) in loader_of(4):
        if len(batch) == 4:
            next(held)
            assert latest.share.total == 3
    assert latest.share.total == 3  # its loop goes on
    for (batch,) in loader_of(4):
        assert latest.share.total == len(batch)
        held = iter(())  # the iterator is closed in the middle of another loop
        assert latest.share.total == len(batch)
    assert list(held) == []
    assert latest.share is WHOLE


def test_an_iterator_that_the_garbage_collector_closes_late_changes_nothing() -> None:
    gc.freeze()  # so that a collection looks at what is made here alone
    for (batch,) in loader_of(4):
        circle = [iter(loader_of(3))]
        next(circle[0])
        circle.append(circle)  # type: ignore[arg-type]
        del circle
        loop = iter(loader_of(2))
        next(loop)
        gc.collect()
        assert latest.share.total == 2
        del loop
        assert latest.share.total == len(batch)
    gc.unfreeze()
    assert latest.share is WHOLE
