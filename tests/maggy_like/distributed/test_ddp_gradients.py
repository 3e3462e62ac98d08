"""Which gradients are averaged over the ranks, and by which weights, however autograd is asked for them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from small_network import DATA, Network, X, numbers, train_step
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from maggy_like.distributed.ddp import DataParallel
from maggy_like.distributed.parallel import prepare


class Branches(nn.Module):
    """Two layers, one of which a call may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        return self.left(x) + self.right(x) if both else self.left(x)


class Heads(nn.Module):
    """Two layers, of which each has a result of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.actor(x), self.critic(x)


class Recomputed(nn.Module):
    """Two layers, the last of which computes its result again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.head, self.body(x).tanh(), use_reentrant=True)


def kept_batches() -> list[float]:
    """Batches of a list, of a cycle, and of a loader that is one ahead; each time the last one is the smallest."""
    torch.manual_seed(3)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = prepare(model, optimizer, DataLoader(DATA, 5))
    kept = list(loader)
    for x, y in kept[::-1]:
        train_step(model, optimizer, x, y)
    for x, y in itertools.islice(itertools.cycle(loader), 9):
        train_step(model, optimizer, x, y)
    batches = iter(loader)
    batch = next(batches, None)
    while batch is not None:
        following = next(batches, None)
        train_step(model, optimizer, *batch)
        batch = following
    return numbers(model.parameters())


def half_averaged(rank: int) -> dict[str, Any]:
    """What is told of gradients that DDP would not average, beside two backwards in turn, of which it averages both."""
    told: dict[str, Any] = {}
    x = X[rank::2][:10]

    torch.manual_seed(3)
    model, optimizer = (it := prepare(Network())), prepare(torch.optim.SGD(it.parameters(), lr=0.1))
    for _ in range(2):
        model(x).mean().backward()
    optimizer.step()
    told["in turn"] = numbers(model.parameters())

    loss = model(x).mean()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError) as caught:
        loss.backward()
    told["again"] = str(caught.value)

    model = prepare(Network())
    first, second = model(x).mean(), model(2 * x).mean()
    first.backward()
    with pytest.raises(RuntimeError, match=r"must be called once after one forward of Network, got a second call"):
        second.backward()

    model, optimizer = (it := prepare(Branches())), prepare(torch.optim.SGD(it.parameters(), lr=0.1))
    for both in (True, False):
        optimizer.zero_grad()
        model(x, both).mean().backward()
        if both:
            optimizer.step()
    with pytest.raises(RuntimeError, match="Expected to have finished reduction") as unused:
        optimizer.step()
    told["notes"] = unused.value.__notes__
    wrapped = prepare(DataParallel(Branches(), find_unused_parameters=True))
    optimizer = prepare(torch.optim.SGD(wrapped.parameters(), lr=0.1))
    for both in (True, False):
        wrapped(x, both).mean().backward()
        optimizer.step()
    return told


def averaged(rank: int) -> list[float]:
    """Gradients that DDP averages, though autograd is asked several times after one forward."""
    x = X[rank::2][:10]
    found = []

    model = prepare(Network())  # a weight between two losses, by their gradients at the last layer
    output = model(x)
    first, second = output.mean(), output.square().mean()
    norms = [torch.autograd.grad(loss, model.head.weight, retain_graph=True)[0].norm() for loss in (first, second)]
    (first + second * (norms[0] / norms[1]).detach()).backward()
    found += numbers(parameter.grad for parameter in model.parameters())

    heads = prepare(Heads())  # two losses, over parameters of their own
    a, b = heads(x)
    a.mean().backward()
    b.square().mean().backward()
    found += numbers(parameter.grad for parameter in heads.parameters())

    model = prepare(Recomputed())  # activations of the last layer are computed again in the backward
    model(x.clone().requires_grad_()).mean().backward()
    found += numbers(parameter.grad for parameter in model.parameters())
    return found


def two_ranks() -> dict[str, Any]:
    prepare()
    rank = torch.distributed.get_rank()
    return {"kept": kept_batches(), "half averaged": half_averaged(rank), "averaged": averaged(rank)}


@pytest.fixture(scope="module")
def pair(run_ranks: Any) -> Any:
    return run_ranks(two_ranks, 2)


@pytest.mark.e2e
def test_batches_that_are_kept_or_drawn_ahead_are_trained_as_on_one_rank(pair: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        alone = kept_batches()
    assert pair[0]["kept"] == pair[1]["kept"]
    assert pair[0]["kept"] == pytest.approx(alone, abs=1e-6)


@pytest.mark.e2e
def test_gradients_that_would_not_be_averaged_are_refused(pair: Any) -> None:
    first, second = (seen["half averaged"] for seen in pair)
    assert first["in turn"] == second["in turn"]
    assert first["again"].startswith("backward() must be called once after one forward of Network, got a second call")
    assert "DataParallel(model, find_unused_parameters=True)" in first["notes"][-1]


@pytest.mark.e2e
def test_gradients_of_several_calls_of_autograd_are_averaged_where_each_comes_once(pair: Any) -> None:
    assert pair[0]["averaged"] == pair[1]["averaged"]
