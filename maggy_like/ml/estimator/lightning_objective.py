"""A Lightning module as a loss of batches: its steps, what it logs, and the hooks that are called.

There is no Trainer. What a module overrides and would need one for is refused before the training.
"""

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
