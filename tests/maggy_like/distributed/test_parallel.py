"""Training with any number of ranks is training with one."""

from __future__ import annotations

import contextlib
import copy
import io
import math
import os
import random
import tempfile
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Sampler, TensorDataset

from maggy_like.distributed import parallel, rendezvous
from maggy_like.distributed.ddp import DataParallel
from maggy_like.distributed.loader import GlobalLoader, PrepareError, is_stand_in
from maggy_like.distributed.parallel import average, choose_backend, device, prepare, world_size

X = torch.linspace(-1, 1, 41 * 4).reshape(41, 4).sin()
DATA = TensorDataset(
    X, X.sum(1, keepdim=True).cos(), torch.arange(41)
)  # batches of 5 are split unevenly; the last has 1 sample
HELD_OUT = TensorDataset(X[:10] + 0.1, X[:10].sum(1, keepdim=True).cos())


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.head = nn.Linear(8, 1)
        self.register_buffer("scale", torch.rand(1) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)) * self.scale

    def loss_of(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return mse_loss(self(x), y)


class NumpyShuffle(Sampler[int]):
    """Draws from streams that torch does not know of."""

    def __iter__(self) -> Any:
        order = np.random.permutation(41).tolist()
        random.shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return 41


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _start(sampler: Sampler[int] | None = None, workers: int = 0) -> tuple[Any, ...]:
    """All that a training function makes, from another seed on each rank."""
    world = world_size()
    torch.manual_seed(5)
    if world > 1:
        prepare()
        torch.manual_seed(5 + 100 * _rank())
    np.random.seed(_rank())
    random.seed(_rank())
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    options: dict[str, Any] = {"sampler": sampler} if sampler else {"shuffle": True}
    train = DataLoader(DATA, 5, num_workers=workers, multiprocessing_context="fork" if workers else None, **options)
    return prepare(model, optimizer, schedule, train, DataLoader(HELD_OUT, 4))


def evaluate(model: nn.Module, loader: Any) -> float:
    total, samples = 0.0, 0
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            count = 0 if is_stand_in() else len(x)
            total += mse_loss(model(x), y).item() * count
            samples += count
    model.train()
    return average({"loss": total / max(samples, 1)}, samples)["loss"]


def train(sampler: Sampler[int] | None = None, workers: int = 0, between: bool = False) -> dict[str, Any]:
    """Three epochs of plain training code."""
    model, optimizer, schedule, loader, held_out = _start(sampler, workers)
    before = torch.get_rng_state()
    order: list[list[int]] = []
    losses = []
    for _ in range(3):
        for x, y, index in loader:
            order.append([] if is_stand_in() else index.tolist())
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            if between:
                evaluate(model, held_out)
            loss.backward()
            optimizer.step()
        schedule.step()
        losses.append(evaluate(model, held_out))
    state = {name: value.tolist() for name, value in model.state_dict().items()}
    streams = {"before": before.tolist(), "after": torch.get_rng_state().tolist()}
    return {"state": state, "order": order, "losses": losses, "streams": streams}


def accumulate(sync: bool) -> dict[str, Any]:
    """Steps over the gradients of three batches; the last has 5, 5 and 1 samples."""
    model, optimizer, _, loader, _ = _start()
    for number, (x, y, _) in enumerate(loader):
        hold_back = not sync and number % 3 < 2 and isinstance(model, DataParallel)
        with model.no_sync() if hold_back else torch.enable_grad():
            (mse_loss(model(x), y) / 3).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return {"state": {name: value.tolist() for name, value in model.state_dict().items()}}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": train,
    "evaluating between forward and backward": lambda: train(between=True),
    "another library's stream": lambda: train(NumpyShuffle()),
    "loader workers": lambda: train(workers=1),
    "accumulating with no_sync": lambda: accumulate(sync=False),
    "accumulating without": lambda: accumulate(sync=True),
}


def all_cases() -> dict[str, Any]:
    return {name: case() for name, case in CASES.items()}


