"""What asynchrony saves: one search as bulk-synchronous stages, asynchronously, and with early stopping.

All three try the same number of configurations, drawn by the same random search in the same order; only how they are
scheduled differs. Bulk-synchronous is what a Spark job of stages does: each stage trains as many configurations as
there are workers, and ends with the slowest.

- In virtual time, from learning curves of LCBench with their own seconds (``--curves``, see :mod:`benchmarks.tables`):
  8 to 512 workers, eight configurations a worker, through the real state machine. The median over six tables and, up
  to 32 workers, three seeds.
- Real, without ``--quick``: a small network on scikit-learn's digits, whose time a step differs by its width and batch,
  on two workers; the stages are jobs of Spark ``local[2]``, the others run on the same session. Time is from the first
  trial's begin to the last one's end; all have imported torch before.

``best_ratio`` is the best accuracy over that of the stages. Early stopping is ASHA over the same random configurations.

    python -m benchmarks.bsp [--quick] [--curves FOLDER] [--picture FILE] [--json PATH]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import parser, publish, save
from benchmarks.tables import CURVES, Table, curve_numbers, table
from maggy_like import ASHA, Float, Integer, Reporter, SearchSpace, SparkEngine, lagom, simulate, spark_session
from optimizers import Optimizer, RandomSearch, Study
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


DIGITS = SearchSpace(lr=Float(1e-3, 1.0, log=True), width=Integer(16, 1024, log=True), batch=Integer(8, 256, log=True))
EPOCHS = 9


def digits(config: dict[str, Any], reporter: Reporter) -> dict[str, float]:
    """A network with one hidden layer; reports the validation accuracy of each epoch."""
    begin = time.time()
    import torch
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32) / 16
    y = torch.tensor(data.target)
    layers = torch.nn.Linear(64, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 10)
    net = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    first = 0
    if (state := reporter.restore()) is not None:
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
    accuracy = 0.0
    for epoch in range(first, reporter.budget):
        order = torch.randperm(1437, generator=torch.Generator().manual_seed(epoch))
        for start in range(0, 1437, config["batch"]):
            rows = order[start : start + config["batch"]]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            accuracy = float((net(x[1437:]).argmax(1) == y[1437:]).float().mean())
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        reporter.checkpoint(state)
        reporter.report(accuracy=accuracy, step=epoch + 1)
    return {"accuracy": accuracy, "begin": begin, "end": time.time()}


class Alone:
    """The reporter of a stage, where nobody listens."""

    budget = EPOCHS

    def __init__(self) -> None:
        self.best = 0.0

    def restore(self) -> None:
        """Nothing was saved."""

    def checkpoint(self, state: object) -> None:
        """Nothing is saved."""

    def report(self, accuracy: float, step: int) -> None:
        """Keep the best."""
        self.best = max(self.best, accuracy)


def real(n_trials: int) -> dict[str, float]:
    """What is saved on two workers of a real session."""
    spark = spark_session("local[2]", app_name="benchmarks.bsp")
    history = Study(DIGITS, RandomSearch(), direction="max", max_budget=EPOCHS).history
    configs = [RandomSearch().ask(number, history) for number in range(n_trials)]

    def train(config: dict[str, Any]) -> tuple[float, float]:
        reporter = Alone()
        digits(config, reporter)  # type: ignore[arg-type]
        return reporter.best, 0.0

    try:
        spark.sparkContext.parallelize(configs[:2], 2).map(train).collect()  # imports torch
        begin, best = time.time(), 0.0
        for stage in range(0, n_trials, 2):
            found = spark.sparkContext.parallelize(configs[stage : stage + 2], 2).map(train).collect()
            best = max(best, *(value for value, _ in found))
        plain = time.time() - begin
        figures = {"real.seconds.stages": plain}
        for kind, optimizer in {"async": RandomSearch(), "early_stopping": ASHA(sampler=RandomSearch())}.items():
            spans: list[Span] = []
            begun: dict[int, float] = {}

            def look(event: Event, begun: dict[int, float] = begun, spans: list[Span] = spans) -> None:
                if isinstance(event, AttemptStarted):
                    begun[event.trial] = event.time
                elif isinstance(event, AttemptEnded):
                    spans.append((begun[event.trial], event.time))

            with tempfile.TemporaryDirectory() as folder:
                result = lagom(digits, DIGITS, optimizer=optimizer, metric="accuracy", n_trials=n_trials, workers=2,
                               max_budget=EPOCHS, engine=SparkEngine(), callbacks=[look], directory=folder,
                               progress=False)  # fmt: skip
            seconds = Outcome(spans, 0.0).seconds
            figures[f"real.seconds.{kind}"] = seconds
            figures[f"real.time_saved.{kind}"] = 1 - seconds / plain
            assert result.best_value is not None
            figures[f"real.best_ratio.{kind}"] = result.best_value / best
    finally:
        spark.stop()
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
    options.add_argument("--trials", type=int, default=24, metavar="N", help="of the real searches")
    arguments = options.parse_args()
    figures: dict[str, float] = {}
    if curve_numbers(arguments.curves):
        sizes = (8, 32) if arguments.quick else (8, 32, 128, 512)
        figures |= virtual(arguments.curves, sizes, 1 if arguments.quick else 3)
        publish(figures, None)
        if arguments.picture is not None:
            draw(arguments.curves, arguments.picture)
    else:
        print(f"no learning curves in {arguments.curves}: nothing in virtual time; name their folder by --curves")
    if not arguments.quick:
        found = real(arguments.trials)
        figures |= found
        publish(found, None)
    save(figures, arguments.json)


if __name__ == "__main__":
    main()
