"""Modules of Lightning's own package as models: their steps, schedules, hooks, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.optim import lr_scheduler

from maggy_like import Reporter
from maggy_like.errors import ConfigError
from maggy_like.ml.data import Statistics
from maggy_like.ml.estimator.checks import check_sample
from maggy_like.ml.estimator.network import network_of_bytes, network_to_bytes
from maggy_like.ml.estimator.train import Data, TrainingPlan, train_network


@pytest.fixture(scope="module")
def modules(lightning: Any) -> Any:
    """The modules that are trained here."""
    return import_module("lightning_modules")


@pytest.fixture
def line(modules: Any) -> Any:
    """The class of the plainest of them."""
    return modules.Line


@pytest.fixture
def plan(line: Any, tmp_path: Path) -> TrainingPlan:
    random = np.random.default_rng(0)
    for name, rows in (("train", 64), ("validation", 16)):
        x = random.normal(size=(rows, 2))
        pq.write_table(pa.table({"x": list(x), "y": x @ [1.0, -2.0] + 0.5}), tmp_path / f"{name}.parquet")
    train, validation = ((tmp_path / f"{name}.parquet").as_uri() for name in ("train", "validation"))
    data = Data((train,), (validation,), 64)
    return TrainingPlan(line, None, ("x",), ("y",), data, batch_size=16, epochs=5)


def trained(plan: TrainingPlan, module: Any) -> tuple[Any, list[dict[str, float]]]:
    """The module as the last epoch left it, and the history."""
    seen: list[Any] = []
    plan = replace(plan, model=module, callbacks=(lambda epoch, metrics, network: seen.append(network),))
    history = train_network(plan, {}, Reporter(budget=plan.epochs))["history"]
    return seen[-1], history


def test_it_trains_with_its_own_loss_and_optimizer_and_what_it_logs_is_the_history(
    plan: TrainingPlan, line: Any
) -> None:
    found = train_network(plan, {"hidden": 4}, Reporter(budget=5))
    assert list(found["history"][0]) == ["epoch", "loss", "train_loss", "validation_loss", "validation_rows"]
    assert found["history"][-1]["validation_loss"] < 0.1 < found["history"][0]["validation_loss"]
    module = line(4)
    module.load_state_dict(found["network"])
    again = network_of_bytes(network_to_bytes(module))
    x = torch.randn(3, 2)
    assert torch.equal(again(x), module.eval()(x))


def test_it_knows_epoch_and_step(plan: TrainingPlan, line: Any) -> None:
    module, _ = trained(plan, line())
    assert module.places == [(step // 4, step) for step in range(20)]


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (lambda module, made: ([made], [lr_scheduler.StepLR(made, 1, 0.5)]), [0.1, 0.05, 0.025, 0.0125, 0.00625]),
        (
            lambda module, made: {"optimizer": made, "lr_scheduler": {"scheduler": lr_scheduler.StepLR(made, 1, 0.5)}},
            [0.1, 0.05, 0.025, 0.0125, 0.00625],
        ),
        (
            lambda module, made: (
                [made],
                [{"scheduler": lr_scheduler.StepLR(made, 1, 0.5), "interval": "step", "frequency": 2}],
            ),
            [0.1 / 4**epoch for epoch in range(1, 6)],
        ),
        (
            lambda module, made: {
                "optimizer": made,
                "lr_scheduler": {
                    "scheduler": lr_scheduler.ReduceLROnPlateau(made, patience=0, threshold=2, threshold_mode="abs"),
                    "monitor": "val_loss",
                },
            },
            [0.1, 0.1, 0.01, 0.001, 0.0001],
        ),
        (
            lambda module, made: (
                [made],
                [
                    {
                        "scheduler": lr_scheduler.LinearLR(
                            made, 1, 0, total_iters=module.trainer.estimated_stepping_batches
                        ),
                        "interval": "step",
                    }
                ],
            ),
            [0.08, 0.06, 0.04, 0.02, 0.0],
        ),
    ],
    ids=["epoch", "dict", "step", "plateau", "whole"],
)
def test_its_schedule_steps(plan: TrainingPlan, line: Any, schedule: Any, rates: list[float]) -> None:
    module, _ = trained(plan, line(schedule=schedule))
    assert module.rates == pytest.approx(rates)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("ByHand", "ByHand must have automatic_optimization=True"),
        ("Clips", "Clips must not override on_before_optimizer_step, which TorchEstimator does not call"),
        ("Asks", "must not use trainer.strategy"),
        ("Wide", r"training_step failed with the batch \('x' of shape \[2, 2\], 'y' of shape \[2\]\): RuntimeError"),
        ("Gathers", r"self.log\('error', ...\) must log a number of the batch, got the metric object L1Loss"),
        (lambda module, made: [made, made], "one optimizer and at most one schedule, got 2 and 0"),
        (lambda module, made: 3, "must return an optimizer of torch, got 3"),
        (lambda module, made: ([made], [made.defaults]), "lr_scheduler"),
    ],
)
def test_what_needs_a_trainer_is_refused_before_the_training(
    plan: TrainingPlan, modules: Any, model: Any, message: str
) -> None:
    batch = {"x": torch.ones(2, 2), "y": torch.ones(2)}
    model = getattr(modules, model) if isinstance(model, str) else partial(modules.Line, schedule=model)
    with pytest.raises(ConfigError, match=message):
        check_sample(replace(plan, model=model), batch, Statistics(64, {}), [])
    with pytest.raises(ConfigError, match="learningRate must not be given with a Lightning module"):
        check_sample(plan, batch, Statistics(64, {}), ["learningRate"])


def test_its_schedule_goes_on_where_an_interrupted_training_was(plan: TrainingPlan, line: Any) -> None:
    def schedule(module: Any, made: Any) -> Any:
        return [made], [{"scheduler": lr_scheduler.CosineAnnealingLR(made, 20), "interval": "step"}]

    plan = replace(plan, model=line(schedule=schedule))
    whole = train_network(plan, {}, Reporter(budget=4))
    first, later = Reporter(budget=2), Reporter(budget=4)
    train_network(plan, {}, first)
    later._saves = first._saves
    again = train_network(plan, {}, later)
    assert again["history"] == whole["history"]
