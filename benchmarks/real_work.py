"""One epoch of real training in four libraries, about 50 ms each, as a user's own helper module would hold it.

:mod:`benchmarks.real_trial` calls these through a thin training function, so nothing in that function tells which
libraries a trial imports.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def digits() -> tuple[Any, Any]:
    """The digits that scikit-learn ships, as tensors."""
    import torch
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)


def torch_epoch(rate: float) -> float:
    """One epoch of a small network with AdamW; the loss."""
    import torch

    x, y = digits()
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * rate)
    for start in range(0, len(x), 32):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[start : start + 32]), y[start : start + 32])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return float(loss.detach())


def forest(rate: float) -> float:
    """A random forest of 20 trees; the score on the rows left out."""
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import train_test_split

    x, x_test, y, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)
    model = RandomForestClassifier(20, max_features=0.1 + 0.2 * rate, random_state=0)
    return float(model.fit(x, y).score(x_test, y_test))


def boosting(rate: float) -> float:
    """LightGBM with 60 trees; the score on the rows left out."""
    from lightgbm import LGBMRegressor
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import train_test_split

    x, x_test, y, y_test = train_test_split(*load_diabetes(return_X_y=True), random_state=0)
    model = LGBMRegressor(n_estimators=60, learning_rate=0.01 + 0.2 * rate, n_jobs=1, verbose=-1)
    return float(model.fit(x, y).score(x_test, y_test))


def lightning_epoch(rate: float) -> float:
    """One epoch of a Lightning module; the loss."""
    import logging
    import warnings

    import lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Network(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
            self.loss = 0.0

        def training_step(self, batch: Any, _: int) -> Any:
            x, y = batch
            loss = torch.nn.functional.cross_entropy(self.layers(x), y)
            self.loss = float(loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.1 * rate)

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # Lightning advises more workers for the loader
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    network = Network()
    trainer.fit(network, DataLoader(TensorDataset(*digits()), batch_size=64))
    return network.loss


WORK: dict[str, Callable[[float], float]] = {
    "torch": torch_epoch,
    "forest": forest,
    "lightgbm": boosting,
    "lightning": lightning_epoch,
}


def timed(name: str, rate: float) -> dict[str, float]:
    """Run one of :data:`WORK`; its value, and when it began and ended on the machine's monotonic clock."""
    began = time.monotonic()
    value = WORK[name](rate)
    return {"value": value, "began": began, "ended": time.monotonic()}
