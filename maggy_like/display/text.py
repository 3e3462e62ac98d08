"""Text that all displays share: numbers, times and lines, without escape sequences or control characters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from maggy_like.display.base import FailureLine, LogLine, Snapshot, WorkerLine
from maggy_like.protocol.endings import Ending, Phase
from optimizers.core.direction import Direction, direction_hint
from optimizers.core.trial import TrialState
from optimizers.space import Config

LINE_LIMIT = 400
"""Characters shown of one log line. The trial's log file has the rest."""

ENOUGH_TRIALS = 5
"""Trials that must have ended before their pace shows how long the others will take."""

MAX_WORKERS = 12
"""Workers that are shown one by one if there is space."""

MAX_FAILURES = 4
"""Kinds of failures shown, the most frequent first."""

MAX_IMPORTS = 3
"""Packages that are shown of those that workers import."""

MAX_METRICS = 5
"""Metrics of a training that are shown in addition to its objective."""

STATES = (
    TrialState.COMPLETED,
    TrialState.STOPPED,
    TrialState.PAUSED,
    TrialState.FAILED,
    TrialState.RUNNING,
    TrialState.PENDING,
)
"""The order in which states are shown."""

TRIED = (TrialState.COMPLETED, TrialState.STOPPED, TrialState.PAUSED, TrialState.FAILED)
"""States of a trial that has run. A paused one counts: most trials of ASHA are never promoted, and a bar without them
would stop at a tenth."""

