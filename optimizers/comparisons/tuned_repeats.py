"""A small search for each variant before the variants are compared, all in one study.

What is compared is then each variant at its best, not at the configuration that was tuned for one of them (Melis,
Dyer and Blunsom, "On the State of the Art of Evaluation in Neural Language Models", ICLR 2018, show how much that
may change).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from optimizers.checks.options import integer
from optimizers.comparisons.repeats import SEED, VARIANT, proposal, read_variants, repeats_space, seeds_of
from optimizers.core.base import WAIT, Answer, History, Observation, Optimizer, Problem, Proposal
from optimizers.errors import OptimizerError
from optimizers.samplers.random_search import RandomSearch
from optimizers.space.config import Config
from optimizers.space.search_space import SearchSpace

_REMEDY = "tune with one that only proposes configurations, such as optimizer='random' or 'bayesian'"


class TunedRepeats(Optimizer):
    """Searches a space for each variant, then repeats the best configuration of each with several seeds.

    All trials of the searches have the seed after the last one of the repeats: so a configuration is judged by
    other seeds than the one that it was chosen by. The searches of all variants draw from the
    same random numbers, so random search tries the same configurations with each.

    Args:
        variants: By name, what each sets beside ``variant``, ``seed`` and the parameters of ``space``.
        repeats: The number of seeds of the comparison.
        space: What is searched for each variant.
        n_configs: How many configurations of it each variant tries.
        first_seed: The first seed of the comparison.
        optimizer: Proposes them; random search if not given. It cannot have a schedule of its own (rungs, early
            stops), nor go on from other trials: each configuration gets a full training.

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
    ) -> None:
        self.variants = read_variants(variants)
        self.seeds = seeds_of(repeats, first_seed)
        self.search_seed = self.seeds.stop
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
        searches, begun = self._sort(history)
        waits = False
        for name, search in sorted(searches.items(), key=lambda item: item[1].begun):  # all variants at the same pace
            if search.begun < self.n_configs:
                answer = self.optimizer.ask(search.begun, search.history)
                if isinstance(answer, Proposal) and answer.parent is not None:
                    raise OptimizerError(
                        f"{type(self.optimizer).__name__} goes on from the state of trial {answer.parent}, and what "
                        f"is compared must have had full trainings; {_REMEDY}"
                    )
                if isinstance(answer, dict | Proposal):
                    config = answer.config if isinstance(answer, Proposal) else answer
                    return proposal(self.variants, name, self.search_seed) | config
                search.is_over = answer is None
                waits |= answer is WAIT
        for seed in self.seeds:
            for name, search in searches.items():
                if (not search.is_over and search.begun < self.n_configs) or search.history.pending:
                    waits = True
                elif (best := search.best()) is not None and (name, seed) not in begun:
                    return proposal(self.variants, name, seed) | best
        return WAIT if waits else None

    def validate(self, problem: Problem) -> None:
        self.optimizer.validate(replace(problem, space=self.space, n_trials=self.n_configs))

    def _sort(self, history: History) -> tuple[dict[str, _Search], set[tuple[str, int]]]:
        """The search of each variant, and the repeats that have begun."""
        problem = replace(history.problem, space=self.space, n_trials=self.n_configs, earlier=())
        searches = {name: _Search(History(problem)) for name in self.variants}
        begun: set[tuple[str, int]] = set()
        for trial, config in history.pending.items():
            if config[SEED] == self.search_seed:
                searches[config[VARIANT]].history.pending[trial] = self._searched(config)
            else:
                begun.add((config[VARIANT], config[SEED]))
        for seen in history.observations:
            if seen.config[SEED] == self.search_seed:
                own: Observation = replace(seen, config=self._searched(seen.config))
                searches[seen.config[VARIANT]].history.observations.append(own)
            else:
                begun.add((seen.config[VARIANT], seen.config[SEED]))
        return searches, begun

    def _searched(self, config: Config) -> Config:
        return {name: config[name] for name in self.space if name in config}


@dataclass(slots=True)
class _Search:
    """The search of one variant.

    Attributes:
        history: As its optimizer sees it.
        is_over: Whether its optimizer has no configuration left.
    """

    history: History
    is_over: bool = field(default=False)

    @property
    def begun(self) -> int:
        """How many configurations were tried."""
        return len(self.history.pending.keys() | {seen.trial for seen in self.history.observations})

    def best(self) -> Config | None:
        """The best configuration so far; None if none has a finite loss."""
        best = min(self.history.observations, key=lambda seen: seen.loss, default=None)
        return best.config if best is not None and math.isfinite(best.loss) else None


def tuned_space(
    variants: Mapping[str, Config], repeats: int, space: SearchSpace, *, first_seed: int = 0
) -> SearchSpace:
    """The search space of :class:`TunedRepeats`: that of the repeats with one more seed, and what is searched.

    Raises:
        SearchSpaceError: The names overlap, or a value is no bool, int, float, str or None.
    """
    made = SearchSpace(repeats_space(variants, repeats + 1, first_seed=first_seed).domains, **space.domains)
    return made.where(space.allows) if space.has_constraint else made
