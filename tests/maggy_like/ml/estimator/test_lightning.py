"""LightningModules as models: the weights and metrics are those of Lightning's own Trainer."""

from __future__ import annotations

import signal
import subprocess
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fsspec.core import url_to_fs
from terminal import PATHS

from maggy_like import Reporter, run
from maggy_like.errors import ConfigError
from maggy_like.ml import ParquetLoader
from maggy_like.ml.data import Statistics
from maggy_like.ml.estimator import lightning as estimator_lightning
from maggy_like.ml.estimator.batch_checks import check_sample, fit_to_rows
from maggy_like.ml.estimator.network import build_network, lightning_of
from maggy_like.ml.estimator.plan import Data, TrainingPlan
from maggy_like.ml.estimator.train import train_network
from optimizers.core.events import Measured

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

EPOCHS = 3

MODULES = (
    "Line",
    "AtTheEnd",
    "SomeBatches",
    "Reduces",
    "LogsAMetric",
    "LogsACollection",
    "SeveralLoaders",
    "Manual",
    "Plateau",
    "OneCycle",
    "Clips",
    "StepAndEpoch",
    "OwnNames",
    "Prepares",
    "Freezes",
    "Normalises",
    "Skips",
    "LittleBatches",
    "Callbacks",
)


@pytest.fixture(scope="module")
def modules(lightning: Any) -> Any:
    """The modules that are trained here."""
    return import_module("lightning_modules")


@pytest.fixture
def plan(modules: Any, tmp_path: Path) -> TrainingPlan:
    random = np.random.default_rng(0)
    for name, rows in (("train", 56), ("validation", 20)):
        x = random.normal(size=(rows, 2))
        pq.write_table(pa.table({"x": list(x), "y": x @ [1.0, -2.0] + 0.5}), tmp_path / f"{name}.parquet")
    train, validation = ((tmp_path / f"{name}.parquet").as_uri() for name in ("train", "validation"))
    data = Data((train,), (validation,), 56, 20)
    return TrainingPlan(modules.Line, None, ("x",), ("y",), data, batch_size=16, epochs=EPOCHS, keep_best=False)


class Rows:
    """The rows of a plan for Lightning's own Trainer, in the order of the Estimator."""

    def __init__(self, plan: TrainingPlan, urls: tuple[str, ...], *, rank: int = 0, ranks: int = 1) -> None:
        self.loader = ParquetLoader(
            list(urls), ["x", "y"], batch_size=plan.batch_size, shuffle=urls == plan.data.train, rank=rank, ranks=ranks
        )
        self.trainer: Any = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        self.loader.set_epoch(self.trainer.current_epoch + 1)
        for batch in self.loader:
            yield tuple(batch.values())


def trained_by_lightning(plan: TrainingPlan, lightning: Any, rank: int = 0, ranks: int = 1, **given: Any) -> Any:
    """The weights and the metrics of each epoch."""
    history = []

    class History(lightning.pytorch.callbacks.Checkpoint):  # type: ignore[misc]  # called after the module's hooks
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            trainer.callbacks = [*(it for it in trainer.callbacks if it is not self), self]

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            history.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    module = plan.network()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=plan.epochs,
            accelerator="cpu",
            callbacks=[History()],
            gradient_clip_val=plan.clip,
            accumulate_grad_batches=plan.accumulate,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            **given,
        )
        rows = [Rows(plan, urls, rank=rank, ranks=ranks) for urls in (plan.data.train, plan.data.validation) if urls]
        for it in rows:
            it.trainer = trainer
        trainer.fit(module, *rows)
    return trainer.lightning_module.state_dict(), history


def logged(found: dict[str, Any]) -> list[dict[str, float]]:
    """The metrics of a training's epochs that the module has logged."""
    own = {"epoch", "loss", "validation_loss"}
    return [
        {name.removeprefix("logged_"): it for name, it in row.items() if name not in own} for row in found["history"]
    ]


def alone(plan: TrainingPlan) -> TrainingPlan:
    """The plan without rows to validate on."""
    return replace(plan, data=replace(plan.data, validation=(), held=0))


