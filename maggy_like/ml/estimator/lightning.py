"""A Lightning module in an Estimator: its loss, its hooks, its optimizer and its learning rate schedule."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maggy_like.errors import ConfigError
from maggy_like.ml.estimator.objective import Batch, Metrics, inputs_of

HOOKS = ("on_train_epoch_start", "on_train_epoch_end", "on_validation_epoch_start", "on_validation_epoch_end")
"""Hooks that are called."""

_UNUSED = ("test", "predict", "dataloader", "prepare_data", "checkpoint")
"""Parts of names of methods that are not part of a training on a DataFrame. They are allowed and ignored."""

_OF_THE_TRAINER = (
    "backward",
    "configure_callbacks",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "optimizer_step",
    "optimizer_zero_grad",
)
"""Methods of a Lightning module, in addition to hooks, that a Trainer calls and a module may override."""


class TrainerView:
    """Attributes of a Trainer that a Lightning module may use."""

    logger = None
    loggers: tuple[Any, ...] = ()

    def __init__(self, max_epochs: int, num_training_batches: int) -> None:
        self.current_epoch = 0
        self.global_step = 0  # steps of the optimizer so far
        self.max_epochs = max_epochs  # of the whole training
        self.num_training_batches = num_training_batches  # steps of an epoch
        self.estimated_stepping_batches = max_epochs * num_training_batches  # steps; for schedules such as OneCycleLR

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigError(
            f"a Lightning module in TorchEstimator must not use trainer.{name}; use {', '.join(vars(self))}, or run "
            "Lightning's Trainer in maggy_like.run"
        )


class LightningObjective(nn.Module):
    """The loss of a Lightning module on a batch, and the metrics that the module logs.

    Its steps receive a batch as a tuple of ``columns``: the inputs, then the labels, then the weight if there is one.
    Integer columns in ``as_fractions`` are converted to floats. A module that needs a Trainer raises ConfigError.
    """

    def __init__(
        self,
        network: nn.Module,
        columns: Sequence[str],
        epochs: int = 1,  # of the whole training
        steps: int = 1,  # of an epoch
        as_fractions: Sequence[str] = (),
    ) -> None:
        super().__init__()
        _check_module(network)
        self.network = network
        self.trainer = TrainerView(epochs, steps)
        self._columns = list(columns)
        self._as_fractions = tuple(as_fractions)
        self._logged: Metrics = {}
        network.log = self._log  # type: ignore[assignment]  # its own needs a Trainer
        network.log_dict = self._log_dict  # type: ignore[assignment]
        if isinstance(getattr(type(network), "trainer", None), property):
            network.trainer = self.trainer  # type: ignore[assignment]  # as Lightning's Trainer does it

    def forward(self, batch: Batch, index: int = 0) -> tuple[Tensor, Metrics]:
        """Call ``training_step`` or, in evaluation, ``validation_step``."""
        self._logged = {}
        validates = not self.training and _has_own(self.network, "validation_step")
        step: Any = self.network.validation_step if validates else self.network.training_step
        given = inputs_of(self.network, batch, self._columns, self._as_fractions)
        returned = step(tuple(given), index) if len(inspect.signature(step).parameters) > 1 else step(tuple(given))
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        metrics = {name: torch.as_tensor(value).detach() for name, value in self._logged.items()}
        if loss is None:
            if not validates:
                raise ConfigError("training_step must return the loss or a dict with 'loss', got neither")
            if not metrics:
                raise ConfigError("validation_step must return the loss or log val_loss, got neither")
            loss = metrics.get("val_loss", next(iter(metrics.values())))
        return loss, {"loss": loss.detach(), **metrics}

    def call_hook(self, name: str) -> None:
        """Call a hook if the module has it."""
        if (hook := getattr(self.network, name, None)) is not None:
            hook()

    def _log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(value, nn.Module):
            raise ConfigError(
                f"self.log({name!r}, ...) must log a number of the batch, got the metric object "
                f"{type(value).__name__}; use self.log({name!r}, metric(output, label)), which is averaged over the "
                "rows"
            )
        self._logged[name] = value

    def _log_dict(self, values: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        for name, value in values.items():
            self._log(name, value)


def _check_module(network: nn.Module) -> None:
    """Check that a module can be trained without a Trainer: it optimizes automatically, and has none of its hooks."""
    name = type(network).__name__
    if not getattr(network, "automatic_optimization", True):
        raise ConfigError(
            f"{name} must have automatic_optimization=True, got False; run Lightning's Trainer in maggy_like.run to "
            "step the optimizer manually"
        )
    known = {hook for kind in type(network).__mro__ if _is_hooks(kind) for hook in vars(kind) if hook[0] != "_"}
    left_out = [
        hook
        for hook in sorted(known.union(_OF_THE_TRAINER).difference(HOOKS))
        if _has_own(network, hook) and not any(part in hook for part in _UNUSED)
    ]
    if left_out:
        raise ConfigError(
            f"{name} must not override {', '.join(left_out)}, which TorchEstimator does not call; use training_step, "
            f"validation_step, configure_optimizers, {', '.join(HOOKS)}, or run Lightning's Trainer in maggy_like.run"
        )


def _has_own(network: nn.Module, name: str) -> bool:
    """Whether the module's class overrides a method of Lightning's, which does nothing."""
    method = getattr(type(network), name, None)
    return method is not None and not _is_lightnings(getattr(method, "__module__", ""))


def _is_hooks(kind: type) -> bool:
    return _is_lightnings(kind.__module__) and kind.__module__.endswith(".hooks")


def _is_lightnings(module: str) -> bool:
    return module.split(".")[0] in ("lightning", "pytorch_lightning")


class Schedule:
    """A learning rate schedule, stepped as Lightning does: once in ``frequency`` intervals, ``"epoch"`` or ``"step"``.

    ``monitor`` is the metric for a scheduler such as ``ReduceLROnPlateau``.
    """

    def __init__(
        self, scheduler: Any, interval: str = "epoch", frequency: int = 1, monitor: str = "val_loss", **others: Any
    ) -> None:
        if not callable(getattr(scheduler, "step", None)):
            raise ConfigError(
                f"configure_optimizers must return a scheduler of torch as lr_scheduler, got {scheduler!r}"
            )
        if interval not in ("epoch", "step"):
            raise ConfigError(f"configure_optimizers: interval must be 'epoch' or 'step', got {interval!r}")
        self._scheduler, self._interval, self._frequency = scheduler, interval, frequency
        self._monitor = monitor if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else None

    def stepped(self, steps: int) -> None:
        """Record that the optimizer has taken ``steps`` steps."""
        if self._interval == "step" and steps % self._frequency == 0:
            self._scheduler.step()

    def epoch_ended(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """Record the end of an epoch, counted from 1; the monitored metric must have been logged."""
        if self._interval != "epoch" or epoch % self._frequency:
            return
        if self._monitor is None:
            self._scheduler.step()
            return
        names = (self._monitor, f"validation_{self._monitor.removeprefix('val_')}")
        value = next((metrics[name] for name in names if name in metrics), None)
        if value is None:
            raise ConfigError(
                f"configure_optimizers: monitor must be a logged metric, got {self._monitor!r}; use one of "
                f"{', '.join(metrics)}"
            )
        self._scheduler.step(value)

    def state_dict(self) -> Any:
        """The scheduler's state."""
        return self._scheduler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Set the scheduler's state."""
        self._scheduler.load_state_dict(state)


