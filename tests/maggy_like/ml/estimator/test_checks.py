"""Checks before a training, of what Spark has counted and of two rows: each error names the column."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from maggy_like.errors import ConfigError, DataError, UserError
from maggy_like.ml.data.statistics import ColumnStatistics, Statistics
from maggy_like.ml.estimator.checks import check_model, check_rows, check_sample, check_weight
from maggy_like.ml.estimator.plan import Data, TrainingPlan
from maggy_like.ml.estimator.train import check_ranks


def network(hidden: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3))


PLAN = TrainingPlan(network, "cross_entropy", ("x",), ("label",), Data((), (), 120))
BATCH = {"x": torch.ones(2, 4), "label": torch.tensor([0.0, 2.0])}
CLASSES = ColumnStatistics(0, 0, least=0, greatest=2, total=120)


class Two(nn.Linear):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return x, x


WRONG: list[tuple[dict[str, Any], ColumnStatistics, type[UserError], str]] = [
    ({"model": nn.Linear(3, 3)}, CLASSES, ConfigError, r"does not take 'x' of shape \[2, 4\]"),
    ({"model": Two(4, 3)}, CLASSES, ConfigError, r"gives 2 outputs .*labelCol names 1 \(label\)"),
    ({}, replace(CLASSES, greatest=3), DataError, "'label' has labels from 0 to 3, and the network's 3 outputs"),
    ({}, replace(CLASSES, least=-1), DataError, "'label' has labels from -1 to 2"),
    ({}, replace(CLASSES, fractions=7), DataError, "'label' has 7 labels that are no whole numbers"),
    ({"loss": "bce_with_logits"}, CLASSES, DataError, "'label' has labels from 0 to 2, and BCEWithLogitsLoss takes"),
    (
        {"loss": "mse"},
        CLASSES,
        ConfigError,
        r"MSELoss needs outputs and labels of one shape.*\[2, 3\].*'label'",
    ),
    ({"loss": lambda output, label: output @ label}, CLASSES, ConfigError, "does not take what it gets.*'label'"),
    ({"class_weights": (1.0, 2.0)}, CLASSES, ConfigError, "classWeights has 2 weights.*3 classes"),
    ({"freeze": ("body",)}, CLASSES, ConfigError, "freeze: no module has a name like 'body'"),
    ({"freeze": ("*",)}, CLASSES, ConfigError, "no parameters to train; freeze less"),
    ({"optimizer": "adem"}, CLASSES, ConfigError, "optimizer='adem' is none of torch.optim"),
    ({"model_params": {"width": 3}}, CLASSES, ConfigError, "model takes other arguments"),
    ({"loss": ["mse", "mse"]}, CLASSES, ConfigError, "loss has 2 losses, and labelCol 1"),
]


@pytest.mark.parametrize(("given", "found", "kind", "message"), WRONG)
def test_what_does_not_fit_is_told(
    given: dict[str, Any], found: ColumnStatistics, kind: type[UserError], message: str
) -> None:
    assert check_sample(PLAN, BATCH, Statistics(120, {"label": CLASSES}), []) == [(3,)]
    with pytest.raises(kind, match=message):
        check_sample(replace(PLAN, **given), BATCH, Statistics(120, {"label": found}), [])


@pytest.mark.parametrize(
    ("rows", "column", "message"),
    [
        (0, ColumnStatistics(0, 0), "no rows to train on"),
        (9, ColumnStatistics(2, 0), "column 'x' is or holds null in 2 of 9 rows"),
        (9, ColumnStatistics(0, 3), "column 'x' is or holds NaN or infinity in 3 of 9 rows"),
        (9, ColumnStatistics(0, 0, 1, 3), "column 'x' has arrays of 1 to 3 elements"),
    ],
)
def test_rows_that_no_network_takes_are_told(rows: int, column: ColumnStatistics, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_rows(Statistics(rows, {"x": column}))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (ColumnStatistics(0, 0, least=-0.5, total=3), "weightCol 'w' has a weight of -0.5"),
        (ColumnStatistics(0, 0, least=0, total=0), "weightCol 'w' is 0 in all rows"),
    ],
)
def test_wrong_weights_are_told(column: ColumnStatistics, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_weight("w", column)


@pytest.mark.parametrize(
    ("rows", "ranks", "message"),
    [(100, 33, "33 workers cannot share batches of batchSize=32"), (32, 33, "33 workers cannot share 32 rows")],
)
def test_too_many_workers_are_told(rows: int, ranks: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_ranks(rows, ranks, 32)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": None}, "model must be a torch module, or a function that makes one, got None"),
        ({"model": nn.Linear(1, 1), "loss": None}, "loss is missing"),
        ({"loss": "crossentrpy"}, "loss='crossentrpy' is none"),
    ],
)
def test_what_is_no_model_is_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_model(replace(PLAN, **given))
