"""A small model, a table and the study of both."""

from __future__ import annotations

import pandas
import pytest
import torch
from torch import nn

from maggy_like.ablation import AblationStudy

COLUMNS = ["mean radius", "mean area", "worst radius", "texture", "target"]


class Residual(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


class Network(nn.Module):
    def __init__(self, n_features: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(n_features)
        self.entry = nn.Linear(n_features, 8)
        self.block = Residual(8, dropout)
        self.exit = nn.Linear(8, 2)
        self.spare = nn.Linear(3, 3)  # never used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.exit(self.block(self.entry(self.norm(x))))  # type: ignore[no-any-return]


def make_network(n_features: int, dropout: float = 0.2) -> Network:
    return Network(n_features, dropout)


@pytest.fixture
def table() -> pandas.DataFrame:
    return pandas.DataFrame([[1.0, 2.0, 3.0, 4.0, 0], [5.0, 6.0, 7.0, 8.0, 1]], columns=COLUMNS)


@pytest.fixture
def empty(table: pandas.DataFrame) -> AblationStudy:
    """Without components."""
    return AblationStudy(model=make_network, data=table, label="target", sample=torch.zeros(2, 4))


@pytest.fixture
def study(empty: AblationStudy) -> AblationStudy:
    """With components of all kinds."""
    return (
        empty.features("texture", size=["*radius", "*area"])
        .modules("norm", residual="block.inner")
        .config(dropout=0.0, augment=False)
        .custom("bias", lambda variant: variant.changed(model=_without_bias))
        .group("regularization", "dropout", "norm")
    )


def _without_bias(model: Network) -> Network:
    model.exit = nn.Linear(8, 2, bias=False)
    return model
