"""The training function of an Estimator, and the plan that workers need for it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from maggy_like.distributed.ddp import DataParallel
from maggy_like.errors import ConfigError
from maggy_like.ml.columns import fractions_of
from maggy_like.ml.estimator.lightning import LightningObjective, Schedule, configured_by
from maggy_like.ml.estimator.network import build_network, freeze, is_lightning, normalises_batches, to_cpu
from maggy_like.ml.estimator.objective import (
    Loss,
    Objective,
    decoded,
    make_optimizer,
    make_scheduler,
    optimizer_class,
    read_loss,
)
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
    def steps(self) -> int:
        """Steps of the optimizer in an epoch."""
        batches = self.data.rows // self.batch_size if self.drop_last else math.ceil(self.data.rows / self.batch_size)
        return math.ceil(batches / self.accumulate)

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

    def objective(self) -> Objective | LightningObjective:
        """Make a new network with its loss."""
        network = build_network(self.model, self.model_params, self.seed)
        if is_lightning(network):
            return LightningObjective(network, self.columns, self.epochs, self.steps, self.as_fractions)
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
        of_model = () if isinstance(self.model, nn.Module) else _arguments(self.model)
        rest = {name: v for name, v in config.items() if name not in self.stage_params or name in of_model}
        if self.variants:
            return self.variants[tuple(config[name] for name in self.stage_params)].with_config(rest)
        fields: dict[str, Any] = {}
        model_params, optimizer_params = dict(self.model_params), dict(self.optimizer_params)
        for name, value in rest.items():
            match home_of(name, self):
                case "param":
                    fields[SEARCHABLE[name]] = value
                case "model":
                    model_params[name] = value
                case _:
                    optimizer_params[name] = value
        return replace(self, **fields, model_params=model_params, optimizer_params=optimizer_params)


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
    of_model = [] if isinstance(plan.model, nn.Module) else _arguments(plan.model)
    if name in of_model:
        return "model"
    of_optimizer = _arguments(optimizer_class(plan.optimizer))
    if name in of_optimizer:
        return "optimizer"
    known = [*SEARCHABLE, *of_model, *of_optimizer]
    if "**" in known:
        return "model" if "**" in of_model else "optimizer"
    raise ConfigError(
        f"search must have Params, or arguments of the model's function or of the optimizer, got "
        f"{name!r}{did_you_mean(name, known)}; use some of {', '.join(known)}"
    )


def _arguments(function: Any) -> list[str]:
    """Return the names that a function takes; ``**`` if it takes any."""
    kinds = inspect.Parameter
    given = inspect.signature(function).parameters.values()
    taken = [p.name for p in given if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    return [name for name in taken if name != "params"] + ["**" for p in given if p.kind is kinds.VAR_KEYWORD]


State = dict[str, Any]


def train_network(plan: TrainingPlan, config: Mapping[str, Any], reporter: Reporter) -> State:
    """Train a network for ``reporter.budget`` epochs, on all workers of the trial together.

    Each epoch is saved and reported: ``loss`` over the training rows, ``validation_loss`` if there are validation rows,
    and ``accuracy`` of both for losses over classes. The objective is the loss of the validation or, without one, of
    the training. Return ``network``, the weights, and ``history``, the metrics of each epoch.
    """
    plan = plan.with_config(config)
    data = plan.data
    check_precision(plan.precision, reporter.device)
    check_batches(plan)
    check_ranks(data.rows, reporter.world_size, plan.batch_size, held=data.held, least=plan.least_share)
    torch.manual_seed(plan.seed)
    objective = plan.objective()
    frozen = plan.frozen(objective.network)
    if any(isinstance(parameter, UninitializedParameter) for parameter in objective.network.parameters()):
        _fill_lazy_layers(plan, objective)
    optimizer, schedule = configure_optimizer(plan, objective)
    scaler = torch.amp.GradScaler(reporter.device.type, enabled=plan.precision == "fp16")
    state = reporter.restore() or {"epoch": 0, "best": None, "waited": 0, "history": []}
    if state["epoch"]:
        objective.network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        if schedule is not None:
            schedule.load_state_dict(state["schedule"])
        scaler.load_state_dict(state.get("scaler", {}))
    least_share = 2 if normalises_batches(objective.network, frozen) else 0
    fractions = fractions_of(objective.network)
    rows = _loader(plan, fractions, data.train, shuffle=True, drop_last=plan.drop_last, least_share=least_share)
    model, optimizer, loader = reporter.prepare(objective, optimizer, rows)
    validation = None
    if data.validation:
        validation = reporter.prepare(_loader(plan, fractions, data.validation, shuffle=False))
    counted = loss_name(plan)
    decode = partial(decoded, decode=plan.decode, device=reporter.device)
    for epoch in range(state["epoch"] + 1, reporter.budget + 1):
        loader.set_epoch(epoch)
        torch.manual_seed(
            _mixed(plan.seed, epoch, reporter.rank)
        )  # so that dropout draws the same numbers after a restart
        steps = _Steps(plan, model, optimizer, scaler, len(loader), reporter.device)
        count = _Counter(objective, schedule, epoch, math.ceil(len(loader) / plan.accumulate))
        metrics = _train_epoch(steps, objective, map(decode, loader), frozen, reporter, count)
        if validation is not None:
            with autocast(plan, reporter.device):
                found = _validate(objective, map(decode, validation), reporter)
            metrics |= {f"validation_{name.removeprefix('val_')}": value for name, value in found.items()}
        value = metrics[counted]
        if schedule is not None:
            schedule.epoch_ended(epoch, metrics)
        _advance(state, plan, epoch, metrics, value, objective, optimizer, schedule)
        state["scaler"] = scaler.state_dict()
        if reporter.is_main:
            for callback in plan.callbacks:
                callback(epoch, dict(metrics), objective.network)
        reporter.checkpoint(state)
        reporter.report(**{counted: value} | metrics, step=epoch)  # the first is what counts where nothing is searched
        if plan.patience is not None and state["waited"] >= plan.patience:
            break
    return outcome(state)


def loss_name(plan: TrainingPlan) -> str:
    """Return the name of the loss that is the objective: that of the validation, if there is one."""
    return "validation_loss" if plan.data.validation else "loss"


def search_network(plan: TrainingPlan, config: Mapping[str, Any], reporter: Reporter) -> None:
    """Run :func:`train_network` as a trial of a search, whose weights are in its checkpoint."""
    train_network(plan, config, reporter)


def outcome(state: State) -> State:
    """Select from a saved state what a model is made of: the weights to keep, and the metrics of all epochs."""
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
    why = "" if least == 1 else f", because each needs {least} rows of a batch (batch normalisation)"
    if rows < ranks * least:
        remedy = f"use {fewer}" if ranks > 1 else "use more rows, or a network without batch normalisation"
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


def autocast(plan: TrainingPlan, device: torch.device) -> torch.autocast:
    """Return the context in which network and loss are computed."""
    dtype = torch.float16 if plan.precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=plan.precision != "32")


def _fill_lazy_layers(plan: TrainingPlan, objective: Objective | LightningObjective) -> None:
    """Compute some rows to give layers such as ``LazyLinear`` their shape, which a data-parallel network must have."""
    loader = ParquetLoader(list(plan.data.train), plan.columns, batch_size=min(2, plan.data.rows), shuffle=False)
    batch = decoded(next(iter(loader)), plan.decode, torch.device("cpu"))
    with torch.no_grad():
        objective.eval()(batch)


def _advance(
    state: State,
    plan: TrainingPlan,
    epoch: int,
    metrics: Mapping[str, float],
    value: float,
    objective: Objective | LightningObjective,
    optimizer: torch.optim.Optimizer,
    schedule: Schedule | None,
) -> None:
    """Record an epoch in the state."""
    network = to_cpu(objective.network.state_dict())
    best = state["best"]
    is_first = best is None or (math.isfinite(value) and not math.isfinite(best["value"]))
    is_better = is_first or value < best["value"] - plan.min_delta
    if is_better:
        state["best"] = {"epoch": epoch, "value": value, "network": network if plan.keep_best else None}
    state["waited"] = 0 if is_better else state["waited"] + 1
    state["history"] = [*state["history"], {"epoch": epoch, **metrics}]
    state |= {"epoch": epoch, "network": network, "optimizer": to_cpu(optimizer.state_dict())}
    if schedule is not None:
        state["schedule"] = schedule.state_dict()


class _Steps:
    """The steps of the optimizer in an epoch: each averages the gradients of several batches, and may clip them.

    The scaler scales the loss, and skips steps whose gradients are infinite; it does nothing if it is disabled.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        batches: int,  # of the epoch
        device: torch.device,
    ) -> None:
        self._plan, self._model, self._optimizer, self._scaler = plan, model, optimizer, scaler
        self._batches, self._device = batches, device
        self._parameters = [it for group in optimizer.param_groups for it in group["params"]]

    def take(self, batch: Mapping[str, torch.Tensor], index: int) -> tuple[dict[str, torch.Tensor], bool]:
        """Add the gradients of a batch. Return its metrics, and whether the optimizer took a step."""
        at_once = self._plan.accumulate
        begin = index - index % at_once
        group = min(at_once, self._batches - begin)  # the batches of this step
        is_last = index + 1 == begin + group
        if index == begin:
            self._optimizer.zero_grad()
        with self._averaging(is_last):
            with autocast(self._plan, self._device):
                loss, metrics = self._model(batch, index)
            self._scaler.scale(loss if group == 1 else loss / group).backward()
        if is_last:
            if self._plan.clip is not None:
                self._scaler.unscale_(self._optimizer)
                nn.utils.clip_grad_norm_(self._parameters, self._plan.clip)
            self._scaler.step(self._optimizer)
            self._scaler.update()
        return metrics, is_last

    def _averaging(self, is_last: bool) -> AbstractContextManager[None]:
        """Let the ranks average gradients only once for each step."""
        if is_last or not isinstance(self._model, DataParallel):
            return nullcontext()
        return self._model.no_sync()


