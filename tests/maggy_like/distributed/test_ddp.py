"""What a training function may do with a prepared model, as with its own."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from small_network import DATA, Network, X, numbers, train_step
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from maggy_like.distributed.ddp import DataParallel
from maggy_like.distributed.loader import PrepareError
from maggy_like.distributed.parallel import prepare, world_size


def _run(model: nn.Module, loader: Any) -> None:
    for x, *_ in loader:
        model(x)


def freeze_and_unfreeze() -> list[float]:
    """Two epochs; what is trainable changes in the first, and a step in between leaves the model out."""
    torch.manual_seed(3)
    model = Network()
    model.body.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = prepare(model, optimizer, DataLoader(DATA, 5))
    for _ in range(2):
        for number, (x, y) in enumerate(loader):
            if number == 1:
                model.requires_grad_(False)
                model(x.clone().requires_grad_()).sum().backward()
                model.body.requires_grad_(True)
            if number == 3:
                model.requires_grad_(True)
            train_step(model, optimizer, x, y)
    twin = copy.deepcopy(model)
    train_step(twin, torch.optim.SGD(twin.parameters(), lr=0.1), X[:3], DATA.tensors[1][:3])
    return numbers([*model.parameters(), *twin.parameters()])


def evaluate_in_the_body() -> list[float]:
    """One epoch; between a batch and its forward, a loop over another loader runs to its end, or is left."""
    torch.manual_seed(3)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader, other = prepare(model, optimizer, DataLoader(DATA, 5), DataLoader(DATA, 3))
    for number, (x, y) in enumerate(loader):
        for seen, *_ in other:
            with torch.no_grad():
                model(seen)
            if number % 2:
                break
        train_step(model, optimizer, x, y)
    return numbers(model.parameters())


class Normaliser(nn.Module):
    """Multiplies by a buffer that it has just moved: the backward needs this rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1))
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.scale.copy_(0.5 * self.scale + x.detach().abs().mean())
        return self.layer(x) * self.scale


def own_buffers(rank: int) -> tuple[list[float], list[float]]:
    """Gradients of a step in which each rank has another buffer, and the buffers after it."""
    torch.manual_seed(1)
    model = prepare(Normaliser())
    model((1.0 + rank) * X[:4]).sum().backward()
    return numbers(parameter.grad for parameter in model.parameters()), numbers(model.buffers())


def freeze_between_forwards() -> list[float]:
    """One backward of two forwards, between which a layer is frozen; it may not be unfrozen there."""
    torch.manual_seed(4)
    model = Network()
    model, loader = prepare(model, DataLoader(DATA, 5))
    for x, y in loader:
        model.zero_grad()
        first = mse_loss(model(x), y)
        model.body.requires_grad_(False)
        second = mse_loss(model(2 * x), y)
        model.body.requires_grad_(True)
        (first + second).backward()
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad
    model.body.requires_grad_(False)
    first = model(X).sum()
    if world_size() > 1:
        model.body.requires_grad_(True)
        with pytest.raises(
            RuntimeError, match=r"unfrozen between a forward and its backward\(\).* before that forward"
        ):
            model(X)
    first.backward()
    return numbers(model.parameters())


def twice() -> None:
    """A model is prepared once, however often it is given; a part of it is not prepared besides."""
    plain = Network()
    model = prepare(plain)
    assert prepare(plain) is model
    assert prepare(model) is model
    with pytest.raises(PrepareError, match="parts of this Linear belong to a model that is prepared already"):
        prepare(plain.body)
    plain.body.requires_grad_(False)
    prepare(nn.Sequential(plain.body, nn.Linear(3, 1)))  # a frozen part may be shared


def strangers(rank: int) -> dict[str, str]:
    """What is told where an optimizer trains what no prepared model has."""
    told = {}

    def refused(what: str, optimizer: torch.optim.Optimizer) -> None:
        before = numbers(optimizer.param_groups[0]["params"])
        with pytest.raises(PrepareError) as caught:
            optimizer.step()
        assert numbers(optimizer.param_groups[0]["params"]) == before
        told[what] = str(caught.value)

    model = Network()
    optimizer = prepare(torch.optim.Adam(model.parameters()))
    mse_loss(model(X + rank), X[:, :1]).backward()
    refused("forgotten", optimizer)

    model = Network()
    optimizer = prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    model = prepare(model)  # in a call of its own, after the optimizer
    train_step(model, optimizer, X, X[:, :1])
    optimizer.add_param_group({"params": list(nn.Linear(1, 2).parameters())})
    refused("added", optimizer)

    model, optimizer = prepare(model, torch.optim.SGD([*model.parameters()], lr=0.1))
    frozen = prepare(Network().requires_grad_(False))
    optimizer.add_param_group({"params": list(frozen.parameters())})
    train_step(model, optimizer, X, X[:, :1])
    frozen.head.requires_grad_(True)
    model.body.requires_grad_(False)
    refused("unfrozen", optimizer)  # of as many parameters as before
    return told