def configured_by(network: nn.Module) -> tuple[torch.optim.Optimizer, Schedule | None]:
    """Return the one optimizer and, if there is one, the schedule of a Lightning module."""
    made: Any = getattr(network, "configure_optimizers")()  # noqa: B009  # nn.Module says it is a tensor or a module
    schedulers: Any = ()
    if isinstance(made, list | tuple) and len(made) == 1 and isinstance(made[0], Mapping):
        made = made[0]
    if isinstance(made, Mapping):
        made, schedulers = made.get("optimizer"), made.get("lr_scheduler", ())
    elif isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], list | tuple):
        made, schedulers = made
    optimizers = made if isinstance(made, list | tuple) else [made]
    schedules = schedulers if isinstance(schedulers, list | tuple) else [schedulers]
    if len(optimizers) != 1 or len(schedules) > 1:
        raise ConfigError(
            f"configure_optimizers must return one optimizer and at most one schedule, got {len(optimizers)} and "
            f"{len(schedules)}; run Lightning's Trainer in maggy_like.run to use more"
        )
    if not isinstance(optimizers[0], torch.optim.Optimizer):
        raise ConfigError(f"configure_optimizers must return an optimizer of torch, got {optimizers[0]!r}")
    if not schedules:
        return optimizers[0], None
    given = schedules[0] if isinstance(schedules[0], Mapping) else {"scheduler": schedules[0]}
    return optimizers[0], Schedule(**{"scheduler": None, **given})
