"""Configurations kept ready for workers, and the requests to the optimizer for them."""

from __future__ import annotations

import math
from collections import deque

from maggy_like.driver.state_machine.interface import AskOptimizer, SuggestionReady
from optimizers.core.base import WAIT, Pending, Proposal
from optimizers.core.events import TrialCreated
from optimizers.core.study import Study
from optimizers.space import Config

MOST = 256
"""Maximum number of proposals per request: thousands of workers use hundreds per second, and each request takes a turn
of two threads."""


PATIENCE = 30.0
"""Seconds that workers wait for the optimizer before a line reports it. Each further line takes twice the time."""

_ASKS = 8
"""The slowest of so many asks is taken as the time of an ask: one in a few fits a model again."""


class Prefetch:
    """Finds the least number that serves: a proposal that was made earlier knows fewer results.

    Each trial that takes a proposal orders another, and the optimizer serves one order at a time: a queue
    with one server, whose orders in store follow Lindley's recursion (Proc. Camb. Phil. Soc. 48, 1952). The
    longest that this queue has been of late is the number of proposals that had to be ready.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers  # number of workers; more proposals are never needed
        self._asks: deque[float] = deque(maxlen=_ASKS)
        self._lengths: deque[int] = deque(maxlen=max(16, 2 * workers))
        self._longest: int | None = None  # of the lengths, once it was asked for: they may be thousands
        self._orders = 0.0  # how many asks are in store
        self._last = -math.inf

    def resize(self, workers: int) -> None:
        """Adapt to another number of workers."""
        self._workers = workers

    def asked(self, seconds: float) -> None:
        """Take in how long an ask took."""
        self._asks.append(seconds)

    def taken(self, wanted: float) -> None:
        """Take in that a trial took a proposal, and when its worker became free.

        The trial may have begun later: where workers wait for the optimizer, trials begin no faster than it answers,
        and the wait would not be seen.
        """
        ask = max(self._asks, default=0.0)
        served = max(0.0, wanted - self._last) / ask if ask else math.inf
        self._orders = min(max(0.0, self._orders - served) + 1.0, self._workers)
        self._last = max(wanted, self._last)
        self._lengths.append(math.ceil(self._orders))
        self._longest = None

    @property
    def depth(self) -> int:
        """How many proposals should be ready; 1 where asks take no time."""
        if not any(self._asks):
            return 1
        # All workers will want their first trial at about the same time, and no result comes before that.
        if self._longest is None and self._lengths:
            self._longest = max(self._lengths)
        return self._workers if self._longest is None else min(self._longest, self._workers)


class Proposals:
    """The study's points first, then the optimizer's proposals, up to the study's number of trials.

    A waiting configuration becomes a trial in order of arrival, so its number is known at once, and the optimizer
    receives it as pending with the next request: the ``index``-th ask knows the points and all earlier proposals, as
    observed, running or waiting, and proposes none of them again.

    The results that an ask knows depend on its time; its answer depends only on what it knows. So if asks take no time
    (in virtual time), a search is reproducible. The journal has no waiting proposals: a resumed search asks again,
    from the first index that became no trial, with the results known by then.
    """

    def __init__(self, study: Study, workers: int, n_configs: int | None = None) -> None:
        self._study = study  # study with the number of trials, and the points to try first
        self._points = deque(study.points)
        self._ready: deque[tuple[int, Proposal]] = deque()
        self._unsent: list[Pending] = []  # configurations that wait, and that the optimizer has not been sent yet
        self._workers = workers  # and so the number of proposals to keep ready if results do not matter
        self._prefetch = Prefetch(workers)  # limits that number for an adaptive optimizer
        self._asked = 0.0
        self._patience = PATIENCE
        self._next_ask = 0
        self._asking = False
        self._exhausted = False
        self._n_configs = n_configs  # number of configurations, if none is proposed once each was tried
        self._tried: set[bytes] = set()
        self._waiting = False  # the optimizer wants to be asked again once anything has changed

    def go_on(self) -> None:
        """Continue at the end of a replayed study."""
        self._points = deque(self._study.points_left)
        self._unsent += (Pending(number, point) for number, point in enumerate(self._points, len(self._study.trials)))
        self._next_ask = self._study.n_asks
        for trial in self._study.trials:
            if not trial.training:
                self._try(trial.config)

    def resize(self, workers: int) -> None:
        """Keep proposals ready for so many workers from now on."""
        self._workers = workers
        self._prefetch.resize(workers)

    @property
    def has_more(self) -> bool:
        """Whether a new trial may still come."""
        return self._has_room and bool(
            self._points
            or (not self.has_tried_all and (self._ready or not (self._exhausted or self.is_waiting_for_change)))
        )

    def overdue(self, now: float) -> tuple[int, float] | None:
        """Return the index of a proposal that takes long, and its seconds so far; None if there is nothing to say."""
        seconds = now - self._asked
        if not self._asking or seconds < self._patience:
            return None
        self._patience = 2 * seconds
        return self._next_ask, seconds

    def take(self, wanted: float) -> TrialCreated | None:
        """Return the event that makes the next configuration a trial, if one is ready.

        Its worker has been free since ``wanted``.
        """
        number = len(self._study.trials)
        if self._has_room and self._points:
            self._try(self._points[0])
            return TrialCreated(number, self._points.popleft())
        if self._has_room and self._ready and not self.has_tried_all:
            index, proposal = self._ready.popleft()
            self._prefetch.taken(wanted)
            self._try(proposal.config)
            return TrialCreated(number, proposal.config, index, proposal.parent)
        return None

    def ask(self, now: float) -> AskOptimizer | None:
        """Return the request for the optimizer that is due now, so that a free worker never waits."""
        if self._asking or self._exhausted or self.has_tried_all:
            return None
        depth = self._prefetch.depth if self._study.optimizer.adaptive else max(2, self._workers)
        if len(self._ready) >= depth:
            return None
        n_trials = self._study.problem.n_trials
        coming = self._study.size + len(self._points) + len(self._ready)
        if (n_trials is not None and coming >= n_trials) or self.is_waiting_for_change:
            return None
        self._asking, self._waiting, self._asked = True, False, now
        # What waited comes first: it may be a trial by now that has ended.
        updates = (*self._unsent, *self._study.take_updates())
        self._unsent.clear()
        most = 1
        if not self._study.optimizer.adaptive:  # it needs no result between two proposals
            room = depth if n_trials is None else min(depth, len(self._ready) + n_trials - coming)
            most = min(MOST, room - len(self._ready))
        return AskOptimizer(self._next_ask, updates, self._known, most)

    def answer(self, event: SuggestionReady, now: float) -> None:
        """Record the optimizer's answer."""
        self._asking = event.more
        self._prefetch.asked(now - self._asked)
        self._asked = now
        if event.answer is WAIT:
            self._waiting = True
            return
        self._next_ask = event.index + 1
        if event.answer is None:
            self._exhausted = True
        else:
            if not event.more:  # else it was sent with the next one
                self._unsent.append(Pending(self._known, event.answer.config))
            self._ready.append((event.index, event.answer))

    def _try(self, config: Config) -> None:
        if self._n_configs is not None:
            self._tried.add(self._study.problem.space.key(config))

    @property
    def has_tried_all(self) -> bool:
        """Whether each configuration of a space that has few was tried."""
        return self._n_configs is not None and len(self._tried) >= self._n_configs

    @property
    def is_waiting_for_change(self) -> bool:
        """Whether the optimizer waits for a change, and there was none."""
        return self._waiting and not self._unsent and not self._study.has_updates

    @property
    def _known(self) -> int:
        """Return how many trials there are and will be, which is the number of the next proposal's trial."""
        return len(self._study.trials) + len(self._points) + len(self._ready)

    @property
    def _has_room(self) -> bool:
        n_trials = self._study.problem.n_trials
        return n_trials is None or self._study.size < n_trials
