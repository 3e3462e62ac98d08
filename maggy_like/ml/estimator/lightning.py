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
"""Parts of names of what belongs to no training on a DataFrame: it may be there, and is left alone."""

_OF_THE_TRAINER = (
    "backward",
    "configure_callbacks",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "optimizer_step",
    "optimizer_zero_grad",
)
"""Methods of a Lightning module, beside its hooks, that a Trainer calls and a module may override."""


class TrainerView:
    """What a Lightning module may ask of its Trainer.

    Attributes:
        current_epoch: From 0, as Lightning counts.
        global_step: Steps of the optimizer so far.
        max_epochs: Epochs of the whole training.
        num_training_batches: Steps of an epoch.
        estimated_stepping_batches: Steps of the whole training, which schedules such as ``OneCycleLR`` take.
    """

    logger = None
    loggers: tuple[Any, ...] = ()

    def __init__(self, max_epochs: int, num_training_batches: int) -> None:
        self.current_epoch = 0
        self.global_step = 0
        self.max_epochs = max_epochs
        self.num_training_batches = num_training_batches
        self.estimated_stepping_batches = max_epochs * num_training_batches

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigError(
            f"a Lightning module in TorchEstimator has no Trainer, and asked for trainer.{name}; there are "
            f"{', '.join(vars(self))}. Run Lightning's own Trainer in maggy_like.run"
        )