def behaviour() -> dict[str, Any]:
    """What else is seen on two ranks."""
    model, optimizer, schedule, loader, _ = _start()
    torch.manual_seed(5)  # all ranks load the same weights
    raw = Network()
    names = [
        [
            list(it.state_dict()),
            *([n for n, _ in named] for named in (it.named_parameters(), it.named_buffers())),
            *([n for n, _ in named] for named in (it.named_modules(), it.named_children())),
        ]
        for it in (model, raw)
    ]
    seen: dict[str, Any] = {
        "types": [type(model).__name__, type(optimizer).__name__, type(schedule).__name__, type(loader).__name__],
        "is module": isinstance(model, nn.Module),
        "names": names,
        "falls through": model.head is model.module.head,
        "loads": str(model.load_state_dict(raw.state_dict())),
        "in a container": list(nn.ModuleDict({"net": model}).state_dict()),
        "prepared twice": prepare(model) is model and prepare(loader) is loader,
    }
    assert not any(part.training for part in model.eval().module.modules())
    assert all(part.training for part in model.train().module.modules())
    with pytest.raises(AttributeError, match="no attribute 'tail'"):
        _ = model.tail
    with pytest.raises(PrepareError, match="must get the original module, got one wrapped"):
        prepare(DistributedDataParallel(Network()))
    x, y, _ = next(iter(loader))
    with pytest.raises(RuntimeError, match="method of Network"):
        model.loss_of(x, y).backward()

    twin = copy.deepcopy(model)
    seen["copies"] = [_gradient(it, x, y) for it in (model, twin)]

    frozen = prepare(Network().requires_grad_(False))
    seen["frozen"] = [type(frozen).__name__, frozen.head.bias.tolist(), frozen.scale.tolist()]

    rank = _rank()
    values: Mapping[str, Any] = {"a": torch.tensor([rank + 1.0]), "b": math.nan if rank else 2}
    reverse = dict(reversed(values.items())) if rank else values
    seen["average"] = [average(reverse, 1 - rank), average(values, 3 - rank)["a"], average(values)["b"]]
    seen["average of nothing"] = average(values, 0)
    with pytest.raises(ValueError, match="must get the same names on all ranks, got y on rank 0 and x on rank 1"):
        average({"x" if rank else "y": 1.0})
    with pytest.raises(ValueError, match="got a, b on rank 0 and none on rank 1"):
        average({} if rank else {"a": 1.0, "b": 2.0})
    return seen


def _gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    model.zero_grad()
    mse_loss(model(x), y).backward()
    return [number for p in model.parameters() if p.grad is not None for number in p.grad.flatten().tolist()]


def two_ranks() -> tuple[dict[str, Any], dict[str, Any]]:
    return all_cases(), behaviour()


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):
        return all_cases()


@pytest.fixture(scope="module")
def pair(run_ranks: Any) -> Any:
    return run_ranks(two_ranks, 2)


@pytest.fixture(scope="module")
def gangs(run_ranks: Any, pair: Any) -> dict[int, list[dict[str, Any]]]:
    return {2: [cases for cases, _ in pair], 3: run_ranks(all_cases, 3)}


@pytest.mark.e2e
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_weights_are_those_of_one_process(
    alone: dict[str, Any], gangs: dict[int, list[dict[str, Any]]], ranks: int, name: str
) -> None:
    for gang in gangs[ranks]:
        for key, value in alone[name]["state"].items():
            torch.testing.assert_close(torch.tensor(gang[name]["state"][key]), torch.tensor(value), atol=1e-5, rtol=0)


