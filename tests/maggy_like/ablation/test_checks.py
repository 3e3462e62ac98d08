"""The sample that a variant's model is run on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from maggy_like.ablation import AblationStudy

COLUMNS = ["a", "b", "c"]


class OfBatch(nn.Module):
    """A model of one tensor by name, or of one by each column."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.exit = nn.Linear(n_features, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> Any:
        return self.exit(torch.cat(list(batch.values()), dim=-1))


@pytest.mark.parametrize(
    "sample",
    [
        {"x": torch.zeros(2, 3)},
        {name: torch.zeros(2, 1) for name in COLUMNS},
        lambda n_features: {"x": torch.zeros(2, n_features)},
    ],
)
def test_a_dict_is_cut_to_the_variant(sample: Any) -> None:
    study = AblationStudy(model=OfBatch, data=COLUMNS, sample=sample).features("b")
    assert study.designed().parameters == {"base": 4, "without b": 3}


def test_a_sample_without_data_keeps_its_defaults() -> None:
    def sample(n_features: int = 3, **config: Any) -> torch.Tensor:
        return torch.zeros(config["rows"], n_features)

    study = AblationStudy(model=lambda: nn.Sequential(nn.Linear(3, 1), nn.ReLU()), sample=sample, config={"rows": 2})
    assert study.modules("1").designed().parameters == {"base": 4, "without 1": 4}
