"""What is optimised: names and directions, turned into losses here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from optimizers.errors import UserError
from optimizers.trial import Trial, TrialState

Direction = Literal["max", "min"]


class Objectives:
    """The objectives of a search; the first one is what single-minded parts of it go by.

    Args:
        direction: ``max`` or ``min``, or one for each objective.
        names: The objectives' names, as they are reported, where there are several.

    Raises:
        UserError: A direction is unknown, or their number is not that of the names.
    """

    def __init__(self, direction: Direction | Sequence[Direction], names: Sequence[str] = ()) -> None:
        self.directions: tuple[Direction, ...] = (direction,) if isinstance(direction, str) else tuple(direction)
        for given in self.directions:
            if given not in ("max", "min"):
                raise UserError(f"direction must be 'max' or 'min', got {given!r}")
        self.names = tuple(names) or tuple(f"value_{number}" for number in range(len(self.directions)))
        if len(self.names) != len(self.directions):
            raise UserError(f"objectives {list(names)} need as many directions, got {direction!r}; give one for each")

    def __len__(self) -> int:
        return len(self.directions)

    def loss(self, value: float | None, number: int = 0) -> float:
        """A value of the ``number``-th objective as a loss; ``inf`` for no finite value."""
        if value is None or not math.isfinite(value):
            return math.inf
        return -value if self.directions[number] == "max" else value

    def values(self, trial: Trial) -> tuple[float, ...]:
        """Of several objectives, those of a trial that has ended: as returned, else as last reported."""
        if len(self) == 1 or trial.last_value is None:
            return ()
        others = [_final(trial, trial.metrics, name) for name in self.names[1:]]
        return (trial.last_value, *(math.nan if other is None else other for other in others))

    def losses(self, trial: Trial) -> tuple[float, ...]:
        """Of several objectives, the losses of a trial that has ended; all ``inf`` if it failed."""
        if len(self) == 1:
            return ()
        if trial.state is TrialState.FAILED or not trial.values:
            return (math.inf,) * len(self)
        return tuple(self.loss(value, number) for number, value in enumerate(trial.values))

    def missing(self, trial: Trial, metrics: Mapping[str, float]) -> str:
        """What to say where ``train_fn`` neither returned nor reported one of several objectives; else nothing."""
        for name in self.names[1:]:
            if _final(trial, metrics, name) is None:
                given = ", ".join(sorted({*metrics, *trial.curves})) or "one number"
                return f"the metric {name!r} is missing; given: {given}. Return it in a dict, or report it"
        return ""


def _final(trial: Trial, metrics: Mapping[str, float], name: str) -> float | None:
    if name in metrics:
        return metrics[name]
    return trial.curves[name].last if name in trial.curves else None