# Escape sequences of ECMA-48: CSI (colours, cursor), OSC (titles, links; ended by BEL or ST), the short ones.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]?|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?")
# What is left of the C0 and C1 controls except the tab, and the marks that turn the direction of the text around them.
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def duration(seconds: float | None) -> str:
    """Format seconds: ``0:31``, ``1:02:03``, ``2d 03:04:05``, or ``-`` if unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def number(value: float | None) -> str:
    """Format a number with at most five digits, and more only for large numbers. ``-`` for None."""
    if value is None:
        return "-"
    whole = math.isfinite(value) and 1e4 <= abs(value) < 1e9
    return f"{value:.0f}" if whole else f"{value:.5g}"


def pairs(config: Config) -> list[tuple[str, str]]:
    """Return names and values of a configuration as text."""
    return [
        (clean(name), number(value) if isinstance(value, float) else clean(str(value)))
        for name, value in config.items()
    ]


def config_text(config: Config) -> str:
    """Return a configuration on one line: ``lr=0.01, units=64``."""
    return ", ".join(f"{name}={value}" for name, value in pairs(config))


def clean(text: str, *, keeps_tabs: bool = False) -> str:
    r"""Return one line as a terminal shows it, without escape sequences and control characters.

    A progress bar that redraws itself with carriage returns has its last state. Long lines are cut. A tab becomes
    spaces, except in a line that a program has written for another program to read.

    Example:
        >>> clean("10%|#  |\r20%|## |")
        '20%|## |'
    """
    text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = next((state for state in reversed(text.split("\r")) if state.strip()), "")
    text = text.replace("\n", " ")
    text = _CONTROLS.sub("", text if keeps_tabs else text.expandtabs(4)).rstrip()
    text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair cannot be printed
    return text if len(text) <= LINE_LIMIT else text[: LINE_LIMIT - 1] + "…"


def readable(lines: Iterable[LogLine]) -> list[LogLine]:
    """Return log lines ready to be shown: cleaned, split at line ends, without empty ones."""
    return [
        LogLine(line.trial, text, line.rank)
        for line in lines
        for part in line.text.split("\n")
        if (text := clean(part, keeps_tabs=True))
    ]


def prefix(line: LogLine) -> str:
    """Return the source of a line: ``[trial 7] ``, ``[trial 7 rank 1] ``, or nothing for the runtime."""
    rank = "" if line.rank is None else f" rank {line.rank}"
    return "" if line.trial is None else f"[trial {line.trial}{rank}] "


def tally(counts: Mapping[TrialState, int], states: Iterable[TrialState] = STATES) -> str:
    """Return counts in words, without zeros: ``5 completed, 1 failed, 3 running``."""
    return ", ".join(f"{counts[state]} {state.value}" for state in states if counts.get(state))


def counted(snapshot: Snapshot, state: TrialState) -> str:
    """Return the count of a state, which explains why trials of a complete search are paused."""
    done = isinstance(snapshot.phase, Ending) and snapshot.phase.is_planned and state is TrialState.PAUSED
    return tally(snapshot.counts, [state]) + " (stopped early to save time)" * done


def tried(snapshot: Snapshot) -> int:
    """Return how many configurations have run at least once and do not run now."""
    return sum(snapshot.counts.get(state, 0) for state in TRIED)


def is_over(snapshot: Snapshot) -> bool:
    """Return whether the run has ended."""
    return snapshot.phase.is_over


def waits_for(snapshot: Snapshot) -> str:
    """Return what a search waits for before its first result: ``waiting for the first report``. Empty after that."""
    if is_over(snapshot) or tried(snapshot) or snapshot.best_trial is not None or snapshot.pareto:
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
    if snapshot.phase is Ending.TIMEOUT and searches(snapshot) and not snapshot.counts:
        return f"no trial began, since the start took all of the timeout; pass a longer timeout, with {how}"
    return f"pass {how}"


def remaining(first: Snapshot, now: Snapshot) -> float | None:
    """Estimate the seconds that the search still needs, at most until its timeout.

    Args:
        first: The snapshot before the first trial began (see :func:`pace_from`). Its trials come from the journal of a
            resumed run and do not show the pace.

    Returns:
        The estimate. None if there is no basis for one, or the run has ended. There is none if each paused trial
        continues, because the number of trials that ended says little then.
    """
    if is_over(now):
        return None
    ends = [] if now.timeout is None else [_until_timeout(now, now.timeout)]
    new, seconds = tried(now) - tried(first), now.elapsed - first.elapsed
    if (training := now.training) is not None:
        left = training.budget - training.step
        known = training.state is TrialState.RUNNING and 0 < training.step < training.budget
        return training.seconds * left / training.step if known else None
    left = 0 if now.n_trials is None or now.resumes_all else now.n_trials - tried(now)
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


def searches(snapshot: Snapshot) -> bool:
    """Return whether the run is a search, and not only a training."""
    return snapshot.n_trials != 0


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


def words(phase: Phase | Ending, training: TrialState | None = None) -> str:
    """Return a phase or an ending in words. If the training failed, the run failed."""
    if training is TrialState.FAILED and isinstance(phase, Ending) and phase.is_planned:
        return "training failed"
    return clean("target reached" if phase is Ending.TARGET else phase)


def state(snapshot: Snapshot) -> str:
    """Return the phase or the ending: ``searching``, ``completed``, ``training failed``."""
    return words(snapshot.phase, None if snapshot.training is None else snapshot.training.state)


def fraction(snapshot: Snapshot) -> str:
    """Return the progress: ``12/30``, or ``12 trials`` without a limit."""
    done = tried(snapshot)
    if snapshot.n_trials is not None and done <= snapshot.n_trials:  # a resumed run may have more trials than asked for
        return f"{done}/{snapshot.n_trials}"
    return n_trials(snapshot)


def n_trials(snapshot: Snapshot) -> str:
    """Return the number of trials in any state: ``17 trials``."""
    total = sum(snapshot.counts.values())
    return f"{total} trial{'' if total == 1 else 's'}"


def goal(snapshot: Snapshot) -> str:
    """Return optimizer and objectives: ``asha, max accuracy``, or ``random, max accuracy, min latency``."""
    if not searches(snapshot):
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


def place(trial: int | None, step: int | None, *, failed: bool = False) -> str:
    """Return where a value was measured: ``at step 9 (trial 4)``, or ``(trial 4)`` without a step."""
    at = "" if step is None else f"at step {step} "
    return f"{at}(trial {trial}{', which failed later' if failed else ''})"


def status(first: Snapshot, now: Snapshot) -> str:
    """Return the search on one line: ``[12/30] best 0.973 at step 9 (trial 4) | 5 completed, 3 running | 0:31``."""
    counted = tally(now.counts) or state(now)
    found = [] if now.is_ablation else [best(now)]
    search = [" ".join([f"[{fraction(now)}]", *found]), counted] if searches(now) else []
    return " | ".join([*search, *filter(None, [confirmation(now), training(now)]), clock(first, now)])


def failure(line: FailureLine) -> str:
    """Return failures of one kind in words: ``exception in 3 trials, last in trial 7: ValueError: nan``."""
    where = f"in trial {line.trial}" if line.count == 1 else f"in {line.count} trials, last in trial {line.trial}"
    return clean(f"{line.kind.replace('_', ' ')} {where}: {line.message}")


def guess(snapshot: Snapshot) -> str:
    """Return a hint if neither the user nor the objective's name decides the direction."""
    if not (snapshot.guessed and searches(snapshot)) or snapshot.direction is None or not snapshot.counts:
        return ""
    goals = [(snapshot.direction, snapshot.objective or "value"), *snapshot.others]
    hints = (direction_hint(name, cast(Direction, way), given=False) for way, name in goals)
    return clean("; ".join(filter(None, hints)))