def of_module(plan: TrainingPlan, name: str) -> TrainingPlan:
    """The plan of one of the modules."""
    plan = replace(plan, model=getattr(import_module("lightning_modules"), name))
    if name == "Callbacks":
        return replace(plan, model_params={"directory": url_to_fs(plan.data.train[0])[1] + "-saved"})
    return alone(plan) if name == "SeveralLoaders" else plan


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("name", [*MODULES, "compiled"])
def test_weights_and_metrics_are_those_of_lightning(plan: TrainingPlan, modules: Any, name: str) -> None:
    plan = of_module(plan, name)
    found = train_network(plan, {}, Reporter(budget=EPOCHS))
    # Lightning 2.6 cannot compile a step that logs, with torch 2.13.
    plain = replace(plan, model=modules.Line) if name == "compiled" else plan
    weights, history = trained_by_lightning(plain, modules.L)
    assert len(history) == (2 if name == "Callbacks" else EPOCHS)
    assert logged(found) == [pytest.approx(row) for row in history]
    assert found["network"].keys() == weights.keys()
    for key, value in weights.items():
        assert torch.equal(found["network"][key], value), key
    _, precision = fit_to_rows(plan, {"x": torch.ones(2, 2), "y": torch.ones(2)})
    assert precision is torch.float32
    assert check_sample(plan, {"x": torch.ones(2, 2), "y": torch.ones(2)}, Statistics(56, {}), []) is None


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        ({"accumulate": 2, "clip": 0.3}, {}),
        ({"precision": "bf16"}, {"precision": "bf16-mixed"}),
        ({"trainer_params": {"gradient_clip_algorithm": "value"}, "clip": 0.1}, {"gradient_clip_algorithm": "value"}),
    ],
)
def test_params_are_arguments_of_the_trainer(
    plan: TrainingPlan, modules: Any, changes: dict[str, Any], given: dict[str, Any]
) -> None:
    plan = replace(plan, **changes)
    found = train_network(plan, {}, Reporter(budget=EPOCHS))
    weights, history = trained_by_lightning(plan, modules.L, **given)
    assert logged(found) == [pytest.approx(row) for row in history]
    assert all(torch.equal(found["network"][name], value) for name, value in weights.items())


def test_its_callbacks_end_the_training_and_save_files(plan: TrainingPlan, modules: Any, tmp_path: Path) -> None:
    plan = replace(plan, model=modules.Callbacks, model_params={"directory": str(tmp_path / "of the module")})
    batch = {"x": torch.ones(2, 2), "y": torch.ones(2)}
    check_sample(plan, batch, Statistics(56, {}), [])
    assert not (tmp_path / "of the module").exists()
    found = train_network(plan, {}, Reporter(budget=EPOCHS))
    assert len(found["history"]) == 2
    assert (tmp_path / "of the module" / "best.ckpt").exists()


