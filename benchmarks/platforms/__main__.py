"""The same search of 20 trials under every setting of Spark that users have: a row each.

    python -m benchmarks.platforms [--quick] [--only NAME[;NAME]] [--json PATH]

Each setting runs in a process of its own, with its own session, and its own cluster where it needs one; the search runs
twice in it. A row says what came of it, the seconds from the call of ``lagom`` to the beginning of the first trial, of
both calls, and the seconds of the whole process. ``--quick`` runs a few of them in about three minutes. The exit status
is 1 where an aim is missed.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common import parser, publish
from benchmarks.platforms.leftovers import MARK, Leftovers
from benchmarks.platforms.outcome import Outcome
from benchmarks.platforms.settings import QUICK, SETTINGS

PATIENCE = 600.0
"""Seconds that a setting gets; one that takes longer is killed."""

CANCEL_AIM = 5.0


def run(name: str, folder: Path) -> Outcome:
    """Run one setting in a process of its own."""
    folder.mkdir()
    (folder / "tmp").mkdir()
    mark, answer, started = os.urandom(8).hex(), folder / "outcome.json", time.monotonic()
    leftovers = Leftovers(mark, folder)
    paths = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    with (folder / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.platforms.row", name, str(answer)],
            cwd=folder,
            env={**os.environ, MARK: mark, "PYTHONPATH": paths, "TMPDIR": str(folder / "tmp")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        status: int | None = None
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            left = leftovers.found()
    if answer.exists():
        outcome = Outcome.read(answer)
    else:
        what = f"exit status {status}" if status is not None else f"not done after {PATIENCE:.0f} s"
        outcome = Outcome([f"{what}: {last_line(folder / 'output.txt')}"])
    outcome.leftovers += left
    outcome.total = time.monotonic() - started
    return outcome


def last_line(path: Path) -> str:
    """The last line of a file that says something."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def compare(outcomes: Mapping[str, Outcome]) -> None:
    """Hold the best values against each other: it is the same search."""
    best = {name: outcome.best for name, outcome in outcomes.items() if not math.isnan(outcome.best)}
    for name, value in best.items():
        if abs(value - next(iter(best.values()))) > 1e-9:
            outcomes[name].wrong.append(f"the best value is {value}, and elsewhere {next(iter(best.values()))}")


def row(name: str, outcome: Outcome) -> str:
    """A line of the table."""
    numbers = [outcome.first, outcome.second, outcome.cancel, outcome.total]
    cells = "".join(f"{'-' if math.isnan(number) else format(number, '.1f'):>9}" for number in numbers)
    said = "; ".join(outcome.wrong + [f"left: {what}" for what in outcome.leftovers]) or "ok"
    return f"{name:<34}{cells}  {said}"


def figures(outcomes: Mapping[str, Outcome]) -> dict[str, float]:
    """The numbers of the whole run."""
    cancels = [outcome.cancel for outcome in outcomes.values() if not math.isnan(outcome.cancel)]
    found: dict[str, float] = {
        "settings": len(outcomes),
        "settings.ok": sum(not outcome.wrong for outcome in outcomes.values()),
        "dynamic.lost": sum(outcome.lost for outcome in outcomes.values()),
        "leftovers": sum(len(outcome.leftovers) for outcome in outcomes.values()),
    }
    if cancels:
        found["cancel.s.max"] = max(cancels)
    for name, outcome in outcomes.items():
        key = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
        seconds = {"first.s": outcome.first, "second.s": outcome.second, "cancel.s": outcome.cancel}
        found |= {f"{key}.{what}": value for what, value in seconds.items() if not math.isnan(value)}
    return found


def missed(found: Mapping[str, float]) -> bool:
    """Whether an aim is missed."""
    is_bad = found["settings.ok"] < found["settings"] or found["dynamic.lost"] or found["leftovers"]
    return bool(is_bad) or found.get("cancel.s.max", 0.0) > CANCEL_AIM


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--only", metavar="NAME[;NAME]", help=f"some of {'; '.join(SETTINGS)}")
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the files of all settings there")
    arguments = options.parse_args()
    chosen = arguments.only.split(";") if arguments.only else QUICK if arguments.quick else tuple(SETTINGS)
    if unknown := [name for name in chosen if name not in SETTINGS]:
        options.error(f"--only={';'.join(unknown)} is no setting; use some of {'; '.join(SETTINGS)}")
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="mgplat") as made:
        root = (arguments.keep or Path(made)).resolve()
        root.mkdir(parents=True, exist_ok=True)
        print(f"{'setting':<34}{'first s':>9}{'second s':>9}{'cancel s':>9}{'total s':>9}  outcome", flush=True)
        for number, name in enumerate(chosen):
            outcomes[name] = run(name, root / str(number))
            print(row(name, outcomes[name]), flush=True)
    compare(outcomes)
    found = figures(outcomes)
    publish(found, arguments.json)
    sys.exit(missed(found))


if __name__ == "__main__":
    main()
