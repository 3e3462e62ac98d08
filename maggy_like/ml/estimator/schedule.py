"""The optimizer and the learning-rate schedule that a Lightning module configures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from maggy_like.errors import ConfigError


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
