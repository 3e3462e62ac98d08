"""The trainings of :mod:`benchmarks.race`. They know nothing about the system that calls them.

A task is what a user has before choosing a system: a helper module with a training function, and a space to search.
Each process of a run finds the name of its task in the environment, and imports only the libraries of that task. They
are imported at the top of the module, as most people write it.

A training with epochs calls ``report(epoch, value, save)`` after each of them, where ``save()`` returns what is needed
to continue from there. Each value is also appended to the marks file, with the time, before any system receives it.

The recorded ones follow the predicted learning curves of LCBench (:mod:`benchmarks.lcbench`), and only sleep, so that
eight of them fit on two cores. An epoch takes the predicted time, scaled so that a full training run takes
:data:`FULL_SECONDS` on average. No optimizer of this project was tuned on their data sets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

NAME = os.environ.get("RACE_TASK", "")
"""The task of this run; empty in the process that only measures."""

# Each task imports as much as if it had a module of its own. "TYPE_CHECKING or" is for mypy. It also keeps maggy_like,
# which reads imports in the source of a user's module, from importing the libraries of the other tasks.
if TYPE_CHECKING or NAME in ("digits", "transformer"):
    import numpy as np
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
if TYPE_CHECKING or NAME.startswith("recorded"):
    import onnxruntime  # noqa: F401  (at the top, as most people write it; lcbench imports it when it is needed)

    from benchmarks import lcbench
if TYPE_CHECKING or NAME.startswith("boosting"):
    from lightgbm import LGBMRegressor
    from sklearn.datasets import load_diabetes
    from sklearn.model_selection import KFold, cross_val_score

Config = Mapping[str, Any]
State = dict[str, Any]
Report = Callable[[int, float, Callable[[], State]], object]

EPOCHS = 27
"""Epochs of a full training."""

RECORDED_EPOCHS = 50
RECORDED = ("34539", "168335", "189862")
"""The data sets of the recorded trainings, by their number at OpenML."""

FULL_SECONDS = 20.0
"""Mean time of a full training run on recorded learning curves."""

LETTERS, LENGTH = 8, 32
TEXTS, HELD_OUT = 1024, 128
BATCHES, BATCH_SIZE = 8, 16


class Float(NamedTuple):
    """A number between two bounds."""

    low: float
    high: float
    log: bool = False


class Integer(NamedTuple):
    """A whole number between two bounds, both included."""

    low: int
    high: int
    log: bool = False


class Choice(NamedTuple):
    """One of several whole numbers."""

    options: tuple[int, ...]


Space = Mapping[str, Float | Integer | Choice]


class Task(NamedTuple):
    """A training function, its space, what it is judged by, its epochs (0: it has none), and the number of workers."""

    train: Callable[..., float]
    space: Space
    metric: str
    direction: Literal["max", "min"]
    epochs: int
    packages: tuple[str, ...]
    workers: int = 2


def mark(value: float, seconds: float = 0.0, *, is_last: bool = False) -> None:
    """Append to the marks file of the run: the time, a value, how long its epoch took, and whether it was the last."""
    descriptor = os.open(os.environ["RACE_MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{time.monotonic()!r} {value!r} {seconds!r} {is_last:d}\n".encode())
    os.close(descriptor)


def report_nothing(epoch: int, value: float, save: Callable[[], State]) -> None:
    """Ignore a value: the report of a system that only wants the last one."""


def train_digits(
    config: Config, report: Report = report_nothing, state: State | None = None, epochs: int = EPOCHS
) -> float:
    """Train the network of ``examples/quickstart.py`` and return its last accuracy."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels)
    x_train, x_test = (torch.tensor(part, dtype=torch.float32) for part in split[:2])
    y_train, y_test = (torch.tensor(part, dtype=torch.long) for part in split[2:])
    units = config["units"]
    model = torch.nn.Sequential(
        torch.nn.Linear(64, units),
        torch.nn.ReLU(),
        torch.nn.Dropout(config["dropout"]),
        torch.nn.Linear(units, units),
        torch.nn.ReLU(),
        torch.nn.Linear(units, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    first = 1
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    accuracy = 0.0
    for epoch in range(first, epochs + 1):
        model.train()
        for batch in torch.split(torch.randperm(len(x_train)), config["batch_size"]):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x_train[batch]), y_train[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
        mark(accuracy)

        def save(epoch: int = epoch) -> State:
            return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}

        report(epoch, accuracy, save)
    return accuracy


def make_texts() -> torch.Tensor:
    """Return texts in which a letter depends on the two before it, one per row."""
    rng = np.random.default_rng(0)
    chances = rng.dirichlet(np.full(LETTERS, 0.15), (LETTERS, LETTERS)).cumsum(axis=-1)
    texts = rng.integers(LETTERS, size=(TEXTS + HELD_OUT, LENGTH + 1))
    for place in range(2, LENGTH + 1):
        rows = chances[texts[:, place - 2], texts[:, place - 1]]
        texts[:, place] = (rows[:, :-1] < rng.random((len(texts), 1))).sum(axis=1)
    return torch.tensor(texts)


def train_transformer(
    config: Config, report: Report = report_nothing, state: State | None = None, epochs: int = EPOCHS
) -> float:
    """Train a causal transformer to predict the next letter and return its last validation loss."""
    torch.manual_seed(0)
    texts, held_out = torch.split(make_texts(), [TEXTS, HELD_OUT])
    width = config["width"]
    layer = torch.nn.TransformerEncoderLayer(
        width, config["heads"], 2 * width, config["dropout"], batch_first=True, norm_first=True
    )
    model = torch.nn.ModuleDict(
        {
            "letters": torch.nn.Embedding(LETTERS, width),
            "places": torch.nn.Embedding(LENGTH, width),
            "layers": torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            "head": torch.nn.Linear(width, LETTERS),
        }
    )
    mask = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        embedded = model["letters"](rows[:, :-1]) + model["places"].weight
        scores = model["head"](model["layers"](embedded, mask=mask, is_causal=True))
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())

    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config["lr"], total_steps=EPOCHS * BATCHES, pct_start=config["warmup"]
    )
    stateful: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
    first = 1
    if state is not None:
        for name, part in stateful.items():
            part.load_state_dict(state[name])
        first = state["epoch"] + 1
    loss = 0.0
    for epoch in range(first, epochs + 1):
        torch.manual_seed(epoch)  # so that a training that was resumed equals one that was not
        model.train()
        for batch in torch.randint(TEXTS, (BATCHES, BATCH_SIZE)):
            optimizer.zero_grad()
            loss_of(texts[batch]).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        model.eval()
        with torch.no_grad():
            loss = loss_of(held_out).item()
        mark(loss)

        def save(epoch: int = epoch) -> State:
            return {name: part.state_dict() for name, part in stateful.items()} | {"epoch": epoch}

        report(epoch, loss, save)
    return loss


