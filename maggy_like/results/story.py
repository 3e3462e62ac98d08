"""The story of a run: its decisions in order, one line each, for a bug report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from maggy_like.display.text import number
from maggy_like.storage.journal import backend_of, read_journal
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured, TrialCreated
from optimizers.core.trial import TrialState


def read_story(directory: Path | str) -> list[str]:
    """The story of the run in that folder (see :func:`story`)."""
    return story(read_journal(backend_of(str(directory))).events)


def story(events: Sequence[Event]) -> list[str]:
    """Why each trial was created, started, promoted, paused, stopped or tried again, with the seconds since the first.

    Args:
        events: Those of a run's journal.
    """
    times = _times(events)
    begun = min(times, default=0.0)
    told = _Story()
    lines = []
    for event, time in zip(events, times, strict=True):
        lines += [f"{time - begun:10.2f} s  trial {event.trial} {line}" for line in told.tell(event)]
    return lines


def _times(events: Sequence[Event]) -> list[float]:
    """When each event happened: those without a time belong to the next that has one."""
    times: list[float] = []
    newest = max((event.time for event in events if isinstance(event, AttemptStarted | AttemptEnded)), default=0.0)
    for event in reversed(events):
        if isinstance(event, AttemptStarted | AttemptEnded):
            newest = event.time
        times.append(newest)
    return times[::-1]


@dataclass
class _Story:
    """What a line needs of the events before it.

    Attributes:
        ends: How the newest attempt of each trial ended.
        measured: The newest step and value of each trial.
    """

    ends: dict[int, AttemptEnded] = field(default_factory=dict)
    measured: dict[int, tuple[int, float]] = field(default_factory=dict)

    def tell(self, event: Event) -> Iterator[str]:
        """The lines of an event; none for measurements and saved states."""
        match event:
            case TrialCreated():
                yield f"is created: {_origin(event)}"
            case AttemptStarted():
                workers = f"{event.world_size} workers, first of them {event.worker}"
                who = f"worker {event.worker}" if event.world_size == 1 else workers
                yield f"attempt {event.attempt} starts on {who}, up to step {event.budget}{self._why(event)}"
            case Measured(trial=trial, objective=objective, columns=columns):
                if objective in columns:
                    steps, values = columns[objective]
                    self.measured[trial] = steps[-1], values[-1]
            case AttemptEnded():
                self.ends[event.trial] = event
                yield f"attempt {event.attempt} ends, {_outcome(event)}{self._reached(event.trial)}"

    def _why(self, event: AttemptStarted) -> str:
        before = self.ends.get(event.trial)
        if before is None:
            return ""
        why = "promoted" if before.state is TrialState.PAUSED else "again"
        if before.failure is not None:
            why += f", after {before.failure.kind}"
        return f": {why}" + (f", since {event.cause}" if event.cause else "")

    def _reached(self, trial: int) -> str:
        if trial not in self.measured:
            return ""
        step, value = self.measured[trial]
        return f" (step {step}, value {number(value)})"


def _origin(event: TrialCreated) -> str:
    if event.training:
        return f"the training, of {event.training} steps"
    if event.ask is None:
        return "a point that was given"
    return f"proposal {event.ask} of the optimizer" + (
        "" if event.parent is None else f", from the state of trial {event.parent}"
    )


def _outcome(event: AttemptEnded) -> str:
    """How an attempt ended, and why."""
    state = {TrialState.PENDING: "to run again"}.get(event.state, event.state.value)
    failure = "" if event.failure is None else f"{event.failure.kind}: {event.failure.message}"
    why = "; ".join(part for part in (event.cause, failure) if part)
    return state + (f": {why}" if why else "")
