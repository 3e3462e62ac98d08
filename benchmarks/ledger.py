"""What a trial costs in memory and in the journal, and what it costs to replay it, as a search grows.

Plain ASHA (promotion) on 1,000 workers in virtual time, through the real state machine, each event appended to a real
journal of a local folder. The journal is then replayed as ``resume=True`` does. Memory is what this process has grown
by, over the trials, the history of the optimizer included; an event's cost is the mean while the number of trials went
from half to the whole, the journal not counted.

    python -m benchmarks.ledger [--quick] [--trials N] [--json PATH]
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil

from benchmarks.common import parser, publish
from maggy_like import Float, simulate
from maggy_like.driver.recovery import no_collections
from maggy_like.driver.recovery import restore as take_up
from maggy_like.driver.state_machine import StateMachine
from maggy_like.storage.journal import FORMAT_VERSION, Journal, RunHeader, backend_of
from optimizers import ASHA, RandomSearch, Study
from optimizers.core.base import Decision
from optimizers.core.events import Event

SPACE = {"lr": Float(1e-4, 1.0, log=True), "momentum": Float(0.0, 0.99)}
WORKERS = 1000


def study_of(n_trials: int) -> Study:
    """The search."""
    return Study(SPACE, ASHA(sampler=RandomSearch()), direction="min", max_budget=27, n_trials=n_trials)


def train(config: dict[str, float], step: int) -> tuple[float, float]:
    """The objective, and the seconds of a step."""
    distance = abs(config["lr"] - 0.01) + abs(config["momentum"] - 0.9)
    return distance + 1.0 / step, 0.5 + config["momentum"]


def grow(n_trials: int) -> dict[str, float]:
    """A search without a journal: its memory, and the cost of its events."""
    study = study_of(n_trials)
    half: tuple[float, int] | None = None
    handled = 0

    def mark(_: float, events: int) -> None:
        nonlocal half, handled
        handled = events
        if half is None and len(study.trials) >= n_trials // 2:
            half = time.process_time(), events

    gc.collect()
    process = psutil.Process()
    before = process.memory_info().rss
    simulate(study, train, workers=WORKERS, on_event=mark)
    assert half is not None
    seconds, events = time.process_time() - half[0], handled - half[1]
    gc.collect()
    grown = process.memory_info().rss - before
    return {"bytes_per_trial": grown / n_trials, f"event_us.{n_trials}": seconds / events * 1e6}


def replay(n_trials: int) -> dict[str, float]:
    """The journal of a search: its size, and what it takes to resume it."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(backend_of(folder))
        header = RunHeader(FORMAT_VERSION, "ledger", 0.0, {}, "asha", ["min"], [], 0, 27)
        journal.begin(header)
        study = study_of(n_trials)
        apply = study.apply

        def record(event: Event) -> Decision:
            journal.append([event])
            return apply(event)

        study.apply = record  # type: ignore[method-assign]
        simulate(study, train, workers=WORKERS)
        journal.close()
        size = (Path(folder) / "journal.jsonl").stat().st_size
        again = study_of(n_trials)
        machine = StateMachine(again, size=WORKERS)
        journal = Journal(backend_of(folder))
        gc.collect()
        began = time.process_time()
        with no_collections():
            hints = take_up(journal, header, machine)
        ended = time.process_time()
        contents = journal.read()
        reading = time.process_time() - ended
        journal.close()
    assert len(again.trials) == n_trials
    assert not hints
    return {
        "journal_bytes_per_trial": size / n_trials,
        "events_per_trial": len(contents.events) / n_trials,
        "replay_s_per_10000": (ended - began) / n_trials * 10_000,
        "replay_s_per_10000.reading": reading / n_trials * 10_000,
    }


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--trials", type=int, default=None, metavar="N", help="of the largest search")
    options.add_argument("--grow", type=int, default=None, metavar="N", help="measure one growing search alone")
    arguments = options.parse_args()
    if arguments.grow is not None:
        print(msgspec.json.encode(grow(arguments.grow)).decode())
        return
    figures = replay(10_000)
    largest = arguments.trials or (100_000 if arguments.quick else 1_000_000)
    for n_trials in sorted({10_000, largest}):
        command = [sys.executable, "-m", "benchmarks.ledger", "--grow", str(n_trials)]  # nobody else's memory
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        figures |= msgspec.json.decode(done.stdout)
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
