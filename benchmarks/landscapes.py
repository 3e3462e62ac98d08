"""Synthetic objectives: functions with a known optimum, and made tasks that are hard in a way of their own."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maggy_like import Choice, Float, Integer, SearchSpace

Array = NDArray[np.float64]
Config = Mapping[str, Any]
Rng = np.random.Generator
Curves = tuple[Array, Array]
"""The losses and the seconds of all steps, shape (steps,) both."""

Training = Callable[[Config, Rng], Curves]
"""Of a configuration, with a generator of its own."""

_DRAWN = 1000
"""Random configurations that tell the median and the mean time of a landscape."""


class Landscape:
    """A training function of known answers, called with a configuration and a step, as a simulation wants it.

    Args:
        name: What the results call it.
        space: Its parameters.
        train: The whole training of a configuration. What it draws is a matter of the configuration alone, so that the
            same one always trains alike.
        best: The least loss of any configuration at any step.
        median: Of the best losses of random configurations; measured if it is not known.
        full_seconds: Mean time of a full training; measured if it is not known.
    """

    def __init__(
        self,
        name: str,
        space: SearchSpace,
        train: Training,
        *,
        best: float = 0.0,
        median: float | None = None,
        full_seconds: float | None = None,
    ) -> None:
        self.name = name
        self.space = space
        self._train = train
        self._known: dict[bytes, Curves] = {}
        self._best = best
        if median is None or full_seconds is None:
            rng = np.random.default_rng(zlib.crc32(name.encode()))
            drawn = [self.curve(space.sample(rng)) for _ in range(_DRAWN)]
            lowest = [np.nan_to_num(losses, nan=np.inf).min() for losses, _ in drawn]
            median = float(np.median(lowest)) if median is None else median
            full_seconds = float(np.mean([seconds.sum() for _, seconds in drawn]))
        self._median = median
        self.full_seconds = full_seconds
        self.max_budget = len(self.curve(space.sample(np.random.default_rng(0)))[0])

    def __call__(self, config: Config, step: int) -> tuple[float, float]:
        """The loss after ``step`` steps, and the seconds that this one took."""
        losses, seconds = self.curve(config)
        return float(losses[step - 1]), float(seconds[step - 1])

    def regret(self, loss: Any) -> Any:
        """Normalised regret; 0 is the best that is known, or below it, and 1 the median of random configurations."""
        return np.maximum((loss - self._best) / (self._median - self._best), 0.0)

    def curve(self, config: Config) -> Curves:
        """The losses and the seconds of all steps, shape (steps,) both."""
        point = self.space.to_unit(config).tobytes()
        if point not in self._known:
            self._known[point] = self._train(config, np.random.default_rng(zlib.crc32(point)))
        return self._known[point]


STEPS = 50
_STEP = np.arange(1, STEPS + 1)
_SECOND = np.ones(STEPS)
_MADE: dict[str, Callable[[], Landscape]] = {}
"""All landscapes by name. They are made when they are wanted, since their medians are measured."""


def _unit(*names: str) -> SearchSpace:
    return SearchSpace({name: Float(0.0, 1.0) for name in names})


def _on(space: SearchSpace) -> Callable[[Training], Training]:
    """Make a training function a landscape of its name, whose best loss is 0."""

    def register(train: Training) -> Training:
        _MADE[train.__name__] = lambda: Landscape(train.__name__, space, train)
        return train

    return register


def _falling(final: float, rate: float, start: float = 2.0) -> Array:
    """A power law from ``start`` before the first step down to ``final`` at the last one."""
    last = (1.0 + STEPS) ** -rate
    shape = ((1.0 + _STEP) ** -rate - last) / (1.0 - last)
    return np.asarray(final + (start - final) * shape)


@_on(_unit("rate", "decay", "width", "unused"))
def crossing(config: Config, rng: Rng) -> Curves:
    """The faster a training begins, the worse it ends: early leaders end badly."""
    speed = config["rate"]
    final = 0.8 * (speed - 0.15) ** 2 + 0.5 * (config["decay"] - 0.3) ** 2 + 0.3 * abs(config["width"] - 0.7)
    return _falling(final, 0.1 + 2.0 * speed), _SECOND


@_on(_unit(*"abcd"))
def late(config: Config, rng: Rng) -> Curves:
    """Nothing shows before nine tenths of the training: the objective needs the full budget."""
    final = float(np.sum((np.array([config[name] for name in "abcd"]) - [0.2, 0.5, 0.7, 0.9]) ** 2))
    before = 3.0 + 0.05 * rng.random(STEPS)
    return np.where(_STEP < 0.9 * STEPS, before, final), _SECOND


@_on(_unit(*"abc"))
def overfitting(config: Config, rng: Rng) -> Curves:
    """The best step of a good training is an early one; afterwards it gets worse."""
    final = abs(config["a"] - 0.35) + 0.5 * (config["b"] - 0.6) ** 2 + 0.3 * (config["c"] - 0.5) ** 2
    turn = round(5 + 25 * config["c"])
    losses = final + np.exp(-3.0 * _STEP / turn) - np.exp(-3.0) + 0.02 * np.maximum(_STEP - turn, 0.0)
    return np.maximum(losses, final), _SECOND


@_on(_unit(*"abcd"))
def plateaus(config: Config, rng: Rng) -> Curves:
    """Flat in the configuration but for a slope of a fiftieth, and falling in stairs, as learning rates are cut."""
    x = np.array([config[name] for name in "abcd"])
    distance = float(np.mean(np.abs(x - [0.15, 0.4, 0.65, 0.85])))
    final = np.floor(8.0 * distance) / 8.0 + distance / 50.0
    stairs = 0.6 * (_STEP <= 16) + 0.4 * (_STEP <= 33)
    return np.asarray(final + stairs + 0.1 * _STEP**-1.0 - 0.1 / STEPS), _SECOND


@_on(_unit(*"abcde"))
def noisy(config: Config, rng: Rng) -> Curves:
    """Every training has luck of its own, and every step, as large as differences between good configurations."""
    x = np.array([config[name] for name in "abcde"])
    final = float(np.sum(np.abs(x - [0.3, 0.6, 0.8, 0.2, 0.5]) * [1.0, 0.6, 0.3, 0.1, 0.05]))
    luck = 0.15 * rng.standard_exponential() + 0.15 * rng.standard_exponential(STEPS)
    return _falling(final, 0.7) + luck, _SECOND


@_on(_unit(*"abcd"))
def bimodal(config: Config, rng: Rng) -> Curves:
    """Two in five trainings get stuck, wherever they are: no model can tell which, but a few steps do."""
    final = 1.5 * abs(config["a"] - 0.4) + (config["b"] - 0.7) ** 2 + 0.3 * (config["c"] - 0.2) ** 2
    if rng.random() < 0.4:
        return np.full(STEPS, final + 1.0 + rng.random()) + 0.01 * rng.random(STEPS), _SECOND
    return _falling(final, 0.6), _SECOND


_EDGE = SearchSpace(
    lr=Float(1e-4, 1.0, log=True), momentum=Float(0.0, 0.99), depth=Integer(1, 16, log=True), decay=Float(0.0, 1.0)
)


@_on(_EDGE)
def edge(config: Config, rng: Rng) -> Curves:
    """The best learning rate lies just below those that diverge, some at once, some late; smooth else."""
    lr, momentum, depth, decay = _EDGE.to_unit(config)
    excess = lr - (0.8 - 0.3 * momentum - 0.2 * depth)
    final = 0.5 * abs(excess + 0.02) + 0.2 * (momentum - 0.9) ** 2 + 0.2 * (decay - 0.3) ** 2 + 0.1 * (1.0 - depth)
    losses = _falling(final, 0.3 + lr)
    if excess > 0.0:
        past = np.maximum(_STEP - np.ceil(2.0 / (0.02 + excess)), 0.0)
        losses = losses * 10.0 ** np.minimum(past, 12.0)
    return losses, _SECOND


_CONDITIONAL = SearchSpace(
    optimizer=Choice(["sgd", "adam", "rprop"]),
    lr=Float(1e-4, 1.0, log=True),
    momentum=Float(0.0, 0.99, when={"optimizer": "sgd"}),
    beta=Float(0.5, 0.999, when={"optimizer": "adam"}),
    layers=Choice([1, 2]),
    second=Integer(8, 256, log=True, when={"layers": 2}),
    first=Integer(8, 256, log=True),
)


@_on(_CONDITIONAL)
def conditional(config: Config, rng: Rng) -> Curves:
    """Three optimizers with parameters of their own, and layers that are there or not."""
    unit = dict(zip(_CONDITIONAL.dimensions, _CONDITIONAL.to_unit(config), strict=True))
    if config["optimizer"] == "sgd":
        final = 0.6 * abs(unit["lr"] - 0.8) + 0.4 * (unit["momentum"] - 0.9) ** 2
    elif config["optimizer"] == "adam":
        final = 0.08 + 0.4 * abs(unit["lr"] - 0.35) + 0.1 * (unit["beta"] - 0.6) ** 2
    else:
        final = 0.3
    final += 0.1 if config["layers"] == 1 else 0.3 * (unit["second"] - 0.6) ** 2
    final += 0.3 * (unit["first"] - 0.8) ** 2
    return _falling(final, 0.5 + 0.8 * unit["lr"]), _SECOND


@cache
def _ends() -> Array:
    """The losses at the end of all combinations of six choices."""
    rng = np.random.default_rng(6)
    single = rng.standard_exponential((6, 5))
    pairs = {(i, j): rng.standard_exponential((5, 5)) for i in range(6) for j in range(i)}
    grid = np.stack(np.meshgrid(*[np.arange(5)] * 6, indexing="ij"), axis=-1).reshape(-1, 6)
    alone = sum(single[i, grid[:, i]] for i in range(6))
    totals = alone + 0.5 * sum(pair[grid[:, i], grid[:, j]] for (i, j), pair in pairs.items())
    return np.asarray((totals - totals.min()).reshape((5,) * 6) / np.ptp(totals))


@_on(SearchSpace({name: Choice([*range(5)]) for name in "abcdef"}))
def choices(config: Config, rng: Rng) -> Curves:
    """Six choices of five values, of which pairs matter as much as single ones."""
    at = tuple(config[name] for name in "abcdef")
    return _falling(float(_ends()[at]), 0.3 + 0.2 * at[0]), _SECOND


@_on(SearchSpace(x=Float(-5.0, 10.0), y=Float(0.0, 15.0)))
def two(config: Config, rng: Rng) -> Curves:
    """The logarithm of Branin's function: two parameters, three valleys."""
    x, y = config["x"], config["y"]
    curve = y - 5.1 / (4.0 * np.pi**2) * x**2 + 5.0 / np.pi * x - 6.0
    value = curve**2 + 10.0 * (1.0 - 1.0 / (8.0 * np.pi)) * np.cos(x) + 10.0
    return _falling(np.log1p(value - 0.39788735772973816), 0.5 + 0.05 * y, 7.0), _SECOND


