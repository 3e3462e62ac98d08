"""Two drivers that start the same new run at the same moment: one must have it, whole, and the other must be told.

They are two processes that stay for all rounds: nothing but a line on a pipe lies between them and the race.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from maggy_like import Float, Reporter, Result, lagom
from maggy_like.errors import MaggyError

ROUNDS, QUICK = 12, 4
TRIALS = 3


def train(x: float, reporter: Reporter) -> None:
    """Save each step."""
    for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)


def measure(quick: bool) -> dict[str, float]:
    """How many starts were raced, and after how many of them one driver had the run and the other a clear refusal."""
    rounds = QUICK if quick else ROUNDS
    good = 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.adversary.races", folder]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as second:  # type: ignore[call-overload]
            rivals = first, second
            for rival in rivals:
                rival.stdout.readline()  # it has loaded all
            for number in range(rounds):
                for rival in rivals:
                    print(f"race-{number}", file=rival.stdin, flush=True)
                ends = [rival.stdout.readline().strip() for rival in rivals]
                is_good = sorted(end.partition(":")[0] for end in ends) == ["refused", "won"]
                good += is_good and is_whole(Path(folder) / f"race-{number}")
                if not is_good:
                    print(f"race {number}: {' | '.join(ends)}")
            for rival in rivals:
                rival.stdin.close()
    return {"start_races": rounds, "start_races.one_winner": good}


def is_whole(run: Path) -> bool:
    """Whether the winner's run has all its states, and goes on."""
    again = start(run, resume=True, n_trials=TRIALS + 1)
    states = {path.parent.name for path in (run / "checkpoints").rglob("*.pkl")}
    return len(states) == completed(again) == TRIALS + 1


def completed(result: Result) -> int:
    """How many trials were trained to the end."""
    return sum(trial.state == "completed" for trial in result.trials)


def start(run: Path, *, resume: bool = False, n_trials: int = TRIALS) -> Result:
    """A search in this process."""
    return lagom(
        train, {"x": Float(0, 1)}, optimizer="random", n_trials=n_trials, max_budget=3, engine="inline",
        directory=run.parent, name=run.name, resume=resume, progress=False, seed=0,
    )  # fmt: skip


def drive(folder: Path) -> None:
    """Start each run whose name comes, and tell how that went."""
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            result = start(folder / line.strip())
            end = f"won: {result}" if completed(result) == TRIALS else f"lost trials: {result}"
        except MaggyError as error:
            # It must leave the winner's alone: nothing is to be removed.
            end = f"misled: {error}" if "remove" in str(error) else f"refused: {error}"
        except Exception as error:
            end = f"broken: {error!r}"
        print(" ".join(end.split()), flush=True)


if __name__ == "__main__":
    drive(Path(sys.argv[1]))