def _train_epoch(
    steps: _Steps,
    objective: Objective | LightningObjective,
    rows: Iterable[Mapping[str, torch.Tensor]],
    frozen: Sequence[nn.Module],
    reporter: Reporter,
    count: _Counter,
) -> dict[str, float]:
    objective.train()
    for module in frozen:
        module.eval()
    _hook(objective, "on_train_epoch_start")
    means = _Means()
    for index, batch in enumerate(rows):
        metrics, has_stepped = steps.take(batch, index)
        if has_stepped:
            count.stepped()
        means.add(batch, metrics, reporter)
    _hook(objective, "on_train_epoch_end")
    return means.over_ranks(reporter)


def _validate(
    objective: Objective | LightningObjective, rows: Iterable[Mapping[str, torch.Tensor]], reporter: Reporter
) -> dict[str, float]:
    objective.eval()
    _hook(objective, "on_validation_epoch_start")
    means = _Means()
    with torch.no_grad():
        for index, batch in enumerate(rows):
            metrics = objective(batch, index)[1]
            if isinstance(objective, Objective) and (weights := objective.weights(batch)) is not None:
                metrics["weight"] = weights.mean()
            means.add(batch, metrics, reporter)
    _hook(objective, "on_validation_epoch_end")
    found = means.over_ranks(reporter)
    if isinstance(objective, Objective):  # weights have a mean of 1 over the training rows, which are other rows
        found["loss"] /= found.pop("weight", 1.0) or 1.0
    return found


