"""Says what a change made slower: the quick benchmarks on the way of a trial, of this tree and of an earlier commit.

Machines differ, so no figures are kept. Each benchmark runs with the code of both, one after the other. If a figure is
worse than the earlier one by more than a fifth, both run again, up to four times in turns, and their least figures
count. What is still slower is printed, and the exit status is 1. Let no other program run at the same time.

By default, the earlier commit is HEAD if there are changes that are not committed, and otherwise the one before it.

    python -m benchmarks.guard [--base COMMIT] [--only NAME[,NAME]]      (make bench)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOLERANCE = 1.2

TURNS = 4
"""Runs of both before a figure counts as slower: on a shared machine one run of the same code differs by a quarter."""

WATCHED = {
    "virtual": ("event_us.10000",),
    "report_cost": ("report_us.median", "report_us.mean"),
    "ledger": ("replay_s_per_10000", "bytes_per_trial", "journal_bytes_per_trial"),
    "real_trial": ("overhead_ms.local.torch.median", "overhead_ms.local.lightgbm.median"),
    "scale": ("driver_us_per_report.1000", "dispatch_median_ms.1000"),
    "dispatch": (
        "local.process.turnaround_ms.median",
        "local.worker.turnaround_ms.median",
        "spark.process.turnaround_ms.median",
        "spark.worker.turnaround_ms.median",
    ),
}
"""The figures that count, by benchmark; smaller is better in each."""

Figures = dict[str, float]


def git(*arguments: str) -> str:
    """What git prints about this tree."""
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        said = f"git {' '.join(arguments)}: {done.stderr.strip()}"
        raise SystemExit(f"benchmarks.guard compares with a commit of this repository; {said}")
    return done.stdout.strip()


def default_base() -> str:
    """HEAD, or the commit before it if nothing has changed since."""
    return "HEAD" if git("status", "--porcelain", "--untracked-files=no") else "HEAD~1"


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A directory with the files of a commit."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory, "tree")
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def measure(name: str, tree: Path) -> Figures:
    """The watched figures of a benchmark with the code in a directory."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "figures.json"
        paths = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--json", str(path)]
        environment = {**os.environ, "PYTHONPATH": paths}
        subprocess.run(command, check=True, cwd=tree, env=environment, stdout=subprocess.DEVNULL)
        found = json.loads(path.read_text())
    return {f"{name}.{key}": found[key] for key in WATCHED[name] if key in found}


def slower(base: Figures, now: Figures) -> list[str]:
    """The figures that are worse than the earlier ones by more than the tolerance."""
    return [key for key, value in now.items() if key in base and value > TOLERANCE * base[key]]


def compare(name: str, tree: Path) -> tuple[Figures, Figures]:
    """The figures of a benchmark with the code of the earlier commit, in ``tree``, and with that of this tree."""
    base, now = measure(name, tree), measure(name, ROOT)
    for _ in range(1, TURNS):
        if not slower(base, now):
            break
        now, base = least(now, measure(name, ROOT)), least(base, measure(name, tree))
    return base, now


def least(one: Figures, other: Figures) -> Figures:
    """The smaller one of each figure."""
    return {key: min(value, other[key]) for key, value in one.items()}


def main() -> int:
    """Measure, compare and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--base", metavar="COMMIT", help="the earlier commit (default: HEAD, or the one before it)")
    options.add_argument("--only", default=",".join(WATCHED), metavar="NAME[,NAME]", help="run these alone")
    arguments = options.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names).difference(WATCHED):
        options.error(f"--only must have names of {', '.join(WATCHED)}, got {', '.join(sorted(unknown))}")
    commit = git("rev-parse", "--short", "--verify", f"{arguments.base or default_base()}^{{commit}}")
    base: Figures = {}
    now: Figures = {}
    with checked_out(commit) as tree:
        for name in names:
            print(f"benchmarks.{name}, {commit} and this tree ...", flush=True)
            earlier, present = compare(name, tree)
            base |= earlier
            now |= present
    worse = slower(base, now)
    width = max(map(len, now))
    for key, value in now.items():
        ratio = f"{value / base[key]:5.2f} of {commit} ({base[key]:.4g})" if key in base else f"not in {commit}"
        print(f"{key:<{width}}  {value:<8.4g}  {ratio}{'  SLOWER' if key in worse else ''}")
    if worse:
        print(f"{len(worse)} of {len(now)} got slower by more than {TOLERANCE - 1:.0%}: {', '.join(worse)}")
    return int(bool(worse))


if __name__ == "__main__":
    sys.exit(main())
