"""The sample that a variant's model is run on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

from maggy_like.ablation import AblationStudy
from maggy_like.ablation.variant import same_value
from maggy_like.errors import ConfigError

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


# -- which values are the same --------------------------------------------------------------------


ARRAY = np.ones(3)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (0, 0.0, True),
        (np.float64(0.2), 0.2, True),
        (np.int64(1), 1.0, True),
        (float("nan"), np.float32("nan"), True),
        (1, True, False),
        (None, 0, False),
        ((64, 64), (64, 64), True),
        (ARRAY, ARRAY, True),
        (ARRAY, None, False),
        (ARRAY, np.zeros(3), False),
        (np.array([]), None, False),
        ([ARRAY], [np.zeros(3)], False),
        (torch.ones(3), torch.zeros(3), False),
        (pandas.DataFrame({"a": [1]}), 0, False),
        (pandas.NA, 0, False),
    ],
)
def test_values_are_compared_as_far_as_they_can_be(a: Any, b: Any, same: bool) -> None:
    assert same_value(a, b) is same
    assert same_value(b, a) is same


@pytest.mark.parametrize(("base", "without"), [(0, 0.0), (float("nan"), float("nan"))])
def test_a_value_that_stays_the_same_is_told(base: Any, without: Any) -> None:
    with pytest.raises(ConfigError, match=r"'dropout' must change when it is removed, got .* with and without it"):
        AblationStudy(config={"dropout": base}).config(dropout=without).designed()


def test_an_array_may_be_ablated() -> None:
    study = AblationStudy(model=lambda weights: weights, config={"weights": ARRAY}).config(weights=None)
    assert [variant.model() is ARRAY for variant in study.designed().variants] == [True, False]
