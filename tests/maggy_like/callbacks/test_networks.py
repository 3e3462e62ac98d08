"""Lightning, Keras and transformers in searches: trials stop, and promoted ones go on from their epochs."""

from __future__ import annotations

import inspect
import re
import tempfile
from pathlib import Path
from typing import Any

import library_functions
import numpy as np
import pytest
from continued import changed, check_callback_alone, check_promoted_trials_equal_whole_trainings, search
from library_functions import digits, with_keras, with_lightning, with_transformers

from maggy_like import ASHA, Float, Reporter, callbacks
from maggy_like.callbacks.progress import Progress
from maggy_like.protocol.messages import RankInfo
from maggy_like.protocol.torchrun import environment
from maggy_like.protocol.values import ReportError
from optimizers.core.trial import TrialState
from optimizers.schedulers.stopping import Threshold

pytestmark = [pytest.mark.example, pytest.mark.filterwarnings("ignore")]  # the libraries warn of each other

LIBRARIES = [
    (with_lightning, "val_loss"),
    (with_keras, "val_loss"),
    (with_transformers, "eval_loss"),
]
SPACE = {"lr": Float(0.001, 0.3, log=True)}


@pytest.mark.parametrize(("train", "metric"), LIBRARIES)
def test_a_promoted_trial_goes_on_as_if_it_had_never_paused(train: Any, metric: str, tmp_path: Path) -> None:
    best = check_promoted_trials_equal_whole_trainings(train, SPACE, tmp_path, metric=metric, tolerance=1e-5)
    assert best.value < 2.0  # 2.3 by chance


@pytest.mark.long
def test_a_promoted_trial_whose_length_is_in_optimizer_steps_goes_on(tmp_path: Path) -> None:
    length = "max_epochs=max(FULL, reporter.budget)", "max_epochs=-1, max_steps=FULL * 10"
    train = changed(with_lightning, vars(library_functions), length)
    check_promoted_trials_equal_whole_trainings(train, SPACE, tmp_path, metric="val_loss", tolerance=1e-5)


@pytest.mark.parametrize(("train", "metric"), LIBRARIES)
def test_a_trial_that_is_told_to_stop_stops(train: Any, metric: str, tmp_path: Path) -> None:
    rule = Threshold(step=2, worse_than=0.0, direction="min")
    result = search(train, SPACE, tmp_path, metric=metric, optimizer=rule, n_trials=1, max_budget=10_000)
    assert result.counts == {TrialState.STOPPED: 1}


def with_metrics_of_an_epoch(lr: float, reporter: Reporter) -> None:
    """A Lightning module that logs what it counted once the epoch is over, as torchmetrics are used."""
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch.utils.data import DataLoader, TensorDataset

    from maggy_like.callbacks import LightningReport

    class Network(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.body(batch[0]).mean()

        def on_train_epoch_end(self) -> None:
            self.log("counted", self.current_epoch + 1.0)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr)

    report = LightningReport(reporter)
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = Trainer(accelerator="cpu", max_epochs=reporter.budget, callbacks=[report], **quiet)
    trainer.fit(Network(), DataLoader(TensorDataset(torch.ones(4, 1)), 2), ckpt_path=report.ckpt_path)
    assert "on_advance_end" not in vars(trainer.fit_loop)  # it is left as it was


def test_what_a_module_logs_at_the_end_of_an_epoch_is_of_that_epoch(tmp_path: Path) -> None:
    result = search(with_metrics_of_an_epoch, SPACE, tmp_path, metric="counted", direction="max", max_budget=4)
    for trial in result.trials:
        assert list(trial.curve.values) == list(map(float, trial.curve.steps))
    assert any(trial.attempt > 1 for trial in result.trials)


