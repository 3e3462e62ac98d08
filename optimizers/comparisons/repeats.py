"""The optimizers of ablation studies: variants, each trained with several seeds and possibly tuned for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from optimizers.checks import did_you_mean, integer
from optimizers.comparisons.paired_tests import Contrast
from optimizers.comparisons.sequential_tests import FIRST_LOOK, Looks, SequentialTests
from optimizers.core.base import WAIT, Answer, History, Observation, Optimizer, Problem, Proposal
from optimizers.errors import OptimizerError
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.space import Config
from optimizers.space.domains import Choice, Ordinal
from optimizers.space.scalars import Scalar, same
from optimizers.space.search_space import SearchSpace

VARIANT = "variant"
SEED = "seed"


class Repeats(Optimizer):
    """Propose every variant with each seed: all variants of one seed, then the next seed.

    ``variants`` has the parameters of each variant by name, in addition to ``variant`` and ``seed``. The reference
    comes first. ``repeats`` is the number of seeds, from ``first_seed`` on.
    """

    adaptive = False

    def __init__(self, variants: Mapping[str, Config], repeats: int, *, first_seed: int = 0) -> None:
        self.variants = read_variants(variants)
        self.seeds = seeds_of(repeats, first_seed)

    def ask(self, index: int, history: History) -> Answer:
        repeat, place = divmod(index, len(self.variants))
        if repeat >= len(self.seeds):
            return None
        return proposal(self.variants, list(self.variants)[place], self.seeds[repeat])

    def validate(self, problem: Problem) -> None:
        for name in self.variants:
            for seed in (self.seeds[0], self.seeds[-1]):
                problem.space.validate(proposal(self.variants, name, seed))


class AdaptiveRepeats(Optimizer):
    """Propose more seeds only for the comparisons that are not decided yet.

    Each comparison is tested after every seed. The probability of any false difference stays below ``alpha``, however
    many looks there are (see :mod:`optimizers.comparisons.sequential_tests` for the methods and papers). A comparison
    ends when its difference is found, when more seeds would hardly find one, or at the bound. A variant is tried as
    long as an open comparison needs it, and the search ends when none is open.

    ``variants`` is that of :class:`Repeats`, and ``contrasts`` has the comparisons, as weights of variants. ``bound``,
    the maximum number of seeds of a comparison, is fixed in advance, because the tests depend on it. ``ahead`` seeds
    past the last look may have started. More keeps more workers busy, but trials that run when a comparison is decided
    are wasted. For ``resampled``, see :class:`~optimizers.comparisons.paired_tests.Differences`.
    """

    def __init__(
        self,
        variants: Mapping[str, Config],
        contrasts: Mapping[str, Contrast],
        bound: int = 20,
        *,
        first_seed: int = 0,
        alpha: float = 0.05,
        ahead: int = 1,
        resampled: float = 0.0,
    ) -> None:
        self.variants = read_variants(variants)
        self.seeds = seeds_of(bound, first_seed)
        self.ahead = integer("ahead", ahead, least=1)
        self.tests = SequentialTests(contrasts, bound, alpha=alpha, resampled=resampled)
        for name, contrast in contrasts.items():
            for variant in contrast:
                if variant not in self.variants:
                    near = did_you_mean(variant, self.variants)
                    raise OptimizerError(f"contrast {name!r} must weigh known variants, got {variant!r}{near}")
        self._followed = SequentialHistory(self.tests, self.seeds)

    def ask(self, index: int, history: History) -> Answer:
        looks = self._followed.follow(history)
        if not looks.open:
            return None
        begun = {(config[VARIANT], config[SEED] - self.seeds[0]) for config in history.pending.values()}
        needed = self.tests.needed(looks)
        for repeat in range(looks.seeds, min(max(looks.seeds + self.ahead, FIRST_LOOK), self.tests.bound)):
            for variant in needed:
                if (variant, repeat) not in begun and (variant, repeat) not in self._followed.losses:
                    return proposal(self.variants, variant, self.seeds[repeat])
        return WAIT

    def validate(self, problem: Problem) -> None:
        Repeats(self.variants, self.tests.bound, first_seed=self.seeds[0]).validate(problem)


class SequentialHistory:
    """Update the looks of sequential tests from a history, continuing from the last ask if it is the same.

    Trials with other seeds than ``seeds`` are skipped.
    """

    def __init__(self, tests: SequentialTests, seeds: range) -> None:
        self._tests = tests
        self._seeds = seeds
        self._history: History | None = None
        self._known = 0
        self.losses: dict[tuple[str, int], float] = {}
        """Losses by variant and repeat. The first repeat is 0 whatever its seed."""

    def follow(self, history: History) -> Looks:
        """Return the looks so far."""
        if self._history is not history:
            self._history, self._known, self.losses = history, 0, {}
            self._looks = self._tests.follow({})
        for seen in history.observations[self._known :]:
            if seen.ended and seen.config[SEED] in self._seeds:
                self.losses[seen.config[VARIANT], seen.config[SEED] - self._seeds[0]] = seen.loss
        self._known = len(history.observations)
        return self._tests.follow(self.losses, self._looks)


def proposal(variants: Mapping[str, Config], variant: str, seed: int) -> Config:
    """Return the configuration of a trial."""
    return {VARIANT: variant, SEED: seed, **variants[variant]}


def seeds_of(repeats: int, first_seed: int) -> range:
    """Return the seeds of a number of repeats."""
    first = integer("first_seed", first_seed, least=0)
    return range(first, first + integer("repeats", repeats, least=1))


def repeats_space(variants: Mapping[str, Config], repeats: int, *, first_seed: int = 0) -> SearchSpace:
    """Return the smallest search space with the configurations of all variants.

    All variants must have the same parameters, in addition to ``variant`` and ``seed``.
    """
    domains = {VARIANT: Choice(list(variants)), SEED: Ordinal(list(seeds_of(repeats, first_seed)))}
    for name in next(iter(variants.values())):
        values: list[Scalar] = []
        for config in variants.values():
            if not any(same(config[name], known) for known in values):
                values.append(config[name])
        domains[name] = Choice(values)
    return SearchSpace(domains)


def read_variants(variants: Mapping[str, Config]) -> dict[str, Config]:
    """Return the variants as plain dicts: at least one, and none that sets ``variant`` or ``seed``."""
    if not isinstance(variants, Mapping) or not variants:
        raise OptimizerError(f"variants must be a dict {{name: configuration}} with at least one, got {variants!r}")
    for name, config in variants.items():
        if taken := {VARIANT, SEED} & set(config):
            raise OptimizerError(f"variant {name!r} must not set {sorted(taken)}, which the search sets; remove them")
    return {name: dict(config) for name, config in variants.items()}


_REMEDY = "use one that only proposes configurations, such as optimizer='random' or 'bayesian'"


class TunedRepeats(Optimizer):
    """In each repeat, search a space for each variant, then train the best configuration with the repeat's seed.

    The trials of the search of repeat ``r`` have the seed ``first_seed + repeats + r``. So a configuration is judged
    with another seed than the one that selected it. Within a repeat, the searches of all variants draw the same random
    numbers, so random search tries the same configurations for each. The searches of two repeats have nothing in
    common. If every trial of a search failed, a training follows anyway. It then fails too, which excludes the repeat
    from the comparisons.

    ``variants`` has the parameters of each variant by name, in addition to ``variant``, ``seed`` and those of
    ``space``. Each tries ``n_configs`` configurations in each repeat, which ``optimizer`` (random search by default)
    proposes. The optimizer must not have a schedule (rungs, early stops) or continue other trials, because each
    configuration gets a full training. With ``tests``, whose bound is ``repeats``, only open comparisons get more
    repeats, as in :class:`AdaptiveRepeats`.
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
        self._followed = None if tests is None else SequentialHistory(tests, self.seeds)
        self.n_configs = integer("n_configs", n_configs, least=1)
        self.space = space
        self.optimizer = RandomSearch() if optimizer is None else optimizer
        if type(self.optimizer).scheduler is not Optimizer.scheduler:
            raise OptimizerError(
                f"optimizer must not have a schedule, got {type(self.optimizer).__name__}, because a comparison needs "
                f"full trainings; {_REMEDY}"
            )
        for name, config in self.variants.items():
            if both := sorted(set(config) & set(space)):
                raise OptimizerError(
                    f"variant {name!r} must not set {both}, which are searched; remove them from one of the two"
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
        """Return the next configuration of a search; None if it is complete, or has to wait."""
        if search.begun >= self.n_configs:
            return None
        answer = self.optimizer.ask(search.begun, search.history)
        if isinstance(answer, Proposal) and answer.parent is not None:
            raise OptimizerError(
                f"{type(self.optimizer).__name__} continues trial {answer.parent}, but a comparison "
                f"needs full trainings; {_REMEDY}"
            )
        search.waits = answer is WAIT
        if isinstance(answer, Proposal):
            return answer.config
        return answer if isinstance(answer, dict) else None

    def validate(self, problem: Problem) -> None:
        self.optimizer.validate(replace(problem, space=self.space, n_trials=self.n_configs, began_with=None))

    def _sort(self, history: History) -> tuple[dict[tuple[str, int], _Search], set[tuple[str, int]]]:
        """Return the search of each variant and repeat, and the repeats that have started."""
        searches: dict[tuple[str, int], _Search] = {}
        for repeat in range(len(self.seeds)):
            drawn = int(np.random.SeedSequence([history.problem.seed, repeat]).generate_state(1)[0])
            problem = replace(
                history.problem,
                space=self.space,
                n_trials=self.n_configs,
                began_with=None,
                earlier=(),
                seed=drawn,
            )
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
        """Return the variant and the repeat of a search's trial."""
        return config[VARIANT], config[SEED] - self.seeds.stop

    def _searched(self, config: Config) -> Config:
        return {name: config[name] for name in self.space if name in config}


@dataclass(slots=True)
class _Search:
    """The search of one variant in one repeat."""

    history: History  # as its optimizer sees it
    waits: bool = False  # whether its optimizer waits for results before it proposes more

    @property
    def begun(self) -> int:
        """Number of configurations that were tried."""
        return len(self.history.pending.keys() | {seen.trial for seen in self.history.observations})

    def best(self) -> Config | None:
        """Return the best configuration; None if none was tried."""
        best = min(self.history.observations, key=lambda seen: seen.loss, default=None)
        return best.config if best is not None else None


def tuned_space(
    variants: Mapping[str, Config], repeats: int, space: SearchSpace, *, first_seed: int = 0
) -> SearchSpace:
    """Return the search space of :class:`TunedRepeats`: that of twice as many repeats, and ``space``."""
    made = SearchSpace(repeats_space(variants, 2 * repeats, first_seed=first_seed).domains, **space.domains)
    return made.where(space.allows) if space.has_constraint else made
