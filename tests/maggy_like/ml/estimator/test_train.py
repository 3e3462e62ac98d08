"""The training function, in this process: early stopping, weights that are kept, going on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin

from maggy_like import Reporter
from maggy_like.errors import ConfigError
from maggy_like.ml.estimator.plan import Data, TrainingPlan, home_of
from maggy_like.ml.estimator.train import train_network


@pytest.fixture
def plan(tmp_path: Path) -> TrainingPlan:
    """A linear regression of 64 rows, and 16 to validate on."""
    random = np.random.default_rng(0)
    urls = []
    for name, rows in (("train", 64), ("validation", 16)):
        x = random.normal(size=(rows, 2))
        y = x @ [1.0, -2.0] + 0.5
        table = pa.table({"x": list(x), "y": y, "positive": (y > 0) * 1.0, "w": np.arange(rows) % 2.0})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=10)
        urls.append((tmp_path / f"{name}.parquet").as_uri())
    data = Data((urls[0],), (urls[1],), 64)
    return TrainingPlan(
        model=nn.Linear(2, 1),
        loss="mse",
        features=("x",),
        labels=("y",),
        data=data,
        optimizer="sgd",
        rate=0.1,
        batch_size=16,
    )


def test_it_learns_and_says_how(plan: TrainingPlan) -> None:
    seen: list[tuple[int, float]] = []
    plan = replace(plan, callbacks=(lambda epoch, metrics, network: seen.append((epoch, metrics["validation_loss"])),))
    found = train_network(plan, {}, Reporter(budget=20))
    history = found["history"]
    assert [row["epoch"] for row in history] == list(range(1, 21))
    assert history[-1]["validation_loss"] < 1e-3 < history[0]["validation_loss"]
    assert seen == [(row["epoch"], row["validation_loss"]) for row in history]
    assert torch.allclose(found["network"]["weight"], torch.tensor([[1.0, -2.0]]), atol=0.05)


def test_the_same_seed_trains_the_same(plan: TrainingPlan) -> None:
    first, again, other = (train_network(replace(plan, seed=seed), {}, Reporter(budget=2)) for seed in (1, 1, 2))
    assert first["history"] == again["history"] != other["history"]


def test_it_goes_on_from_what_was_saved_as_if_nothing_had_been(plan: TrainingPlan) -> None:
    plan = replace(plan, model=nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)))
    whole = train_network(plan, {}, Reporter(budget=4))
    reporter = Reporter(budget=2)
    train_network(plan, {}, reporter)
    later = Reporter(budget=4)
    later._saves = reporter._saves
    assert train_network(plan, {}, later)["history"] == whole["history"]


def test_it_stops_early_with_the_best_weights(plan: TrainingPlan) -> None:
    plan = replace(plan, rate=2.0, patience=3)  # which diverges
    found = train_network(plan, {}, Reporter(budget=50))
    assert found["best_epoch"] == 1
    assert len(found["history"]) == 4
    last = train_network(replace(plan, keep_best=False), {}, Reporter(budget=50))
    assert not torch.equal(last["network"]["weight"], found["network"]["weight"])


def test_losses_that_are_never_finite_are_no_better_each_epoch(plan: TrainingPlan) -> None:
    found = train_network(replace(plan, rate=1e30, patience=2), {}, Reporter(budget=20))
    assert len(found["history"]) == 3
    found = train_network(replace(plan, rate=1e19, patience=2), {}, Reporter(budget=20))
    assert len(found["history"]) < 20


def test_frozen_parts_stay(plan: TrainingPlan) -> None:
    network = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    found = train_network(replace(plan, model=network, freeze=("0",)), {}, Reporter(budget=2))
    assert torch.equal(found["network"]["0.running_mean"], torch.zeros(2))
    assert not torch.equal(found["network"]["1.weight"], network[1].weight)


@pytest.mark.parametrize("batch_size", [9, 21, 63])  # one row is left over
def test_batch_normalization_never_gets_one_row(plan: TrainingPlan, batch_size: int) -> None:
    sizes: list[int] = []

    class Watched(nn.BatchNorm1d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            return super().forward(x)

    network = nn.Sequential(nn.Linear(2, 4), Watched(4), nn.Linear(4, 1))
    data = Data(plan.data.train, (), 64)
    plan = replace(plan, model=lambda: network, data=data, batch_size=batch_size)
    train_network(plan, {}, Reporter(budget=1))
    assert sum(sizes) == 64  # and each row comes once
    assert min(sizes) > 1


def test_layers_that_know_no_shape_yet_have_one_before_anything_is_prepared(
    plan: TrainingPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    are_shapeless: list[bool] = []
    reporter = Reporter(budget=3)

    def prepare(*given: Any) -> Any:
        tensors = [it for module in given if isinstance(module, nn.Module) for it in module.state_dict().values()]
        are_shapeless.extend(isinstance(it, UninitializedTensorMixin) for it in tensors)
        return given if len(given) > 1 else given[0]

    monkeypatch.setattr(reporter, "prepare", prepare)
    plan = replace(plan, model=lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(1)))
    found = train_network(plan, {}, reporter)
    assert are_shapeless
    assert not any(are_shapeless)
    assert found["history"] == train_network(plan, {}, Reporter(budget=3))["history"]


def test_rows_of_weight_0_teach_nothing(plan: TrainingPlan) -> None:
    found = train_network(replace(plan, weight="w", weight_scale=2.0), {}, Reporter(budget=3))
    assert found["history"][-1]["loss"] < found["history"][0]["loss"]


@pytest.mark.parametrize(
    ("label", "given", "loss"),
    [
        ("y", {"weight": "w"}, nn.MSELoss(reduction="none")),
        ("positive", {"class_weights": (0.5, 8.0)}, nn.BCEWithLogitsLoss(reduction="none")),
    ],
)
def test_the_validation_loss_is_the_weighted_mean_of_the_validation_rows(
    plan: TrainingPlan, label: str, given: dict[str, Any], loss: nn.Module
) -> None:
    kept = nn.Linear(2, 1)
    plan = replace(plan, model=kept, loss=loss, labels=(label,), rate=0.0, batch_size=3, weight_scale=3.0, **given)
    table = pq.read_table(plan.data.validation[0].removeprefix("file://"))
    output, right = (torch.tensor(table[name].to_pylist(), dtype=torch.float32) for name in ("x", label))
    weights = table["w"].to_numpy() if label == "y" else np.where(table[label].to_numpy(), 8.0, 0.5)
    with torch.no_grad():
        expected = np.average(loss(kept(output).squeeze(1), right).numpy(), weights=weights)
    found = train_network(plan, {}, Reporter(budget=1))
    assert found["history"][0]["validation_loss"] == pytest.approx(expected)
    assert set(found["history"][0]) <= {"epoch", "loss", "accuracy", "validation_loss", "validation_accuracy"}


def test_names_of_a_search_belong_to_params_the_model_or_the_optimizer(plan: TrainingPlan) -> None:
    plan = replace(plan, model=lambda hidden: nn.Linear(2, hidden))
    assert [home_of(name, plan) for name in ("learningRate", "hidden", "momentum")] == ["param", "model", "optimizer"]
    with pytest.raises(ConfigError, match=r"search must have Params.*got 'hiden'.*did you mean 'hidden'"):
        home_of("hiden", plan)
    changed = plan.with_config({"learningRate": 0.5, "hidden": 3, "momentum": 0.9, "batchSize": 8})
    assert (changed.rate, changed.model_params, changed.optimizer_params, changed.batch_size) == (
        0.5,
        {"hidden": 3},
        {"momentum": 0.9},
        8,
    )


def test_more_workers_than_rows_are_told(plan: TrainingPlan) -> None:
    reporter = Reporter(budget=1)
    reporter.world_size = 65
    with pytest.raises(ConfigError, match="65 workers cannot share 64 rows"):
        train_network(plan, {}, reporter)
