"""Losses of batches: shapes, weights, several labels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from maggy_like.errors import ConfigError
from maggy_like.ml.estimator.objective import Objective, read_loss


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
