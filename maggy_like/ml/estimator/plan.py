"""The plan of a training, and what the trainings of plain networks and of LightningModules share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from maggy_like.errors import ConfigError
from maggy_like.ml.estimator.network import freeze, is_lightning, make_network
from maggy_like.ml.estimator.objective import Loss, Objective, arguments_of, optimizer_class, read_loss
from maggy_like.ml.loader.parquet_loader import ParquetLoader
from maggy_like.worker.child.reporter import Reporter
from optimizers.checks import did_you_mean


@dataclass(frozen=True)
class Data:
    """Location of the rows of a training."""

    train: tuple[str, ...]  # URLs of Parquet files to train on
    validation: tuple[str, ...]  # URLs of Parquet files to validate on; none without validation
    rows: int  # number of rows to train on
    held: int = 0  # number of rows to validate on


@dataclass(frozen=True)
class TrainingPlan:
    """One training: Params of the Estimator under other names, checked and completed."""

    model: Any
    loss: Any
    features: tuple[str, ...]
    labels: tuple[str, ...]
    data: Data
    model_params: dict[str, Any] = field(default_factory=dict)
    optimizer: Any = "adam"
    optimizer_params: dict[str, Any] = field(default_factory=dict)
    rate: float | None = 1e-3  # learning rate; None if the optimizer brings its own
    schedule: Any = None  # of the learning rate; None for a constant rate
    schedule_params: dict[str, Any] = field(default_factory=dict)
    schedule_interval: str = "epoch"
    clip: float | None = None  # largest norm of the gradients of a step; None for no limit
    accumulate: int = 1  # number of batches for one step of the optimizer
    precision: str = "32"  # ``"32"``, or ``"bf16"`` or ``"fp16"`` for autocast
    weight: str | None = None
    class_weights: tuple[float, ...] | None = None
    weight_scale: float = 1.0  # factor that makes the mean weight of the rows 1
    batch_size: int = 32
    drop_last: bool = False
    epochs: int = 1
    patience: int | None = None
    min_delta: float = 0.0
    keep_best: bool = True
    freeze: tuple[str, ...] = ()
    decode: dict[str, Callable[[bytes], Any]] = field(default_factory=dict)
    callbacks: tuple[Callable[..., Any], ...] = ()
    trainer_params: dict[str, Any] = field(default_factory=dict)  # of Lightning's Trainer, for a LightningModule
    seed: int = 0
    as_fractions: tuple[str, ...] = ()  # integer columns that the network takes as floats
    least_share: int = 1  # number of rows that each rank needs of a batch
    stage_params: tuple[str, ...] = ()  # names of searched Params of earlier stages
    # the training for each combination of their values
    variants: dict[tuple[Any, ...], TrainingPlan] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to read."""
        return (*self.features, *self.labels, *((self.weight,) if self.weight else ()))

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        return self.data.rows // self.batch_size if self.drop_last else math.ceil(self.data.rows / self.batch_size)

    @property
    def steps(self) -> int:
        """Steps of the optimizer in an epoch."""
        return math.ceil(self.batches / self.accumulate)

    @property
    def losses(self) -> list[Loss]:
        """Return the loss of each label, which can be weighted by row if the plan has weights."""
        if self.loss is None:
            raise ConfigError(
                "loss must be given, got None; use a name such as 'cross_entropy', a loss of torch.nn or a function"
            )
        given = self.loss if isinstance(self.loss, list | tuple) else [self.loss] * len(self.labels)
        if len(given) != len(self.labels):
            raise ConfigError(
                f"loss must have one loss for each of {len(self.labels)} columns of labelCol, got {len(given)}"
            )
        losses = [read_loss(it) for it in given]
        for loss in losses:
            if (self.weight or self.class_weights) and loss.per_row is None:
                raise ConfigError(
                    f"loss must give one value per row for {self.weight or 'classWeights'}, got {loss.name!r}; use a "
                    "loss of torch.nn, or a function with a parameter reduction"
                )
            if self.class_weights and loss.kind not in ("classes", "binary", "probability"):
                raise ConfigError(f"loss must be over classes for classWeights, got {loss.name!r}")
        return losses

    def network(self) -> nn.Module:
        """Make a new network; one that ``torch.compile`` has made is left as it is."""
        return make_network(self.model, self.model_params, self.seed)

    def objective(self, network: nn.Module) -> Objective:
        """Join a plain network and the loss."""
        return Objective(
            network,
            self.losses,
            self.features,
            self.labels,
            as_fractions=self.as_fractions,
            weight=self.weight,
            class_weights=self.class_weights,
            weight_scale=self.weight_scale,
        )

    def frozen(self, network: nn.Module) -> list[nn.Module]:
        """Freeze the modules that are not trained, and return them."""
        return freeze(network, self.freeze)

    def with_config(self, config: Mapping[str, Any]) -> TrainingPlan:
        """Apply the values of a configuration to Params, the model's function or the optimizer, by :func:`home_of`."""
        of_model = () if isinstance(self.model, nn.Module) else arguments_of(self.model)
        rest = {name: v for name, v in config.items() if name not in self.stage_params or name in of_model}
        if self.variants:
            return self.variants[tuple(config[name] for name in self.stage_params)].with_config(rest)
        plan = replace(self, **{SEARCHABLE[name]: value for name, value in rest.items() if name in SEARCHABLE})
        model_params, optimizer_params = dict(self.model_params), dict(self.optimizer_params)
        for name, value in rest.items():
            match home_of(name, plan):  # whose optimizer is that of the configuration
                case "model":
                    model_params[name] = value
                case "optimizer":
                    optimizer_params[name] = value
        return replace(plan, model_params=model_params, optimizer_params=optimizer_params)