def sparse(d: int, name: str = "") -> Landscape:
    """``d`` parameters, of which five matter, and five a little."""
    return _summed(name or f"sparse{d}", np.array([1.0] * 5 + [0.05] * 5 + [0.0] * (d - 10)))


def dense(d: int) -> Landscape:
    """``d`` parameters that all matter, each a little less than the one before, the last a tenth of the first."""
    return _summed(f"dense{d}", np.geomspace(1.0, 0.1, d))


def _summed(name: str, weights: Array) -> Landscape:
    """The weighted sum of the distances of each parameter from its best value."""
    names = [f"x{i}" for i in range(len(weights))]
    at = np.linspace(0.1, 0.9, len(weights))

    def train(config: Config, rng: Rng) -> Curves:
        x = np.array([config[each] for each in names])
        return _falling(float(weights @ np.abs(x - at)), 0.4 + 0.8 * x[0], 4.0), _SECOND

    return Landscape(name, _unit(*names), train)


_MADE["forty"] = lambda: sparse(40, "forty")


def _priced(config: Config, best_at: float) -> Curves:
    """Trainings take up to thirty times as long."""
    size = config["size"]
    final = 0.5 * (size - best_at) ** 2 + 0.5 * abs(config["a"] - 0.3) + 0.3 * (config["b"] - 0.6) ** 2
    return _falling(final, 0.4 + 0.6 * config["a"]), _SECOND * 30.0**size


@_on(_unit("size", "a", "b", "c"))
def dear(config: Config, rng: Rng) -> Curves:
    """The best trainings are among the most expensive quarter."""
    return _priced(config, 0.85)


@_on(_unit("size", "a", "b", "c"))
def cheap(config: Config, rng: Rng) -> Curves:
    """The best trainings are among the cheapest quarter."""
    return _priced(config, 0.15)


NAMES = tuple(_MADE)


@cache
def landscape(name: str) -> Landscape:
    """The landscape called ``name``, one of :data:`NAMES`.

    Example:
        >>> landscape("two")({"x": 3.14159, "y": 2.275}, 50)[0] < 1e-4
        True
    """
    return _MADE[name]()
