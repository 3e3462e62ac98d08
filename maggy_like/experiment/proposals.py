"""The configurations that wait for a worker, kept ahead of need."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from maggy_like.experiment.commands import AskOptimizer
from maggy_like.experiment.inputs import SuggestionReady
from optimizers.events import TrialCreated
from optimizers.study import Study
from optimizers.trial import Config


class Proposals:
    """The user's points first, then the optimizer's proposals, up to the study's number of trials.

    Args:
        study: Where the trials are counted.
        points: Configurations to try before the optimizer's.
        workers: Size of the gang: how many proposals to keep ready where results do not matter.
            An adaptive optimizer is asked one ahead, so that it knows all but the newest.
    """

    def __init__(self, study: Study, points: Sequence[Config], workers: int) -> None:
        self._study = study
        self._points = deque(points)
        self._ready: deque[tuple[int, Config]] = deque()
        self._lookahead = 1 if study.optimizer.adaptive else max(2, workers)
        self._next_ask = 0
        self._asking = False
        self._exhausted = False

    def go_on(self) -> None:
        """Take up where a replayed study ends."""
        for _ in range(min(len(self._points), len(self._study.trials) - self._study.n_asks)):
            self._points.popleft()
        self._next_ask = self._study.n_asks

    @property
    def has_more(self) -> bool:
        """Whether a new trial may still come."""
        return self._has_room and bool(self._points or self._ready or not self._exhausted)

    def take(self) -> TrialCreated | None:
        """The event that makes the next configuration a trial, if one is ready."""
        number = len(self._study.trials)
        if self._has_room and self._points:
            return TrialCreated(number, self._points.popleft())
        if self._has_room and self._ready:
            index, config = self._ready.popleft()
            return TrialCreated(number, config, index)
        return None

    def ask(self) -> AskOptimizer | None:
        """The question to put to the optimizer now, so that a free worker never waits for it."""
        n_trials = self._study.problem.n_trials
        known = len(self._study.trials) + len(self._points) + len(self._ready)
        enough = len(self._ready) >= self._lookahead or (n_trials is not None and known >= n_trials)
        if self._asking or self._exhausted or enough:
            return None
        self._asking = True
        return AskOptimizer(self._next_ask, self._study.take_updates())

    def answer(self, event: SuggestionReady) -> None:
        """Take in the optimizer's answer."""
        self._asking = False
        self._next_ask = event.index + 1
        if event.config is None:
            self._exhausted = True
        else:
            self._ready.append((event.index, event.config))

    @property
    def _has_room(self) -> bool:
        n_trials = self._study.problem.n_trials
        return n_trials is None or len(self._study.trials) < n_trials
