"""Samplers whose proposals do not depend on results: random, Sobol' points, a grid and a given list."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import cast

import numpy as np

from optimizers.checks import explains_init, integer
from optimizers.core.base import History, Optimizer, Problem
from optimizers.errors import OptimizerError, SearchSpaceError
from optimizers.space import Config
from optimizers.space.domains import Domain, Float, Integer
from optimizers.space.scalars import Value
from optimizers.space.search_space import SearchSpace


class FilteredSequence:
    """A sequence of configurations without those that the constraints reject. Each is checked once.

    ``at`` returns the configuration at an index of the unfiltered sequence, from 0, and None past its end.
    """

    def __init__(self, space: SearchSpace, at: Callable[[int], Config | None]) -> None:
        self._space = space
        self._at = at
        self._n_checked = 0
        self._allowed: list[Config] = []

    def __len__(self) -> int:
        self.at(sys.maxsize)
        return len(self._allowed)

    def at(self, index: int) -> Config | None:
        """Return the ``index``-th allowed configuration; None past the last."""
        while len(self._allowed) <= index:
            config = self._at(self._n_checked)
            if config is None:
                return None
            self._n_checked += 1
            if self._space.allows(config):
                self._allowed.append(config)
        return dict(self._allowed[index])


class RandomSearch(Optimizer):
    """Draw each configuration independently: uniformly, or more often near priors.

    Source: Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 2012.

    Example:
        >>> result = lagom(train_fn, space, optimizer=RandomSearch(), n_trials=50)
    """

    adaptive = False
    multi_objective = True

    def ask(self, index: int, history: History) -> Config:
        return history.problem.space.sample(history.rng(index))


@explains_init
class Sobol(Optimizer):
    """Propose the points of a scrambled Sobol' sequence.

    They cover the space more evenly than random points, best if the number of trials is a power of 2. Points that a
    constraint rejects are skipped. Priors do not affect the sequence.

    Sources: Sobol', "On the distribution of points in a cube and the approximate evaluation of integrals", 1967; Owen,
    "Scrambling Sobol' and Niederreiter-Xing points", 1998.

    Example:
        >>> result = lagom(train_fn, space, optimizer=Sobol(), n_trials=64)
    """

    adaptive = False
    multi_objective = True

    def __init__(self) -> None:
        self._known: _Sequence | None = None

    def load_libraries(self) -> None:
        from scipy.stats import qmc  # noqa: F401  # takes a second

    def ask(self, index: int, history: History) -> Config:
        space, entropy = history.problem.space, history.entropy
        if self._known is None or self._known.space is not space or self._known.entropy != entropy:
            self._known = _Sequence(space, entropy)
        return self._known.allowed(index)


class _Sequence:
    """The sequence for a space and a seed. It is kept between asks, because only its start is expensive."""

    def __init__(self, space: SearchSpace, entropy: tuple[int, ...]) -> None:
        from scipy.stats import qmc  # takes a second, which only this optimizer should cost

        self.space = space
        self.entropy = entropy
        self._points = qmc.Sobol(len(space.dimensions), rng=np.random.default_rng(entropy))
        self._filtered = FilteredSequence(space, self._at)

    def allowed(self, index: int) -> Config:
        """Return the configuration of the ``index``-th allowed point."""
        # The sequence has no end, so there is always another one.
        return cast(Config, self._filtered.at(index)) if self.space.has_constraint else self._at(index)

    def _at(self, index: int) -> Config:
        if self._points.num_generated > index:
            self._points.reset()
        if self._points.num_generated < index:
            self._points.fast_forward(index - self._points.num_generated)
        return self.space.from_unit(self._points.random(1)[0])


_MOST_LISTED = 1_000
"""Maximum number of values of a range with a step that are all tried. A finer step is treated as a range."""

_MOST_WALKED = 10_000
"""Maximum number of combinations that are enumerated in their order if a constraint excludes some."""

_RESOLUTION = 5
"""Number of values of a range, unless all can be tried."""


@explains_init
class Grid(Optimizer):
    """Propose every combination of values once, with the last parameter varying fastest.

    A combination is computed from its index, so a huge grid costs nothing. If a constraint (:meth:`SearchSpace.where`)
    selects from more than 10,000 combinations, they are tried in a scattered order, because in the usual one all
    combinations that come first may be excluded.

    Args:
        resolution: Maximum number of values of a range. Listed values, and up to 1,000 values of a range with a
            ``step``, are all tried. Default: 5, but all integers and steps if ``n_trials`` suffices to combine them. If
            only that of a resumed search does, the others follow those of its beginning.

    Raises:
        OptimizerError: ``resolution`` is not a positive integer.

    Example:
        >>> Grid(3).size(SearchSpace(x=Float(0, 1), act=["relu", "gelu"]))
        6
    """

    adaptive = False
    multi_objective = True

    def __init__(self, resolution: int | None = None) -> None:
        self.resolution = None if resolution is None else integer("resolution", resolution, least=1)
        self._known: tuple[SearchSpace, int | None, _Combinations] | None = None
        self._extended: tuple[Problem, list[Config]] | None = None

    def size(self, space: SearchSpace) -> int:
        """Return the number of configurations in the grid of ``space``.

        If a constraint selects from more than 10,000 combinations, return their number.
        """
        return self._combinations(space).size

    def at(self, space: SearchSpace, index: int) -> Config | None:
        """Return the ``index``-th configuration in the grid of ``space``; None past the last."""
        return self._combinations(space).at(index)

    def ask(self, index: int, history: History) -> Config | None:
        problem = history.problem
        if (config := self._combinations(problem.space, problem.planned).at(index)) is not None:
            return config
        if self._extended is None or self._extended[0] is not problem:
            self._extended = problem, self._extend(problem)
        extended = self._extended[1]
        return dict(extended[index]) if index < len(extended) else None

    def remarks(self, problem: Problem) -> list[str]:
        tried = self._combinations(problem.space, problem.n_trials).values
        thinned = []
        for name, domain in problem.space.domains.items():
            count = len(tried[name])
            if domain.size is None:
                thinned.append(f"{count} values of {name!r}")
            elif count < domain.size:
                thinned.append(f"{count} of the {domain.size} values of {name!r}")
        if not thinned:
            return []
        return [
            f"the grid leaves values out, and tries {', '.join(thinned)}; use optimizer=Grid(resolution=N) for more, "
            "or list the values"
        ]

    def _extend(self, problem: Problem) -> list[Config]:
        """Return all combinations if only the ``n_trials`` of a resumed search suffices for them, the tried ones first.

        If it does not suffice, return nothing.
        """
        space = problem.space
        if self.resolution is not None or (everything := self._everything(space, problem.n_trials or 0)) is None:
            return []
        tried = {space.key(config): config for config in self._combinations(space, problem.planned)}
        return list((tried | {space.key(config): config for config in everything}).values())

    def _combinations(self, space: SearchSpace, n_trials: int | None = None) -> _Combinations:
        if self._known is None or self._known[0] is not space or self._known[1] != n_trials:
            everything = None if self.resolution is not None else self._everything(space, n_trials or 0)
            found = everything or _Combinations(space, {n: self._values(d) for n, d in space.domains.items()})
            self._known = space, n_trials, found
        return self._known[2]

    def _everything(self, space: SearchSpace, n_trials: int) -> _Combinations | None:
        """Return the combinations of all values of discrete domains; None if there are more than ``n_trials``."""
        if any(domain.size is not None and domain.size > n_trials for domain in space.domains.values()):
            return None
        combinations = _Combinations(space, {n: d.grid(d.size or _RESOLUTION) for n, d in space.domains.items()})
        return combinations if combinations.has_at_most(n_trials) else None

    def _values(self, domain: Domain) -> list[Value]:
        is_range = isinstance(domain, Float | Integer) and (domain.step is None or (domain.size or 0) > _MOST_LISTED)
        resolution = self.resolution or _RESOLUTION
        return domain.grid(resolution if is_range else domain.size or resolution)


def n_configurations(space: SearchSpace, below: int | None) -> int | None:
    """Return the number of configurations of ``space`` if it is below ``below`` (None for no limit).

    Return None if it is not, or if there are too many to count.
    """
    size = space.size
    parents = {parent for domain in space.domains.values() for parent in domain.conditions}
    if size is None or (space.has_constraint and size > _MOST_WALKED):
        return None
    if not space.has_constraint and not parents:
        return size if below is None or size < below else None
    sizes = {name: domain.size or 0 for name, domain in space.domains.items()}
    if any(sizes[name] > _MOST_WALKED for name in parents) or max(sizes.values()) > sys.maxsize:
        return None
    listed = parents if not space.has_constraint else sizes.keys()
    values = {n: d.grid(sizes[n]) if n in listed else range(sizes[n]) for n, d in space.domains.items()}
    count = _Combinations(space, values).size
    return count if below is None or count < below else None


class _Combinations:
    """The combinations of the parameters' values, without those that the constraints of the space reject.

    They are computed from their index, and counted without being listed.
    """

    def __init__(self, space: SearchSpace, values: Mapping[str, Sequence[Value]]) -> None:
        self.values = values
        self._space = space
        self._groups = [_Tied(space, names, values) for names in _tied(space)]
        self._filtered = FilteredSequence(space, self._candidate)

    def __iter__(self) -> Iterator[Config]:
        index = 0
        while (config := self.at(index)) is not None:
            yield config
            index += 1

    @cached_property
    def product(self) -> int:
        """Number of combinations, with those that are rejected."""
        return math.prod(group.size for group in self._groups)

    def has_at_most(self, n: int) -> bool:
        """Return whether there are no more than ``n`` combinations, with those that are rejected."""
        return self._combination(n) is None

    @property
    def size(self) -> int:
        """Number of combinations; if a constraint selects from many, with those that are rejected."""
        is_walked = self._space.has_constraint and self.product <= _MOST_WALKED
        return len(self._filtered) if is_walked else self.product

    def at(self, index: int) -> Config | None:
        """Return the ``index``-th combination; None past the last."""
        return self._filtered.at(index) if self._space.has_constraint else self._combination(index)

    def _candidate(self, index: int) -> Config | None:
        """Return a combination that may be rejected. Neighbors are far from each other if there are many."""
        if index >= self.product:
            return None
        return self._combination(index * self._stride % self.product)

    @cached_property
    def _stride(self) -> int:
        """Distance of two candidates: near the golden section, so that they spread evenly, and each comes once."""
        if self.product <= _MOST_WALKED:
            return 1
        stride = self.product * 618_034 // 1_000_000
        while math.gcd(stride, self.product) > 1:
            stride += 1
        return stride

    def _combination(self, index: int) -> Config | None:
        config: Config = {}
        for group in reversed(self._groups):
            index, position = divmod(index, group.count(index + 1))
            config |= group.at(position)
        return {name: config[name] for name in self._space if name in config} if index == 0 else None


class _Tied:
    """Parameters that conditions connect, each after its parents.

    Values that deactivate the same parameters have equally many combinations, so they are counted together.
    """

    def __init__(self, space: SearchSpace, names: Sequence[str], values: Mapping[str, Sequence[Value]]) -> None:
        self._names = names
        self._values = values
        self._rank = {name: place for place, name in enumerate(names)}
        self._neighbors: dict[str, set[str]] = {name: set(space.domains[name].conditions) for name in names}
        children: dict[str, list[str]] = {name: [] for name in names}
        for name in names:
            for parent in space.domains[name].conditions:
                children[parent].append(name)
        below: dict[str, frozenset[str]] = {}
        for name in reversed(names):  # children first
            self._neighbors[name].update(children[name])
            below[name] = frozenset({name}).union(*(below[child] for child in children[name]))
        self._ended = {name: self._ends(space, name, children[name], below) for name in names if children[name]}
        self._known: dict[frozenset[str], int] = {}

    def _ends(
        self, space: SearchSpace, name: str, children: Sequence[str], below: Mapping[str, frozenset[str]]
    ) -> list[frozenset[str]]:
        """Return the parameters that each value of a parent deactivates."""
        equal = space.domains[name].equal
        wanted = {child: space.domains[child].conditions[name] for child in children}
        ended: list[frozenset[str]] = []
        for value in self._values[name]:
            inactive = (child for child in children if not any(equal(value, other) for other in wanted[child]))
            ended.append(frozenset().union(*(below[child] for child in inactive)))
        return ended

    @cached_property
    def size(self) -> int:
        """Number of combinations."""
        return self.count(math.prod(max(1, len(self._values[name])) for name in self._names))

    def count(self, enough: int) -> int:
        """Return the number of combinations, or one of at least ``enough``, which may take less time."""
        return self._count(frozenset(self._names), enough)

    def at(self, index: int) -> Config:
        """Return the ``index``-th combination, with the last parameter varying fastest."""
        config: Config = {}
        open_ = frozenset(self._names)
        for name in self._names:
            if name not in open_:
                continue
            open_ -= {name}
            if name not in self._ended:
                position, index = divmod(index, self._count(open_, index + 1))
                config[name] = self._values[name][position]
                continue
            counts: dict[frozenset[str], int] = {}
            for value, closed in zip(self._values[name], self._ended[name], strict=True):
                if closed not in counts:
                    counts[closed] = self._count(open_ - closed, index + 1)
                if index < counts[closed]:
                    config[name] = value
                    open_ -= closed
                    break
                index -= counts[closed]
        return config

    def _count(self, names: frozenset[str], enough: int) -> int:
        """Count the combinations of parameters whose other parents, if any, have the values that activate them."""
        total = 1
        for part in self._parts(names):
            if total >= enough:
                break
            total *= self._count_connected(part, -(-enough // total))
        return total

    def _count_connected(self, names: frozenset[str], enough: int) -> int:
        if names in self._known:
            return self._known[names]
        first = min(names, key=self._rank.__getitem__)
        rest = names - {first}
        if first not in self._ended:
            return len(self._values[first]) * self._count(rest, enough)
        total = 0
        for closed, n in Counter(self._ended[first]).items():
            total += n * self._count(rest - closed, -(-(enough - total) // n))
            if total >= enough:
                return total
        self._known[names] = total
        return total

    def _parts(self, names: frozenset[str]) -> Iterator[frozenset[str]]:
        """Split parameters into groups that no condition among them crosses."""
        left = set(names)
        while left:
            part, found = set(), [left.pop()]
            while found:
                name = found.pop()
                part.add(name)
                near = self._neighbors[name] & left
                left -= near
                found += near
            yield frozenset(part)


def _tied(space: SearchSpace) -> list[list[str]]:
    """Return the parameters, parents first, in groups that no condition crosses."""
    group = {name: [name] for name in space}
    for name in space.parents_first:
        for parent in space.domains[name].conditions:
            if group[name] is not group[parent]:
                group[parent].extend(group[name])
                for member in group[name]:
                    group[member] = group[parent]
    distinct = {id(members): members for members in group.values()}
    rank = {name: place for place, name in enumerate(space.parents_first)}
    return [sorted(members, key=rank.__getitem__) for members in distinct.values()]


class Enumeration(Optimizer):
    """Propose the given configurations in order. Every trial runs to the end.

    Without configurations, nothing is searched, and only trainings run
    (see :attr:`optimizers.core.trial.Trial.training`).
    """

    adaptive = False
    multi_objective = True

    def __init__(self, configs: Sequence[Config] = ()) -> None:
        self.configs = tuple(configs)

    def ask(self, index: int, history: History) -> Config | None:
        return self.configs[index] if index < len(self.configs) else None

    def validate(self, problem: Problem) -> None:
        for config in self.configs:
            try:
                problem.space.validate(config)
            except SearchSpaceError as error:
                raise OptimizerError(f"configs must be in the search space, got {config!r}: {error}") from error
