"""Making networks, freezing parts of them, and keeping them as bytes."""

from __future__ import annotations

import io
import threading
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from maggy_like.errors import ConfigError
from maggy_like.ml.estimator.network import build_network, freeze, make_portable, network_of_bytes, network_to_bytes
from maggy_like.ml.estimator.objective import Objective, read_loss
from maggy_like.ml.inference.predictor import ShippedNetwork


def two_parts(hidden: int = 3) -> nn.Module:
    return (
        nn.Sequential()
        if hidden == 0
        else nn.ModuleDict({"encoder": nn.Linear(2, hidden), "head": nn.Linear(hidden, 1)})
    )


def test_a_function_makes_the_same_network_from_the_same_seed() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, other = (build_network(two_parts, {"hidden": 4}, 7).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (two_parts, {"width": 4}, "width"),
        (nn.Linear(2, 1), {"hidden": 4}, "must be a class or a function to take"),
        (lambda: 3, {}, "must return a torch module"),
        (3, {}, "must be a torch module"),
    ],
)
def test_what_makes_no_network_is_told(model: object, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_network(model, arguments, 0)


def test_frozen_modules_are_found_by_glob() -> None:
    network = two_parts()
    assert freeze(network, ["enc*"]) == [network.get_submodule("encoder")]
    assert [name for name, p in network.named_parameters() if p.requires_grad] == ["head.weight", "head.bias"]
    with pytest.raises(ConfigError, match=r"got 'body\*', which matches none of encoder, head"):
        freeze(network, ["body*"])


def test_bytes_hold_weights_once_and_give_the_network_again() -> None:
    network = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    network.append(network[0])  # one module used twice
    network[0].bias.requires_grad_(False)
    parts = network_to_bytes(network)
    assert len(parts["structure"]) < len(parts["weights"])
    again = network_of_bytes(parts)
    assert not again.training
    assert again[0] is again[2]
    assert not again[0].bias.requires_grad
    x = torch.randn(5, 64)
    assert torch.equal(again(x), network.eval()(x))
    weights = torch.load(io.BytesIO(parts["weights"]), weights_only=True)
    assert set(weights) == set(network.state_dict())


def normed() -> nn.Module:
    return nn.Sequential(weight_norm(nn.Linear(2, 4)), nn.BatchNorm1d(4), spectral_norm(nn.Linear(4, 1)))


class Noisy(nn.Linear):
    """Holds a generator, as modules with a tokenizer or an open file do."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        self.noise = (0.0 for _ in range(100))


@pytest.mark.parametrize("make", [normed, Noisy, lambda: torch.nn.Sequential(weight_norm(nn.Linear(2, 1)))])
def test_a_network_that_does_not_pickle_travels_as_its_function_and_state(make: Any) -> None:
    network = build_network(make, {}, 7)
    network.load_state_dict({name: it * 2 for name, it in network.state_dict().items()})
    with pytest.raises(Exception, match=r"pickle|Serialization"):
        cloudpickle.dumps(network)
    make_portable(network.eval(), make, {}, 7)
    saved = network_of_bytes(network_to_bytes(network))
    x = torch.randn(5, 2)
    for again in (saved, ShippedNetwork.of(network).made(), network_of_bytes(network_to_bytes(saved))):
        assert not again.training
        assert torch.equal(again(x), network(x))


def test_a_module_that_does_not_pickle_is_told_to_be_a_function() -> None:
    for module, fault in ((nn.Sequential(weight_norm(nn.Linear(2, 1))), "be pickled"), (Noisy(), "be copied")):
        with pytest.raises(ConfigError, match=rf"that can {fault}, .*; pass its class, or a function that returns it"):
            make_portable(build_network(module, {}, 0), module, {}, 0)
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"and the function failed \(cannot pickle '_thread.lock'"):
        make_portable(Noisy(), lambda: lock and Noisy(), {}, 0)


def test_a_network_that_pickles_is_left_as_it_is() -> None:
    network = nn.Linear(2, 1)
    make_portable(network, nn.Linear, {"in_features": 2, "out_features": 1}, 0)
    assert "__reduce_ex__" not in vars(network)


# -- losses of batches -------------------------------------------------------------------------------


class Two(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a, b.unsqueeze(1)


def test_an_output_of_one_number_a_row_is_no_loss_of_all_pairs() -> None:
    objective = Objective(nn.Linear(2, 1), [read_loss("mse")], ["x"], ["y"])
    batch = {"x": torch.randn(4, 2, dtype=torch.float64), "y": torch.randn(4, dtype=torch.float64)}
    loss, _ = objective(batch)
    expected = (objective.network(batch["x"].float()).squeeze(1) - batch["y"].float()).square().mean()
    assert torch.isclose(loss, expected)


def test_rows_and_classes_have_weights() -> None:
    batch = {"x": torch.randn(4, 3), "y": torch.tensor([0.0, 1.0, 2.0, 1.0]), "w": torch.tensor([1.0, 0.0, 2.0, 1.0])}
    rows = nn.functional.cross_entropy(batch["x"], batch["y"].long(), reduction="none")
    objective = Objective(
        nn.Identity(), [read_loss("cross_entropy")], ["x"], ["y"], weight="w", class_weights=[1, 3, 0.5], weight_scale=2
    )
    loss, metrics = objective(batch)
    assert torch.isclose(loss, (rows * torch.tensor([1.0, 0.0, 1.0, 3.0]) * 2).mean())
    assert set(metrics) == {"loss", "accuracy"}


def test_several_labels_have_losses_that_are_summed() -> None:
    batch = {name: torch.rand(4) for name in ("a", "b", "c", "d")}
    objective = Objective(Two(), [read_loss("mse"), read_loss("mae")], ["a", "b"], ["c", "d"])
    loss, _ = objective(batch)
    expected = (batch["a"] - batch["c"]).square().mean() + (batch["b"] - batch["d"]).abs().mean()
    assert torch.isclose(loss, expected)
    with pytest.raises(ConfigError, match=r"one output for each column of labelCol, 1 \(c\), got 2"):
        Objective(Two(), [read_loss("mse")], ["a", "b"], ["c"])(batch)
