"""Options of a training, each compared with the same training written by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import ReduceLROnPlateau

from maggy_like import Reporter, run
from maggy_like.errors import ConfigError, DataError
from maggy_like.ml import ParquetLoader, TorchEstimator, TorchModel
from maggy_like.ml.estimator.network import build_network, network_of_bytes, network_to_bytes
from maggy_like.ml.estimator.objective import decoded, make_optimizer, read_loss
from maggy_like.ml.estimator.plan import Data, TrainingPlan, check_precision
from maggy_like.ml.estimator.train import train_network

ROWS, BATCH, EPOCHS = 70, 16, 3  # the last of five batches has six rows

PLATEAU: dict[str, Any] = {"patience": 0, "threshold": 0.9}  # the second epoch is no better by that


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


@pytest.fixture
def plan(tmp_path: Path) -> TrainingPlan:
    """A regression."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 3)).astype("float32")
    y = (x @ np.array([1.0, -2.0, 0.5]) + random.normal(size=ROWS)).astype("float32")
    pq.write_table(pa.table({"x": list(x), "y": y}), tmp_path / "train.parquet")
    urls = ((tmp_path / "train.parquet").as_uri(),)
    return TrainingPlan(
        model=network,
        loss="mse",
        features=("x",),
        labels=("y",),
        data=Data(urls, (), ROWS),
        optimizer="sgd",
        rate=0.1,
        batch_size=BATCH,
        epochs=EPOCHS,
    )


Step = Callable[[nn.Module, torch.optim.Optimizer, dict[str, torch.Tensor], int, int], torch.Tensor | None]


def by_hand(
    plan: TrainingPlan,
    step: Step,
    *,
    drop_last: bool = False,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
    every_step: bool = False,
) -> list[float]:
    """Train with a loop of PyTorch. Return the mean loss of each epoch over its rows.

    Args:
        step: Computes a batch, and may step the optimizer: step(model, optimizer, batch, index, batches).
    """
    torch.manual_seed(plan.seed)
    model = build_network(network, {}, plan.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = None if schedule is None else schedule(optimizer)
    loader = ParquetLoader(list(plan.data.train), ["x", "y"], batch_size=BATCH, seed=plan.seed, drop_last=drop_last)
    losses = []
    for epoch in range(1, EPOCHS + 1):
        loader.set_epoch(epoch)
        total, rows = 0.0, 0
        for index, batch in enumerate(loader):
            loss = step(model, optimizer, batch, index, len(loader))
            assert loss is not None
            total, rows = total + loss.item() * len(batch["y"]), rows + len(batch["y"])
            if scheduler is not None and every_step:
                scheduler.step()
        losses.append(total / rows)
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(losses[-1])
        elif scheduler is not None and not every_step:
            scheduler.step()
    return losses


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.mse_loss(model(batch["x"]).float().squeeze(1), batch["y"])


def plain(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor], index: int, batches: int
) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    return loss


def clipped(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor], index: int, batches: int
) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    optimizer.step()
    return loss


def accumulated(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor], index: int, batches: int
) -> torch.Tensor:
    loss = loss_of(model, batch)
    (loss / (2 if index < 4 else 1)).backward()
    if index % 2 or index + 1 == batches:
        optimizer.step()
        optimizer.zero_grad()
    return loss


def in_bf16(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor], index: int, batches: int
) -> torch.Tensor:
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(batch["x"])
    assert output.dtype is torch.bfloat16
    loss = functional.mse_loss(output.float().squeeze(1), batch["y"])
    loss.backward()
    optimizer.step()
    return loss


def losses(plan: TrainingPlan) -> list[float]:
    return [epoch["loss"] for epoch in train_network(plan, {}, Reporter(budget=EPOCHS))["history"]]


@pytest.mark.parametrize(
    ("changes", "step"),
    [({}, plain), ({"clip": 0.3}, clipped), ({"accumulate": 2}, accumulated), ({"precision": "bf16"}, in_bf16)],
)
def test_an_option_trains_as_by_hand(plan: TrainingPlan, changes: dict[str, Any], step: Step) -> None:
    expected = by_hand(plan, step)
    assert losses(replace(plan, **changes)) == pytest.approx(expected, rel=1e-6)
    assert changes == {} or expected != by_hand(plan, plain)


def test_the_last_batch_is_dropped_as_by_hand(plan: TrainingPlan) -> None:
    expected = by_hand(plan, plain, drop_last=True)
    assert losses(replace(plan, drop_last=True)) == pytest.approx(expected, rel=1e-6)
    assert expected != by_hand(plan, plain)