class LightningObjective(nn.Module):
    """The loss of a Lightning module on a batch, and what it logs.

    Its steps get a batch as a tuple: the inputs, then the labels, then the weight if there is one.

    Args:
        network: The Lightning module.
        columns: Columns of the batch, in order.
        epochs: Of the whole training.
        steps: Of an epoch.
        as_fractions: Columns of whole numbers that the network takes as fractions.

    Attributes:
        trainer: What the module may ask of a Trainer.

    Raises:
        ConfigError: The module needs a Trainer.
    """

    def __init__(
        self,
        network: nn.Module,
        columns: Sequence[str],
        epochs: int = 1,
        steps: int = 1,
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
        """What ``training_step`` or, in evaluation, ``validation_step`` gives."""
        self._logged = {}
        validates = not self.training and _has_own(self.network, "validation_step")
        step: Any = self.network.validation_step if validates else self.network.training_step
        given = inputs_of(self.network, batch, self._columns, self._as_fractions)
        returned = step(tuple(given), index) if len(inspect.signature(step).parameters) > 1 else step(tuple(given))
        loss = returned.get("loss") if isinstance(returned, Mapping) else returned
        metrics = {name: torch.as_tensor(value).detach() for name, value in self._logged.items()}
        if loss is None:
            if not validates:
                raise ConfigError("training_step gave no loss; it must return the loss, or a dict with 'loss'")
            if not metrics:
                raise ConfigError("validation_step gave no loss and logged nothing; return the loss, or log val_loss")
            loss = metrics.get("val_loss", next(iter(metrics.values())))
        return loss, {"loss": loss.detach(), **metrics}

    def call_hook(self, name: str) -> None:
        """Call a hook, if the module has it."""
        if (hook := getattr(self.network, name, None)) is not None:
            hook()

    def _log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(value, nn.Module):
            raise ConfigError(
                f"self.log({name!r}, {type(value).__name__}()) logs an object that gathers over an epoch; log what it "
                f"gives for the batch, whose mean over the rows is kept: self.log({name!r}, metric(output, label))"
            )
        self._logged[name] = value

    def _log_dict(self, values: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        for name, value in values.items():
            self._log(name, value)


def _check_module(network: nn.Module) -> None:
    """Refuse a module that cannot be trained without a Trainer.

    Raises:
        ConfigError: It optimizes by hand, or overrides what only a Trainer calls.
    """
    name = type(network).__name__
    if not getattr(network, "automatic_optimization", True):
        raise ConfigError(
            f"{name} sets automatic_optimization=False; TorchEstimator steps the optimizer itself. Run Lightning's "
            "own Trainer in maggy_like.run"
        )
    known = {hook for kind in type(network).__mro__ if _is_hooks(kind) for hook in vars(kind) if hook[0] != "_"}
    left_out = [
        hook
        for hook in sorted(known.union(_OF_THE_TRAINER).difference(HOOKS))
        if _has_own(network, hook) and not any(part in hook for part in _UNUSED)
    ]
    if left_out:
        raise ConfigError(
            f"{name} overrides {', '.join(left_out)}, which TorchEstimator does not call; it calls training_step, "
            f"validation_step, configure_optimizers, {', '.join(HOOKS)}. Run Lightning's own Trainer in maggy_like.run"
        )


def _has_own(network: nn.Module, name: str) -> bool:
    """Whether the module's class defines a method itself: Lightning's own does nothing."""
    method = getattr(type(network), name, None)
    return method is not None and not _is_lightnings(getattr(method, "__module__", ""))


def _is_hooks(kind: type) -> bool:
    return _is_lightnings(kind.__module__) and kind.__module__.endswith(".hooks")


def _is_lightnings(module: str) -> bool:
    return module.split(".")[0] in ("lightning", "pytorch_lightning")


class Schedule:
    """A learning-rate schedule, stepped as Lightning does it.

    Args:
        scheduler: A scheduler of torch.
        interval: ``"epoch"`` or ``"step"``.
        frequency: Each how many of them it steps.
        monitor: The metric that a scheduler like ``ReduceLROnPlateau`` goes by.
    """

    def __init__(
        self, scheduler: Any, interval: str = "epoch", frequency: int = 1, monitor: str = "val_loss", **others: Any
    ) -> None:
        if not callable(getattr(scheduler, "step", None)):
            raise ConfigError(f"configure_optimizers gave {scheduler!r} as lr_scheduler; it must be one of torch's")
        if interval not in ("epoch", "step"):
            raise ConfigError(f"configure_optimizers: interval must be 'epoch' or 'step', got {interval!r}")
        self._scheduler, self._interval, self._frequency = scheduler, interval, frequency
        self._monitor = monitor if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else None

    def stepped(self, steps: int) -> None:
        """The optimizer has stepped so many times."""
        if self._interval == "step" and steps % self._frequency == 0:
            self._scheduler.step()

    def epoch_ended(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """An epoch, the first is 1, has ended.

        Raises:
            ConfigError: The metric to go by was not logged.
        """
        if self._interval != "epoch" or epoch % self._frequency:
            return
        if self._monitor is None:
            self._scheduler.step()
            return
        names = (self._monitor, f"validation_{self._monitor.removeprefix('val_')}")
        value = next((metrics[name] for name in names if name in metrics), None)
        if value is None:
            raise ConfigError(
                f"configure_optimizers: the schedule goes by monitor={self._monitor!r}, which no step has logged; "
                f"there are {', '.join(metrics)}"
            )
        self._scheduler.step(value)

    def state_dict(self) -> Any:
        """The scheduler's state."""
        return self._scheduler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Set the scheduler's state."""
        self._scheduler.load_state_dict(state)


def configured_by(network: nn.Module) -> tuple[torch.optim.Optimizer, Schedule | None]:
    """The optimizer, and the schedule if there is one, of a Lightning module.

    Raises:
        ConfigError: ``configure_optimizers`` gives none, several, or something else.
    """
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
            f"configure_optimizers gave {len(optimizers)} optimizers and {len(schedules)} schedules; TorchEstimator "
            "takes one optimizer and one schedule at most. Run Lightning's own Trainer in maggy_like.run"
        )
    if not isinstance(optimizers[0], torch.optim.Optimizer):
        raise ConfigError(f"configure_optimizers gave {optimizers[0]!r}, which is no optimizer of torch")
    if not schedules:
        return optimizers[0], None
    given = schedules[0] if isinstance(schedules[0], Mapping) else {"scheduler": schedules[0]}
    return optimizers[0], Schedule(**{"scheduler": None, **given})