def summary(snapshot: Snapshot) -> list[str]:
    """Return the end of a search in a few lines."""
    trials = n_trials(snapshot)
    if snapshot.counts:
        trials += f" ({tally(snapshot.counts)})"
    end = f"{clean(snapshot.name)}: {state(snapshot)} after {duration(snapshot.elapsed)}"
    lines = [f"{end}, {trials}" if searches(snapshot) else end]
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
    waiting = range(snapshot.n_workers if not is_over(snapshot) else 0)
    missing = [WorkerLine(index, "", "starting") for index in waiting if index not in known]
    return sorted([*snapshot.workers, *missing], key=lambda worker: worker.index)


def busiest(workers: Sequence[WorkerLine], limit: int) -> tuple[list[WorkerLine], str]:
    """Return at most ``limit`` workers to show, and a text about the others.

    Returns:
        The workers that have been busy longest, in order of index, and ``and 52 more (50 busy, 2 idle)``. The text is
        empty if all are shown.
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
    """The best values of a search in the order in which they were found.

    Attributes:
        points: Elapsed seconds and value of each new best, always with the newest one.
    """

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []

    def take(self, snapshot: Snapshot) -> None:
        """Add the best value if it is new."""
        value = snapshot.best_value
        if value is not None and (not self.points or self.points[-1][1] != value):
            self.points.append((snapshot.elapsed, value))
            if len(self.points) > MAX_BESTS:
                del self.points[1:-1:2]

    def line(self, end: float, width: int) -> str:
        """Return the curve in a line of text. Empty with fewer than two values.

        Example:
            >>> bests.line(31.0, 8)
            '0.91 ▁▁▁▄▄▄▄█ 0.973  0:04 to 0:31'
        """
        points = [(seconds, value) for seconds, value in self.points if math.isfinite(value)]
        if len(points) < 2:
            return ""
        low, high = min(value for _, value in points), max(value for _, value in points)
        span = (high / 2 - low / 2) or 1.0  # halved first: the difference of two huge values is infinite
        begin = points[0][0]
        bars = ""
        for place in range(1, width + 1):
            now = begin + (end - begin) * place / width
            value = next(value for seconds, value in reversed(points) if seconds <= now or seconds == begin)
            bars += _BARS[round((value / 2 - low / 2) / span * (len(_BARS) - 1))]
        first, last = number(points[0][1]), number(points[-1][1])
        return f"{first} {bars} {last}  {duration(begin)} to {duration(end)}"