def attributes() -> list[Any]:
    model = prepare(Network())
    plain = model(X[:1]).item()
    model.temperature = 2.0
    model.note = model.gone = "new"
    del model.gone
    assert not hasattr(model, "gone")
    assert not hasattr(model.module, "gone")
    model.head = model.head
    with pytest.raises(RuntimeError, match=r"head of a prepared Network must not be replaced.* before prepare\(\)"):
        model.head = nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match="head of"):
        model.head = None
    with pytest.raises(RuntimeError, match="extra of"):
        model.extra = nn.Parameter(torch.ones(1))
    twin = copy.deepcopy(model)
    twin.temperature = 4.0
    assert model(X[:1]).item() == pytest.approx(plain / 2)
    assert twin(X[:1]).item() == pytest.approx(plain / 4)
    return [model.module.temperature, model.temperature, model.module.note, twin.module.temperature, type(twin)]


def items() -> None:
    layers, named = prepare(nn.Sequential(nn.Linear(4, 3), nn.ReLU())), prepare(nn.ModuleDict({"a": nn.Linear(4, 1)}))
    assert (layers[0], layers[-1], len(layers), list(layers)) == (*layers.module, 2, list(layers.module))
    assert (list(named), named["a"], "a" in named, "b" in named) == (["a"], named.module["a"], True, False)
    plain = prepare(Network())
    assert plain
    with pytest.raises(TypeError, match="'Network' object is not iterable"):
        list(plain)
    with pytest.raises(TypeError, match="'Network' has no len"):
        len(plain)


def copies(rank: int) -> tuple[bytes, list[float]]:
    """The pickled model; rank 0 makes a copy alone."""
    model = prepare(Network())
    if rank == 0:
        assert numbers(copy.deepcopy(model).parameters()) == numbers(model.parameters())
    return pickle.dumps({"model": model}), numbers(model.parameters())


def normalize(rank: int) -> dict[str, Any]:
    """Rank 0 evaluates a model with batch normalization while rank 1 trains on."""
    seen: dict[str, Any] = {}
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    model, optimizer, loader = prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(DATA, 5))
    for number in range(3):
        x = torch.randn(6, 4)
        (model(x).mean() + model(x + 1).pow(2).mean()).backward()  # two forwards, as of a discriminator
        optimizer.step()
        if rank == 0 or number == 2:
            model.eval()
            with torch.no_grad():
                seen["output"] = numbers(model(X))
            model.train()
    seen["buffers"] = numbers(model.buffers())
    seen["moved"] = bool(model.module[1].running_mean.any())
    with pytest.raises(ValueError, match="more than 1 value") as caught:
        _run(model, loader)
    seen["notes"] = getattr(caught.value, "__notes__", [])
    small = prepare(DataLoader(TensorDataset(X[:2]), 2))
    with pytest.raises(ValueError, match="more than 1 value") as caught:
        _run(model, small)
    seen["notes of 2"] = caught.value.__notes__
    return seen


def two_ranks() -> dict[str, Any]:
    prepare()
    rank = torch.distributed.get_rank()
    return {
        "weights": freeze_and_unfreeze(),
        "evaluated": evaluate_in_the_body(),
        "strangers": strangers(rank),
        "own buffers": own_buffers(rank),
        "frozen between": freeze_between_forwards(),
        "twice": twice(),
        "attributes": attributes(),
        "items": items(),
        "copies": copies(rank),
        "normalize": normalize(rank),
        "kept": kept_batches(),
        "half averaged": half_averaged(rank),
        "averaged": averaged(rank),
        "loaded": loaded_on_one_rank(rank),
    }


@pytest.fixture(scope="module")
def pair(run_ranks: Any) -> Any:
    return run_ranks(two_ranks, 2)


@pytest.mark.long
@pytest.mark.e2e
def test_what_is_frozen_and_unfrozen_later_is_trained_as_on_one_rank(pair: Any) -> None:
    assert world_size() == 1
    with torch.random.fork_rng(devices=[]):
        alone = freeze_and_unfreeze()
    assert pair[0]["weights"] == pair[1]["weights"]
    assert pair[0]["weights"] == pytest.approx(alone, abs=1e-6)


