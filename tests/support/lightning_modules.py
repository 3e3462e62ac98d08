"""Modules of Lightning, as people write them: importing it takes seconds, so only tests that need them load them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

LightningModule: Any = import_module("lightning").LightningModule


class Line(LightningModule):
    """A linear regression, as people write it; the options change one thing each."""

    def __init__(self, hidden: int = 3, schedule: Callable[[Line, torch.optim.Optimizer], Any] | None = None) -> None:
        super().__init__()
        self.save_hyperparameters("hidden")
        self.body = nn.Sequential(nn.Linear(2, hidden), nn.Linear(hidden, 1))
        self.schedule = schedule
        self.rates: list[float] = []
        self.places: list[tuple[int, int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).squeeze(1)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        self.places.append((self.current_epoch, self.global_step))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log_dict({"val_loss": nn.functional.l1_loss(self(x), y), "val_rows": len(x)})

    def on_train_epoch_end(self) -> None:
        self.rates.append(self.made.param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        self.made = torch.optim.SGD(self.parameters(), lr=0.1)
        return self.made if self.schedule is None else self.schedule(self, self.made)


class ByHand(Line):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Clips(Line):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        pass


class Asks(Line):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.optimizers()
        return super().training_step(batch, batch_idx)


class Wide(Line):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step((torch.ones(2, 7), batch[1]), batch_idx)


class Gathers(Line):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.log("error", nn.L1Loss())
        return super().training_step(batch, batch_idx)
