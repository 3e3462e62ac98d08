"""From search to distributed training: how long the workers take to turn round, and what a step then costs.

The hand-off is the time from the end of a search's last trial to the first step of the training that ``train_best``
adds, on the rank where that came last, without the time that the ranks spent in ``init_process_group``.

Steps a second are those of ``benchmarks/handoff_train.py`` on two ranks, each step reported: by ``maggy_like.run``,
and by torchrun with a reporter that stands alone. They take turns, in changing order, and the figure is the median of
the pairs' ratios. ``steps_ratio_of_torchrun`` is what the same arithmetic makes of torchrun's own turns, each beside
the one before: what the machine's noise amounts to. ``step_cpu_ratio_to_torchrun`` compares the processor time that a
rank's step takes, on which other load has less influence (smaller is better).

    python -m benchmarks.handoff [--quick] [--json PATH]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks import handoff_train
from benchmarks.common import parser, publish
from benchmarks.handoff_train import Marks, train
from maggy_like import Float, lagom, run, spark_session

RANKS = 2
SCRIPT = Path(handoff_train.__file__)
SEARCH_STEPS = 50


class Pace(NamedTuple):
    """Steps a second of the slower rank, and mean processor seconds of a rank's step."""

    steps_per_second: float
    cpu_per_step: float


def handoff(engine: str, folder: Path) -> dict[str, float]:
    """Search a little, train the best on all workers, and tell the parts of the time between, in seconds."""
    result = lagom(
        train,
        {"lr": Float(1e-3, 1e-1, log=True), "folder": str(folder)},
        optimizer="random",
        metric="loss",
        direction="min",
        n_trials=4,
        max_budget=SEARCH_STEPS,
        workers=RANKS,
        train_best=True,
        engine=engine,
        directory=folder / "runs",
        progress=False,
    )
    assert result.training is not None
    assert result.training.world_size == RANKS
    searched, trained = marks_of(folder)
    ended = max(marks.ended for marks in searched)
    return {
        "total": max(marks.ready for marks in trained) - ended,
        "function": max(marks.started for marks in trained) - ended,
        "process_group": max(marks.group_made - marks.group_begun for marks in trained),
    }


def steps_of_run(folder: Path, steps: int) -> Pace:
    """The pace of ``maggy_like.run`` on the processes of this machine."""
    run(
        train,
        {"folder": str(folder), "lr": 0.01},
        workers=RANKS,
        budget=steps,
        engine="local",
        directory=folder / "runs",
        progress=False,
    )
    return pace(folder)


def steps_of_torchrun(folder: Path, steps: int) -> Pace:
    """The pace of torchrun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    # Its status is not asked for: some torch versions abort now and then as they exit, with all done and written.
    subprocess.run([*torchrun, str(SCRIPT), str(folder), "--steps", str(steps)], check=False)
    return pace(folder)


def pace(folder: Path) -> Pace:
    """The pace of the training that wrote in ``folder``."""
    _, trained = marks_of(folder)
    return Pace(
        min(marks.steps_per_second for marks in trained), statistics.fmean(marks.cpu_per_step for marks in trained)
    )


def marks_of(folder: Path) -> tuple[list[Marks], list[Marks]]:
    """What was written down in ``folder`` by trials of one rank, and by the training of all of them."""
    marks = handoff_train.read(folder)
    trained = [mark for mark in marks if mark.ranks == RANKS]
    assert len(trained) == RANKS
    return [mark for mark in marks if mark.ranks == 1], trained


@contextmanager
def new_folder() -> Iterator[Path]:
    """A folder for the block."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def of_handoffs(engine: str, count: int) -> dict[str, float]:
    """Medians over ``count`` searches, each followed by a training."""
    turns = []
    for _ in range(count):
        with new_folder() as folder:
            turns.append(handoff(engine, folder))
    name = "handoff" if engine == "spark" else f"handoff_{engine}"
    totals = [turn["total"] for turn in turns]
    return {
        f"{name}_s": statistics.median(totals),
        f"{name}_s.max": max(totals),
        f"{name}_s.function_start": statistics.median(turn["function"] for turn in turns),
        f"{name}_s.process_group": statistics.median(turn["process_group"] for turn in turns),
    }


def of_steps(pairs: int, steps: int) -> dict[str, float]:
    """Steps a second by ``maggy_like.run`` and by torchrun, in turns: A B B A A B B A ..."""

    def measured(start: Callable[[Path, int], Pace]) -> Pace:
        with new_folder() as folder:
            return start(folder, steps)

    ours, torchruns = [], []
    for pair in range(pairs):
        for turn in (pair % 2, 1 - pair % 2):
            if turn:
                torchruns.append(measured(steps_of_torchrun))
            else:
                ours.append(measured(steps_of_run))
    pairs_of = list(zip(ours, torchruns, strict=True))
    ratios = [our.steps_per_second / other.steps_per_second for our, other in pairs_of]
    return {
        "steps_per_second.run": statistics.median(our.steps_per_second for our in ours),
        "steps_per_second.torchrun": statistics.median(other.steps_per_second for other in torchruns),
        "steps_ratio_to_torchrun": statistics.median(ratios),
        "steps_ratio_to_torchrun.min": min(ratios),
        "steps_ratio_to_torchrun.max": max(ratios),
        "steps_ratio_of_torchrun": statistics.median(
            after.steps_per_second / before.steps_per_second for before, after in pairwise(torchruns)
        ),
        "step_cpu_ratio_to_torchrun": statistics.median(
            our.cpu_per_step / other.cpu_per_step for our, other in pairs_of
        ),
    }


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # torchrun would choose this for its ranks, with a warning
    figures = of_steps(3 if arguments.quick else 9, 1500 if arguments.quick else 2500)
    figures |= of_handoffs("local", 3 if arguments.quick else 9)
    spark = spark_session(f"local[{RANKS}]", app_name="benchmarks.handoff")
    try:
        figures |= of_handoffs("spark", 3 if arguments.quick else 9)
    finally:
        spark.stop()
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
