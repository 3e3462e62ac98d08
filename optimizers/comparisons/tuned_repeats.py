"""A small search for each variant inside each repeat, all in one study.

What is compared is a procedure: search, then train with the best configuration found. So each repeat searches anew,
with configurations and seeds of its own, and the luck of a search is part of the noise that the tests see
(Bouthillier et al., "Accounting for Variance in Machine Learning Benchmarks", MLSys 2021). One search a variant, whose
best is repeated, has its luck in every repeat: then more seeds make a false difference surer, not rarer. That variants
must be tuned at all: Melis, Dyer and Blunsom, "On the State of the Art of Evaluation in Neural Language Models",
ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from optimizers.checks.options import integer
from optimizers.comparisons.repeats import SEED, VARIANT, Follower, proposal, read_variants, repeats_space, seeds_of
from optimizers.comparisons.sequential_tests import FIRST_LOOK, SequentialTests
from optimizers.core.base import WAIT, Answer, History, Observation, Optimizer, Problem, Proposal
from optimizers.errors import OptimizerError
from optimizers.samplers.random_search import RandomSearch
from optimizers.space.config import Config
from optimizers.space.search_space import SearchSpace

_REMEDY = "tune with one that only proposes configurations, such as optimizer='random' or 'bayesian'"


class TunedRepeats(Optimizer):
    """In each repeat, searches a space for each variant, then trains the best configuration with the repeat's seed.

    The trials of the search of repeat ``r`` have the seed ``first_seed + repeats + r``: so a configuration is judged by
    another seed than the one that it was chosen by. Within a repeat the searches of all variants draw from the same
    random numbers, so random search tries the same configurations with each; those of two repeats have nothing in
    common. A search of which every trial failed is followed by a training all the same, which then fails as well and
    takes the repeat out of the comparisons.

    Args:
        variants: By name, what each sets beside ``variant``, ``seed`` and the parameters of ``space``.
        repeats: The number of seeds of the comparison.
        space: What is searched for each variant.
        n_configs: How many configurations of it each variant tries in each repeat.
        first_seed: The first seed of the comparison.
        optimizer: Proposes them; random search if not given. It cannot have a schedule of its own (rungs, early
            stops), nor go on from other trials: each configuration gets a full training.
        tests: Looks after every repeat, and gives more to what is not decided, as in
            :class:`~optimizers.comparisons.repeats.AdaptiveRepeats`; its bound is ``repeats``. Without them, all
            variants have all repeats.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> TunedRepeats({"base": {}, "without norm": {}}, 5, SearchSpace(lr=Float(1e-4, 1e-1, log=True)))
    """

    def __init__(
        self,
        variants: Mapping[str, Config],
        repeats: int,
        space: SearchSpace,
        *,
        n_configs: int = 8,
        first_seed: int = 0,
        optimizer: Optimizer | None = None,
        tests: SequentialTests | None = None,
    ) -> None:
        self.variants = read_variants(variants)
        self.seeds = seeds_of(repeats, first_seed)
        self.tests = tests
        self._followed = None if tests is None else Follower(tests, self.seeds)
        self.n_configs = integer("n_configs", n_configs, least=1)
        self.space = space
        self.optimizer = RandomSearch() if optimizer is None else optimizer
        if type(self.optimizer).scheduler is not Optimizer.scheduler:
            raise OptimizerError(
                f"{type(self.optimizer).__name__} has a schedule of its own, and what is compared must have had full "
                f"trainings; {_REMEDY}"
            )
        for name, config in self.variants.items():
            if both := sorted(set(config) & set(space)):
                raise OptimizerError(
                    f"variant {name!r} sets {both}, which are searched; leave them out of one of the two"
                )

    def ask(self, index: int, history: History) -> Answer:
        names, due = [*self.variants], len(self.seeds)
        if self.tests is not None and self._followed is not None:
            looks = self._followed.follow(history)
            if not looks.open:
                return None
            names = self.tests.needed(looks)
            due = min(max(looks.seeds + 1, FIRST_LOOK), due)
        searches, begun = self._sort(history)
        waits = self.tests is not None
        for repeat, seed in enumerate(self.seeds[:due]):
            mine = [(name, searches[name, repeat]) for name in names]
            for name, search in sorted(mine, key=lambda item: item[1].begun):  # all variants at the same pace
                config = self._configuration(search)
                if config is not None:
                    return proposal(self.variants, name, self.seeds.stop + repeat) | config
            for name, search in mine:
                if (name, seed) in begun:
                    continue
                if search.history.pending or search.waits:
                    waits = True
                elif (best := search.best()) is not None:
                    return proposal(self.variants, name, seed) | best
        return WAIT if waits else None

    def _configuration(self, search: _Search) -> Config | None:
        """The next configuration of a search; None if it has all, or has to wait.

        Raises:
            OptimizerError: It goes on from another trial.
        """
        if search.begun >= self.n_configs:
            return None
        answer = self.optimizer.ask(search.begun, search.history)
        if isinstance(answer, Proposal) and answer.parent is not None:
            raise OptimizerError(
                f"{type(self.optimizer).__name__} goes on from the state of trial {answer.parent}, and what "
                f"is compared must have had full trainings; {_REMEDY}"
            )
        search.waits = answer is WAIT
        if isinstance(answer, Proposal):
            return answer.config
        return answer if isinstance(answer, dict) else None

    def validate(self, problem: Problem) -> None:
        self.optimizer.validate(replace(problem, space=self.space, n_trials=self.n_configs))

    def _sort(self, history: History) -> tuple[dict[tuple[str, int], _Search], set[tuple[str, int]]]:
        """The search of each variant and repeat, and the repeats that have begun."""
        searches: dict[tuple[str, int], _Search] = {}
        for repeat in range(len(self.seeds)):
            drawn = int(np.random.SeedSequence([history.problem.seed, repeat]).generate_state(1)[0])
            problem = replace(history.problem, space=self.space, n_trials=self.n_configs, earlier=(), seed=drawn)
            searches |= {(name, repeat): _Search(History(problem)) for name in self.variants}
        begun: set[tuple[str, int]] = set()
        for trial, config in history.pending.items():
            if config[SEED] in self.seeds:
                begun.add((config[VARIANT], config[SEED]))
            else:
                searches[self._key(config)].history.pending[trial] = self._searched(config)
        for seen in history.observations:
            if seen.config[SEED] in self.seeds:
                begun.add((seen.config[VARIANT], seen.config[SEED]))
            else:
                own: Observation = msgspec.structs.replace(seen, config=self._searched(seen.config))
                searches[self._key(seen.config)].history.observations.append(own)
        return searches, begun

    def _key(self, config: Config) -> tuple[str, int]:
        """The variant and the repeat of a search's trial."""
        return config[VARIANT], config[SEED] - self.seeds.stop

    def _searched(self, config: Config) -> Config:
        return {name: config[name] for name in self.space if name in config}


@dataclass(slots=True)
class _Search:
    """The search of one variant in one repeat.

    Attributes:
        history: As its optimizer sees it.
        waits: Whether its optimizer waits for results before it proposes more.
    """

    history: History
    waits: bool = False

    @property
    def begun(self) -> int:
        """How many configurations were tried."""
        return len(self.history.pending.keys() | {seen.trial for seen in self.history.observations})

    def best(self) -> Config | None:
        """The best configuration; None if none was tried."""
        best = min(self.history.observations, key=lambda seen: seen.loss, default=None)
        return best.config if best is not None else None


def tuned_space(
    variants: Mapping[str, Config], repeats: int, space: SearchSpace, *, first_seed: int = 0
) -> SearchSpace:
    """The search space of :class:`TunedRepeats`: that of twice as many repeats, and what is searched.

    Raises:
        SearchSpaceError: The names overlap, or a value is no bool, int, float, str or None.
    """
    made = SearchSpace(repeats_space(variants, 2 * repeats, first_seed=first_seed).domains, **space.domains)
    return made.where(space.allows) if space.has_constraint else made
