"""A Lightning module: tune it with Lightning's own Trainer, and load the best weights.

One callback reports each epoch, stops bad trials, and saves and restores Lightning's checkpoint.

    pip install "maggy_like[lightning,sklearn]"
    python examples/lightning_module.py

For your own module, change ``Classifier`` and ``loaders``. The arguments of the module are the search space.
"""

from __future__ import annotations

import argparse
import io
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

from maggy_like import Float, Integer, Reporter, lagom
from maggy_like.callbacks import LightningReport

SPACE = {"lr": Float(1e-4, 1e-1, log=True), "hidden": Integer(16, 128, log=True), "dropout": Float(0.0, 0.5)}


class Classifier(LightningModule):
    """Two layers over the 64 pixels of a digit."""

    def __init__(self, lr: float, hidden: int, dropout: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 10))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        return functional.cross_entropy(self.body(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log loss and accuracy of a batch."""
        output = self.body(batch[0])
        self.log("val_loss", functional.cross_entropy(output, batch[1]))
        self.log("val_accuracy", (output.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> Any:
        """Return the optimizer and its schedule."""
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams["lr"])
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)]


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return the batches to train and to validate on."""
    pixels, digits = load_digits(return_X_y=True)
    rows = TensorDataset(torch.tensor(pixels / 16).float(), torch.tensor(digits))
    fit, held_out = random_split(rows, [0.75, 0.25], torch.Generator().manual_seed(0))
    return DataLoader(fit, 64, shuffle=True), DataLoader(held_out, 512)


def train(reporter: Reporter, **config: Any) -> None:
    """Train the module up to the trial's budget of epochs."""
    torch.manual_seed(0)
    report = LightningReport(reporter)
    trainer = Trainer(
        max_epochs=reporter.budget,
        callbacks=[report],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(**config), *loaders(), ckpt_path=report.ckpt_path)


def main() -> None:
    """Search, and load the best module."""
    parser = argparse.ArgumentParser(description="Tune a Lightning module.")
    parser.add_argument("--trials", type=int, default=16, help="configurations to try (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=9, help="epochs at most (default: %(default)s)")
    given = parser.parse_args()
    result = lagom(
        train, SPACE, optimizer="asha", metric="val_accuracy", n_trials=given.trials, max_budget=given.epochs, seed=1
    )
    print(result)
    assert result.best_config is not None
    module = Classifier(**result.best_config)
    checkpoint = torch.load(io.BytesIO(result.load_best()["checkpoint"]), weights_only=False)
    module.load_state_dict(checkpoint["state_dict"])
    module.eval()
    ((pixels, digits),) = loaders()[1]
    with torch.no_grad():
        accuracy = (module.body(pixels).argmax(1) == digits).float().mean().item()
    print(f"accuracy of the best weights: {accuracy:.4f}; in the search: {result.best_value:.4f}")


if __name__ == "__main__":
    main()
