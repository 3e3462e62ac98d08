"""The sampler of BOHB: a model of the highest rung that has enough results."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from optimizers.core.base import Answer, History, Optimizer, Problem
from optimizers.samplers.deduplication import untried


class HighestRung(Optimizer):
    """Shows a sampler the results at one budget only: the highest one that has enough of them.

    Args:
        sampler: A model of one budget.
        random_share: Share of random configurations, whatever the model says (BOHB's rho).
    """

    def __init__(self, sampler: Optimizer, random_share: float = 1 / 3) -> None:
        self.sampler = sampler
        self.random_share = random_share
        self._shown: tuple[History, int, int, History] | None = None

    def validate(self, problem: Problem) -> None:
        self.sampler.validate(problem)

    def ask(self, index: int, history: History) -> Answer:
        space, rng = history.problem.space, history.rng(index)
        enough = len(space.dimensions) + 2  # section 4 of the paper: N_min + 1, and one that is good
        finite = Counter(seen.step for seen in history.observations if math.isfinite(seen.loss))
        steps = [step for step, count in finite.items() if count >= enough]
        if not steps or rng.random() < self.random_share:
            running = {space.key(config) for config in history.pending.values()}
            return untried(space, space.sample(rng), running, set(), rng)
        return self.sampler.ask(index, self._show(history, max(steps)))

    def _show(self, history: History, step: int) -> History:
        """The part of the history at ``step``, as one that grows, so that a sampler may keep a cursor into it."""
        known = self._shown
        if known is None or known[0] is not history or known[1] != step:
            known = (history, step, 0, History(replace(history.problem, max_budget=step)))
        shown = known[3]
        new = history.observations[known[2] :]
        shown.observations.extend(seen for seen in new if seen.step == step or not math.isfinite(seen.loss))
        shown.pending = dict(history.pending)
        self._shown = (history, step, len(history.observations), shown)
        return shown
