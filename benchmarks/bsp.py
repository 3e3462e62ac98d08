"""What asynchrony saves: one search as bulk-synchronous stages, asynchronously, and with early stopping.

All three try the same number of configurations, drawn by the same random search in the same order; only how they are
scheduled differs. Bulk-synchronous is what a Spark job of stages does: each stage trains as many configurations as
there are workers, and ends with the slowest.

They run in virtual time, from learning curves of LCBench with their own seconds (``--curves``, see
:mod:`benchmarks.tables`): 8 to 512 workers, eight configurations a worker, through the real state machine. The median
over six tables and, up to 32 workers, three seeds.

``best_ratio`` is the best accuracy over that of the stages. Early stopping is ASHA over the same random configurations.

    python -m benchmarks.bsp [--quick] [--curves FOLDER] [--picture FILE] [--json PATH]
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import parser, publish
from benchmarks.tables import CURVES, Table, curve_numbers, table
from maggy_like import simulate
from optimizers import ASHA, Optimizer, RandomSearch, Study
from optimizers.core.base import Decision
from optimizers.core.events import AttemptEnded, AttemptStarted, Event

A_WORKER = 8
"""Configurations for each worker."""

Span = tuple[float, float]
"""Begin and end of an attempt, in seconds."""


class Outcome:
    """A search: its seconds, its best loss, and when workers were busy."""

    def __init__(self, spans: Sequence[Span], loss: float) -> None:
        self.spans = spans
        self.loss = loss
        self.seconds = max(end for _, end in spans) - min(begin for begin, _ in spans)


def stages(curves: Table, seed: int, workers: int) -> Outcome:
    """The search as bulk-synchronous stages."""
    study = Study(curves.space, RandomSearch(), direction="min", seed=seed, max_budget=curves.max_budget)
    spans, now, best = [], 0.0, float("inf")
    for stage in range(A_WORKER):
        ends = []
        for number in range(stage * workers, (stage + 1) * workers):
            config = RandomSearch().ask(number, study.history)
            steps = [curves(config, step) for step in range(1, curves.max_budget + 1)]
            best = min(best, *(loss for loss, _ in steps))
            ends.append(now + sum(seconds for _, seconds in steps))
        spans += [(now, end) for end in ends]
        now = max(ends)
    return Outcome(spans, best)


def asynchronous(curves: Table, seed: int, workers: int, optimizer: Optimizer) -> Outcome:
    """The search by the real state machine."""
    study = Study(curves.space, optimizer, direction="min", seed=seed, max_budget=curves.max_budget,
                  n_trials=A_WORKER * workers)  # fmt: skip
    begun: dict[int, float] = {}
    spans: list[Span] = []
    apply = study.apply

    def look(event: Event) -> Decision:
        if isinstance(event, AttemptStarted):
            begun[event.trial] = event.time
        elif isinstance(event, AttemptEnded):
            spans.append((begun[event.trial], event.time))
        return apply(event)

    study.apply = look  # type: ignore[method-assign]
    simulate(study, curves, workers=workers)
    assert study.best is not None
    assert study.best.value is not None
    return Outcome(spans, study.best.value)


def virtual(folder: Path, sizes: Sequence[int], seeds: int) -> dict[str, float]:
    """What is saved in virtual time."""
    figures: dict[str, float] = {}
    names = [f"lcbench-{number}" for number in curve_numbers(folder)]
    for workers in sizes:
        found: dict[str, list[float]] = {}
        for name in names:
            curves = table(name, folder)
            for seed in range(seeds if workers <= 32 else 1):
                plain = stages(curves, seed, workers)
                kinds = {"async": RandomSearch(), "early_stopping": ASHA(sampler=RandomSearch())}
                for kind, optimizer in kinds.items():
                    outcome = asynchronous(curves, seed, workers, optimizer)
                    found.setdefault(f"time_saved.{kind}", []).append(1 - outcome.seconds / plain.seconds)
                    if kind == "early_stopping":
                        found.setdefault("best_ratio", []).append((1 - outcome.loss) / (1 - plain.loss))
        figures |= {f"{key}.{workers}": statistics.median(values) for key, values in found.items()}
        figures[f"best_ratio.min.{workers}"] = min(found["best_ratio"])
    return figures


def draw(folder: Path, path: Path, workers: int = 32) -> None:
    """The share of busy workers over time, of one search three times."""
    import matplotlib
    import numpy as np

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    curves = table(f"lcbench-{curve_numbers(folder)[0]}", folder)
    outcomes = {
        "stages": stages(curves, 0, workers),
        "asynchronous": asynchronous(curves, 0, workers, RandomSearch()),
        "asynchronous, stopped early": asynchronous(curves, 0, workers, ASHA(sampler=RandomSearch())),
    }
    end = max(outcome.seconds for outcome in outcomes.values())
    times = np.linspace(0, end, 1000)
    figure, axes = plt.subplots(3, 1, figsize=(7.5, 4.2), sharex=True, sharey=True)
    for axis, (name, outcome), color in zip(axes, outcomes.items(), ("#888888", "#0072b2", "#c1272d"), strict=True):
        begins, ends = np.array(outcome.spans).T
        busy = [((begins <= now) & (now < ends)).sum() / workers for now in times]
        axis.fill_between(times / end, busy, step="post", color=color, linewidth=0)
        saved = 1 - outcome.seconds / outcomes["stages"].seconds
        axis.set_title(name + (f": {saved:.0%} less time" if name != "stages" else ""), fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_yticks([0, 1], ["0", "1"])
    axes[1].set_ylabel("share of busy workers")
    axes[2].set_xlabel("time (the stages' is 1)")
    axes[2].set_xlim(0, 1)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--curves", type=Path, default=CURVES, metavar="FOLDER", help="where the learning curves lie")
    options.add_argument("--picture", type=Path, default=None, metavar="FILE", help="draw the workers over time")
    arguments = options.parse_args()
    if not curve_numbers(arguments.curves):
        raise SystemExit(f"no learning curves in {arguments.curves}; name their folder by --curves")
    sizes = (8, 32) if arguments.quick else (8, 32, 128, 512)
    publish(virtual(arguments.curves, sizes, 1 if arguments.quick else 3), arguments.json)
    if arguments.picture is not None:
        draw(arguments.curves, arguments.picture)


if __name__ == "__main__":
    main()
