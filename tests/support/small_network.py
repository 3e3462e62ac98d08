"""A small network, its data, and a step of its training, for tests of prepared models."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

X = torch.linspace(-1, 1, 21 * 4).reshape(21, 4).sin()
DATA = TensorDataset(X, X.sum(1, keepdim=True).cos())  # batches of 5 are split unevenly; the last has 1 sample


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.head = nn.Linear(3, 1)
        self.temperature = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).tanh()) / self.temperature


def numbers(tensors: Any) -> list[float]:
    return [number for tensor in tensors for number in tensor.detach().flatten().tolist()]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    mse_loss(model(x), y).backward()
    optimizer.step()
