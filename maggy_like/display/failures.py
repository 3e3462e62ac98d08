"""Failures of trials, by kind."""

from __future__ import annotations

from collections.abc import Iterable

from maggy_like.display.base import FailureLine
from optimizers.core.trial import FailureKind, Trial


def failures_by_kind(trials: Iterable[Trial]) -> tuple[FailureLine, ...]:
    """A line a kind, the most frequent first; trials that came through in a later attempt are among them."""
    newest: dict[str, FailureLine] = {}
    for trial in trials:
        failure = trial.failure
        if failure is not None and failure.kind is not FailureKind.DRIVER_LOST:  # what an interrupt cuts off is none
            count = newest[failure.kind].count + 1 if failure.kind in newest else 1
            newest[failure.kind] = FailureLine(failure.kind, count, trial.id, failure.message)
    return tuple(sorted(newest.values(), key=lambda line: -line.count))
