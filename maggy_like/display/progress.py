"""A run in words, for displays: its phase, its progress, its best value, its workers, its newest lines and its end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from maggy_like.display.base import LogLine, Snapshot, WorkerLine
from maggy_like.display.text import (
    MAX_FAILURES,
    clean,
    config_text,
    duration,
    failure,
    guess,
    number,
    place,
    readable,
    tally,
    words,
)
from maggy_like.protocol.endings import Ending, Phase
from optimizers.core.trial import TrialState

ENOUGH_TRIALS = 5
"""Trials that must have ended before their pace shows how long the others will take."""

MAX_WORKERS = 12
"""Workers that are shown one by one if there is space."""

MAX_IMPORTS = 3
"""Packages that are shown of those that workers import."""

MAX_METRICS = 5
"""Metrics of a training run that are shown in addition to its objective."""


def counted(snapshot: Snapshot, state: TrialState) -> str:
    """Return the count of a state, which explains why trials of a complete search are paused."""
    done = isinstance(snapshot.phase, Ending) and snapshot.phase.is_planned and state is TrialState.PAUSED
    return tally(snapshot.counts, [state]) + " (stopped early to save time)" * done


def waits_for(snapshot: Snapshot) -> str:
    """Return what a search waits for before its first result: ``waiting for the first report``. Empty after that."""
    if snapshot.phase.is_over or snapshot.tried or snapshot.best_trial is not None or snapshot.pareto:
        return ""
    if snapshot.counts.get(TrialState.RUNNING):
        return "waiting for the first report of a trial"
    states = {worker.state for worker in snapshot.workers}
    if states & {"idle", "busy"}:
        return "waiting for the first configuration"
    hidden = len(snapshot.imports) - MAX_IMPORTS
    named = [*map(clean, snapshot.imports[:MAX_IMPORTS]), *[f"{hidden} more"] * (hidden > 0)]
    packages = " and ".join(filter(None, [", ".join(named[:-1]), *named[-1:]]))
    if "joining" in states:
        return f"workers are importing {packages}" if packages else "workers are starting"
    size = f"{snapshot.n_workers} worker{'s' * (snapshot.n_workers > 1)}" if snapshot.n_workers else "workers"
    then = f", which {'imports' if snapshot.n_workers == 1 else 'import'} {packages} first" if packages else ""
    return f"waiting for Spark to start {size}{then}" if snapshot.engine == "spark" else f"starting {size}{then}"


def how_to_resume(snapshot: Snapshot) -> str:
    """Return how to resume a run that was cut off. Empty if it continues or is complete."""
    done = snapshot.training is not None and snapshot.training.state is TrialState.COMPLETED
    if done or not (isinstance(snapshot.phase, Ending) and snapshot.phase.is_cut_short):
        return ""
    how = f"name={clean(snapshot.name)!r}, resume=True to continue it"
    if snapshot.phase is Ending.TIMEOUT and snapshot.is_search and not snapshot.counts:
        return f"no trial began, since the start took all of the timeout; pass a longer timeout, with {how}"
    return f"pass {how}"


def remaining(first: Snapshot, now: Snapshot) -> float | None:
    """Estimate the seconds that the search still needs, at most until its timeout.

    The pace counts from the snapshot before the first trial began (see :func:`pace_from`), since the trials of a
    resumed run's journal do not show it. Return None if there is no basis, or the run has ended. There is none if each
    paused trial continues, because the number of trials that ended says little then.
    """
    if now.phase.is_over:
        return None
    ends = [] if now.timeout is None else [_until_timeout(now, now.timeout)]
    new, seconds = now.tried - first.tried, now.elapsed - first.elapsed
    if (training := now.training) is not None:
        left = training.budget - training.step
        known = training.state is TrialState.RUNNING and 0 < training.step < training.budget
        return training.seconds * left / training.step if known else None
    left = 0 if now.n_trials is None or now.resumes_all else now.n_trials - now.tried
    if left > 0 and new >= ENOUGH_TRIALS and seconds > 0:
        ends.append(left * seconds / new)
    return min(ends, default=None)


def pace_from(first: Snapshot, now: Snapshot) -> Snapshot:
    """Return the snapshot from which on the pace of the trials counts: the last one before the first of them began."""
    return now if dict(now.counts) == dict(first.counts) and not now.counts.get(TrialState.RUNNING) else first


def _until_timeout(now: Snapshot, timeout: float) -> float:
    return max(0.0, timeout - now.elapsed)


def clock(first: Snapshot, now: Snapshot) -> str:
    """Return the elapsed time and, if known, the time left: ``0:31, about 0:40 left``.

    What is left of the timeout is not an estimate: ``0:31, at most 0:40 left``.
    """
    left = remaining(first, now)
    if left is None:
        return duration(now.elapsed)
    is_limit = now.timeout is not None and now.training is None and left == _until_timeout(now, now.timeout)
    return f"{duration(now.elapsed)}, {'at most' if is_limit else 'about'} {duration(left)} left"


def training(snapshot: Snapshot) -> str:
    """Return the training in words: ``training on 2 workers: step 5/27, accuracy 0.981``. Empty without one."""
    line = snapshot.training
    if line is None:
        return ""
    if not line.workers:
        return "training: waiting for workers"
    verb = {TrialState.COMPLETED: "trained", TrialState.FAILED: "training failed"}.get(line.state, "training")
    shown = [] if line.value is None else [(snapshot.objective or "value", line.value), *line.others[:MAX_METRICS]]
    values = "".join(f", {clean(name)} {number(value)}" for name, value in shown)
    of = f"/{line.budget}" if line.budget else ""
    steps = f": step {line.step}{of}{values}" if line.step else ""
    return f"{verb} on {line.workers} worker{'s' * (line.workers > 1)}{steps}"


def confirmation(snapshot: Snapshot) -> str:
    """Return the confirmation in words: ``confirming the best 5: 7 of at most 25 trainings, trial 12 leads``."""
    line = snapshot.confirmation
    if line is None:
        return ""
    is_on = snapshot.phase is Phase.CONFIRMING
    verb = "confirming the best" if is_on else "compared the best"
    done = f"{line.ended} of at most {line.most} trainings" if is_on else f"{line.ended} trainings with new seeds"
    leads = "leads" if is_on else "is recommended"
    leader = "" if line.leader is None else f", trial {line.leader} {leads}"
    return f"{verb} {line.candidates}: {done}{leader}"


def state(snapshot: Snapshot) -> str:
    """Return the phase or the ending: ``searching``, ``completed``, ``training failed``."""
    return words(snapshot.phase, None if snapshot.training is None else snapshot.training.state)


def fraction(snapshot: Snapshot) -> str:
    """Return the progress: ``12/30``, or ``12 trials`` without a limit."""
    done = snapshot.tried
    if snapshot.n_trials is not None and done <= snapshot.n_trials:  # a resumed run may have more trials than asked for
        return f"{done}/{snapshot.n_trials}"
    return n_trials(snapshot)


def n_trials(snapshot: Snapshot) -> str:
    """Return the number of trials in any state: ``17 trials``."""
    total = sum(snapshot.counts.values())
    return f"{total} trial{'' if total == 1 else 's'}"


def goal(snapshot: Snapshot) -> str:
    """Return optimizer and objectives: ``asha, max accuracy``, or ``random, max accuracy, min latency``."""
    if not snapshot.is_search:
        return clean(snapshot.optimizer)
    first = [] if snapshot.direction is None else [(snapshot.direction, snapshot.objective or "objective")]
    goals = [f"{direction} {name}" for direction, name in (*first, *snapshot.others)]
    return clean(", ".join([snapshot.optimizer, *goals]))


def best(snapshot: Snapshot) -> str:
    """Return the best so far: ``best 0.973 at step 9 (trial 4)``, or ``5 trials in the Pareto set``."""
    if snapshot.pareto:
        return f"{snapshot.pareto} trial{'' if snapshot.pareto == 1 else 's'} in the Pareto set"
    if snapshot.best_trial is None:
        return waits_for(snapshot) or "no result yet"
    return f"best {number(snapshot.best_value)} {best_place(snapshot)}"


def best_place(snapshot: Snapshot) -> str:
    """Return where the best value was measured: ``at step 9 (trial 4)``."""
    return place(snapshot.best_trial, snapshot.best_step, failed=snapshot.best_failed)


def status(first: Snapshot, now: Snapshot) -> str:
    """Return the search on one line: ``[12/30] best 0.973 at step 9 (trial 4) | 5 completed, 3 running | 0:31``."""
    counted = tally(now.counts) or state(now)
    found = [best(now)] if now.finds_best else []
    search = [" ".join([f"[{fraction(now)}]", *found]), counted] if now.is_search else []
    return " | ".join([*search, *filter(None, [confirmation(now), training(now)]), clock(first, now)])


def summary(snapshot: Snapshot) -> list[str]:
    """Return the end of a search in a few lines."""
    trials = n_trials(snapshot)
    if snapshot.counts:
        trials += f" ({tally(snapshot.counts)})"
    after = duration(snapshot.elapsed) + " or more" * (snapshot.phase is Ending.KILLED)  # which recorded no end
    end = f"{clean(snapshot.name)}: {state(snapshot)} after {after}"
    lines = [f"{end}, {trials}" if snapshot.is_search else end]
    if snapshot.pareto:
        lines.append(best(snapshot))
    if snapshot.best_trial is not None:
        value = f"{snapshot.objective or 'value'} {number(snapshot.best_value)}"
        config = config_text(snapshot.best_config or {})
        lines.append(f"best {clean(value)} {best_place(snapshot)}" + (f": {config}" if config else ""))
    lines += filter(None, [guess(snapshot), confirmation(snapshot), training(snapshot)])
    lines += [failure(line) for line in snapshot.failures[:MAX_FAILURES]]
    return [*lines, f"files in {clean(snapshot.directory)}", *filter(None, [how_to_resume(snapshot)])]


def expected(snapshot: Snapshot) -> list[WorkerLine]:
    """Return the lines of all workers, also of those that have not connected yet."""
    known = {worker.index for worker in snapshot.workers}
    waiting = range(snapshot.n_workers if not snapshot.phase.is_over else 0)
    missing = [WorkerLine(index, "", "starting") for index in waiting if index not in known]
    return sorted([*snapshot.workers, *missing], key=lambda worker: worker.index)


def busiest(workers: Sequence[WorkerLine], limit: int) -> tuple[list[WorkerLine], str]:
    """Return the workers that have been busy longest, in order of index, and a text about the others.

    The text is like ``and 52 more (50 busy, 2 idle)``, or empty if all are shown.
    """
    ranked = sorted(workers, key=lambda worker: (worker.state != "busy", -worker.seconds, worker.index))
    shown, hidden = ranked[:limit], [worker.state for worker in ranked[limit:]]
    states = ", ".join(f"{hidden.count(state)} {state}" for state in dict.fromkeys(hidden))
    rest = f"and {len(hidden)} more ({states})" if hidden else ""
    return sorted(shown, key=lambda worker: worker.index), rest


MAX_BESTS = 120
"""Points that are kept. A finer line cannot be seen."""

_BARS = "▁▂▃▄▅▆▇█"


class Bests:
    """The best values of a search in the order in which they were found."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []  # seconds and value of each new best, always with the newest one

    def take(self, snapshot: Snapshot) -> None:
        """Add the best value if it is new."""
        value = snapshot.best_value
        if value is not None and (not self.points or self.points[-1][1] != value):
            self.points.append((snapshot.elapsed, value))
            if len(self.points) > MAX_BESTS:
                del self.points[1:-1:2]

    def line(self, end: float, width: int) -> str:
        """Return the curve in a line of text. Empty with fewer than two values.

        It is like ``0.91 ▁▁▁▄▄▄▄█ 0.973  0:04 to 0:31``, whose bars have ``width`` columns.
        """
        points = [(seconds, value) for seconds, value in self.points if math.isfinite(value)]
        if len(points) < 2:
            return ""
        low, high = min(value for _, value in points), max(value for _, value in points)
        span = (high / 2 - low / 2) or 1.0  # halved first: the difference of two huge values is infinite
        begin = points[0][0]
        bars = ""
        for column in range(1, width + 1):
            now = begin + (end - begin) * column / width
            value = next(value for seconds, value in reversed(points) if seconds <= now or seconds == begin)
            bars += _BARS[round((value / 2 - low / 2) / span * (len(_BARS) - 1))]
        first, last = number(points[0][1]), number(points[-1][1])
        return f"{first} {bars} {last}  {duration(begin)} to {duration(end)}"


Key = tuple[int | None, int | None]


class LiveLines:
    """Separates finished lines from those that are still being redrawn, one per trial and rank."""

    def __init__(self) -> None:
        self._lines: dict[Key, LogLine] = {}
        self._seen: set[Key] = set()

    @property
    def lines(self) -> dict[Key, LogLine]:
        """The newest state of each unfinished line, by trial and rank."""
        return self._lines

    def take(self, snapshot: Snapshot, lines: Sequence[LogLine]) -> list[LogLine]:
        """Take new lines, and return the finished ones, ready to be shown.

        The last unfinished line of a trial that disappeared with its worker is finished, too.
        """
        finished: list[LogLine] = []
        for line in lines:
            key = line.trial, line.rank
            if line.trial is not None and self._lines.pop(key, None) is not None:
                self._seen.discard(key)
            if not line.live:
                finished += readable([line])
            elif shown := clean(line.text, keeps_tabs=True):
                self._lines[key] = LogLine(line.trial, shown, line.rank, live=True)
        running = {worker.trial for worker in snapshot.workers}
        for key, line in list(self._lines.items()):
            if line.trial in running:
                self._seen.add(key)
            elif key in self._seen:
                self._seen.discard(key)
                finished.append(self._lines.pop(key))
        return finished
