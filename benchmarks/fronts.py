"""Problems of several objectives of which the front is known, and LCBench's: error against the seconds of a training.

All objectives are losses. The reference point of a problem lies a tenth beyond the front's worst, or at the median of
random configurations where that is worse: so a hypervolume is what is won over an average configuration, and 1 is all
of the front.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.hypervolume import hypervolume, not_dominated
from benchmarks.surrogate import PREFIX, has_surrogate, surrogate
from maggy_like import Choice, Float, Integer, SearchSpace

Array = NDArray[np.float64]
Losses = Callable[[Mapping[str, Any]], tuple[float, ...]]

FRONTS = Path(__file__).parent / "results" / "fronts.json"
"""What :func:`evolve` found on the data sets that are used."""
MADE = ("zdt1", "zdt2", "zdt3", "dtlz2", "dtlz2-three", "constr", "bnh", "mixed")
_DRAWN = 500
"""Random configurations that tell the median of each objective."""


class Problem:
    """A training function of several losses, in virtual time.

    Args:
        name: What the results call it.
        space: Its parameters; its constraints are those of the problem.
        losses: Of a configuration.
        front: Points of the best possible losses, shape (n, m).
        excess: For each constraint of the space, by how much a configuration breaks it; not above 0 if it does not.
            Other libraries know a constraint in this way alone.
        seconds: Of a training; by default around 1, and a matter of the configuration alone.
    """

    def __init__(
        self,
        name: str,
        space: SearchSpace,
        losses: Losses,
        front: Array,
        *,
        excess: Callable[[Mapping[str, Any]], tuple[float, ...]] | None = None,
        seconds: Callable[[Mapping[str, Any]], float] | None = None,
    ) -> None:
        self.name = name
        self.space = space
        self.losses = losses
        self.excess = excess
        self.n_objectives = front.shape[1]
        self._seconds = seconds
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        median = np.median([losses(space.sample(rng)) for _ in range(_DRAWN)], axis=0)
        worst = front.max(axis=0)
        self.reference: Array = np.maximum(median, worst + 0.1 * (worst - front.min(axis=0)))
        self._all = hypervolume(front, self.reference)

    def seconds(self, config: Mapping[str, Any]) -> float:
        """How long the training of a configuration takes."""
        if self._seconds is not None:
            return self._seconds(config)
        return 0.5 + zlib.crc32(self.space.to_unit(config).tobytes()) / 2**32

    def share(self, losses: Array) -> float:
        """The hypervolume of ``losses``, shape (n, m), in parts of the front's."""
        return hypervolume(losses, self.reference) / self._all


@cache
def problem(name: str, curves: Path) -> Problem:
    """The problem called ``name``: one of :data:`MADE`, or of ``yahpo-`` and a data set.

    Example:
        >>> problem("zdt1", Path("curves")).n_objectives
        2
    """
    if name.startswith(PREFIX):
        return _error_and_seconds(name, curves)
    if name.startswith("zdt"):
        return _zdt(name)
    made: dict[str, Callable[[], Problem]] = {
        "dtlz2": _dtlz2,
        "dtlz2-three": _dtlz2_three,
        "constr": _constr,
        "bnh": _bnh,
        "mixed": _mixed,
    }
    return made[name]()


def is_at_hand(name: str, curves: Path) -> bool:
    """Whether all is there that the problem is made of."""
    return name in MADE or has_surrogate(curves)


def _cube(d: int) -> SearchSpace:
    return SearchSpace({f"x{i}": Float(0.0, 1.0) for i in range(d)})


def _zdt(name: str, d: int = 8) -> Problem:
    """Zitzler, Deb and Thiele, 2000: a front that is convex, concave, or in five parts; eight parameters."""
    shapes: dict[str, Callable[[Any, Any], Any]] = {
        "zdt1": lambda f, g: 1.0 - np.sqrt(f / g),
        "zdt2": lambda f, g: 1.0 - (f / g) ** 2,
        "zdt3": lambda f, g: 1.0 - np.sqrt(f / g) - f / g * np.sin(10.0 * np.pi * f),
    }
    shape = shapes[name]

    def losses(config: Mapping[str, Any]) -> tuple[float, ...]:
        x = list(config.values())
        g = 1.0 + 9.0 * sum(x[1:]) / (d - 1)
        return x[0], float(g * shape(x[0], g))

    first = np.linspace(0.0, 1.0, 2001)
    return Problem(name, _cube(d), losses, not_dominated(np.column_stack([first, shape(first, 1.0)])))


def _dtlz2(name: str = "dtlz2", d: int = 6) -> Problem:
    """Deb, Thiele, Laumanns and Zitzler, 2002: the front is a quarter of a circle."""

    def losses(config: Mapping[str, Any]) -> tuple[float, ...]:
        first, *rest = config.values()
        g = 1.0 + sum((x - 0.5) ** 2 for x in rest)
        return float(g * np.cos(first * np.pi / 2)), float(g * np.sin(first * np.pi / 2))

    angles = np.linspace(0.0, np.pi / 2, 2001)
    return Problem(name, _cube(d), losses, np.column_stack([np.cos(angles), np.sin(angles)]))


def _dtlz2_three(d: int = 7) -> Problem:
    """The same with three objectives: an eighth of a sphere."""

    def losses(config: Mapping[str, Any]) -> tuple[float, ...]:
        first, second, *rest = config.values()
        g = 1.0 + sum((x - 0.5) ** 2 for x in rest)
        a, b = first * np.pi / 2, second * np.pi / 2
        return float(g * np.cos(a) * np.cos(b)), float(g * np.cos(a) * np.sin(b)), float(g * np.sin(a))

    a, b = (each.ravel() for each in np.meshgrid(*[np.linspace(0.0, np.pi / 2, 30)] * 2))
    front = np.column_stack([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)])
    return Problem("dtlz2-three", _cube(d), losses, front)


