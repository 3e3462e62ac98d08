"""A race of complete systems on real trainings: what each has found by when, on one machine with two workers each.

    python -m benchmarks.race [--quick] [--seconds S] [--seeds N] [--tasks A,B] [--systems A,B] [--peers-python PATH]
                              [--plot PATH] [--json PATH]

Each system runs a search as its documentation advises (:mod:`benchmarks.race_systems`). The tasks are a network on
handwritten digits, the cross-validation of a boosted model (with `n_jobs=1`, and as users write it), and a small
transformer (:mod:`benchmarks.race_tasks`).
The training functions record each value with its time, so that all systems are measured alike. The clock starts with
the process of the system, as if a user had run its script: imports and the start of Java or Ray count. When the time is
over (30 s by default), the system is stopped. All values recorded by then count, also those of unfinished trainings.

The seeds are the outer loop and the systems the inner one, in an order that rotates with the seed. So a machine that
slows down affects all systems alike. Before that, each system runs until its first value, with each set of libraries:
this reads its files from the disk and is not measured. ``--quick`` takes 10 s, one seed and at most two tasks.

``race.TASK.common`` is the worst of the medians that the systems reach, so a value that all of them reach.
``race.TASK.seconds_to_common.SYSTEM`` is the time until then. A seed that does not reach it counts as the full time.
``race.TASK.time_ratio_to_best`` divides our time by the least of all times; it is missing if we found no value.
``race.TASK.best.SYSTEM`` is the best value, ``race.TASK.trained_epochs.SYSTEM`` the number of values, and
``race.TASK.cpu_s.SYSTEM`` the CPU time of all processes of the system until the end of the search, daemons included.
All figures of a system are medians over the seeds. ``race.lines.SYSTEM`` counts the lines that a user writes.

The others run in an interpreter that has them, with the version of torch that this one has: ``pip install torch
lightgbm scikit-learn "ray[tune]" optuna syne-tune botorch huggingface_hub hyperopt pyspark "pandas<3" setuptools``.
A system whose packages are missing is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.common import parser, publish
from benchmarks.race_systems import SYSTEMS, lines_of
from benchmarks.race_tasks import TASKS
from maggy_like.processes.system import adopt_orphans, children, end_orphans

OURS = "maggy_like"
HERE = (OURS, "random")
"""The systems that this interpreter runs."""

ROOT = Path(__file__).resolve().parents[1]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
LOOK = 0.25
"""Seconds between two measurements of the CPU time."""

GRACE = 3.0
"""Seconds that a system gets to end by itself after the deadline. Nothing in them is measured."""

PATIENCE = 10.0
FIRST_VALUE = 60.0
"""Seconds that a system gets for its first value before the race."""

COLORS = {
    "maggy_like": "#c1272d",
    "optuna": "#0072b2",
    "ray": "#e69f00",
    "syne_tune": "#009e73",
    "spark_trials": "#9467bd",
    "random": "#777777",
}

Array = NDArray[np.float64]


class Run(NamedTuple):
    """One search: seconds since its start and value, for each recorded value in the order of time; and its CPU time."""

    marks: Sequence[tuple[float, float]]
    cpu_s: float


Runs = Mapping[str, Sequence[Run]]
"""The runs of each system, one per seed."""


# -- figures ---------------------------------------------------------------------------------------------


def improvements(run: Run, direction: str) -> list[tuple[float, float]]:
    """Return the times at which a search found a better value, and these values."""
    found: list[tuple[float, float]] = []
    for seconds, value in run.marks:
        if not math.isnan(value) and (not found or is_better(value, found[-1][1], direction)):
            found.append((seconds, value))
    return found


def is_better(value: float, other: float, direction: str) -> bool:
    """Whether a value is better than another one."""
    return value > other if direction == "max" else value < other


def best_of(run: Run, direction: str) -> float:
    """Return the best value of a search; the worst that there can be if it found none."""
    found = improvements(run, direction)
    return found[-1][1] if found else nothing(direction)


def nothing(direction: str) -> float:
    """Return a value that is worse than all others."""
    return -math.inf if direction == "max" else math.inf


def best_over_time(run: Run, direction: str, times: Iterable[float]) -> Array:
    """Return the best value at each of some times."""
    found = improvements(run, direction)
    when = [seconds for seconds, _ in found]
    values = np.array([nothing(direction), *(value for _, value in found)])
    return np.asarray(values[np.searchsorted(when, np.asarray(list(times)), side="right")], dtype=np.float64)


def seconds_to(run: Run, target: float, direction: str, full: float) -> float:
    """Return the time until a search has found a value as good as the target; the full time if it never has."""
    reached = (seconds for seconds, value in improvements(run, direction) if not is_better(target, value, direction))
    return next(reached, full)


def common_value(runs: Runs, direction: str) -> float | None:
    """Return the worst of the median best values, of the systems that have found any."""
    medians = [median_best(of_seeds, direction) for of_seeds in runs.values()]
    finite = [value for value in medians if math.isfinite(value)]
    return (min if direction == "max" else max)(finite, default=None)


def median_best(of_seeds: Sequence[Run], direction: str) -> float:
    """Return the median over the seeds of the best value. It is a value that was found, also of an even number."""
    median = statistics.median_low if direction == "max" else statistics.median_high
    return median(best_of(run, direction) for run in of_seeds)


def figures_of(runs: Mapping[str, Runs], seconds: float) -> dict[str, float]:
    """Compute the figures from the runs of each task."""
    figures: dict[str, float] = {}
    for task, of_task in runs.items():
        direction = TASKS[task].direction
        common = common_value(of_task, direction)
        if common is None:
            continue
        figures[f"race.{task}.common"] = common
        times, bests = {}, {}
        for name, of_seeds in of_task.items():
            times[name] = statistics.median(seconds_to(run, common, direction, seconds) for run in of_seeds)
            bests[name] = median_best(of_seeds, direction)
            figures[f"race.{task}.seconds_to_common.{name}"] = times[name]
            if math.isfinite(bests[name]):
                figures[f"race.{task}.best.{name}"] = bests[name]
            figures[f"race.{task}.cpu_s.{name}"] = statistics.median(run.cpu_s for run in of_seeds)
            figures[f"race.{task}.trained_epochs.{name}"] = statistics.median(len(run.marks) for run in of_seeds)
        if OURS in bests and math.isfinite(bests[OURS]):
            figures[f"race.{task}.time_ratio_to_best"] = times[OURS] / min(times.values())
    return figures


# -- a run -----------------------------------------------------------------------------------------------


def measure(name: str, task: str, seed: int, python: str, seconds: float, *, first_only: bool = False) -> Run:
    """Run a search in a session of its own, and end all that it has started.

    Args:
        name: The system.
        task: The task.
        seed: The seed of the search.
        python: The interpreter that has the system.
        seconds: The time for everything from the start of the process.
        first_only: If True, the search ends after its first value.
    """
    with tempfile.TemporaryDirectory(prefix="race-", ignore_cleanup_errors=True) as folder:
        marks, log = Path(folder, "marks"), Path(folder, "log")
        marks.touch()
        cpu = CpuTime()
        begun = time.monotonic()
        deadline = begun + seconds
        command = [python, "-m", "benchmarks.race_systems", name, str(seed), repr(deadline), folder]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(task, python, folder),
                cwd=folder,
                start_new_session=True,
            )
        try:
            while (now := time.monotonic()) < deadline and process.poll() is None:
                cpu.look()
                reap_orphans(process.pid)
                if first_only and marks.stat().st_size > 0:
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(LOOK, deadline - now))
            cpu.look()
            if not first_only:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
            is_killed = process.poll() is None
            reap_orphans(process.pid)
            left = len(children())
        finally:
            end_orphans((), PATIENCE)
            process.wait(PATIENCE)
        values = sorted(read_marks(marks.read_text(), begun, deadline))
        if not first_only:
            best = best_of(Run(values, 0.0), TASKS[task].direction)
            end = "was killed" if is_killed else f"left {left} processes" if left else "ended"
            print(
                f"{task}, seed {seed}, {name}: best {best:.4f}, {len(values)} values, the first after "
                f"{values[0][0] if values else math.inf:.1f} s, {cpu.seconds:.1f} CPU s, {end}",
                flush=True,
            )
        if not values or not (is_killed or process.returncode == 0):
            print(log.read_text(errors="replace")[-2000:], file=sys.stderr)
    return Run(values, cpu.seconds)


def environment(task: str, python: str, folder: str) -> dict[str, str]:
    """Return the environment of a system: one thread per process, and all temporary files in its folder."""
    return {
        **os.environ,
        **ONE_THREAD,
        "PYTHONPATH": str(ROOT),
        "RACE_TASK": task,
        "RACE_MARKS": str(Path(folder, "marks")),
        "TMPDIR": folder,
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",  # its token would stay in the home folder
        "SYNETUNE_FOLDER": folder,
        "PYSPARK_PYTHON": python,
        "SPARK_LOCAL_DIRS": folder,
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={folder} -XX:-UsePerfData",
    }


def reap_orphans(spared: int) -> None:
    """Wait for the children that have ended: those that a process of the run left to this one."""
    for pid in children():
        if pid != spared:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def read_marks(text: str, begun: float, deadline: float) -> list[tuple[float, float]]:
    """Read the values that were recorded before the deadline, with the seconds since the beginning."""
    lines = (line.split() for line in text.splitlines())
    found = [(float(when), float(value)) for when, value in lines]
    return [(when - begun, value) for when, value in found if when <= deadline]


class CpuTime:
    """The CPU time of all processes below this one.

    A process that was waited for is in the time of its parent. One that nobody waits for (Ray starts such) is only in
    what was measured while it lived. The larger of the two sums counts.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._waited_for = self._of_ended()
        self._seen: dict[tuple[int, float], float] = {}

    def look(self) -> None:
        """Measure now."""
        total = self._of_ended() - self._waited_for
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._seen[process.pid, process.create_time()] = times.user + times.system
                total += times.user + times.system + times.children_user + times.children_system
        self.seconds = max(self.seconds, total, sum(self._seen.values()))

    @staticmethod
    def _of_ended() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


