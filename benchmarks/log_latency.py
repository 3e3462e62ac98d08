"""How long a line takes from ``print`` in a trial to the driver's display, while many lines are printed.

Eight workers print 100 lines a second each. A line says when it was printed, by the clock that all processes of one
machine share, and it has arrived when the plain display writes it. A cell of a notebook is drawn twice a second, which
adds at most half a second to that.

    python -m benchmarks.log_latency [--quick] [--json PATH]
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import time

import numpy as np

from benchmarks.common import parser, publish
from maggy_like import Float, LocalEngine, lagom

WORKERS = 8
LINES_PER_SECOND = 100
PRINTED = re.compile(r"\[trial (\d+)\] line (\d+) printed at ([0-9.]+)$")


class Clocked(io.TextIOBase):
    """A stream that keeps how late each line came.

    Attributes:
        delays: Seconds from print to display, by trial and number of the line.
    """

    def __init__(self) -> None:
        self.delays: dict[tuple[int, int], float] = {}

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        now = time.time()
        for line in text.splitlines():
            if found := PRINTED.match(line):
                self.delays[int(found[1]), int(found[2])] = now - float(found[3])
        return len(text)


def measure(workers: int, seconds: float) -> dict[str, float]:
    """Let each worker print for so many seconds, and measure the delay of every line.

    Args:
        workers: How many print at once.
        seconds: How long.

    Returns:
        ``delay_s.median``, ``delay_s.p99`` and ``delay_s.max``, and how many lines were printed and ``dropped``.
    """
    n_lines = round(seconds * LINES_PER_SECOND)

    def train(x: float) -> float:
        begin = time.monotonic()
        for line in range(n_lines):
            time.sleep(max(0.0, begin + line / LINES_PER_SECOND - time.monotonic()))
            print(f"line {line} printed at {time.time():.6f}", flush=True)
        return x

    stream = Clocked()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(stream):
        lagom(
            train,
            {"x": Float(0, 1)},
            optimizer="random",
            direction="max",
            n_trials=workers,
            workers=workers,
            engine=LocalEngine(),
            directory=folder,
            progress="plain",
        )
    delays = np.array(list(stream.delays.values()))
    if not len(delays):
        raise RuntimeError("no line has reached the display")
    return {
        "delay_s.median": float(np.median(delays)),
        "delay_s.p99": float(np.quantile(delays, 0.99)),
        "delay_s.max": float(delays.max()),
        "lines": workers * n_lines,
        "dropped": workers * n_lines - len(delays),
    }


def main() -> None:
    """Run and print."""
    options = parser(__doc__).parse_args()
    publish(measure(WORKERS, 5.0 if options.quick else 30.0), options.json)


if __name__ == "__main__":
    main()
