"""What a trial costs in memory and in the journal, and what it costs to replay it, as a search grows.

The searches are those of :mod:`benchmarks.virtual`. Each event of one is appended to a real journal in a local
directory, which is then replayed as ``resume=True`` does. The memory is what a process without a journal has grown by,
the history of the optimizer included.

    python -m benchmarks.ledger [--quick] [--json PATH]
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.common import parser, publish
from benchmarks.virtual import WORKERS, study_of, train
from maggy_like import simulate
from maggy_like.driver.recovery import restore as take_up
from maggy_like.driver.state_machine import StateMachine
from maggy_like.processes.garbage import no_collections
from maggy_like.storage.journal import FORMAT_VERSION, Journal, RunHeader, backend_of
from optimizers.core.base import Decision
from optimizers.core.events import Event


def bytes_per_trial(n_trials: int) -> float:
    """What this process grows by in a search without a journal."""
    study = study_of(n_trials)
    gc.collect()
    before = psutil.Process().memory_info().rss
    simulate(study, train, workers=WORKERS)
    gc.collect()
    return (psutil.Process().memory_info().rss - before) / n_trials


def replay(n_trials: int) -> dict[str, float]:
    """The journal of a search: its size, and what it takes to resume it."""
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal(backend_of(directory))
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
        size = (Path(directory) / "journal.jsonl").stat().st_size
        again = study_of(n_trials)
        machine = StateMachine(again, size=WORKERS)
        journal = Journal(backend_of(directory))
        gc.collect()
        began = time.process_time()
        with no_collections():
            hints = take_up(journal, header, machine)
        seconds = time.process_time() - began
        journal.close()
    assert len(again.trials) == n_trials
    assert not hints
    return {"journal_bytes_per_trial": size / n_trials, "replay_s_per_10000": seconds / n_trials * 10_000}


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--grow"]:
        print(bytes_per_trial(int(sys.argv[2])))
        return
    arguments = parser(__doc__).parse_args()
    largest = 100_000 if arguments.quick else 1_000_000
    command = [sys.executable, "-m", "benchmarks.ledger", "--grow", str(largest)]  # nobody else's memory
    grown = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    publish({**replay(10_000), "bytes_per_trial": float(grown)}, arguments.json)


if __name__ == "__main__":
    main()