@pytest.mark.e2e
@pytest.mark.parametrize("ranks", [2, 3])
def test_losses_order_and_streams_are_those_of_one_process(
    alone: dict[str, Any], gangs: dict[int, list[dict[str, Any]]], ranks: int
) -> None:
    for name in ("plain", "another library's stream", "loader workers"):
        one, gang = alone[name], [cases[name] for cases in gangs[ranks]]
        for other in gang:
            assert other["losses"] == pytest.approx(one["losses"], abs=1e-5)
        shares = zip(*(other["order"] for other in gang), strict=True)
        assert [[i for share in batch for i in share] for batch in shares] == one["order"]
        assert gang[0]["streams"] == one["streams"]
        for other in gang[1:]:
            assert other["streams"]["before"] == other["streams"]["after"] != gang[0]["streams"]["before"]


@pytest.mark.e2e
def test_the_wrapped_model_hides_itself(pair: Any) -> None:
    for seen in (seen for _, seen in pair):
        assert seen["types"] == ["DataParallel", "SGD", "ExponentialLR", "GlobalLoader"]
        assert seen["is module"]
        assert seen["names"][0] == seen["names"][1]
        assert seen["falls through"]
        assert seen["loads"] == "<All keys matched successfully>"
        assert seen["in a container"] == [f"net.{key}" for key in seen["names"][1][0]]
        assert seen["prepared twice"]
        assert seen["copies"][0] == seen["copies"][1] == pair[0][1]["copies"][0]
    assert pair[0][1]["frozen"] == pair[1][1]["frozen"]
    assert pair[0][1]["frozen"][0] == "Network"


@pytest.mark.e2e
def test_averages_are_weighted_and_leave_out_what_weighs_nothing(pair: Any) -> None:
    for _, seen in pair:
        first, second, third = seen["average"]
        assert first == {"a": 1.0, "b": 2.0}
        assert second == pytest.approx((1 * 3 + 2 * 2) / 5)
        assert math.isnan(third)
        assert all(math.isnan(value) for value in seen["average of nothing"].values())


def test_alone_everything_comes_back_as_it_is() -> None:
    model, loader = Network(), DataLoader(DATA, 8)
    optimizer = torch.optim.SGD(model.parameters())
    assert prepare(model) is prepare(model, find_unused_parameters=True) is model
    prepared = prepare(model, optimizer, loader, "schedule")
    assert [a is b for a, b in zip(prepared, (model, optimizer, loader, "schedule"), strict=True)] == [True] * 4
    assert device() == torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def test_containers_are_refused_with_one_rank_too() -> None:
    model = Network()
    for container in ([model], (3, torch.optim.SGD(model.parameters()))):
        with pytest.raises(PrepareError, match=rf"a {type(container).__name__} with .* prepare\(\*them\)"):
            prepare(container, model)
    with pytest.raises(PrepareError, match=r"a dict with a DataLoader.* prepare\(\*them.values\(\)\)"):
        prepare({"train": DataLoader(DATA)})
    assert prepare([1, 2], {"a": 3}) == ([1, 2], {"a": 3})


def test_parameters_that_the_optimizer_lost_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.distributed.parallel.device", lambda: torch.device("meta"))
    model = Network()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(PrepareError, match="SGD must have its parameters on meta, got cpu"):
        prepare(optimizer, model)  # torch makes new parameters on this device
    assert model.head.weight.is_meta
    optimizer = torch.optim.SGD(model.parameters())
    assert prepare(optimizer, model) == (optimizer, model)
    assert type(prepare(DataLoader(DATA))) is GlobalLoader


@pytest.mark.gpu
def test_one_rank_on_a_gpu_goes_on_from_a_state_of_the_cpu() -> None:
    model = Network()
    optimizer = torch.optim.Adam(model.parameters())
    model(X).sum().backward()
    optimizer.step()
    optimizer, model, loader = prepare(optimizer, model, DataLoader(DATA, 8))
    state = optimizer.state[model.head.weight]
    assert state["exp_avg"].is_cuda
    for x, y, _ in loader:
        assert x.is_cuda
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    assert state["step"].item() == 7


def test_average_alone() -> None:
    assert average({"loss": torch.tensor([0.25]), "n": 3}, 0.5) == {"loss": 0.25, "n": 3.0}
    assert list(average({"b": 1.0, "a": 1.0})) == ["b", "a"]
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="weight"):
            average({"loss": 1.0}, weight)


