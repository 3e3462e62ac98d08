"""Images with augmentation: search, then train the best configuration on all workers together.

The same function and the same workers do both: a trial of the search has one worker, and the training that follows has
all of them. They are local processes, or with ``spark`` tasks on a Spark cluster that the script starts on this
machine, and each task owns a simulated GPU:

    pip install "maggy_like[torch,sklearn]"                          # and the extras spark,java for the second line
    python examples/search_then_train.py
    python examples/search_then_train.py spark

For your own images, change ``load`` and ``Augmented``, which moves each image by some pixels. On your own cluster, pass
its address to ``spark_session`` and leave out ``StandaloneCluster``.
"""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from maggy_like import Float, Integer, Reporter, StandaloneCluster, lagom, spark_session

SPACE = {
    "lr": Float(1e-3, 1e-1, log=True),
    "channels": Integer(4, 16),
    "batch_size": [32, 64, 128],
    "shift": [0, 1],
}


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Images, each moved by up to ``shift`` pixels, in another way in each epoch.

    An image's move depends only on its number and the epoch, so it is the same on any number of workers.
    """

    def __init__(self, images: Tensor, labels: Tensor, shift: int) -> None:
        self.images, self.labels, self.shift, self.epoch = images, labels, shift, 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        random = np.random.default_rng([self.epoch, index])
        moves = random.integers(-self.shift, self.shift + 1, size=2)
        return torch.roll(self.images[index], tuple(moves.tolist()), (1, 2)), self.labels[index]


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images and labels to train on, and images and labels to validate on."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.tensor(labels, dtype=torch.long)
    fit, held_out = train_test_split(range(len(y)), test_size=0.25, random_state=0, stratify=labels)
    return x[fit], y[fit], x[held_out], y[held_out]


def train(lr: float, channels: int, batch_size: int, shift: int, reporter: Reporter) -> None:
    """Train a small convolutional network on digits; one step is one pass over the data."""
    print(f"GPU {os.environ.get('CUDA_VISIBLE_DEVICES', 'none')} of this machine")
    torch.manual_seed(0)
    fit, fit_labels, held_out, held_out_labels = load()
    data = Augmented(fit, fit_labels, shift)
    order = torch.Generator()
    loader = DataLoader(data, batch_size=batch_size, shuffle=True, generator=order)

    model = nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * channels, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    # The one line that makes it data-parallel; with one worker it changes nothing. The batch is that of all ranks.
    model, optimizer, loader = reporter.prepare(model, optimizer, loader)

    state: dict[str, Any] = reporter.restore() or {"step": 0}
    if state["step"]:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for step in range(state["step"] + 1, reporter.budget + 1):
        data.epoch = step
        order.manual_seed(step)  # so that a resumed training sees the rows in the same order
        total = 0.0
        for images_, labels_ in loader:
            loss = nn.functional.cross_entropy(model(images_), labels_)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels_) * (not reporter.is_stand_in)
        with torch.no_grad():
            accuracy = (model(held_out).argmax(1) == held_out_labels).float().mean().item()
        reporter.checkpoint({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
        mean = reporter.average(loss=total)["loss"] * reporter.world_size / len(data)
        reporter.report(accuracy=accuracy, loss=mean, step=step)
    print(f"rank {reporter.rank} of {reporter.world_size}: accuracy {accuracy:.4f} after {reporter.budget} passes")


def main(on_spark: bool, n_trials: int) -> None:
    """Search and train, and compare the training with one of a single worker."""
    with ExitStack() as stack:
        if on_spark:
            print("Starting a standalone cluster: one master, two workers, a simulated GPU each ...")
            cluster = stack.enter_context(StandaloneCluster(workers=2, gpus=1))
            spark = spark_session(cluster.master_url, app_name="search, then train", conf=cluster.conf)
            stack.callback(spark.stop)
        result = lagom(
            train,
            SPACE,
            optimizer="asha",
            metric="accuracy",
            n_trials=n_trials,
            max_budget=9,
            workers=2,
            engine="spark" if on_spark else "local",
            train_best=True,
            seed=1,
        )
        print(result)
        training = result.training
        if training is None or training.value is None or training.seconds_per_step is None:
            print("it was stopped before the training had a result")
            return
        ran_on = {line for trial in result.trials for line in result.log(trial.id).splitlines() if "GPU" in line}
        print("trials ran on:", ", ".join(sorted(ran_on)))
        print(f"accuracy: {result.best_value:.4f} in the search, {training.value:.4f} on {training.world_size} workers")
        print(f"a pass over the data took {training.seconds_per_step:.2f} s; the weights are in {training.checkpoint}")

        alone = result.train(workers=1, progress=False)
    if alone.value is None:
        print("the training of one worker was stopped before it had a result")
        return
    both = [run.trial.curves["loss"].values for run in (training, alone)]
    difference = max(abs(several - one) for several, one in zip(*both, strict=False))  # one may have been stopped
    print(f"losses on {training.world_size} workers and on one differ by {difference:.1e} at most")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Search, then train the best configuration on two workers.")
    parser.add_argument("where", nargs="?", choices=["local", "spark"], default="local", help="default: %(default)s")
    parser.add_argument("--trials", type=int, default=16, help="configurations to try (default: %(default)s)")
    given = parser.parse_args()
    main(given.where == "spark", given.trials)
