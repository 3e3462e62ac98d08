"""Searches in virtual time: a library through its own ask and tell, and one of ours through the real state machine.

Event-driven, nothing sleeps: the task's own seconds are the clock, a free worker gets work at once, every step is
reported, and pausing and going on are free.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, Protocol

from benchmarks.tasks import Task
from maggy_like import simulate
from optimizers import Config, Optimizer, Study

Reports = list[tuple[float, float]]
"""The virtual time and the loss of each report of a search, in the order of time."""

DIVERGED = 1e6
"""What a peer is told for a loss that is not finite, as its users do: few of them take NaN."""


class Peer(Protocol):
    """Another library's search, asked and told as its documentation says."""

    def ask(self, trial: int) -> Config:
        """The configuration of the ``trial``-th training, which starts now."""
        ...

    def report(self, trial: int, step: int, loss: float, *, last: bool) -> bool:
        """Tell the result of a step; whether the trial is to train on. ``last``: its training is complete."""
        ...


def drive(
    peer: Peer, task: Task, *, workers: int, n_trials: int | None = None, horizon: float | None = None
) -> Reports:
    """Let a peer search in virtual time, until ``n_trials`` have ended or ``horizon`` seconds are over.

    Example:
        >>> drive(OptunaSearch(space, TPESampler(seed=0)), table("nas-cifar10"), workers=4, n_trials=100)[-1]
        (4711.0, -0.9149)
    """
    heap: list[tuple[float, int, int, float]] = []  # when a step ends, its trial, the step, its loss
    running: dict[int, Config] = {}
    reports: Reports = []
    started = 0

    def train(trial: int, step: int, now: float) -> None:
        loss, seconds = task(running[trial], step)
        heapq.heappush(heap, (now + seconds, trial, step, loss))

    def start(now: float) -> None:
        nonlocal started
        if n_trials is None or started < n_trials:
            trial, started = started, started + 1
            running[trial] = peer.ask(trial)
            train(trial, 1, now)

    for _ in range(workers):
        start(0.0)
    while heap and (horizon is None or heap[0][0] <= horizon):
        now, trial, step, loss = heapq.heappop(heap)
        reports.append((now, loss))
        told = loss if math.isfinite(loss) else DIVERGED
        if peer.report(trial, step, told, last=step == task.max_budget):
            train(trial, step + 1, now)
        else:
            del running[trial]
            start(now)
    return reports


def search(
    optimizer: Optimizer,
    task: Task,
    *,
    seed: int,
    workers: int,
    n_trials: int | None = None,
    horizon: float | None = None,
) -> Reports:
    """The same with one of our own optimizers.

    Example:
        >>> search(RandomSearch(), table("nas-cifar10"), seed=0, workers=4, n_trials=100)
    """
    study = Study(task.space, optimizer, direction="min", seed=seed, max_budget=task.max_budget, n_trials=n_trials)
    reports: Reports = []
    now = 0.0

    def clock(time: float, _: int) -> None:
        nonlocal now
        now = time

    def train(config: Any, step: int) -> tuple[float, float]:
        loss, seconds = task(config, step)
        if horizon is None or now + seconds <= horizon:
            reports.append((now + seconds, loss))
        return loss, seconds

    simulate(study, train, workers=workers, horizon=horizon, on_event=clock)
    return sorted(reports, key=lambda report: report[0])