# -- the race --------------------------------------------------------------------------------------------


def versions(python: str) -> dict[str, str]:
    """Return the versions of the packages that matter here and that an interpreter has."""
    names = {package for system in SYSTEMS.values() for package in system.packages}
    names |= {package for task in TASKS.values() for package in task.packages}
    code = f"""
import importlib.metadata, json
found = {{}}
for name in {sorted(names)!r}:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
    found: dict[str, str] = json.loads(
        subprocess.run([python, "-P", "-c", code], capture_output=True, check=True).stdout
    )
    return found


def entrants(names: Sequence[str], tasks: Sequence[str], pythons: Mapping[str, str]) -> list[str]:
    """Return the systems whose packages are installed, and print the others."""
    installed = {python: versions(python) for python in set(pythons.values())}
    for python, found in installed.items():
        who = ", ".join(name for name in names if pythons[name] == python)
        print(f"{who}:", ", ".join(f"{name} {version}" for name, version in found.items()), file=sys.stderr)
    needed = {package for task in tasks for package in TASKS[task].packages}
    entered = []
    for name in names:
        missing = {*SYSTEMS[name].packages, *needed}.difference(installed[pythons[name]])
        if missing:
            print(f"{name}: left out, {', '.join(sorted(missing))} not installed", flush=True)
        else:
            entered.append(name)
    return entered


def draw(runs: Mapping[str, Runs], seconds: float, path: Path) -> None:
    """Plot the best value over time, the median over the seeds, with one panel per task."""
    import matplotlib

    matplotlib.use("agg")

    from matplotlib import pyplot as plt

    times = np.linspace(0.0, seconds, 601)
    figure, axes = plt.subplots(1, len(runs), figsize=(4.0 * len(runs) + 0.4, 3.6), squeeze=False)
    for axis, (task, of_task) in zip(axes.flat, runs.items(), strict=True):
        direction = TASKS[task].direction
        shown = []
        for name, of_seeds in of_task.items():
            curves = np.array([best_over_time(run, direction, times) for run in of_seeds])
            median = np.median(curves, axis=0)
            median[~np.isfinite(median)] = np.nan
            own = name == OURS
            axis.plot(
                times, median, color=COLORS[name], linewidth=1.8 if own else 1.1, label=name, zorder=3 if own else 2
            )
            shown.append(median[times >= seconds / 2])
        values = np.concatenate(shown)
        if np.isfinite(values).any():
            low, high = np.nanmin(values), np.nanmax(values)
            axis.set_ylim(low - 0.05 * (high - low) - 1e-9, high + 0.05 * (high - low) + 1e-9)
        axis.set_xlim(0.0, seconds)
        axis.set_title(f"{task}: {TASKS[task].metric}", fontsize=9)
        axis.grid(alpha=0.25, linewidth=0.5)
        axis.tick_params(labelsize=8)
    figure.supxlabel("seconds since the start of the script", fontsize=9)
    figure.supylabel("best value so far", fontsize=9)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    columns = min(len(labels), 3 * len(runs))
    figure.legend(handles, labels, loc="upper center", ncols=columns, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0.0, 0.0, 1.0, 1.0 - 0.06 * math.ceil(len(labels) / columns)))
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main() -> None:
    """Race, print and plot."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, metavar="S", help="the time of each search (30; 10 with --quick)")
    options.add_argument("--seeds", type=int, metavar="N", help="how many (3; 1 with --quick)")
    options.add_argument("--tasks", default=",".join(TASKS), metavar="A,B", help="only these (%(default)s)")
    options.add_argument("--systems", default=",".join(SYSTEMS), metavar="A,B", help="only these (%(default)s)")
    options.add_argument("--peers-python", default=sys.executable, metavar="PATH", help="the others' interpreter")
    options.add_argument("--plot", type=Path, metavar="PATH", help="draw the best value over time")
    arguments = options.parse_args()
    tasks = names_in(arguments.tasks, TASKS, options)[: 2 if arguments.quick else None]
    systems = names_in(arguments.systems, SYSTEMS, options)
    seconds = arguments.seconds or (10.0 if arguments.quick else 30.0)
    seeds = arguments.seeds or (1 if arguments.quick else 3)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the processes of a run end as with Ctrl-C
    adopt_orphans()
    pythons = {name: sys.executable if name in HERE else arguments.peers_python for name in systems}
    systems = entrants(systems, tasks, pythons)
    if not systems:
        sys.exit("none of the systems is installed; use --peers-python PATH")
    for task in {TASKS[task].packages: task for task in tasks}.values():
        for name in systems:
            measure(name, task, 0, pythons[name], FIRST_VALUE, first_only=True)
    runs: dict[str, dict[str, list[Run]]] = {task: {name: [] for name in systems} for task in tasks}
    for seed in range(seeds):
        first = seed % len(systems)
        for task in tasks:
            for name in (*systems[first:], *systems[:first]):
                runs[task][name].append(measure(name, task, seed, pythons[name], seconds))
    figures = figures_of(runs, seconds) | {f"race.lines.{name}": lines_of(SYSTEMS[name]) for name in systems}
    publish(figures, arguments.json)
    if arguments.plot is not None:
        draw(runs, seconds, arguments.plot)


def names_in(text: str, known: Iterable[str], options: argparse.ArgumentParser) -> list[str]:
    """Read names that are separated by commas."""
    names = text.split(",")
    if unknown := set(names).difference(known):
        options.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