def _constrained(
    name: str,
    domains: dict[str, Float],
    losses: Losses,
    front: Array,
    excess: Callable[[Mapping[str, Any]], tuple[float, ...]],
) -> Problem:
    def allowed(config: Mapping[str, Any]) -> bool:
        return max(excess(config)) <= 0.0

    return Problem(name, SearchSpace(domains).where(allowed), losses, front, excess=excess)


def _constr() -> Problem:
    """Deb, 2001: the front runs along a constraint for half of its length."""

    def losses(config: Mapping[str, Any]) -> tuple[float, ...]:
        return config["x"], (1.0 + config["y"]) / config["x"]

    def excess(config: Mapping[str, Any]) -> tuple[float, ...]:
        return 6.0 - 9.0 * config["x"] - config["y"], 1.0 - 9.0 * config["x"] + config["y"]

    x = np.linspace(7.0 / 18.0, 1.0, 2001)
    front = np.column_stack([x, (1.0 + np.maximum(6.0 - 9.0 * x, 0.0)) / x])
    return _constrained("constr", {"x": Float(0.1, 1.0), "y": Float(0.0, 5.0)}, losses, front, excess)


def _bnh() -> Problem:
    """Binh and Korn, 1997: the constraints cut off a third of what is dominated anyway."""

    def losses(config: Mapping[str, Any]) -> tuple[float, ...]:
        x, y = config["x"], config["y"]
        return 4.0 * x * x + 4.0 * y * y, (x - 5.0) ** 2 + (y - 5.0) ** 2

    def excess(config: Mapping[str, Any]) -> tuple[float, ...]:
        x, y = config["x"], config["y"]
        return (x - 5.0) ** 2 + y * y - 25.0, 7.7 - (x - 8.0) ** 2 - (y + 3.0) ** 2

    x = np.linspace(0.0, 5.0, 2001)
    y = np.minimum(x, 3.0)
    front = np.column_stack([4.0 * x * x + 4.0 * y * y, (x - 5.0) ** 2 + (y - 5.0) ** 2])
    return _constrained("bnh", {"x": Float(0.0, 5.0), "y": Float(0.0, 3.0)}, losses, front, excess)


def _mixed() -> Problem:
    """Made, as a network is chosen: choices, integers and a logarithm; its front is known and has 21 points."""
    space = SearchSpace(
        width=Integer(0, 20),
        layers=Integer(1, 9),
        lr=Float(1e-5, 1.0, log=True),
        decay=Float(0.0, 1.0),
        activation=Choice(["relu", "tanh", "gelu", "elu", "silu"]),
        optimizer=Choice(["sgd", "adam", "lion"]),
    )
    activation = {"relu": 0.5, "tanh": 1.5, "gelu": 0.0, "elu": 1.0, "silu": 0.2}
    optimizer = {"sgd": 0.8, "adam": 0.0, "lion": 0.4}

    def losses(config: Mapping[str, Any]) -> tuple[float, ...]:
        rate = np.log10(config["lr"]) + 3.0
        g = 1.0 + activation[config["activation"]] + optimizer[config["optimizer"]] + 0.5 * rate * rate
        g += 0.1 * abs(config["layers"] - 4) + (config["decay"] - 0.3) ** 2
        return config["width"] / 20, float(g * (1.0 - np.sqrt(config["width"] / 20 / g)))

    def seconds(config: Mapping[str, Any]) -> float:
        # Of integers alone, as the place in the unit cube is not the same to the last bit on all processors, and what
        # ends when decides what an optimizer knows: benchmarks.multi_objective tells by this whether it does the same.
        return float(1.0 + 0.25 * config["layers"] + 0.125 * config["width"])

    first = np.arange(21) / 20
    return Problem("mixed", space, losses, np.column_stack([first, 1.0 - np.sqrt(first)]), seconds=seconds)


def _measure(name: str, curves: Path) -> Losses:
    """The error after 50 epochs and the seconds that they took, of a configuration."""
    task = surrogate(name, curves)

    def measure(config: Mapping[str, Any]) -> tuple[float, float]:
        steps = [task(config, step) for step in range(1, task.max_budget + 1)]
        return steps[-1][0], sum(seconds for _, seconds in steps)

    return measure


def _error_and_seconds(name: str, curves: Path) -> Problem:
    """Its front is what :func:`evolve` found."""
    measure = _measure(name, curves)
    front = np.array(json.loads(FRONTS.read_text())[name])
    space = surrogate(name, curves).space
    return Problem(name, space, measure, front, seconds=lambda config: measure(config)[1])


def evolve(name: str, curves: Path, *, rounds: int = 60, size: int = 100) -> Array:
    """The front of a data set, by mutations of what is not dominated: shape (n, 2)."""
    space = surrogate(name, curves).space
    measure = _measure(name, curves)
    rng = np.random.default_rng(0)
    points = rng.random((20 * size, len(space.dimensions)))
    best, losses = points[:0], np.empty((0, 2))
    for _ in range(rounds):
        losses = np.concatenate([losses, [measure(space.from_unit(point)) for point in points]])
        best = np.concatenate([best, points])
        kept = (losses[:, None] == not_dominated(losses)).all(axis=2).any(axis=1)
        best, losses = best[kept], losses[kept]
        parents = best[rng.integers(len(best), size=size)]
        moves = rng.normal(size=parents.shape) * 10.0 ** rng.uniform(-3.0, -0.5, (size, 1))
        points = np.clip(parents + moves * (rng.random(parents.shape) < 0.4), 0.0, 1.0)
    return not_dominated(losses)