@pytest.mark.e2e
def test_a_loop_over_another_loader_before_the_forward_changes_nothing(pair: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        alone = evaluate_in_the_body()
    assert pair[0]["evaluated"] == pair[1]["evaluated"]
    assert pair[0]["evaluated"] == pytest.approx(alone, abs=1e-6)


@pytest.mark.e2e
def test_a_layer_frozen_between_two_forwards_is_trained_as_on_one_rank(pair: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        alone = freeze_between_forwards()
    assert pair[0]["frozen between"] == pair[1]["frozen between"]
    assert pair[0]["frozen between"] == pytest.approx(alone, abs=1e-6)


@pytest.mark.e2e
def test_a_backward_has_the_buffers_of_its_forward(pair: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        each = [own_buffers(rank) for rank in range(2)]
    expected = [(a + b) / 2 for a, b in zip(each[0][0], each[1][0], strict=True)]
    for seen in pair:
        gradients, buffers = seen["own buffers"]
        assert gradients == pytest.approx(expected, rel=1e-5)
        assert buffers == each[0][1]  # rank 0's


@pytest.mark.e2e
def test_an_optimizer_of_no_prepared_model_is_refused_in_its_step(pair: Any) -> None:
    for seen in pair:
        told = seen["strangers"]
        assert told["forgotten"].startswith(
            "Adam must train parameters of prepared models, got 4 others (shapes: (3, 4), (3,), (1, 3), ...)"
        )
        assert told["added"].startswith("SGD must train parameters of prepared models, got 2 others")
        assert told["unfrozen"].startswith("SGD must train parameters of prepared models, got 2 others")


@pytest.mark.e2e
def test_attributes_are_set_on_the_module(pair: Any) -> None:
    for seen in pair:
        assert seen["attributes"] == [2.0, 2.0, "new", 4.0, DataParallel]


@pytest.mark.e2e
def test_what_is_pickled_is_the_plain_model(pair: Any) -> None:
    for seen in pair:
        data, weights = seen["copies"]
        model = pickle.loads(data)["model"]
        assert type(model) is Network
        assert numbers(model.parameters()) == weights
        assert b"gang.ddp" not in data


@pytest.mark.e2e
def test_a_rank_evaluates_alone_and_all_have_the_same_statistics(pair: Any) -> None:
    first, second = (seen["normalize"] for seen in pair)
    assert first["moved"]
    assert first["buffers"] == second["buffers"]
    assert first["output"] == second["output"]


@pytest.mark.e2e
def test_a_share_too_small_for_batch_normalization_is_told(pair: Any) -> None:
    for seen in pair:
        assert seen["normalize"]["notes"] == []  # a batch of one sample fails on one rank too
        (note,) = seen["normalize"]["notes of 2"]
        assert note.startswith("This rank's share of a batch of 2 over 2 ranks is one sample. Use")


# -- which gradients are averaged, and by which weights ----------------------------------------------


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
    wrapped = prepare(Branches(), find_unused_parameters=True)
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
    assert "prepare(..., find_unused_parameters=True)" in first["notes"][-1]


@pytest.mark.e2e
def test_gradients_of_several_calls_of_autograd_are_averaged_where_each_comes_once(pair: Any) -> None:
    assert pair[0]["averaged"] == pair[1]["averaged"]


# -- weights that differ between the ranks -----------------------------------------------------------


def loaded_on_one_rank(rank: int) -> list[str]:
    """Errors of a model and of an optimizer whose states only rank 0 loads, and none if all ranks load."""
    model, optimizer = (it := prepare(Network())), prepare(torch.optim.SGD(it.parameters(), lr=0.1, momentum=0.9))
    seen = []

    def refused() -> None:
        with pytest.raises(RuntimeError, match="all ranks must have the same weights") as caught:
            train_step(model, optimizer, X, X[:, :1])
        seen.append(str(caught.value))

    weights = {name: torch.full_like(value, 0.5) for name, value in model.state_dict().items()}
    momentum = copy.deepcopy(optimizer.state_dict())
    momentum["state"] = {n: {"momentum_buffer": torch.ones_like(it)} for n, it in enumerate(model.parameters())}
    if rank == 0:
        model.load_state_dict(weights)
    refused()

    model, optimizer = (it := prepare(Network())), prepare(torch.optim.SGD(it.parameters(), lr=0.1, momentum=0.9))
    if rank == 0:
        optimizer.load_state_dict(copy.deepcopy(momentum))
    train_step(model, optimizer, X, X[:, :1])
    refused()

    model, optimizer = (it := prepare(Network())), prepare(torch.optim.SGD(it.parameters(), lr=0.1, momentum=0.9))
    model.load_state_dict(weights)
    optimizer.load_state_dict(copy.deepcopy(momentum))
    for _ in range(3):
        train_step(model, optimizer, X, X[:, :1])

    network = Network()
    network._ddp_params_and_buffers_to_ignore = {"body.weight"}  # each rank has its own
    torch.nn.init.constant_(network.body.weight, rank)
    model, optimizer = (it := prepare(network)), prepare(torch.optim.SGD(it.parameters(), lr=0.1))
    train_step(model, optimizer, X, X[:, :1])
    return seen


@pytest.mark.e2e
def test_states_that_only_one_rank_loads_are_refused_on_all_ranks(pair: Any) -> None:
    first, second = (seen["loaded"] for seen in pair)
    assert first == second
    assert all("load weights and optimizer states on all ranks" in message for message in first)