def score_boosting(config: Config) -> float:
    """Return the mean R2 of a LightGBM regression over five folds, with one thread."""
    return score_boosting_as_written({**config, "n_jobs": 1})


def score_boosting_as_written(config: Config) -> float:
    """Return the mean R2 of a LightGBM regression over five folds, with as many threads as LightGBM starts."""
    x, y = load_diabetes(return_X_y=True)
    model = LGBMRegressor(**config, subsample_freq=1, random_state=0, verbosity=-1)
    folds = KFold(5, shuffle=True, random_state=0)
    score = float(cross_val_score(model, x, y, cv=folds, scoring="r2").mean())
    mark(score)
    return score


def train_recorded(
    number: str,
    config: Config,
    report: Report = report_nothing,
    state: State | None = None,
    epochs: int = RECORDED_EPOCHS,
) -> float:
    """Follow the learning curve of a configuration on a data set, and return its last validation error."""
    curves = Path(os.environ["RACE_CURVES"])
    errors, seconds = lcbench.Curves(curves, number)(config)
    seconds *= FULL_SECONDS / lcbench.reference(curves, number)["full_seconds"]
    first = 1 if state is None else state["epoch"] + 1
    for epoch in range(first, epochs + 1):
        time.sleep(seconds[epoch - 1])
        error = float(errors[epoch - 1])
        mark(error, float(seconds[epoch - 1]), is_last=epoch == RECORDED_EPOCHS)

        def save(epoch: int = epoch) -> State:
            return {"epoch": epoch}

        report(epoch, error, save)
    return error


TASKS = {
    "digits": Task(
        train_digits,
        {
            "lr": Float(3e-4, 3e-2, log=True),
            "units": Integer(32, 512, log=True),
            "dropout": Float(0.0, 0.6),
            "weight_decay": Float(1e-6, 1e-1, log=True),
            "batch_size": Choice((16, 32, 64)),
        },
        "accuracy",
        "max",
        EPOCHS,
        ("torch", "scikit-learn"),
    ),
    "boosting": Task(
        score_boosting,
        {
            "learning_rate": Float(3e-3, 0.5, log=True),
            "n_estimators": Integer(20, 200),
            "num_leaves": Integer(2, 64, log=True),
            "min_child_samples": Integer(2, 60),
            "subsample": Float(0.3, 1.0),
            "colsample_bytree": Float(0.3, 1.0),
            "reg_lambda": Float(1e-3, 1e2, log=True),
        },
        "r2",
        "max",
        0,
        ("lightgbm", "scikit-learn"),
    ),
    "transformer": Task(
        train_transformer,
        {
            "lr": Float(3e-4, 1e-1, log=True),
            "width": Choice((16, 32, 48, 64)),
            "heads": Choice((1, 2, 4)),
            "dropout": Float(0.0, 0.4),
            "weight_decay": Float(1e-4, 1.0, log=True),
            "warmup": Float(0.02, 0.5),
        },
        "loss",
        "min",
        EPOCHS,
        ("torch", "scikit-learn"),
    ),
}
TASKS["boosting_as_written"] = TASKS["boosting"]._replace(train=score_boosting_as_written)
TASKS |= {
    f"recorded-{number}": Task(
        partial(train_recorded, number),
        {
            "batch_size": Integer(16, 512, log=True),
            "learning_rate": Float(1e-4, 1e-1, log=True),
            "max_dropout": Float(0.0, 1.0),
            "max_units": Integer(64, 1024, log=True),
            "momentum": Float(0.1, 0.99),
            "num_layers": Integer(1, 5),
            "weight_decay": Float(1e-5, 1e-1),
        },
        "error",
        "min",
        RECORDED_EPOCHS,
        ("onnxruntime",),
        workers=8,
    )
    for number in RECORDED
}