SEARCHABLE = {
    "batchSize": "batch_size",
    "learningRate": "rate",
    "loss": "loss",
    "minDelta": "min_delta",
    "optimizer": "optimizer",
    "patience": "patience",
    "seed": "seed",
}
"""Params that a search may vary, and their fields in the plan."""


def home_of(name: str, plan: TrainingPlan) -> str:
    """Return what a name of the search space belongs to: a ``param``, the ``model``'s function, or the ``optimizer``.

    If it belongs to none of them, raise ConfigError.
    """
    if name in SEARCHABLE:
        return "param"
    of_model = [] if isinstance(plan.model, nn.Module) else arguments_of(plan.model)
    if name in of_model:
        return "model"
    of_optimizer = arguments_of(optimizer_class(plan.optimizer))
    if plan.rate is not None and not is_lightning(plan.model):
        if name == "lr":
            raise ConfigError("search must not have 'lr', which learningRate sets; use learningRate")
        of_optimizer = [it for it in of_optimizer if it != "lr"]
    if name in of_optimizer:
        return "optimizer"
    known = [*SEARCHABLE, *of_model, *of_optimizer]
    if "**" in known:
        return "model" if "**" in of_model else "optimizer"
    raise ConfigError(
        f"search must have Params, or arguments of the model's function or of the optimizer, got "
        f"{name!r}{did_you_mean(name, known)}; use some of {', '.join(known)}"
    )


State = dict[str, Any]
"""What a training saves: ``epoch``, ``network``, ``best``, ``waited``, ``ended``, ``history``, and more by loop."""


def first_state() -> State:
    """Return the state before the first epoch."""
    return {"epoch": 0, "network": None, "best": None, "waited": 0, "ended": False, "history": []}


def record(state: State, plan: TrainingPlan, metrics: Mapping[str, float], network: Mapping[str, Any] | None) -> None:
    """Record an epoch in the state, and whether the training ends early after it; ``network`` has its weights."""
    epoch, value = state["epoch"] + 1, metrics[loss_name(plan)]
    best = state["best"]
    is_first = best is None or (math.isfinite(value) and not math.isfinite(best["value"]))
    is_better = is_first or value < best["value"] - plan.min_delta
    if is_better:
        state["best"] = {"epoch": epoch, "value": value, "network": network if plan.keep_best else None}
    state["waited"] = 0 if is_better else state["waited"] + 1
    state["history"] = [*state["history"], {"epoch": epoch, **metrics}]
    state |= {"epoch": epoch, "network": network}
    state["ended"] = plan.patience is not None and state["waited"] >= plan.patience


def loss_name(plan: TrainingPlan) -> str:
    """Return the name of the loss that is the objective: that of the validation, if there is one."""
    return "validation_loss" if plan.data.validation else "loss"


