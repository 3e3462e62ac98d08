"""Training functions of Lightning, Keras and transformers on scikit-learn's bundled digits.

The libraries are imported in the functions: that takes seconds, and only tests that need them shall load them.
"""

from __future__ import annotations

import os
from typing import Any

from maggy_like import Reporter

os.environ.setdefault("KERAS_BACKEND", "torch")

FULL = 4
"""Epochs of a full training."""


def digits() -> tuple[Any, Any, Any, Any]:
    """Images as rows and their labels, to train on and held out: 500 and 300."""
    import torch
    from sklearn.datasets import load_digits

    x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
    x = (x / 16).float()
    return x[:500], y[:500], x[500:800], y[500:800]


def with_lightning(lr: float, reporter: Reporter) -> None:
    """Two layers, with momentum and a schedule that a promoted trial must go on with."""
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader, TensorDataset

    from maggy_like.callbacks import LightningReport

    class Network(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return torch.nn.functional.cross_entropy(self.body(batch[0]), batch[1])

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            loss = torch.nn.functional.cross_entropy(self.body(batch[0]), batch[1])
            self.log("val_loss", loss, sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)]

    x, y, held_out, truth = digits()
    report = LightningReport(reporter)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=max(FULL, reporter.budget),  # more than most trials train
        callbacks=[report],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    loaders = DataLoader(TensorDataset(x, y), 50), DataLoader(TensorDataset(held_out, truth), 300)
    trainer.fit(Network(), *loaders, ckpt_path=report.ckpt_path)


def with_keras(lr: float, reporter: Reporter) -> None:
    """Two layers, with momentum."""
    import keras

    from maggy_like.callbacks import KerasReport

    keras.utils.set_random_seed(0)
    layers = [keras.Input((64,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(lr, momentum=0.9), loss, metrics=["accuracy"])
    x, y, held_out, truth = (each.numpy() for each in digits())
    report = KerasReport(reporter)
    model.fit(
        x,
        y,
        50,
        validation_data=(held_out, truth),
        epochs=reporter.budget,
        initial_epoch=report.initial_epoch,
        callbacks=[report],
        shuffle=False,
        verbose=0,
    )


def with_transformers(lr: float, reporter: Reporter) -> None:
    """Two layers with dropout, AdamW and a linear schedule: random numbers, optimizer and schedule must go on."""
    import tempfile

    import torch
    from torch.utils.data import Dataset
    from transformers import Trainer, TrainingArguments

    from maggy_like.callbacks import TransformersReport

    class Images(Dataset):  # type: ignore[type-arg]
        def __init__(self, x: Any, y: Any) -> None:
            self.x, self.y = x, y

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"x": self.x[index], "labels": self.y[index]}

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 10))

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            logits = self.body(x)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    x, y, held_out, truth = digits()
    report = TransformersReport(reporter)
    with tempfile.TemporaryDirectory() as directory:
        args = TrainingArguments(
            directory,
            num_train_epochs=max(FULL, reporter.budget),
            learning_rate=lr,
            per_device_train_batch_size=50,
            per_device_eval_batch_size=300,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            Network(), args, train_dataset=Images(x, y), eval_dataset=Images(held_out, truth), callbacks=[report]
        )
        trainer.train(resume_from_checkpoint=report.resume_from_checkpoint)
        assert not os.listdir(directory)