@pytest.mark.parametrize(
    ("schedule", "params", "interval", "made"),
    [
        (
            "StepLR",
            {"step_size": 1, "gamma": 0.5},
            "epoch",
            partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5),
        ),
        (
            "one_cycle",
            {"max_lr": 0.2},
            "step",
            partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=15),
        ),
        (
            torch.optim.lr_scheduler.ReduceLROnPlateau,
            {"patience": 0, "threshold": 0.9},
            "epoch",
            partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, threshold=0.9),
        ),
    ],
)
def test_a_schedule_trains_as_by_hand(
    plan: TrainingPlan, schedule: Any, params: dict[str, Any], interval: str, made: Any
) -> None:
    expected = by_hand(plan, plain, schedule=made, every_step=interval == "step")
    plan = replace(plan, schedule=schedule, schedule_params=params, schedule_interval=interval)
    assert losses(plan) == pytest.approx(expected, rel=1e-6)
    assert expected != by_hand(plan, plain)


def test_a_schedule_is_made_for_a_training_that_is_longer_than_the_trials_before_it(plan: TrainingPlan) -> None:
    plan = replace(plan, schedule="one_cycle", schedule_params={"max_lr": 0.2}, schedule_interval="step")
    assert losses(replace(plan, epochs=1)) == losses(plan)


def test_a_training_with_a_schedule_and_bf16_is_resumed_as_if_nothing_had_been(plan: TrainingPlan) -> None:
    plan = replace(plan, schedule="one_cycle", schedule_params={"max_lr": 0.2}, schedule_interval="step", accumulate=2)
    plan = replace(plan, precision="bf16", clip=0.3)
    reporter, later = Reporter(budget=1), Reporter(budget=EPOCHS)
    train_network(plan, {}, reporter)
    later._saves = reporter._saves
    assert [epoch["loss"] for epoch in train_network(plan, {}, later)["history"]] == losses(plan)


@pytest.mark.e2e
def test_ranks_accumulate_and_clip_together(plan: TrainingPlan, tmp_path: Path) -> None:
    plan = replace(plan, batch_size=35, accumulate=2, clip=0.3)  # a step for all rows, however they are shared
    options = {"budget": EPOCHS, "workers": 2, "engine": "local", "directory": tmp_path, "progress": False}
    found = run(partial(train_network, plan), **options)
    assert [epoch["loss"] for epoch in found["history"]] == pytest.approx(losses(plan), rel=1e-5)


@pytest.mark.slow
def test_the_options_apply_to_a_lightning_module(plan: TrainingPlan, lightning: Any) -> None:
    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body = network()

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return functional.mse_loss(self.body(batch[0]).float().squeeze(1), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    plan = replace(plan, accumulate=2, clip=0.3, precision="bf16", drop_last=True)
    assert losses(replace(plan, model=Module, loss=None)) == pytest.approx(losses(plan), rel=1e-6)
    assert len(losses(replace(plan, model=Module, loss=None, epochs=1))) == EPOCHS  # as many as the run asks for


@pytest.mark.slow
def test_a_compiled_network_trains_as_the_plain_one_and_is_kept_as_one(plan: TrainingPlan) -> None:
    calls = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        calls.append(graph)
        return graph.forward

    def compiled() -> nn.Module:
        return torch.compile(network(), backend=backend)  # type: ignore[return-value]

    expected = losses(plan)
    assert losses(replace(plan, model=compiled)) == expected
    assert calls
    for model in (compiled, torch.compile(network(), backend="eager")):
        built = build_network(model, {}, 0)
        assert list(built.state_dict()) == list(network().state_dict())
        read = network_of_bytes(network_to_bytes(built))
        assert type(read) is nn.Sequential
        assert torch.equal(read(torch.ones(1, 3)), built(torch.ones(1, 3)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"schedule": "OneCicleLR"},
            r"lrScheduler must be the name of .* got 'OneCicleLR' .did you mean 'OneCycleLR'",
        ),
        ({"schedule": 0.1}, r"lrScheduler must be a name, .* got 0\.1"),
        ({"schedule": "StepLR"}, r"lrSchedulerParams must be arguments of lrScheduler='StepLR', got \{\}: .*step_size"),
        (
            {"schedule": "ReduceLROnPlateau", "schedule_interval": "step"},
            "lrSchedulerInterval must be 'epoch' for ReduceLROnPlateau",
        ),
        ({"schedule": lambda optimizer: None}, r"lrScheduler=.* must return a scheduler of torch, got None"),
        ({"drop_last": True, "batch_size": 71}, r"dropLast=True must leave a batch, got 70 rows .* batchSize=71; use"),
        ({"precision": "fp16"}, r"precision='fp16' must have workers with GPUs, got a CPU; use precision='bf16'"),
    ],
)
def test_a_mistake_names_the_argument(plan: TrainingPlan, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_network(replace(plan, **changes), {}, Reporter(budget=1))


def test_a_gpu_computes_in_fp16() -> None:
    check_precision("fp16", torch.device("cuda"))


def test_decoded_bytes_are_pinned_and_copied_without_waiting_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: done.append("pinned") or self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **options: done.append((*args, options)) or self)
    gpu = torch.device("cuda")
    decoded({"image": [b"a", b"b"]}, {"image": lambda value: torch.tensor(list(value))}, gpu)
    assert done == ["pinned", (gpu, {"non_blocking": True})]


