"""A race of complete systems: what each has found by when, on one machine.

    python -m benchmarks.race [--recorded [--cluster]] [--quick] [--seconds S] [--seeds N] [--tasks A,B] [--systems A,B]
                              [--peers-python PATH] [--curves DIRECTORY] [--runs DIRECTORY] [--plot PATH] [--json PATH]

Each system runs a search as its documentation advises (:mod:`benchmarks.race_systems`). The tasks are a network on
handwritten digits, the cross-validation of a boosted model (with `n_jobs=1`, and as users write it), and a small
transformer (:mod:`benchmarks.race_tasks`), with two workers each.
With ``--recorded``, eight workers each follow predicted learning curves of three data sets, and a full training run
takes 20 s on average. The training functions only sleep, so that two cores are enough for all systems, and what a
system decides matters more than what it costs.

The training functions record each value with its time, so that all systems are measured alike. The clock starts with
the process of the system, as if a user had run its script: imports and the start of Java or Ray count. When the time is
over (30 s by default, 180 s with ``--recorded``), the system is stopped. All values recorded by then count, also those
of unfinished trainings.

The seeds are the outer loop and the systems the inner one, in an order that rotates with the seed. So a machine that
slows down affects all systems alike. Before that, each system runs until its first value, with each set of libraries:
this reads its files from the disk and is not measured. ``--quick`` takes a third of the time, one seed and at most two
tasks.

``race.TASK.common`` is the worst of the medians that the systems reach, so a value that all of them reach.
``race.TASK.seconds_to_common.SYSTEM`` is the time until then. A seed that does not reach it counts as the full time.
``race.TASK.time_ratio_to_best`` divides our time by the least of all times; it is missing if we found no value.
``race.TASK.best.SYSTEM`` is the best value, ``race.TASK.trained_epochs.SYSTEM`` the number of values, and
``race.TASK.cpu_s.SYSTEM`` the CPU time of all processes of the system until the end of the search, daemons included.
All figures of a system are medians over the seeds. ``race.lines.SYSTEM`` counts the lines that a user writes.

``--recorded`` has other figures. ``recorded.DATA.ratio.SYSTEM`` is the time until our search has a value as good as the
final one of the system, divided by the time that the system had. ``recorded.DATA.ratio_to_found.SYSTEM`` divides by
the time at which the system found that value instead. Both pair searches with the same seed, and a value that we do
not reach counts as the full time. ``recorded.DATA.regret.SYSTEM`` is the distance of the best value to the least known
error of the data set, divided by the same distance of the median of random configurations. ``busy.SYSTEM`` is the share
of the time from the first value on that the workers spent in epochs, and ``trainings.SYSTEM`` the number of training
runs that reached the last epoch. ``cpu_s.SYSTEM`` is the CPU time as above. ``processes.SYSTEM`` and
``memory_mb.SYSTEM`` are the largest number of processes and the largest sum of their proportional set sizes (PSS).
``recorded.ratio.SYSTEM`` and the like are means over the data sets, and ``recorded.worst_ratio.SYSTEM`` is the largest
ratio. With ``--cluster``, the systems that run on Spark do so on a standalone cluster: two Workers of four cores.

``--runs DIRECTORY`` keeps each run in a file and takes those that are there already, so a race can be run in parts.

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
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks import lcbench
from benchmarks.common import means, parser, publish
from benchmarks.race_systems import SYSTEMS, lines_of
from benchmarks.race_tasks import TASKS
from benchmarks.tables import CURVES
from maggy_like import StandaloneCluster
from maggy_like.processes.system import adopt_orphans, children, end_orphans

OURS = "maggy_like"
HERE = (OURS, "random")
"""The systems that this interpreter runs."""

ON_SPARK = (OURS, "spark_trials")
ROOT = Path(__file__).resolve().parents[1]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
LOOK = 0.25
"""Seconds between two measurements of the CPU time."""

WEIGH = 5.0
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


class Mark(NamedTuple):
    """A recorded value."""

    when: float
    """Seconds since the start of the search."""

    value: float
    epoch_s: float = 0.0
    """How long its epoch took; 0 if that is not recorded."""

    is_last: bool = False
    """Whether it ends a full training."""


class Run(NamedTuple):
    """One search: its values in the order of time, and what it used."""

    marks: Sequence[Mark]
    cpu_s: float
    processes: int = 0
    """The largest number of processes at a time."""

    memory_mb: float = 0.0
    """The largest sum of the proportional set sizes of all processes."""


Runs = Mapping[str, Sequence[Run]]
"""The runs of each system, one per seed."""


# -- figures ---------------------------------------------------------------------------------------------


def improvements(run: Run, direction: str) -> list[tuple[float, float]]:
    """Return the times at which a search found a better value, and these values."""
    found: list[tuple[float, float]] = []
    for seconds, value, *_ in run.marks:
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


def recorded_figures(runs: Mapping[str, Runs], seconds: float, curves: Path) -> dict[str, float]:
    """Compute the figures of the recorded trainings."""
    by_task = {
        task: recorded_figures_of(
            of_task, seconds, TASKS[task].workers, lcbench.reference(curves, task.removeprefix("recorded-"))
        )
        for task, of_task in runs.items()
    }
    figures = {f"recorded.{name}": value for name, value in means(by_task.values()).items()}
    for name in runs[next(iter(runs))]:
        if ratios := [found[f"ratio.{name}"] for found in by_task.values() if f"ratio.{name}" in found]:
            figures[f"recorded.worst_ratio.{name}"] = max(ratios)
    for task, found in by_task.items():
        figures |= {f"recorded.{task.removeprefix('recorded-')}.{name}": value for name, value in found.items()}
    return figures


def recorded_figures_of(of_task: Runs, seconds: float, workers: int, known: Mapping[str, float]) -> dict[str, float]:
    """Compute the figures of one data set."""
    figures: dict[str, float] = {}
    for name, of_seeds in of_task.items():
        if OURS in of_task and name != OURS:
            targets = [best_of(run, "min") for run in of_seeds]
            times = [seconds_to(run, aim, "min", seconds) for run, aim in zip(of_task[OURS], targets, strict=True)]
            found = [seconds_to(run, aim, "min", seconds) for run, aim in zip(of_seeds, targets, strict=True)]
            figures[f"ratio.{name}"] = statistics.fmean(times) / seconds
            figures[f"ratio_to_found.{name}"] = statistics.fmean(times) / statistics.fmean(found)
        spread = known["median"] - known["best"]
        regrets = [(best_of(run, "min") - known["best"]) / spread for run in of_seeds if run.marks]
        if regrets:
            figures[f"regret.{name}"] = statistics.fmean(regrets)
        figures[f"busy.{name}"] = statistics.fmean(busy_share(run, seconds, workers) for run in of_seeds)
        figures[f"trainings.{name}"] = statistics.fmean(sum(mark.is_last for mark in run.marks) for run in of_seeds)
        figures[f"cpu_s.{name}"] = statistics.fmean(run.cpu_s for run in of_seeds)
        figures[f"processes.{name}"] = max(run.processes for run in of_seeds)
        figures[f"memory_mb.{name}"] = max(run.memory_mb for run in of_seeds)
    return figures


def busy_share(run: Run, seconds: float, workers: int) -> float:
    """Return the share of the time from the start of the first epoch on that the workers spent in epochs."""
    if not run.marks:
        return 0.0
    begun = run.marks[0].when - run.marks[0].epoch_s
    return sum(mark.epoch_s for mark in run.marks) / (workers * (seconds - begun))


# -- a run -----------------------------------------------------------------------------------------------


def measure(name: str, task: str, seed: int, python: str, seconds: float, *, first_only: bool = False) -> Run:
    """Run a search in a session of its own, and end all processes that it has started.

    Args:
        name: The system.
        task: The task.
        seed: The seed of the search.
        python: The interpreter that has the system.
        seconds: The time for everything from the start of the process.
        first_only: If True, the search ends after its first value.
    """
    with tempfile.TemporaryDirectory(prefix="race-", ignore_cleanup_errors=True) as directory:
        marks, log = Path(directory, "marks"), Path(directory, "log")
        marks.touch()
        used = Usage()
        begun = time.monotonic()
        deadline = begun + seconds
        command = [python, "-m", "benchmarks.race_systems", name, str(seed), repr(deadline), directory]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(task, python, directory),
                cwd=directory,
                start_new_session=True,
            )
        try:
            while (now := time.monotonic()) < deadline and process.poll() is None:
                used.look()
                reap_orphans(process.pid)
                if first_only and marks.stat().st_size > 0:
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(LOOK, deadline - now))
            used.look()
            if not first_only:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE)
            is_killed = process.poll() is None
            reap_orphans(process.pid)
            left = len(children())
        finally:
            end_orphans((), PATIENCE)
            process.wait(PATIENCE)
        found = Run(
            sorted(read_marks(marks.read_text(), begun, deadline)), used.seconds, used.processes, used.memory_mb
        )
        values = found.marks
        if not first_only:
            best = best_of(found, TASKS[task].direction)
            end = "was killed" if is_killed else f"left {left} processes" if left else "ended"
            print(
                f"{task}, seed {seed}, {name}: best {best:.4f}, {len(values)} values, the first after "
                f"{values[0].when if values else math.inf:.1f} s, {used.seconds:.1f} CPU s, {end}",
                flush=True,
            )
        if not values or not (is_killed or process.returncode == 0):
            print(log.read_text(errors="replace")[-2000:], file=sys.stderr)
    return found


def environment(task: str, python: str, directory: str) -> dict[str, str]:
    """Return the environment of a system: one thread per process, and all temporary files in its directory."""
    ours = {
        "PYTHONPATH": str(ROOT),
        "RACE_TASK": task,
        "RACE_MARKS": str(Path(directory, "marks")),
        "RACE_CURVES": os.environ["RACE_CURVES"],
    }
    to_executors = [word for item in ours.items() for word in ("--conf", "spark.executorEnv.{}={}".format(*item))]
    return {
        **os.environ,
        **ONE_THREAD,
        **ours,
        "PYSPARK_SUBMIT_ARGS": shlex.join([*to_executors, "pyspark-shell"]),
        "TMPDIR": directory,
        "RAY_TMPDIR": directory,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",  # its token would stay in the home directory
        "SYNETUNE_FOLDER": directory,
        "PYSPARK_PYTHON": python,
        "SPARK_LOCAL_DIRS": directory,
        "JAVA_TOOL_OPTIONS": f"-Djava.io.tmpdir={directory} -XX:-UsePerfData",
    }


def reap_orphans(spared: int) -> None:
    """Wait for the children that have ended: those that a process of the run left to this one."""
    for pid in children():
        if pid != spared:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def read_marks(text: str, begun: float, deadline: float) -> list[Mark]:
    """Read the values that were recorded before the deadline, with the seconds since the beginning."""
    lines = (line.split() for line in text.splitlines())
    found = [
        Mark(float(when) - begun, float(value), float(epoch_s), last == "1") for when, value, epoch_s, last in lines
    ]
    return [mark for mark in found if mark.when <= deadline - begun]


class Usage:
    """The CPU time of all processes below this one, and their largest number and memory at a time.

    A process that was waited for is in the time of its parent. One that nobody waits for (Ray starts such) is only in
    what was measured while it lived. The larger of the two sums counts.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.processes = 0
        self.memory_mb = 0.0
        self._waited_for = self._of_ended()
        self._seen: dict[tuple[int, float], float] = {}
        self._weigh_at = 0.0

    def look(self) -> None:
        """Measure now; number and memory of the processes, which takes longer, every :data:`WEIGH` seconds."""
        total = self._of_ended() - self._waited_for
        living = psutil.Process().children(recursive=True)
        if time.monotonic() >= self._weigh_at:
            self._weigh_at = time.monotonic() + WEIGH
            sizes = [size for size in map(proportional_mb, living) if size > 0]  # an ended process has none
            self.processes = max(self.processes, len(sizes))
            self.memory_mb = max(self.memory_mb, sum(sizes))
        for process in living:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._seen[process.pid, process.create_time()] = times.user + times.system
                total += times.user + times.system + times.children_user + times.children_system
        self.seconds = max(self.seconds, total, sum(self._seen.values()))

    @staticmethod
    def _of_ended() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