def test_a_module_of_the_other_package_is_trained_by_it(plan: TrainingPlan, modules: Any) -> None:
    other = import_module("pytorch_lightning")

    class Line(other.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any) -> torch.Tensor:
            assert type(self.trainer) is other.Trainer
            return (self.line(batch[0])[:, 0] - batch[1]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    assert lightning_of(Line) == "pytorch_lightning"
    found = train_network(alone(replace(plan, model=Line)), {}, Reporter(budget=2))
    assert [list(row) for row in found["history"]] == [["epoch", "loss"]] * 2


def test_history_has_the_losses_and_nothing_hides_them(plan: TrainingPlan, modules: Any) -> None:
    found = train_network(replace(plan, model=modules.OwnNames), {}, Reporter(budget=2))
    row = found["history"][-1]
    assert list(row) == [
        "epoch", "loss", "validation_loss", "step", "logged_epoch", "logged_loss", "val_loss", "train_loss",
    ]  # fmt: skip
    assert row["epoch"] == 2
    assert row["loss"] == pytest.approx(row["train_loss"])
    assert row["validation_loss"] == row["val_loss"]
    returned = train_network(replace(plan, model=modules.StepAndEpoch), {}, Reporter(budget=2))["history"][-1]
    assert returned["loss"] == pytest.approx(returned["fit_epoch"])
    assert returned["validation_loss"] > 0
    halves = train_network(replace(plan, accumulate=2), {}, Reporter(budget=1))["history"][0]
    assert halves["loss"] == pytest.approx(halves["train_loss"])


@pytest.mark.parametrize("name", ["AtTheEnd", "Plateau", "OneCycle", "Normalises", "Manual", "Callbacks"])
def test_an_interrupted_training_continues_as_if_nothing_had_been(plan: TrainingPlan, modules: Any, name: str) -> None:
    plan = of_module(plan, name)
    whole = train_network(plan, {}, Reporter(budget=EPOCHS))
    first, later = Reporter(budget=1), Reporter(budget=EPOCHS)
    train_network(plan, {}, first)
    later._saves = first._saves
    again = train_network(plan, {}, later)
    assert again["history"] == whole["history"]
    assert all(torch.equal(again["network"][key], value) for key, value in whole["network"].items())


def test_early_stopping_best_weights_frozen_parts_and_callbacks(plan: TrainingPlan, modules: Any) -> None:
    seen: list[tuple[int, str]] = []
    plan = replace(
        plan,
        patience=1,
        min_delta=10.0,
        keep_best=True,
        freeze=("body.0",),
        callbacks=(lambda epoch, metrics, network: seen.append((epoch, type(network).__name__)),),
    )
    reporter = Reporter(budget=EPOCHS)
    found = train_network(plan, {}, reporter)
    assert (len(found["history"]), found["best_epoch"]) == (2, 1)
    assert train_network(plan, {}, reporter)["history"] == found["history"]  # with nothing left to do
    assert seen == [(1, "Line"), (2, "Line")]
    start = build_network(plan.model, {}, 0).state_dict()
    assert torch.equal(found["network"]["body.0.weight"], start["body.0.weight"])
    assert not torch.equal(found["network"]["body.1.weight"], start["body.1.weight"])


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("Fails", {}, r"validation_step failed with the batch \('x' of shape \[2, 2\], 'y' of shape \[2\]\): Runtime"),
        ("LogsNoLoss", {}, "validation_step of LogsNoLoss must return the loss, got none; return it, or log val_loss"),
        (
            "Line",
            {"trainer_params": {"max_step": 3}},
            r"arguments of lightning.pytorch.Trainer, got 'max_step' \(did you mean 'max_steps'",
        ),
        ("Line", {"trainer_params": {"max_epochs": 3}}, "must not have 'max_epochs', which .* sets; use epochs"),
        ("Manual", {"clip": 1.0}, "gradient clipping is not supported for manual optimization"),
    ],
)
def test_what_would_fail_is_an_error_before_the_training(
    plan: TrainingPlan, modules: Any, name: str, given: dict[str, Any], message: str
) -> None:
    batch = {"x": torch.ones(2, 2), "y": torch.ones(2)}
    plan = replace(plan, model=getattr(modules, name), **given)
    with pytest.raises(ConfigError, match=message):
        check_sample(plan, batch, Statistics(56, {}), [])
    with pytest.raises(ConfigError, match="learningRate must not be given with a Lightning module"):
        check_sample(replace(plan, trainer_params={}), batch, Statistics(56, {}), ["learningRate"])


