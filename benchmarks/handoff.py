"""From search to distributed training: how long the workers take to turn round, and what a step then costs.

The hand-off is the time from the end of a search's last trial to the first step of the training that ``train_best``
adds, on the rank where that came last, without the time that the ranks spent in ``init_process_group``.

Steps a second are those of ``benchmarks/handoff_train.py`` on two ranks, each step reported: by ``maggy_like.run``,
and by torchrun with a reporter that stands alone. They take turns, in changing order, and the figure is the median of
the pairs' ratios.

    python -m benchmarks.handoff [--quick] [--json PATH]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from benchmarks import handoff_train
from benchmarks.common import parser, publish
from benchmarks.handoff_train import Marks, train
from maggy_like import Float, lagom, run, spark_session

RANKS = 2
SEARCH_STEPS = 50


def handoff(engine: str) -> float:
    """Search a little, train the best on all workers, and return the seconds between."""
    with tempfile.TemporaryDirectory() as directory:
        result = lagom(
            train,
            {"lr": Float(1e-3, 1e-1, log=True), "directory": directory},
            optimizer="random",
            metric="loss",
            direction="min",
            n_trials=4,
            max_budget=SEARCH_STEPS,
            workers=RANKS,
            train_best=True,
            engine=engine,
            directory=f"{directory}/runs",
            progress=False,
        )
        assert result.training is not None
        assert result.training.world_size == RANKS
        searched, trained = marks_of(directory)
        return max(marks.ready for marks in trained) - max(marks.ended for marks in searched)


def steps_of_run(steps: int) -> float:
    """Steps a second by ``maggy_like.run`` on the processes of this machine."""
    with tempfile.TemporaryDirectory() as directory:
        run(
            train,
            {"directory": directory, "lr": 0.01},
            workers=RANKS,
            budget=steps,
            engine="local",
            directory=f"{directory}/runs",
            progress=False,
        )
        return pace(directory)


def steps_of_torchrun(steps: int) -> float:
    """Steps a second by torchrun."""
    with tempfile.TemporaryDirectory() as directory:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        # Its status is not asked for: some torch versions abort now and then as they exit, with all done and written.
        subprocess.run([*torchrun, handoff_train.__file__, directory, str(steps)], check=False)
        return pace(directory)


def pace(directory: str) -> float:
    """Steps a second of the slower rank of the training that wrote in ``directory``."""
    return min(marks.steps_per_second for marks in marks_of(directory)[1])


def marks_of(directory: str) -> tuple[list[Marks], list[Marks]]:
    """What was written down in ``directory`` by trials of one rank, and by the training of all of them."""
    marks = [msgspec.json.decode(path.read_bytes(), type=Marks) for path in Path(directory).glob("*.json")]
    trained = [mark for mark in marks if mark.ranks == RANKS]
    assert len(trained) == RANKS
    return [mark for mark in marks if mark.ranks == 1], trained


def of_steps(pairs: int, steps: int) -> dict[str, float]:
    """Steps a second by ``maggy_like.run`` and by torchrun, in turns: A B B A A B B A ..."""
    ours, torchruns = [], []
    for pair in range(pairs):
        if pair % 2:
            torchruns.append(steps_of_torchrun(steps))
        ours.append(steps_of_run(steps))
        if not pair % 2:
            torchruns.append(steps_of_torchrun(steps))
    ratios = [our / other for our, other in zip(ours, torchruns, strict=True)]
    return {
        "steps_per_second.run": statistics.median(ours),
        "steps_per_second.torchrun": statistics.median(torchruns),
        "steps_ratio_to_torchrun": statistics.median(ratios),
        "steps_ratio_to_torchrun.min": min(ratios),
        "steps_ratio_to_torchrun.max": max(ratios),
    }


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__).parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # torchrun would choose this for its ranks, with a warning
    repeats, steps = (3, 1500) if arguments.quick else (9, 2500)
    figures = of_steps(repeats, steps)
    seconds = {"handoff_local_s": [handoff("local") for _ in range(repeats)]}
    spark = spark_session(f"local[{RANKS}]", app_name="benchmarks.handoff")
    seconds["handoff_s"] = [handoff("spark") for _ in range(repeats)]
    spark.stop()
    for name, found in seconds.items():
        figures |= {name: statistics.median(found), f"{name}.max": max(found)}
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