def proportional_mb(process: psutil.Process) -> float:
    """Return the memory of a process, of which shared pages count in parts; 0 if it is gone."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        return next(int(line.split()[1]) / 1000 for line in text.splitlines() if line.startswith("Pss:"))
    return 0.0


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
        title = task.replace("recorded-", "LCBench, data set ")
        axis.set_title(f"{title}: {TASKS[task].metric}", fontsize=9)
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
    options.add_argument("--recorded", action="store_true", help="recorded learning curves, with eight workers")
    options.add_argument("--cluster", action="store_true", help="on a standalone Spark cluster of this machine")
    options.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="the time of each search (30, recorded 180)",
    )
    options.add_argument("--seeds", type=int, metavar="N", help="how many (3; 1 with --quick)")
    options.add_argument("--tasks", metavar="A,B", help="only these")
    options.add_argument("--systems", metavar="A,B", help="only these")
    options.add_argument("--peers-python", default=sys.executable, metavar="PATH", help="the others' interpreter")
    options.add_argument(
        "--curves", type=Path, default=CURVES, metavar="DIRECTORY", help=f"where {lcbench.DIRECTORY} lies"
    )
    options.add_argument(
        "--runs", type=Path, metavar="DIRECTORY", help="keep the runs here, and take those that are here"
    )
    options.add_argument("--plot", type=Path, metavar="PATH", help="draw the best value over time")
    arguments = options.parse_args()
    recorded = arguments.recorded
    known = [name for name in TASKS if name.startswith("recorded") == recorded]
    tasks = names_in(arguments.tasks, known, options)[: 2 if arguments.quick else None]
    systems = names_in(arguments.systems, ON_SPARK if arguments.cluster else SYSTEMS, options)
    seconds = arguments.seconds or (180.0 if recorded else 30.0) / (3.0 if arguments.quick else 1.0)
    seeds = arguments.seeds or (1 if arguments.quick else 3)
    if recorded and not (arguments.curves / lcbench.DIRECTORY).is_dir():
        options.error(f"--curves must have {lcbench.DIRECTORY}, got {arguments.curves}; see benchmarks/lcbench.py")
    if arguments.runs is not None:
        arguments.runs.mkdir(parents=True, exist_ok=True)
    os.environ["RACE_CURVES"] = str(arguments.curves.resolve())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the processes of a run end as with Ctrl-C
    pythons = {name: sys.executable if name in HERE else arguments.peers_python for name in systems}
    systems = entrants(systems, tasks, pythons)
    if not systems:
        sys.exit("none of the systems is installed; use --peers-python PATH")
    with StandaloneCluster(2, cores=4) if arguments.cluster else contextlib.nullcontext() as cluster:
        if cluster is not None:
            os.environ["RACE_MASTER"] = cluster.master_url  # its daemons, of other threads, are not ended with a run
        adopt_orphans()
        for task in {TASKS[task].packages: task for task in tasks}.values():
            for name in systems:
                measure(name, task, 0, pythons[name], FIRST_VALUE, first_only=True)
        runs: dict[str, dict[str, list[Run]]] = {task: {name: [] for name in systems} for task in tasks}
        for seed in range(seeds):
            first = seed % len(systems)
            for task in tasks:
                for name in (*systems[first:], *systems[:first]):
                    kept = arguments.runs and arguments.runs / (
                        f"{task}-{'cluster-' * arguments.cluster}{seconds:g}s-{seed}-{name}.json"
                    )
                    if kept is not None and kept.exists():
                        run = run_of(json.loads(kept.read_text()))
                    else:
                        run = measure(name, task, seed, pythons[name], seconds)
                        if kept is not None:
                            kept.write_text(json.dumps(run))
                    runs[task][name].append(run)
    if recorded:
        figures = recorded_figures(runs, seconds, arguments.curves)
    else:
        figures = figures_of(runs, seconds) | {f"race.lines.{name}": lines_of(SYSTEMS[name]) for name in systems}
    publish(figures, arguments.json)
    if arguments.plot is not None:
        draw(runs, seconds, arguments.plot)


def run_of(kept: Sequence[Any]) -> Run:
    """Read a run from JSON."""
    marks, *used = kept
    return Run([Mark(*mark) for mark in marks], *used)


def names_in(text: str | None, known: Iterable[str], options: argparse.ArgumentParser) -> list[str]:
    """Read names that are separated by commas; all that are known if there is no text."""
    names = list(known) if text is None else text.split(",")
    if unknown := set(names).difference(known):
        options.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    return names


if __name__ == "__main__":
    main()