class _Counter:
    """Counts the steps of an epoch, for a schedule and for a Lightning module."""

    def __init__(
        self, objective: Objective | LightningObjective, schedule: Schedule | None, epoch: int, steps: int
    ) -> None:
        self._trainer = objective.trainer if isinstance(objective, LightningObjective) else None
        self._schedule = schedule
        self._steps = (epoch - 1) * steps
        if self._trainer is not None:
            self._trainer.current_epoch, self._trainer.global_step = epoch - 1, self._steps

    def stepped(self) -> None:
        """Record a step of the optimizer."""
        self._steps += 1
        if self._trainer is not None:
            self._trainer.global_step = self._steps
        if self._schedule is not None:
            self._schedule.stepped(self._steps)


class _Means:
    """Means of metrics over the rows of an epoch, summed on the device of the batches so that no GPU is waited for."""

    def __init__(self) -> None:
        self._rows = 0
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, batch: Mapping[str, torch.Tensor], metrics: Mapping[str, torch.Tensor], reporter: Reporter) -> None:
        """Add a batch, of which this rank has a share."""
        rows = 0 if reporter.is_stand_in else len(next(iter(batch.values())))
        self._rows += rows
        for name, value in metrics.items():
            self._sums[name] = self._sums.get(name, torch.zeros((), device=value.device)) + value * rows

    def over_ranks(self, reporter: Reporter) -> dict[str, float]:
        """Return the means over all ranks' rows; all ranks must call this."""
        rows = max(self._rows, 1)
        return reporter.average(self._rows, **{name: (total / rows).item() for name, total in self._sums.items()})


def configure_optimizer(
    plan: TrainingPlan, objective: Objective | LightningObjective
) -> tuple[torch.optim.Optimizer, Schedule | None]:
    """Create the optimizer and the learning rate schedule, if there is one."""
    if not isinstance(objective, Objective):
        return configured_by(objective.network)
    optimizer = make_optimizer(plan.optimizer, objective.network.parameters(), plan.rate, plan.optimizer_params)
    if plan.schedule is None:
        return optimizer, None
    advances = plan.epochs * (plan.steps if plan.schedule_interval == "step" else 1)
    scheduler = make_scheduler(plan.schedule, optimizer, plan.schedule_params, advances)
    return optimizer, Schedule(scheduler, plan.schedule_interval, monitor=loss_name(plan))


def _loader(
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


def _hook(objective: Objective | LightningObjective, name: str) -> None:
    """Call a hook of a Lightning module."""
    if isinstance(objective, LightningObjective):
        objective.call_hook(name)


def _mixed(*numbers: int) -> int:
    mixed = 0
    for number in numbers:
        mixed = (mixed * 1_000_003 + number) % 2**63
    return mixed
