from __future__ import annotations

import pytest
import torch
from torch import nn

from maggy_like.errors import ConfigError
from maggy_like.ml.featurizer import LayerOutput


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("is not to be computed")


class Careful(nn.Module):
    """A network that handles errors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.unused = nn.Linear(3, 2), Failing(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            made: torch.Tensor = self.head(self.body(x))
        except Exception:
            return x
        return made


def test_a_layer_gives_its_output_and_what_follows_is_not_computed() -> None:
    network, x = Careful(), torch.ones(4, 3)
    assert torch.equal(LayerOutput(network, "body")(x), network.body(x))
    assert not network.body._forward_hooks  # the network is as it was


def test_a_layer_that_is_not_there_or_not_called_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"a module of the network, got 'bodi' \(did you mean 'body'\?\); use one of body, head, unused",
    ):
        LayerOutput(Careful(), "bodi")
    with pytest.raises(ConfigError, match="a module that the network calls, got 'unused'"):
        LayerOutput(Careful(), "unused")(torch.ones(4, 3))
