"""Samplers whose proposals do not depend on results: random, Sobol' points, a grid and a given list."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

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

    def ask(self, index: int, history: History) -> Config:
        space, seed = history.problem.space, history.problem.seed
        if self._known is None or self._known.space is not space or self._known.seed != seed:
            self._known = _Sequence(space, seed)
        return self._known.allowed(index)


class _Sequence:
    """The sequence for a space and a seed. It is kept between asks, because only its start is expensive."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        from scipy.stats import qmc  # takes a second, which only this optimizer should cost

        self.space = space
        self.seed = seed
        self._points = qmc.Sobol(len(space.dimensions), rng=seed)
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


Axis = list[Config]
"""All partial configurations of one parameter, or of several that conditions connect."""


_MOST_LISTED = 1_000
"""Maximum number of values of a range with a step that are all tried. A finer step is treated as a range."""

_MOST_COUNTED = 10_000
"""Maximum number of combinations that are enumerated if conditions or constraints exclude some."""


@explains_init
class Grid(Optimizer):
    """Propose every combination of values once, with the last parameter varying fastest.

    Only parameters that conditions connect are enumerated in advance. The others are computed from the index, so a huge
    grid costs nothing. With a constraint (:meth:`SearchSpace.where`), all combinations up to the proposed one are
    checked.

    Args:
        resolution: Maximum number of values of a range. Listed values, and up to 1,000 values of a range with a
            ``step``, are all tried. Default 5.

    Raises:
        OptimizerError: ``resolution`` is not a positive integer.

    Example:
        >>> Grid(3).size(SearchSpace(x=Float(0, 1), act=["relu", "gelu"]))
        6
    """

    adaptive = False
    multi_objective = True

    def __init__(self, resolution: int = 5) -> None:
        self.resolution = integer("resolution", resolution, least=1)
        self._known: tuple[SearchSpace, list[Axis], FilteredSequence] | None = None

    def size(self, space: SearchSpace) -> int:
        """Return the number of configurations in the grid of ``space``."""
        _, axes, filtered = self._plan(space)
        return len(filtered) if space.has_constraint else math.prod(map(len, axes))

    def at(self, space: SearchSpace, index: int) -> Config | None:
        """Return the ``index``-th configuration in the grid of ``space``; None past the last."""
        _, axes, filtered = self._plan(space)
        return filtered.at(index) if space.has_constraint else _combination(space, axes, index)

    def ask(self, index: int, history: History) -> Config | None:
        return self.at(history.problem.space, index)

    def _plan(self, space: SearchSpace) -> tuple[SearchSpace, list[Axis], FilteredSequence]:
        if self._known is None or self._known[0] is not space:
            axes = [self._axis(space, names) for names in _tied(space)]
            self._known = (space, axes, FilteredSequence(space, partial(_combination, space, axes)))
        return self._known

    def _axis(self, space: SearchSpace, names: list[str]) -> Axis:
        axis: Axis = [{}]
        for name in names:
            values = self._values(space.domains[name])
            longer: Axis = []
            for config in axis:
                if space.is_active(name, config):
                    longer += [{**config, name: value} for value in values]
                else:
                    longer.append(config)
            axis = longer
        return axis

    def _values(self, domain: Domain) -> list[Value]:
        is_range = isinstance(domain, Float | Integer) and (domain.step is None or (domain.size or 0) > _MOST_LISTED)
        return domain.grid(self.resolution if is_range else domain.size or self.resolution)

    def remarks(self, problem: Problem) -> list[str]:
        thinned = []
        for name, domain in problem.space.domains.items():
            count = len(self._values(domain))
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


def n_configurations(space: SearchSpace, below: int | None) -> int | None:
    """Return the number of configurations of ``space`` if it is below ``below`` (None for no limit).

    Return None if it is not, or if there are too many to count.
    """
    size = space.size
    is_restricted = space.has_constraint or any(domain.conditions for domain in space.domains.values())
    if size is None or (is_restricted and size > _MOST_COUNTED):
        return None
    if not is_restricted:
        return size if below is None or size < below else None
    everything = Grid(size)
    if below is not None and everything.at(space, below - 1) is not None:
        return None
    return everything.size(space)


def _combination(space: SearchSpace, axes: list[Axis], index: int) -> Config | None:
    """Return the ``index``-th combination of partial configurations; None past the last."""
    if index >= math.prod(map(len, axes)):
        return None
    config: Config = {}
    for axis in reversed(axes):
        index, position = divmod(index, len(axis))
        config |= axis[position]
    return {name: config[name] for name in space if name in config}


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
