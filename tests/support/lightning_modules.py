"""LightningModules as their users write them. Importing Lightning takes seconds, so only tests that need them do.

All of them fit a line. Each shows one thing that Lightning's Trainer does.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

L: Any = import_module("lightning")


class Line(L.LightningModule):  # type: ignore[misc]
    """The plainest one; the base of the others."""

    def __init__(self, hidden: int = 3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(2, hidden), nn.Linear(hidden, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).squeeze(1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_loss", nn.functional.l1_loss(self(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class AtTheEnd(Line):
    """Logs at the end of the epochs."""

    def on_train_epoch_start(self) -> None:
        self.rows = 0

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        super().validation_step(batch, batch_idx)
        self.rows += len(batch[1])

    def on_validation_epoch_end(self) -> None:
        self.log("val_rows", float(self.rows), sync_dist=True, reduce_fx="sum")

    def on_train_epoch_end(self) -> None:
        self.log("rate", self.optimizers().param_groups[0]["lr"])


class SomeBatches(Line):
    """Logs in some batches only."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx % 2 == 0:
            self.log("even", 1.0 + batch_idx)
        return super().training_step(batch, batch_idx)


class Reduces(Line):
    """Logs a sum, and a maximum."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        super().validation_step(batch, batch_idx)
        self.log("val_rows", float(len(batch[1])), reduce_fx="sum", sync_dist=True)
        self.log("val_highest", batch[1].max(), reduce_fx="max", sync_dist=True)


class LogsAMetric(Line):
    """Logs an object of torchmetrics."""

    def __init__(self) -> None:
        super().__init__()
        self.error = torchmetrics.MeanAbsoluteError()

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        super().validation_step(batch, batch_idx)
        self.error(self(batch[0]), batch[1])
        self.log("val_error", self.error)


class LogsACollection(Line):
    """Computes a collection of torchmetrics at the end of the epoch, with an F1 score among them."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = torchmetrics.MetricCollection(
            [torchmetrics.classification.BinaryF1Score(), torchmetrics.classification.BinaryAccuracy()], prefix="val_"
        )

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        super().validation_step(batch, batch_idx)
        self.scores.update(self(batch[0]), (batch[1] > 0).int())

    def on_validation_epoch_end(self) -> None:
        self.log_dict(self.scores.compute())
        self.scores.reset()


class SeveralLoaders(Line):
    """Validates on two loaders of its own."""

    def val_dataloader(self) -> Any:
        rows = torch.linspace(-1, 1, 16).reshape(8, 2)
        return [DataLoader(TensorDataset(rows + shift, rows[:, 0]), 4) for shift in (0, 1)]

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        super().validation_step(batch, batch_idx)


class Manual(Line):
    """Steps two optimizers manually."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        first, second = self.optimizers()
        first.zero_grad()
        second.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(first, 1.0, "norm")
        first.step()
        if batch_idx % 2:
            second.step()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.body[0].parameters(), 0.1), torch.optim.Adam(self.body[1].parameters(), 0.1)


class Plateau(Line):
    """Lowers the rate if a metric that is logged at the end of the epoch is no better."""

    def on_validation_epoch_end(self) -> None:
        self.log("val_constant", 1.0)

    def on_train_epoch_end(self) -> None:
        self.log("rate", self.optimizers().param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        made = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = lr_scheduler.ReduceLROnPlateau(made, patience=0, factor=0.5)
        return {"optimizer": made, "lr_scheduler": {"scheduler": schedule, "monitor": "val_constant"}}


class OneCycle(Line):
    """Has a schedule over all steps of the training, and one over epochs."""

    def on_train_epoch_end(self) -> None:
        self.log("rate", self.optimizers().param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        made = torch.optim.AdamW(self.parameters(), lr=0.1)
        steps = int(self.trainer.estimated_stepping_batches)
        warm_up = lr_scheduler.LambdaLR(made, lambda step: min(1.0, (step + 1) / (steps // 4)))
        return [made], [
            {"scheduler": warm_up, "interval": "step", "frequency": 2},
            lr_scheduler.StepLR(made, 2, 0.5),
        ]


class Callbacks(Line):
    """Brings callbacks: one that ends the training after the second epoch, and one that saves the best weights."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory

    def on_validation_epoch_end(self) -> None:
        self.log("val_constant", 1.0)

    def configure_callbacks(self) -> Any:
        callbacks = L.pytorch.callbacks
        return [
            callbacks.EarlyStopping("val_constant", patience=1),
            callbacks.ModelCheckpoint(self.directory, filename="best", monitor="val_loss"),
        ]

    def on_train_end(self) -> None:
        self.saved = self.trainer.checkpoint_callback.best_model_path


class Clips(Line):
    """Clips its gradients, and has hooks around the steps."""

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        self.clip_gradients(optimizer, 0.1, "norm")

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norms = [it.grad.norm() for it in self.parameters()]
        self.log("norm", torch.stack(norms).norm(), on_step=False, on_epoch=True)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)


class StepAndEpoch(Line):
    """Logs the same for each step and for the epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.mse_loss(self(batch[0]), batch[1])
        self.log("fit", loss, on_step=True, on_epoch=True, prog_bar=True)
        return {"loss": loss, "predicted": self(batch[0])}

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return nn.functional.l1_loss(self(batch[0]), batch[1])


class OwnNames(Line):
    """Logs under the names of the Estimator's columns."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log_dict({"step": 100.0, "epoch": 200.0, "loss": 300.0})
        return super().training_step(batch, batch_idx)


class Prepares(Line):
    """Makes its layers in hooks that come before the training."""

    def prepare_data(self) -> None:
        self.prepared = True

    def setup(self, stage: str) -> None:
        self.stage = stage

    def configure_model(self) -> None:
        self.shift = 0.5

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] + self.shift, batch[1]

    def on_fit_start(self) -> None:
        assert self.stage == "fit"
        assert hasattr(self, "prepared") == (self.local_rank == 0)  # once on each machine


class Freezes(Line):
    """Freezes a layer from the second epoch on."""

    def on_train_epoch_start(self) -> None:
        self.body[0].requires_grad_(self.current_epoch < 1)


class Normalises(Line):
    """Has batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


class Skips(Line):
    """Skips some batches, and a step of the optimizer."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx == 1 else super().training_step(batch, batch_idx)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)
        self.log("steps", float(self.global_step))


class LittleBatches(Line):
    """Takes the batch alone, and averages its weights at the end."""

    def training_step(self, batch: Any) -> Any:
        return nn.functional.mse_loss(self(batch[0]), batch[1])

    def on_train_start(self) -> None:
        self.mean = torch.optim.swa_utils.AveragedModel(self.body)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.mean.update_parameters(self.body)

    def on_validation_epoch_end(self) -> None:
        self.log("averages", float(self.mean.n_averaged))


def compiled() -> Any:
    """The plainest module, compiled."""
    return torch.compile(Line(), backend="eager")


class Fails(Line):
    """Fails in its validation."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self(torch.ones(2, 7))


class LogsNoLoss(Line):
    """Has no loss of the validation."""

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_accuracy", 1.0)
