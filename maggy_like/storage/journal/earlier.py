"""What a run knew of earlier ones when it began, as its journal keeps it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from optimizers.core.base import Observation
from optimizers.core.events import config_of, form_of

Earlier = tuple[tuple[Observation, ...], ...]
"""The observations of each earlier run (see :attr:`optimizers.core.base.Problem.earlier`)."""


class EarlierResult(msgspec.Struct, frozen=True, array_like=True):
    """One observation. JSON has no infinity, so a loss that is not finite is None.

    Attributes:
        losses: All of them, where there are several objectives.
    """

    trial: int
    config: dict[str, Any]
    step: int
    loss: float | None
    losses: tuple[float | None, ...] = ()


def to_records(earlier: Earlier) -> list[list[EarlierResult]]:
    """The form that :func:`from_records` reads back."""
    return [[_to_record(seen) for seen in run] for run in earlier]


def from_records(records: Iterable[Iterable[EarlierResult]]) -> Earlier:
    """The observations of :func:`to_records`."""
    return tuple(tuple(map(_from_record, run)) for run in records)


def _to_record(seen: Observation) -> EarlierResult:
    return EarlierResult(
        seen.trial, form_of(seen.config), seen.step, _strict(seen.loss), tuple(map(_strict, seen.losses))
    )


def _from_record(record: EarlierResult) -> Observation:
    losses = tuple(map(_infinite, record.losses))
    return Observation(record.trial, config_of(record.config), record.step, _infinite(record.loss), losses=losses)


def _strict(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


def _infinite(loss: float | None) -> float:
    return math.inf if loss is None else loss
