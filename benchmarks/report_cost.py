"""What ``reporter.report`` costs a training that calls it at each step, and that nothing is lost.

One trial on the local engine reports a million measurements; each call is timed from outside (the
timer's own cost is included). Then the ledger's measurements are counted.

    python -m benchmarks.report_cost [--quick] [--json PATH]
"""

from __future__ import annotations

import statistics
import time

from benchmarks.common import parser, publish, search
from maggy_like import Reporter


def train(x: float, reporter: Reporter) -> dict[str, float]:
    """Report as fast as possible."""
    times = []
    for step in range(1, reporter.budget + 1):
        start = time.perf_counter_ns()
        reporter.report(accuracy=0.5, step=step)
        times.append(time.perf_counter_ns() - start)
    return {"accuracy": x, "report_us": statistics.median(times) / 1e3, "report_us_mean": statistics.fmean(times) / 1e3}


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    sent = 1_000_000
    trial = search(train, metric="accuracy", n_trials=1, max_budget=sent, workers=1, engine="local").trials[0]
    figures = {
        "report_us.median": trial.metrics["report_us"],
        "report_us.mean": trial.metrics["report_us_mean"],
        "sent": sent,
        "recorded": len(trial.curves["accuracy"]),
    }
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
