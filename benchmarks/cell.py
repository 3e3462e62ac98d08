"""How large the cell of a notebook becomes, and how long one drawing of it takes, at 10,000 trials and 64 workers.

    python -m benchmarks.cell [--quick] [--json PATH] [--keep FOLDER]

The search is in its last minutes: 64 workers on 64 hosts, nine kinds of failures, a best value that improved a hundred
times, and a log that is full of long lines, from as many trials as it has lines. Both the cell of the run that goes on
and that of the run that is over are measured, and the greater figure is told: ``size_kb``; ``make_ms``, the median time
in which the kernel makes it; and ``draw_ms``, the median time that Chromium takes from the HTML to the end of the
frame that shows it. An empty cell costs a frame too: ``draw_ms.empty``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.common import parser, publish
from benchmarks.report import chromium
from maggy_like.display import LogLine, Snapshot, WorkerLine, html
from maggy_like.display.base import FailureLine
from maggy_like.display.bests import MAX_BESTS
from maggy_like.display.notebook import LOG_LINES
from maggy_like.protocol.endings import Ending, Phase
from optimizers.core.trial import TrialState

TRIALS, WORKERS = 10_000, 64
BESTS = [(30.0 * place, 0.97 - 0.8 * 0.97**place) for place in range(MAX_BESTS)]

DRAW = """async (html) => {
  const cell = document.getElementById('cell');
  cell.innerHTML = '';
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  const begin = performance.now();
  cell.innerHTML = html;
  cell.getBoundingClientRect();
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - begin;
}"""
"""Draws the HTML as a front end does; the time until the next frame has been painted."""


def main() -> None:
    """Run and print."""
    options = parser(__doc__)
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the cells there, as pages and as pictures")
    args = options.parse_args()
    repeats = 5 if args.quick else 30
    cells = {"running": snapshot(Phase.SEARCHING), "over": snapshot(Ending.COMPLETED)}
    log = [LogLine(TRIALS - LOG_LINES + place, "loss '<&>' " * 36) for place in range(LOG_LINES)]
    made: dict[str, str] = {}
    times: dict[str, float] = {}
    for name, shown in cells.items():
        taken = []
        for _ in range(repeats):
            begin = time.perf_counter()
            made[name] = html.page(cells["running"], shown, BESTS, log, 123_456)
            taken.append(time.perf_counter() - begin)
        times[name] = statistics.median(taken)
    with tempfile.TemporaryDirectory() as folder:
        kept = args.keep or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        drawn = draw({"empty": "<div></div>", **made}, kept, repeats)
    figures = {
        "size_kb": max(len(cell.encode()) for cell in made.values()) / 1e3,
        "make_ms": 1e3 * max(times.values()),
        "draw_ms": max(drawn[name] for name in made),
        "draw_ms.empty": drawn["empty"],
    }
    publish(figures, args.json)


def snapshot(phase: Phase | Ending) -> Snapshot:
    """A search of 10,000 trials on 64 workers, near its end or at it."""
    running = 0 if phase.is_over else WORKERS
    counts = {
        TrialState.STOPPED: 8_000,
        TrialState.COMPLETED: 1_500,
        TrialState.FAILED: 400,
        TrialState.RUNNING: running,
    }
    workers = [
        WorkerLine(i, f"node-{i}", "busy", 9_900 + i, i % 27, 27, 0.9 - i / 100, 60.0 + i) for i in range(WORKERS)
    ]
    kinds = ("exception", "timeout", "worker_lost", "memory", "killed", "import", "report", "store", "exit")
    message = "ValueError: the loss is '<nan>' " * 20
    return Snapshot(
        name="a-long-search-of-many-trials",
        directory="s3://bucket/runs/a-long-search-of-many-trials",
        optimizer="asha",
        direction="max",
        objective="accuracy",
        phase=phase,
        elapsed=3_700.0,
        n_trials=TRIALS,
        counts={state: count for state, count in counts.items() if count},
        best_trial=7_654,
        best_value=BESTS[-1][1],
        best_step=27,
        best_config={f"parameter_{place}": 0.123456789 / (1 + place) for place in range(20)},
        workers=tuple(workers),
        failures=tuple(FailureLine(kind, 90, 9_000 + i, message) for i, kind in enumerate(kinds)),
    )


def draw(cells: dict[str, str], kept: Path, repeats: int) -> dict[str, float]:
    """How long Chromium takes to draw each cell, in milliseconds; the pictures lie in ``kept``.

    Raises:
        RuntimeError: There is no Chromium.
    """
    from playwright.sync_api import sync_playwright

    path = chromium()
    if path is None:
        raise RuntimeError("there is no chromium on the PATH; install it (apt-get install chromium)")
    taken = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1000, "height": 900})
        tab.set_content("<body><div id='cell'></div></body>")
        for name, cell in cells.items():
            (kept / f"{name}.html").write_text(cell)
            tab.evaluate(DRAW, cell)  # the first drawing compiles and loads fonts
            taken[name] = statistics.median(tab.evaluate(DRAW, cell) for _ in range(repeats))
            tab.screenshot(path=kept / f"{name}.png", full_page=True)
        browser.close()
    return taken


if __name__ == "__main__":
    main()