def test_decoded_arrays_may_be_read_only() -> None:
    made = decoded({"image": [b"ab"]}, {"image": lambda value: np.frombuffer(value, np.uint8)}, torch.device("cpu"))
    assert made["image"].tolist() == [[97, 98]]


def test_bytes_that_cannot_be_decoded_are_told_with_their_column() -> None:
    with pytest.raises(DataError, match=r"column 'image' has a row that decode fails with: ValueError: .*; drop such"):
        decoded({"image": [b"1", b"a"]}, {"image": int}, torch.device("cpu"))


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: TorchEstimator(bacthSize=3), TypeError, r"no argument 'bacthSize', got bacthSize=3 .*'batchSize'"),  # type: ignore[call-arg]
    (lambda: TorchEstimator(learning_rate=1), TypeError, "did you mean 'learningRate'"),  # type: ignore[call-arg]
    (lambda: TorchEstimator(print), TypeError, r"takes no argument by position, got .*model="),  # type: ignore[misc]
    (lambda: TorchEstimator().setParams(epoch=3), ConfigError, r"no Param 'epoch', got epoch=3 .*'epochs'"),
    (lambda: TorchModel().setParams(xyz=3), ConfigError, "no Param 'xyz', got xyz=3; use one of batchSize"),
    (lambda: TorchEstimator(batchSize=0), ConfigError, "batchSize must be at least 1, got 0"),
]


@pytest.mark.parametrize(("mistake", "kind", "message"), MISTAKES)
def test_a_name_or_value_that_is_none_of_a_param_is_told(
    mistake: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        mistake()


PARAMETERS = [nn.Parameter(torch.zeros(2))]


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        ("cross_entropy", "classes"),
        ("CrossEntropyLoss", "classes"),
        ("bce_with_logits", "binary"),
        ("mse", "values"),
        ("mae", "values"),
        (nn.NLLLoss, "classes"),
        (nn.HuberLoss(delta=2.0), "values"),
        (functional.cross_entropy, "classes"),
        (lambda output, label: (output - label).abs().sum(), "other"),
    ],
)
def test_a_loss_says_what_its_labels_are(loss: object, kind: str) -> None:
    assert read_loss(loss).kind == kind


class Doubled:
    def __call__(self, output: torch.Tensor, label: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        return 2 * functional.mse_loss(output, label, reduction=reduction)


def test_a_loss_of_torch_gives_one_for_each_row_too() -> None:
    output, label = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0])
    for given in ("mse", nn.MSELoss(), functional.mse_loss, partial(functional.huber_loss, delta=1e9), Doubled()):
        loss = read_loss(given)
        assert loss.per_row is not None
        scale = loss.function(output, label).item() / 5.0
        assert loss.per_row(output, label).tolist() == [1.0 * scale, 9.0 * scale]
    assert read_loss(torch.dist).per_row is None  # a builtin


def test_an_unknown_loss_is_told_with_what_is_near() -> None:
    with pytest.raises(ConfigError, match=r"known loss of torch\.nn, got 'crosentropy'"):
        read_loss("crosentropy")


def test_an_optimizer_has_its_rate_and_options() -> None:
    assert make_optimizer("sgd", PARAMETERS, 0.5, {"momentum": 0.9}).defaults["momentum"] == 0.9
    assert make_optimizer(torch.optim.AdamW, PARAMETERS, 0.5, {}).defaults["lr"] == 0.5
    of_function = make_optimizer(
        lambda p, nesterov: torch.optim.SGD(p, 0.1, 0.9, nesterov=nesterov), PARAMETERS, None, {"nesterov": True}
    )
    assert of_function.defaults["lr"] == 0.1
    of_partial = make_optimizer(partial(torch.optim.SGD, lr=0.1, momentum=0.9), PARAMETERS, 0.5, {})
    assert (of_partial.defaults["lr"], of_partial.defaults["momentum"]) == (0.5, 0.9)
    assert make_optimizer(lambda p, **given: torch.optim.SGD(p, **given), PARAMETERS, 0.5, {}).defaults["lr"] == 0.5


def test_one_that_was_made_keeps_its_options_for_other_parameters() -> None:
    made = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.25, weight_decay=0.5)
    mine = make_optimizer(made, PARAMETERS, None, {})
    assert (mine.defaults["lr"], mine.defaults["weight_decay"]) == (0.25, 0.5)
    assert mine.param_groups[0]["params"] == PARAMETERS


@pytest.mark.parametrize(
    ("optimizer", "options", "message"),
    [
        ("adem", {}, "name of an optimizer of torch.optim, got 'adem'"),
        ("sgd", {"betas": (0.9, 0.99)}, "optimizerParams must be arguments of"),
        (lambda parameters, lr: 1, {}, "must return an optimizer of torch"),
        (lambda parameters: 1, {}, "optimizer must take lr, the value of learningRate, got <function"),
        ("sgd", {"lr": 0.5}, "optimizerParams must not have 'lr', got 0.5; use learningRate"),
    ],
)
def test_a_wrong_optimizer_is_told(optimizer: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_optimizer(optimizer, PARAMETERS, 0.1, options)
