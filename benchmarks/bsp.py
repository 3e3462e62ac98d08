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

    python -m benchmarks.bsp [--quick] [--curves DIRECTORY] [--picture FILE] [--json PATH]
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import parser, publish, search
from benchmarks.tables import CURVES, Table, curve_numbers, table
from maggy_like import ASHA, Float, Integer, Reporter, SearchSpace, SparkEngine, simulate, spark_session
from optimizers import Optimizer, RandomSearch, Study
from optimizers.core.base import Decision
from optimizers.core.events import AttemptEnded, AttemptStarted, Event

A_WORKER = 8
"""Configurations for each worker."""

Span = tuple[float, float]
"""Begin and end of an attempt, in seconds."""


class Spans(list[Span]):
    """When attempts were running, from the events of their search."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: dict[int, float] = {}

    def see(self, event: Event) -> None:
        """Take in the next event."""
        if isinstance(event, AttemptStarted):
            self._begun[event.trial] = event.time
        elif isinstance(event, AttemptEnded):
            self.append((self._begun[event.trial], event.time))


def seconds_of(spans: Sequence[Span]) -> float:
    """From the first begin to the last end."""
    return max(end for _, end in spans) - min(begin for begin, _ in spans)


def schedules() -> dict[str, Optimizer]:
    """Random search as it is, and with early stopping."""
    return {"async": RandomSearch(), "early_stopping": ASHA(sampler=RandomSearch())}


def stages(curves: Table, seed: int, workers: int) -> tuple[list[Span], float]:
    """When workers are busy in a search as bulk-synchronous stages, and its best loss."""
    study = Study(curves.space, RandomSearch(), direction="min", seed=seed, max_budget=curves.max_budget)
    spans: list[Span] = []
    now, best = 0.0, float("inf")
    for stage in range(A_WORKER):
        ends = []
        for number in range(stage * workers, (stage + 1) * workers):
            config = RandomSearch().ask(number, study.history)
            steps = [curves(config, step) for step in range(1, curves.max_budget + 1)]
            best = min(best, *(loss for loss, _ in steps))
            ends.append(now + sum(seconds for _, seconds in steps))
        spans += [(now, end) for end in ends]
        now = max(ends)
    return spans, best


def asynchronous(curves: Table, seed: int, workers: int, optimizer: Optimizer) -> tuple[list[Span], float]:
    """The same of a search by the real state machine."""
    study = Study(curves.space, optimizer, direction="min", seed=seed, max_budget=curves.max_budget,
                  n_trials=A_WORKER * workers)  # fmt: skip
    spans = Spans()
    apply = study.apply

    def look(event: Event) -> Decision:
        spans.see(event)
        return apply(event)

    study.apply = look  # type: ignore[method-assign]
    simulate(study, curves, workers=workers)
    assert study.best is not None
    assert study.best.value is not None
    return spans, study.best.value


def virtual(directory: Path, sizes: Sequence[int], seeds: int) -> dict[str, float]:
    """What is saved in virtual time."""
    figures: dict[str, float] = {}
    names = [f"lcbench-{number}" for number in curve_numbers(directory)]
    for workers in sizes:
        found: defaultdict[str, list[float]] = defaultdict(list)
        for name in names:
            curves = table(name, directory)
            for seed in range(seeds if workers <= 32 else 1):
                plain, plain_loss = stages(curves, seed, workers)
                for kind, optimizer in schedules().items():
                    spans, loss = asynchronous(curves, seed, workers, optimizer)
                    found[f"time_saved.{kind}"].append(1 - seconds_of(spans) / seconds_of(plain))
                    if kind == "early_stopping":
                        found["best_ratio"].append((1 - loss) / (1 - plain_loss))
        figures |= {f"{key}.{workers}": statistics.median(values) for key, values in found.items()}
        figures[f"best_ratio.min.{workers}"] = min(found["best_ratio"])
    return figures


DIGITS = SearchSpace(lr=Float(1e-3, 1.0, log=True), width=Integer(16, 1024, log=True), batch=Integer(8, 256, log=True))
EPOCHS = 9


def digits(config: dict[str, Any], reporter: Reporter) -> float:
    """A network with one hidden layer; reports the validation accuracy of each epoch, and returns the last."""
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
    return accuracy


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

    def train(config: dict[str, Any]) -> float:
        reporter = Alone()
        digits(config, reporter)  # type: ignore[arg-type]
        return reporter.best

    spark.sparkContext.parallelize(configs[:2], 2).map(train).collect()  # imports torch
    begin, best = time.time(), 0.0
    for stage in range(0, n_trials, 2):
        best = max(best, *spark.sparkContext.parallelize(configs[stage : stage + 2], 2).map(train).collect())
    plain = time.time() - begin
    figures = {"real.seconds.stages": plain}
    for kind, optimizer in schedules().items():
        spans = Spans()
        result = search(digits, DIGITS, optimizer=optimizer, metric="accuracy", n_trials=n_trials, workers=2,
                        max_budget=EPOCHS, engine=SparkEngine(), callbacks=[spans.see])  # fmt: skip
        assert result.best_value is not None
        figures[f"real.seconds.{kind}"] = seconds_of(spans)
        figures[f"real.time_saved.{kind}"] = 1 - seconds_of(spans) / plain
        figures[f"real.best_ratio.{kind}"] = result.best_value / best
    spark.stop()
    return figures


def draw(directory: Path, path: Path, workers: int = 32) -> None:
    """The share of busy workers over time, of one search three times."""
    import matplotlib
    import numpy as np

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    curves = table(f"lcbench-{curve_numbers(directory)[0]}", directory)
    searches = {
        "stages": stages(curves, 0, workers)[0],
        "asynchronous": asynchronous(curves, 0, workers, RandomSearch())[0],
        "asynchronous, stopped early": asynchronous(curves, 0, workers, ASHA(sampler=RandomSearch()))[0],
    }
    end = max(map(seconds_of, searches.values()))
    times = np.linspace(0, end, 1000)
    figure, axes = plt.subplots(3, 1, figsize=(7.5, 4.2), sharex=True, sharey=True)
    for axis, (name, spans), color in zip(axes, searches.items(), ("#888888", "#0072b2", "#c1272d"), strict=True):
        begins, ends = np.array(spans).T
        busy = [((begins <= now) & (now < ends)).sum() / workers for now in times]
        axis.fill_between(times / end, busy, step="post", color=color, linewidth=0)
        saved = 1 - seconds_of(spans) / seconds_of(searches["stages"])
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
    options.add_argument(
        "--curves", type=Path, default=CURVES, metavar="DIRECTORY", help="where the learning curves lie"
    )
    options.add_argument("--picture", type=Path, default=None, metavar="FILE", help="draw the workers over time")
    arguments = options.parse_args()
    figures: dict[str, float] = {}
    if not curve_numbers(arguments.curves):
        print(f"no learning curves in {arguments.curves}: nothing in virtual time; name their directory by --curves")
    elif arguments.quick:
        figures |= virtual(arguments.curves, (8, 32), 1)
    else:
        figures |= virtual(arguments.curves, (8, 32, 128, 512), 3)
    if arguments.picture is not None:
        draw(arguments.curves, arguments.picture)
    if not arguments.quick:
        figures |= real(n_trials=24)
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
