"""Objectives: their names and directions, their losses, and the Pareto set of several.

Only this module converts values to losses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from optimizers.checks import short
from optimizers.core.direction import SPELLINGS, Direction, contradiction, direction_of
from optimizers.core.trial import Trial, TrialState
from optimizers.errors import UserError

Directions = str | None | Sequence[str | None]
"""A direction, or one for each objective. None infers it from the objective's name."""


class Objectives:
    """The objectives of a search. Algorithms for a single objective use the first one.

    A direction that is not given (None) is inferred from the objective's name (see
    :func:`~optimizers.core.direction.direction_of`), with ``max`` as default. A single objective without a direction
    and a name is *open*: it must be settled before any decision. Several objectives need names.
    """

    def __init__(self, direction: Directions = None, names: Sequence[str] = ()) -> None:
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
            raise UserError(f"objectives must be a list of names, got {short(names)}; use ['accuracy', 'seconds']")
        self.given = tuple(names)
        self.said = read_directions(direction, self.given)  # None for those to infer
        self.names = self.given or tuple(f"value_{number}" for number in range(len(self.said)))
        if len(self.names) != len(self.said):
            raise UserError(f"objectives {list(names)} need as many directions, got {direction!r}; give one for each")
        for name, known in zip(self.given, self.said, strict=False):
            if known is None and (message := contradiction(name)):
                raise UserError(message)
        self.is_open = not self.given and self.said == (None,)
        # Direction that the first measurement of a single objective has settled, whether it was open or not.
        self.settled: Direction | None = None
        self._directions = tuple(
            known or direction_of(name) or "max" for name, known in zip(self.names, self.said, strict=True)
        )

    @property
    def directions(self) -> tuple[Direction, ...]:
        """One direction per objective; ``max`` while it is open."""
        return self._directions

    def settle(self, direction: Direction) -> None:
        """Set the direction of an open objective. The first call wins."""
        self.settled = self.settled or direction
        if self.is_open:
            self.is_open, self._directions = False, (direction,)

    def __len__(self) -> int:
        return len(self.said)

    def loss(self, value: float | None, number: int = 0) -> float:
        """Return a value of the ``number``-th objective as a loss; ``inf`` if it is not finite."""
        if value is None or not math.isfinite(value):
            return math.inf
        return -value if self._directions[number] == "max" else value

    def values(self, trial: Trial) -> tuple[float, ...]:
        """Return all objectives of an ended trial if there are several: the returned values or the last reports."""
        if len(self) == 1 or trial.last_value is None:
            return ()
        others = [_final(trial, trial.metrics, name) for name in self.names[1:]]
        return (trial.last_value, *(math.nan if other is None else other for other in others))

    def losses(self, trial: Trial) -> tuple[float, ...]:
        """Return the losses of an ended trial if there are several objectives; all ``inf`` if it failed."""
        if len(self) == 1:
            return ()
        if trial.state is TrialState.FAILED or not trial.values:
            return (math.inf,) * len(self)
        return tuple(self.loss(value, number) for number, value in enumerate(trial.values))

    def missing(self, trial: Trial, metrics: Mapping[str, float]) -> str:
        """Return a message if ``train_fn`` neither returned nor reported one of several objectives, or else nothing."""
        for name in self.names[1:]:
            if _final(trial, metrics, name) is None:
                given = ", ".join(sorted({*metrics, *trial.curves})) or "one number"
                return f"the metric {name!r} is missing; given: {given}. Return it in a dict, or report it"
        return ""


def _final(trial: Trial, metrics: Mapping[str, float], name: str) -> float | None:
    if name in metrics:
        return metrics[name]
    return trial.curves[name].last if name in trial.curves else None


def read_directions(direction: Directions, names: Sequence[str] = ()) -> tuple[Direction | None, ...]:
    """Return directions in our spelling, with None for those to infer from a name."""
    if direction is None:
        return (None,) * max(1, len(names))
    if not isinstance(direction, str | list | tuple) or not direction:
        raise UserError(f"direction must be 'max' or 'min', or a list of these, got {short(direction)}")
    read: list[Direction | None] = []
    for given in (direction,) if isinstance(direction, str) else direction:
        if given is not None and (not isinstance(given, str) or given not in SPELLINGS):
            raise UserError(f"direction must be 'max' or 'min', got {short(given)}")
        read.append(None if given is None else SPELLINGS[given])
    return tuple(read)


class ParetoFront:
    """The entries that no other entry dominates. Equal entries are all kept."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[float, ...]] = {}
        self._front: dict[int, tuple[float, ...]] = {}

    def __len__(self) -> int:
        return len(self._front)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._front))

    def enter(self, number: int, losses: tuple[float, ...]) -> None:
        """Set the losses of a trial. Losses that are not finite never count."""
        known = number in self._entries
        self._entries[number] = losses
        if known:  # what it dominated before may be back
            self._front.clear()
            for each, its in self._entries.items():
                self._place(each, its)
        else:
            self._place(number, losses)

    def _place(self, number: int, losses: tuple[float, ...]) -> None:
        if not all(map(math.isfinite, losses)) or any(dominates(other, losses) for other in self._front.values()):
            return
        self._front = {each: its for each, its in self._front.items() if not dominates(losses, its)}
        self._front[number] = losses


def dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Return whether the losses ``a`` are nowhere larger than ``b`` and somewhere smaller."""
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))
