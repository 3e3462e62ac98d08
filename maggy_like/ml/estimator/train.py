"""The training function of an Estimator: the loop of a plain network. Lightning's Trainer trains a LightningModule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from maggy_like.distributed.ddp import DataParallel
from maggy_like.errors import ConfigError
from maggy_like.ml.columns import fractions_of
from maggy_like.ml.estimator.lightning import train_module
from maggy_like.ml.estimator.network import is_lightning, normalizes_batches, to_cpu, uncompiled
from maggy_like.ml.estimator.objective import Objective, decoded, make_optimizer, make_scheduler
from maggy_like.ml.estimator.plan import (
    Means,
    State,
    TrainingPlan,
    check_batches,
    check_precision,
    check_ranks,
    first_state,
    loader_of,
    loss_name,
    outcome,
    record,
    seed_epoch,
)
from maggy_like.ml.loader.parquet_loader import ParquetLoader
from maggy_like.worker.child.reporter import Reporter


def train_network(plan: TrainingPlan, config: Mapping[str, Any], reporter: Reporter) -> State:
    """Train a network for ``reporter.budget`` epochs, on all workers of the trial together.

    Each epoch is saved and reported: ``loss`` over the training rows, ``validation_loss`` if there are validation rows,
    and ``accuracy`` of both for losses over classes. The objective is the loss of the validation or, without one, of
    the training. Return ``network``, the weights, and ``history``, the metrics of each epoch.
    """
    plan = plan.with_config(config)
    # The training after a search may have more epochs than its trials (train_best=100), for which a schedule is made.
    plan = replace(plan, epochs=max(plan.epochs, reporter.budget))
    data = plan.data
    check_precision(plan.precision, reporter.device)
    check_batches(plan)
    check_ranks(data.rows, reporter.world_size, plan.batch_size, held=data.held, least=plan.least_share)
    torch.manual_seed(plan.seed)
    network = plan.network()
    if is_lightning(network):
        return train_module(plan, network, reporter)
    objective = plan.objective(uncompiled(network))
    frozen = plan.frozen(objective.network)
    if any(isinstance(parameter, UninitializedParameter) for parameter in objective.network.parameters()):
        _fill_lazy_layers(plan, objective)
    optimizer, schedule = configure_optimizer(plan, objective)
    scaler = torch.amp.GradScaler(reporter.device.type, enabled=plan.precision == "fp16")
    state = reporter.restore() or first_state()
    if state["ended"]:
        return outcome(state)
    if state["epoch"]:
        objective.network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        if schedule is not None:
            schedule.load_state_dict(state["schedule"])
        scaler.load_state_dict(state["scaler"])
    least_share = 2 if normalizes_batches(objective.network, frozen) else 0
    fractions = fractions_of(objective.network)
    rows = loader_of(plan, fractions, data.train, shuffle=True, drop_last=plan.drop_last, least_share=least_share)
    model, optimizer, loader = reporter.prepare(objective, optimizer, rows)
    validation = None
    if data.validation:
        validation = reporter.prepare(loader_of(plan, fractions, data.validation, shuffle=False))
    counted = loss_name(plan)
    decode = partial(decoded, decode=plan.decode, device=reporter.device)
    for epoch in range(state["epoch"] + 1, reporter.budget + 1):
        loader.set_epoch(epoch)
        seed_epoch(plan, epoch, reporter.rank)
        steps = _Steps(plan, model, optimizer, scaler, schedule, len(loader), reporter.device)
        metrics = _train_epoch(steps, objective, map(decode, loader), frozen, reporter)
        if validation is not None:
            with autocast(plan, reporter.device):
                found = _validate(objective, map(decode, validation), reporter)
            metrics |= {f"validation_{name}": value for name, value in found.items()}
        if schedule is not None:
            schedule.epoch_ended(metrics)
        record(state, plan, metrics, to_cpu(objective.network.state_dict()))
        state |= {"optimizer": to_cpu(optimizer.state_dict()), "scaler": scaler.state_dict()}
        if schedule is not None:
            state["schedule"] = schedule.state_dict()
        if reporter.is_main:
            for callback in plan.callbacks:
                callback(epoch, dict(metrics), objective.network)
        reporter.checkpoint(state)
        # The first metric is what counts where nothing is searched.
        reporter.report(**{counted: metrics[counted]} | metrics, step=epoch)
        if state["ended"]:
            break
    return outcome(state)


def search_network(plan: TrainingPlan, config: Mapping[str, Any], reporter: Reporter) -> None:
    """Run :func:`train_network` as a trial of a search, whose weights are in its checkpoint."""
    train_network(plan, config, reporter)


def autocast(plan: TrainingPlan, device: torch.device) -> torch.autocast:
    """Return the context in which network and loss are computed."""
    dtype = torch.float16 if plan.precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=plan.precision != "32")


def _fill_lazy_layers(plan: TrainingPlan, objective: Objective) -> None:
    """Compute some rows to give layers such as ``LazyLinear`` their shape, which a data-parallel network must have."""
    loader = ParquetLoader(list(plan.data.train), plan.columns, batch_size=min(2, plan.data.rows), shuffle=False)
    batch = decoded(next(iter(loader)), plan.decode, torch.device("cpu"))
    with torch.no_grad():
        objective.eval()(batch)


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
        schedule: Schedule | None,
        batches: int,  # of the epoch
        device: torch.device,
    ) -> None:
        self._plan, self._model, self._optimizer, self._scaler = plan, model, optimizer, scaler
        self._schedule, self._batches, self._device = schedule, batches, device
        self._parameters = [it for group in optimizer.param_groups for it in group["params"]]

    def take(self, batch: Mapping[str, torch.Tensor], index: int) -> dict[str, torch.Tensor]:
        """Add the gradients of a batch, which may complete a step. Return its metrics."""
        at_once = self._plan.accumulate
        begin = index - index % at_once
        group = min(at_once, self._batches - begin)  # the batches of this step
        is_last = index + 1 == begin + group
        if index == begin:
            self._optimizer.zero_grad()
        with self._averaging(is_last):
            with autocast(self._plan, self._device):
                loss, metrics = self._model(batch)
            self._scaler.scale(loss if group == 1 else loss / group).backward()
        if is_last:
            if self._plan.clip is not None:
                self._scaler.unscale_(self._optimizer)
                nn.utils.clip_grad_norm_(self._parameters, self._plan.clip)
            self._scaler.step(self._optimizer)
            self._scaler.update()
            if self._schedule is not None:
                self._schedule.stepped()
        return dict(metrics)

    def _averaging(self, is_last: bool) -> AbstractContextManager[None]:
        """Let the ranks average gradients only once for each step."""
        if is_last or not isinstance(self._model, DataParallel):
            return nullcontext()
        return self._model.no_sync()


def _train_epoch(
    steps: _Steps,
    objective: Objective,
    rows: Iterable[Mapping[str, torch.Tensor]],
    frozen: Sequence[nn.Module],
    reporter: Reporter,
) -> dict[str, float]:
    objective.train()
    for module in frozen:
        module.eval()
    means = Means()
    for index, batch in enumerate(rows):
        means.add(_rows_of(batch, reporter), steps.take(batch, index))
    return means.over_ranks(reporter)


def _validate(objective: Objective, rows: Iterable[Mapping[str, torch.Tensor]], reporter: Reporter) -> dict[str, float]:
    objective.eval()
    means = Means()
    with torch.no_grad():
        for batch in rows:
            metrics = objective(batch)[1]
            if (weights := objective.weights(batch)) is not None:
                metrics["weight"] = weights.mean()
            means.add(_rows_of(batch, reporter), metrics)
    found = means.over_ranks(reporter)
    # Weights have a mean of 1 over the training rows, which are other rows.
    found["loss"] /= found.pop("weight", 1.0) or 1.0
    return found


def _rows_of(batch: Mapping[str, torch.Tensor], reporter: Reporter) -> int:
    """Return the number of rows that this rank has of a batch."""
    return 0 if reporter.is_stand_in else len(next(iter(batch.values())))


class Schedule:
    """A learning rate schedule, which advances after each ``"epoch"`` or ``"step"`` of the optimizer.

    ``ReduceLROnPlateau`` follows the metric ``monitor``.
    """

    def __init__(self, scheduler: Any, interval: str, monitor: str) -> None:
        self._scheduler, self._interval = scheduler, interval
        self._monitor = monitor if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else None

    def stepped(self) -> None:
        """Record a step of the optimizer."""
        if self._interval == "step":
            self._scheduler.step()

    def epoch_ended(self, metrics: Mapping[str, float]) -> None:
        """Record the end of an epoch."""
        if self._interval == "epoch":
            self._scheduler.step(*(() if self._monitor is None else (metrics[self._monitor],)))

    def state_dict(self) -> Any:
        """Return the scheduler's state."""
        return self._scheduler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Set the scheduler's state."""
        self._scheduler.load_state_dict(state)


def configure_optimizer(plan: TrainingPlan, objective: Objective) -> tuple[torch.optim.Optimizer, Schedule | None]:
    """Create the optimizer and the learning rate schedule, if there is one."""
    optimizer = make_optimizer(plan.optimizer, objective.network.parameters(), plan.rate, plan.optimizer_params)
    if plan.schedule is None:
        return optimizer, None
    advances = plan.epochs * (plan.steps if plan.schedule_interval == "step" else 1)
    scheduler = make_scheduler(plan.schedule, optimizer, plan.schedule_params, advances)
    if plan.schedule_interval == "step" and isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigError(
            "lrSchedulerInterval must be 'epoch' for ReduceLROnPlateau, which follows the loss of an epoch, got "
            "'step'; omit it"
        )
    return optimizer, Schedule(scheduler, plan.schedule_interval, loss_name(plan))