@pytest.mark.parametrize(
    ("devices", "backend"),
    [
        (["a", "b", "c"], "cpu:gloo,cuda:nccl"),
        (["a", "b", "a"], "gloo"),
        (["a", "b", ""], "gloo"),
        (["", ""], "gloo"),
    ],
)
def test_nccl_where_each_rank_has_a_device_of_its_own(devices: list[str], backend: str) -> None:
    assert choose_backend(devices) == backend


@pytest.mark.parametrize(
    ("has_returned", "message"),
    [
        (True, "rank 1 returned without a call"),
        (False, r"prepare\(\) or average\(\) at about the same time, and rank 1 did not"),
    ],
)
def test_a_rank_that_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch, has_returned: bool, message: str) -> None:
    monkeypatch.setattr(parallel, "USUAL_WAIT", timedelta(milliseconds=1))
    monkeypatch.setattr(parallel, "LONGEST_WAIT", timedelta(0))
    store = dist.HashStore()
    names = dist.PrefixStore("names", store)
    names.set("0", "")
    if has_returned:
        store.set("maggy/left/1", "")
    with pytest.raises(RuntimeError, match=message):
        parallel._wait_for_all(names, store, 2)
    names.set("1", "")
    parallel._wait_for_all(names, store, 2)


def late_for_an_average() -> str:
    """What rank 0 prints while it waits in a mean for rank 1, which takes part once that is printed."""
    prepare()
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    if _rank():
        store.wait(["printed"])
        return str(average({"loss": 2.0}))

    class Output(io.StringIO):
        def write(self, text: str) -> int:
            store.set("printed", "")
            return super().write(text)

    with contextlib.redirect_stdout(Output()) as output, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendezvous, "MEETING_PATIENCE", timedelta(0))
        average({"loss": 1.0})
    return output.getvalue()


def averages_once_more() -> str:
    """The error of rank 0, which calls ``average()`` more often than rank 1. In between, both use a collective."""
    prepare()
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    for _ in range(2):
        average({"loss": 1.0})
        dist.all_reduce(torch.ones(3))
    if _rank():
        store.set("maggy/left/1", "")
        store.wait(["raised"])
        return ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "EXCHANGE_WAIT", timedelta(milliseconds=1))
        with pytest.raises(RuntimeError) as error:
            average({"loss": 1.0})
    store.set("raised", "")
    return str(error.value)


def waits_for_an_average() -> bytes:
    """What rank 0 and torch's C++ code write to stderr while it waits for rank 1, which comes once rank 0 looks why."""
    prepare()
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    if _rank():
        store.wait(["looked"])
        average({"loss": 1.0})
        return b""

    def look(*_: Any) -> list[int]:
        store.set("looked", "")
        return []

    with tempfile.TemporaryFile() as written, pytest.MonkeyPatch.context() as patch:
        os.dup2(written.fileno(), 2)
        patch.setattr(parallel, "EXCHANGE_WAIT", timedelta(milliseconds=1))
        patch.setattr(parallel, "returned_ranks", look)
        average({"loss": 1.0})
        written.seek(0)
        return written.read()


@pytest.mark.e2e
def test_a_rank_that_waits_for_another_in_an_average_prints_nothing(run_ranks: Any) -> None:
    assert run_ranks(waits_for_an_average, 2) == [b"", b""]


@pytest.mark.e2e
def test_a_rank_that_averages_more_often_gets_an_error(run_ranks: Any) -> None:
    assert "rank 1 returned after fewer calls than the 3 of rank 0" in run_ranks(averages_once_more, 2)[0]


@pytest.mark.e2e
def test_a_rank_that_waits_long_for_the_others_mentions_it(run_ranks: Any) -> None:
    line, mean = run_ranks(late_for_an_average, 2)
    assert line.startswith("this rank has waited for the others in average() for 0 s; all ranks must call")
    assert mean == "{'loss': 1.5}"