@pytest.mark.parametrize(
    ("train", "metric", "argument", "method"),
    [
        (with_lightning, "val_loss", "ckpt_path=report.ckpt_path", "trainer.fit"),
        (with_keras, "val_loss", "initial_epoch=report.initial_epoch", "model.fit"),
        pytest.param(
            with_transformers,
            "eval_loss",
            "resume_from_checkpoint=report.resume_from_checkpoint",
            "trainer.train",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_callback_alone_starts_promoted_trials_over(
    train: Any,
    metric: str,
    argument: str,
    method: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alone = changed(train, vars(library_functions), (argument, "**{}"))
    result = check_callback_alone(alone, SPACE, tmp_path, capfd, f"pass {argument} to {method}", metric=metric)
    best = next(trial for trial in result.trials if trial.attempt == 3)
    whole = search(
        train, SPACE, tmp_path, metric=metric, optimizer="random", n_trials=1, points_to_evaluate=[best.config]
    )
    assert list(best.curve.values) == pytest.approx(list(whole.trials[0].curve.values), rel=1e-5)
    assert not list(tmp_path.glob("maggy_like-*"))


def test_each_of_several_sets_to_evaluate_is_reported(tmp_path: Path) -> None:
    held_out = "eval_dataset=Images(held_out, truth)"
    several = "eval_dataset={'a': Images(held_out, truth), 'b': Images(held_out[:9], truth[:9])}"
    made: dict[str, Any] = {}
    exec(inspect.getsource(with_transformers).replace(held_out, several), {**vars(library_functions)}, made)
    result = search(made["with_transformers"], SPACE, tmp_path, metric="eval_a_loss", n_trials=1, optimizer="random")
    first, second = (result.trials[0].curves[name] for name in ("eval_a_loss", "eval_b_loss"))
    assert list(first.steps) == list(second.steps) == [1, 2, 3, 4]
    assert list(first.values) != list(second.values)


@pytest.mark.parametrize("often", ["'epoch', max_steps=25", "'steps', max_steps=25, eval_steps=10"])
def test_the_evaluation_at_the_end_of_a_training_is_reported(often: str, tmp_path: Path) -> None:
    train = changed(with_transformers, vars(library_functions), ('eval_strategy="epoch"', f"eval_strategy={often}"))
    result = search(train, SPACE, tmp_path, metric="eval_loss", n_trials=1, optimizer="random")
    assert list(result.trials[0].curve.steps) == [1, 2, 3]


# -- trials of two workers: rank 0 reports, and both stop in the same epoch --------------------------


ON_TWO_RANKS = [(with_lightning, "val_loss"), (with_transformers, "eval_loss")]
ONE_ON_TWO_RANKS = [ON_TWO_RANKS[0], pytest.param(*ON_TWO_RANKS[1], marks=pytest.mark.long)]
TWO_RANKS = {"engine": "local", "workers": 2, "workers_per_trial": 2}


@pytest.mark.e2e
@pytest.mark.parametrize(("train", "metric"), ON_TWO_RANKS)
@pytest.mark.long
def test_a_promoted_trial_goes_on_with_both_ranks(train: Any, metric: str, tmp_path: Path) -> None:
    result = search(
        train, {"lr": [0.001, 0.05]}, tmp_path, metric=metric, optimizer=ASHA(eta=2), n_trials=2, max_budget=2,
        points_to_evaluate=[{"lr": 0.001}, {"lr": 0.05}], **TWO_RANKS,
    )  # fmt: skip
    poor, good = result.trials
    assert (poor.state, list(poor.curve.steps)) == (TrialState.PAUSED, [1])
    assert (good.state, good.attempt, list(good.curve.steps)) == (TrialState.COMPLETED, 2, [1, 2])
    assert good.curve.values[1] < good.curve.values[0]


@pytest.mark.e2e
@pytest.mark.parametrize(("train", "metric"), ONE_ON_TWO_RANKS)
def test_both_ranks_stop_in_the_same_epoch(train: Any, metric: str, tmp_path: Path) -> None:
    rule = Threshold(step=2, worse_than=0.0, direction="min")
    result = search(
        train, {"lr": [0.01]}, tmp_path, metric=metric, optimizer=rule, n_trials=1, max_budget=10_000, **TWO_RANKS
    )
    assert result.counts == {TrialState.STOPPED: 1}
    assert result.trials[0].attempt == 1


FIT = {"val_loss": "trainer.fit(Network(), *loaders, ckpt_path=report.ckpt_path)",
       "eval_loss": "trainer.train(resume_from_checkpoint=report.resume_from_checkpoint)"}  # fmt: skip
STEPS = {"val_loss": "trainer.global_step", "eval_loss": "trainer.state.global_step"}
ALONE = {
    "val_loss": ("        max_epochs=", "        devices=1,\n        max_epochs="),
    "eval_loss": ("    report = T", "    os.environ.pop('ACCELERATE_USE_CPU')\n    report = T"),
}
ONE_TRIAL = {"optimizer": "random", "n_trials": 1, "max_budget": 1, **TWO_RANKS}


@pytest.mark.e2e
@pytest.mark.parametrize(("train", "metric"), ONE_ON_TWO_RANKS)
def test_a_trainer_without_gpus_shares_the_rows_among_the_workers(train: Any, metric: str, tmp_path: Path) -> None:
    block = f"if True:\n            try:\n                {FIT[metric]}\n            finally:\n                "
    told = changed(train, vars(library_functions), (FIT[metric], f"{block}print('steps:', {STEPS[metric]})"))
    result = search(told, SPACE, tmp_path, metric=metric, **ONE_TRIAL)
    assert not result.failures
    steps = str(len(digits()[0]) // 50 // 2)
    assert {*re.findall(r"steps: (\d+)", result.log(0))} == {steps}


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.parametrize(("train", "metric"), ONE_ON_TWO_RANKS)
def test_a_trainer_that_would_train_alone_in_each_worker_fails(train: Any, metric: str, tmp_path: Path) -> None:
    result = search(changed(train, vars(library_functions), ALONE[metric]), SPACE, tmp_path, metric=metric, **ONE_TRIAL)
    assert "the trainer must train with all 2 workers of the trial, got" in str(result)


def begin(name: str, reporter: Reporter) -> None:
    """Begin to report with what ``maggy_like.callbacks`` has of that name, whose library is imported now."""
    if name == "sklearn_steps":
        next(callbacks.sklearn_steps(object(), reporter))
    else:
        getattr(callbacks, name)(reporter)


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
@pytest.mark.parametrize("name", ["KerasReport", "LightGBMReport", "XGBoostReport", "sklearn_steps"])
def test_a_library_that_trains_alone_in_each_worker_is_named(
    name: str, rank: str, lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable, value in environment(RankInfo(int(rank), 2, int(rank), 2, 0, 1), "127.0.0.1", 1).items():
        monkeypatch.setenv(variable, value)
    begin(name, Reporter(budget=1))
    line = "each of the 2 workers of this trial trains the whole model, because "
    assert capsys.readouterr().out.count(line) == lines


def test_checkpoints_go_to_a_directory_of_the_trial_whatever_output_dir_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    named = ("    with tempfile.TemporaryDirectory() as directory:", f"    for directory in [{str(out)!r}]:")
    train = changed(with_transformers, vars(library_functions), named, ('save_strategy="no"', 'save_strategy="epoch"'))
    result = search(train, SPACE, tmp_path, metric="eval_loss", optimizer="random", n_trials=1, max_budget=1)
    assert f"output_dir={str(out)!r} may be that of other trials" in capsys.readouterr().out
    assert any(name.startswith("out/checkpoint-") for name in result.files(0))
    assert not [*out.glob("checkpoint-*")]
    assert result.load_best()["trial"] == 0


def test_a_state_of_another_trial_is_rejected() -> None:
    reporter = Reporter(budget=2)
    reporter.checkpoint({"step": 1, "trial": 7})
    reporter.report(1.0)
    with pytest.raises(ReportError, match="must be of trial 0, got one of trial 7"):
        Progress(reporter, 1)


@pytest.mark.parametrize(("trial", "lr"), [(0, 1.0), (1, 3.0)])
def test_lightning_continues_what_monitors_a_metric_at_the_end_of_an_epoch(trial: int, lr: float) -> None:
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import EarlyStopping
    from torch.optim.lr_scheduler import ReduceLROnPlateau
    from torch.utils.data import DataLoader, TensorDataset

    from maggy_like.callbacks import LightningReport

    class Network(LightningModule):
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.lr, self.body = lr, torch.nn.Linear(1, 1)
            self.rates: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
            self.log("flat", 1.0)
            return self.body(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), self.lr)
            schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "flat"}}

    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    rates, reporter = [], Reporter(budget=9)
    for reporter.trial, rate, epochs in ((0, 1.0, 2), (trial, lr, 9)):
        report, module, stopping = LightningReport(reporter), Network(rate), EarlyStopping("flat", patience=3)
        trainer = Trainer(accelerator="cpu", max_epochs=epochs, callbacks=[report, stopping], **quiet)
        trainer.fit(module, DataLoader(TensorDataset(torch.ones(1, 1))), ckpt_path=report.ckpt_path)
        rates += module.rates
    assert rates == [1.0, 1.0, lr / 2, lr / 4]  # after which it has been flat for three epochs


# -- a state of another trial, as population-based training restores it ------------------------------


def test_keras_keeps_the_learning_rate_of_the_trial() -> None:
    import keras

    rates, reporter = [], Reporter(budget=2)
    for reporter.trial, rate in enumerate((0.5, 0.25)):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(rate), "mse")
        report, x = callbacks.KerasReport(reporter), np.ones((2, 1))
        epochs = {"initial_epoch": report.initial_epoch, "epochs": reporter.trial + 1}
        model.fit(x, x, callbacks=[report], verbose=0, **epochs)
        rates.append((float(model.optimizer.learning_rate), int(model.optimizer.iterations)))
    assert rates == [(0.5, 1), (0.25, 2)]


def test_lightning_keeps_the_hyperparameters_of_the_trial_and_continues_the_schedule() -> None:
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch.optim.lr_scheduler import LambdaLR, SequentialLR
    from torch.utils.data import DataLoader, TensorDataset

    from maggy_like.callbacks import LightningReport

    class Network(LightningModule):
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.lr, self.body = lr, torch.nn.Linear(1, 1)
            self.seen: list[tuple[float, float]] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            (group,) = self.trainer.optimizers[0].param_groups
            self.seen.append((group["lr"], group["momentum"]))
            self.log("loss", loss := self.body(batch[0]).mean())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), self.lr, momentum=self.lr)
            schedules = [LambdaLR(optimizer, lambda epoch: 1 / (epoch + 1)) for _ in range(2)]
            return [optimizer], [SequentialLR(optimizer, schedules, [100])]

    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    seen, reporter = [], Reporter(budget=3)
    for reporter.trial, lr in enumerate((0.5, 0.25)):
        report, module = LightningReport(reporter), Network(lr)
        trainer = Trainer(accelerator="cpu", max_epochs=2 * reporter.trial + 1, callbacks=[report], **quiet)
        trainer.fit(module, DataLoader(TensorDataset(torch.ones(1, 1))), ckpt_path=report.ckpt_path)
        seen += module.seen
    assert seen == [(0.5, 0.5), (0.25 / 2, 0.25), (0.25 / 3, 0.25)]


def test_transformers_which_would_restore_its_learning_rate_is_rejected() -> None:
    from maggy_like.callbacks import TransformersReport

    reporter = Reporter(budget=2)
    reporter.checkpoint({"step": 1, "trial": 0, "checkpoint": b""})
    reporter.trial = 1
    with pytest.raises(ReportError, match="must be of trial 1, got one of trial 0, with whose learning rate"):
        TransformersReport(reporter)