def outcome(state: State) -> State:
    """Select from a checkpoint what a model is made of: the weights to keep, and the metrics of all epochs."""
    best = state["best"]
    kept = state["network"] if best is None or best["network"] is None else best["network"]
    return {"network": kept, "history": state["history"], "best_epoch": best and best["epoch"]}


def most_ranks(rows: int, batch_size: int, *, held: int = 0, least: int = 1) -> int:
    """Return the maximum number of workers that can share the rows, at least 1.

    ``held`` rows are validated on, 0 without validation. Each worker needs ``least`` rows of a batch.
    """
    return max(1, min(rows // least, batch_size // least, held or rows))


def check_ranks(rows: int, ranks: int, batch_size: int, *, held: int = 0, least: int = 1) -> None:
    """Check that the workers can share the rows, and the rows of a batch.

    ``held`` rows are validated on, 0 without validation. Each worker needs ``least`` rows of a batch.
    """
    workers, most = f"{ranks} worker{'s' * (ranks > 1)}", most_ranks(rows, batch_size, held=held, least=least)
    fewer = f"workers={most}{' or fewer' * (most > 1)}"
    why = "" if least == 1 else f", because each needs {least} rows of a batch (batch normalization)"
    if rows < ranks * least:
        remedy = f"use {fewer}" if ranks > 1 else "use more rows, or a network without batch normalization"
        raise ConfigError(f"{workers} cannot share {rows} rows to train on{why}; {remedy}")
    if held and held < ranks:
        raise ConfigError(f"{workers} cannot share {held} rows to validate on; use {fewer}, or set more rows apart")
    if batch_size < ranks * least:
        remedy = f"use batchSize={ranks * least} or more{f', or {fewer}' * (ranks > most)}"
        raise ConfigError(f"{workers} cannot share batches of batchSize={batch_size}{why}; {remedy}")


def check_precision(precision: str, device: torch.device) -> None:
    """Check that the device computes in a precision."""
    if precision == "fp16" and device.type != "cuda":
        raise ConfigError("precision='fp16' must have workers with GPUs, got a CPU; use precision='bf16', or omit it")


def check_batches(plan: TrainingPlan) -> None:
    """Check that an epoch has a batch: not all rows may be in a last batch that is left out."""
    if not plan.steps:
        raise ConfigError(
            f"dropLast=True must leave a batch, got {plan.data.rows} rows to train on and batchSize={plan.batch_size}; "
            "use a smaller batchSize, or dropLast=False"
        )


class Means:
    """Means of metrics over the rows of an epoch, summed on the device of the batches so that no GPU is waited for."""

    def __init__(self) -> None:
        self._rows = 0
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, rows: int, metrics: Mapping[str, torch.Tensor]) -> None:
        """Add the metrics of a batch, of which this rank has ``rows`` rows."""
        self._rows += rows
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, torch.zeros((), device=value.device)) + value * rows

    def over_ranks(self, reporter: Reporter, more: Mapping[str, float] | None = None) -> dict[str, float]:
        """Return the means over all ranks' rows; all ranks must call this. ``more`` are means over this rank's rows."""
        rows = max(self._rows, 1)
        means = {name: (total / rows).item() for name, total in self._sums.items()} | dict(more or {})
        return reporter.average(self._rows, **means) if means else {}


def loader_of(
    plan: TrainingPlan,
    fractions: str,
    urls: Sequence[str],
    *,
    shuffle: bool,
    drop_last: bool = False,
    least_share: int = 0,
) -> ParquetLoader:
    """Load the rows of files in the plan's batches, with floats in the precision of the network."""
    return ParquetLoader(
        list(urls),
        plan.columns,
        batch_size=plan.batch_size,
        fractions=fractions,
        shuffle=shuffle,
        seed=plan.seed,
        drop_last=drop_last,
        least_share=least_share,
    )


def seed_epoch(plan: TrainingPlan, epoch: int, rank: int) -> None:
    """Seed torch for an epoch, so that dropout draws the same numbers after a restart."""
    mixed = 0
    for number in (plan.seed, epoch, rank):
        mixed = (mixed * 1_000_003 + number) % 2**63
    torch.manual_seed(mixed)
