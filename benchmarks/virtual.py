"""The cost of an event in the real state machine, as the number of trials grows.

Plain ASHA (promotion) over 100,000 trials on 1,000 workers in virtual time. The figure for n is the mean
time per event while the number of trials went from n / 2 to n.

    python -m benchmarks.virtual [--quick] [--json PATH]
"""

from __future__ import annotations

import time

from benchmarks.common import parser, publish
from maggy_like import Float, simulate
from optimizers import ASHA, RandomSearch, Study

MARKS = (1_000, 10_000, 100_000)


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    marks = MARKS[:2] if arguments.quick else MARKS
    space = {"lr": Float(1e-4, 1.0, log=True), "momentum": Float(0.0, 0.99)}
    study = Study(space, ASHA(sampler=RandomSearch()), direction="min", max_budget=27, n_trials=marks[-1])
    reached: dict[int, tuple[float, int]] = {}
    events = 0
    wanted = {half for mark in marks for half in (mark // 2, mark)}

    def train(config: dict[str, float], step: int) -> tuple[float, float]:
        distance = abs(config["lr"] - 0.01) + abs(config["momentum"] - 0.9)
        return distance + 1.0 / step, 0.5 + config["momentum"]

    def mark(_: float, handled: int) -> None:
        nonlocal events
        events = handled
        if (done := len(study.trials)) in wanted and done not in reached:
            reached[done] = (time.perf_counter(), handled)

    start = time.perf_counter()
    simulate(study, train, workers=1000, on_event=mark)
    seconds = time.perf_counter() - start
    figures: dict[str, float] = {}
    for n in marks:
        (begun, before), (ended, after) = reached[n // 2], reached[n]
        figures[f"event_us.{n}"] = (ended - begun) / (after - before) * 1e6
    figures["events"] = events
    figures["seconds"] = seconds
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
