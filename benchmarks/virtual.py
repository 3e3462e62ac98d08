"""The cost of an event in the real state machine, as the number of trials grows.

Plain ASHA (promotion) over 100,000 trials on 1,000 workers in virtual time. The figure for n is the mean time per event
while the number of trials went from n / 2 to n.

    python -m benchmarks.virtual [--quick] [--json PATH]
"""

from __future__ import annotations

import time

from benchmarks.common import parser, publish
from maggy_like import Float, simulate
from optimizers import ASHA, RandomSearch, Study

WORKERS = 1000


def study_of(n_trials: int) -> Study:
    """The search."""
    space = {"lr": Float(1e-4, 1.0, log=True), "momentum": Float(0.0, 0.99)}
    return Study(space, ASHA(sampler=RandomSearch()), direction="min", max_budget=27, n_trials=n_trials)


def train(config: dict[str, float], step: int) -> tuple[float, float]:
    """The objective, and the seconds of a step."""
    distance = abs(config["lr"] - 0.01) + abs(config["momentum"] - 0.9)
    return distance + 1.0 / step, 0.5 + config["momentum"]


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    marks = (1_000, 10_000) if arguments.quick else (1_000, 10_000, 100_000)
    study = study_of(marks[-1])
    wanted = {half for mark in marks for half in (mark // 2, mark)}
    reached: dict[int, tuple[float, int]] = {}

    def mark(_: float, handled: int) -> None:
        if (done := len(study.trials)) in wanted and done not in reached:
            reached[done] = (time.perf_counter(), handled)

    simulate(study, train, workers=WORKERS, on_event=mark)
    figures: dict[str, float] = {}
    for n in marks:
        (begun, before), (ended, after) = reached[n // 2], reached[n]
        figures[f"event_us.{n}"] = (ended - begun) / (after - before) * 1e6
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