def test_ctrl_c_ends_it_as_any_other_training(plan: TrainingPlan, modules: Any) -> None:
    class Interrupted(modules.Line):  # type: ignore[misc, name-defined]
        def on_train_epoch_end(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_network(replace(plan, model=Interrupted), {}, Reporter(budget=1))
    with pytest.raises(KeyboardInterrupt):  # the signal is not ignored afterwards
        signal.raise_signal(signal.SIGINT)


def by_ddp(plan: TrainingPlan, names: tuple[str, ...], reporter: Reporter) -> Any:
    """What Lightning's own Trainer makes of modules on the ranks of a trial."""
    modules: Any = import_module("lightning_modules")
    options = {"strategy": "ddp", "devices": reporter.world_size}
    reporter.prepare(torch.nn.Linear(1, 1))
    return [
        trained_by_lightning(of_module(plan, name), modules.L, reporter.rank, reporter.world_size, **options)
        for name in names
    ]


def by_us(plan: TrainingPlan, names: tuple[str, ...], reporter: Reporter) -> Any:
    """What the Estimator makes of them."""
    found = []
    for name in names:
        mine = Reporter(budget=EPOCHS)
        assert mine.world_size == reporter.world_size
        found.append(train_network(of_module(plan, name), {}, mine))
    return found


@pytest.mark.long
@pytest.mark.e2e
def test_on_two_workers_weights_and_metrics_are_those_of_ddp(plan: TrainingPlan, tmp_path: Path) -> None:
    # On several ranks Lightning skips no step, and does not allow a layer that is frozen in the middle.
    names = tuple(name for name in MODULES if name not in ("Skips", "Freezes"))
    options = {"budget": EPOCHS, "workers": 2, "engine": "local", "directory": tmp_path, "progress": False}
    ours = run(partial(by_us, plan, names), **options)
    theirs = run(partial(by_ddp, plan, names), **options)
    for name, found, (weights, history) in zip(names, ours, theirs, strict=True):
        assert logged(found) == [pytest.approx(row) for row in history], name
        assert all(torch.equal(found["network"][key], value) for key, value in weights.items()), name


SEARCH = """
import os, signal, sys
from lightning_modules import Line
from pyspark.sql import functions as F
from maggy_like import ASHA, Integer, spark_session
from maggy_like.ml import TorchEstimator


def search(spark, directory, **options):
    x = F.col("id") / 40
    rows = spark.range(40).select(F.array(x, -x).alias("features"), x.alias("label"), (F.col("id") % 4 == 0).alias("v"))
    options = {"name": "august", "progress": False, "n_trials": 6, "optimizer": ASHA(eta=2), **options}
    estimator = TorchEstimator(model=Line, search={"hidden": Integer(1, 9)}, epochs=4, batchSize=16, workers=2,
                               validationIndicatorCol="v", directory=directory, runOptions=options)
    return estimator, rows


def die(event):
    if type(event).__name__ == "CheckpointSaved" and (event.trial, event.step) == (4, 2):  # of the best trial
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    estimator, rows = search(spark_session("local[2]"), sys.argv[1], callbacks=[die])
    estimator.fit(rows)
"""


@pytest.mark.long
@pytest.mark.spark
def test_a_search_on_spark_stops_trials_and_resumes_after_its_driver_was_killed(
    spark_local: SparkSession, run_script: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    killed = run_script(SEARCH, tmp_path, env={"PYTHONPATH": PATHS})
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    names: dict[str, Any] = {}
    exec(SEARCH, names)
    events: list[Any] = []
    estimator, rows = names["search"](spark_local, str(tmp_path), resume=True, callbacks=[events.append])
    result = estimator.fit(rows).result
    assert (len(result.trials), {trial.state for trial in result.trials}) == (6, {"completed", "stopped"})
    best = result.best_trial
    assert (best.id, best.attempt, list(best.curve.steps)) == (4, 2, [1, 2, 3, 4])
    again = [event for event in events if isinstance(event, Measured) and (event.trial, event.attempt) == (4, 2)]
    assert again
    assert min(event.columns["validation_loss"][0][0] for event in again) > 2
    whole = estimator.copy({estimator.search: {}, estimator.modelParams: best.config})
    history = whole.setParams(engine="inline", workers=1, runOptions={"progress": False}).fit(rows).history
    assert [row["validation_loss"] for row in history] == pytest.approx(list(best.curve.values), rel=1e-5)


def test_fits_in_two_threads_leave_the_filters_of_warnings_as_they_were() -> None:
    before = list(warnings.filters)
    first, second = estimator_lightning._quiet(), estimator_lightning._quiet()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert warnings.filters != before
    second.__exit__(None, None, None)
    assert warnings.filters == before
