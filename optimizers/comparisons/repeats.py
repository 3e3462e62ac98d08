"""Variants of one thing, each tried with several seeds: the optimizers of ablation studies.

A trial's configuration has ``variant`` (a name) and ``seed``, and what else the variant sets. All variants have the
same seeds, so they are compared in pairs (:mod:`optimizers.comparisons.paired_tests`), and those of a seed come
together: a search that ends before its time has whole comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping

from optimizers.checks.near_names import did_you_mean
from optimizers.checks.options import integer
from optimizers.comparisons.differences import Contrast
from optimizers.comparisons.sequential_tests import FIRST_LOOK, Looks, SequentialTests
from optimizers.core.base import WAIT, Answer, History, Optimizer, Problem
from optimizers.errors import OptimizerError
from optimizers.space.config import Config
from optimizers.space.domains import Choice, Ordinal
from optimizers.space.scalars import Scalar, same
from optimizers.space.search_space import SearchSpace

VARIANT = "variant"
SEED = "seed"


class Repeats(Optimizer):
    """Every variant with each of some seeds: all variants of a seed, then the next seed.

    Args:
        variants: By name, what each sets beside ``variant`` and ``seed``; what all are compared with comes first.
        repeats: The number of seeds.
        first_seed: The first of them; the others follow it.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> Repeats({"base": {"dropout": 0.2}, "without dropout": {"dropout": 0.0}}, repeats=5)
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
    """More seeds for the comparisons that are not decided yet, and none for those that are.

    After every seed, each comparison is tested, so that the probability of any false difference keeps to ``alpha``
    however often it was looked at (see :mod:`optimizers.comparisons.sequential_tests`, which has the methods and the
    papers). A comparison ends when its difference is found, when more seeds would hardly find one, or at the bound. A
    variant is tried for as long as a comparison that is open needs it, and the search ends when none is open.

    Args:
        variants: By name, what each sets beside ``variant`` and ``seed``.
        contrasts: The comparisons by name: weights of variants.
        bound: The number of seeds past which no comparison goes on; fixed beforehand, since it shapes the tests.
        first_seed: The first seed.
        alpha: The probability of any false difference, at most.
        ahead: How many seeds past the last look may have begun. More keeps more workers busy, but the trials that
            run when a comparison is decided are wasted.
        resampled: Rows in a test set by rows in a training set, where each seed splits the same rows anew; else 0.

    Raises:
        OptimizerError: An argument is not valid.

    Example:
        >>> AdaptiveRepeats(
        ...     {"base": {}, "without A": {}, "without B": {}},
        ...     {name: {f"without {name}": 1.0, "base": -1.0} for name in "AB"},
        ...     bound=20,
        ... )
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
                    raise OptimizerError(f"contrast {name!r} weighs the variant {variant!r}, which is unknown{near}")
        self._followed = Follower(self.tests, self.seeds)

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


class Follower:
    """Follows the looks of sequential tests through a history, from where the last ask left them if it was the same.

    Args:
        tests: The tests.
        seeds: Those that they take; trials of others are passed over.
    """

    def __init__(self, tests: SequentialTests, seeds: range) -> None:
        self._tests = tests
        self._seeds = seeds
        self._history: History | None = None
        self._known = 0
        self.losses: dict[tuple[str, int], float] = {}
        """By variant and repeat, the first of which is 0 whatever its seed."""

    def follow(self, history: History) -> Looks:
        """How far the looks are by now."""
        if self._history is not history:
            self._history, self._known, self.losses = history, 0, {}
            self._looks = self._tests.follow({})
        for seen in history.observations[self._known :]:
            if seen.ended and seen.config[SEED] in self._seeds:
                self.losses[seen.config[VARIANT], seen.config[SEED] - self._seeds[0]] = seen.loss
        self._known = len(history.observations)
        return self._tests.follow(self.losses, self._looks)


def proposal(variants: Mapping[str, Config], variant: str, seed: int) -> Config:
    """The configuration of a trial."""
    return {VARIANT: variant, SEED: seed, **variants[variant]}


def seeds_of(repeats: int, first_seed: int) -> range:
    """The seeds of that many repeats.

    Raises:
        OptimizerError: They are no whole numbers from 0 on.
    """
    first = integer("first_seed", first_seed, least=0)
    return range(first, first + integer("repeats", repeats, least=1))


def repeats_space(variants: Mapping[str, Config], repeats: int, *, first_seed: int = 0) -> SearchSpace:
    """The smallest search space that has the configurations of all variants.

    Args:
        variants: By name, what each sets beside ``variant`` and ``seed``: the same names in each.
        repeats: The number of seeds.
        first_seed: The first of them.

    Raises:
        SearchSpaceError: A name is not a Python identifier, or a value is no bool, int, float, str or None.

    Example:
        >>> repeats_space({"base": {"dropout": 0.2}, "without dropout": {"dropout": 0.0}}, 5)
        SearchSpace(variant=Choice(['base', 'without dropout']), seed=Ordinal([0, 1, 2, 3, 4]), dropout=...)
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
    """The variants as plain dicts.

    Raises:
        OptimizerError: There are none, or one sets what makes it a variant.
    """
    if not isinstance(variants, Mapping) or not variants:
        raise OptimizerError(f"variants must be a dict {{name: configuration}} with at least one, got {variants!r}")
    for name, config in variants.items():
        if taken := {VARIANT, SEED} & set(config):
            raise OptimizerError(f"variant {name!r} sets {sorted(taken)}, which the search sets; leave that out")
    return {name: dict(config) for name, config in variants.items()}
