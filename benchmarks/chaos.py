"""A search under faults beside the same search undisturbed: nothing is lost, and what that costs.

Every 2 seconds a trial breaks (exception, exit, segmentation fault, kill, out of memory, hang, closed descriptors,
a flood of output, things left behind), every 20 seconds a worker does (its child, fork server or agent is killed, or
frozen until it is declared lost; on Spark executors too; what finds nobody to strike, since the driver is just being
started again, comes as soon as it does), strangers knock at the port, and three times the driver is killed and the run
resumed. Meanwhile one callback is slow and another one raises, and nobody reads the driver's stdout before the search
has ended. All drawn by a seed, all real. In the end a driver on an object store stands still inside a put, while
another one takes its run over.

    python -m benchmarks.chaos [--quick] [--engine local|spark|spark-tasks] [--seed N] [--keep DIRECTORY] [--json PATH]

``spark`` runs on a standalone cluster of two Workers; ``spark-tasks`` is the same without a barrier. ``--quick`` runs
100 trials instead of 300 and freezes nobody (a frozen worker is noticed after 15 seconds).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos_search import FAULTS, RUN, STEPS, WORKERS, note, value
from benchmarks.chaos_takeover import takeover
from benchmarks.common import parser, publish
from maggy_like import StandaloneCluster

MARK = "MAGGY_LIKE_CHAOS"
"""Environment variable of all processes of a run, wherever they were started."""

EVERY = {"trial": 2.0, "worker": 20.0, "stranger": 5.0}
"""Seconds between two faults of a kind."""

LOOK_AGAIN = 0.5
"""Seconds until a fault that finds nobody looks again."""

DRIVER_KILLS = (0.25, 0.5, 0.75)
"""Shares of the trials that have ended."""

FROZEN_SECONDS = 20.0
"""Longer than the driver waits for a silent worker: it is declared lost, then wakes."""

PATIENCE = 900.0
FINAL = {"completed", "failed", "stopped"}
FORK_SERVER, EXECUTOR = "maggy_like.worker.agent.fork_server", "CoarseGrainedExecutorBackend"
DAEMONS = ("org.apache.spark.deploy.master", "org.apache.spark.deploy.worker.Worker")
"""Processes of the Spark cluster, which outlive a run."""


# -- the processes of a run ------------------------------------------------------------------------------


def processes(mark: str, name: str = "") -> list[psutil.Process]:
    """Those that are there now and whose command line has the name."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_marked = process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
            if is_marked and name in " ".join(process.cmdline()):
                found.append(process)
    return found


def workers(mark: str) -> list[tuple[psutil.Process, psutil.Process]]:
    """The agent of each worker (on Spark its Python worker), and its fork server."""
    servers = processes(mark, FORK_SERVER)  # and their children, whose command line is the same
    found = []
    for server in servers:
        with contextlib.suppress(psutil.Error):
            if (agent := server.parent()) is not None and agent not in servers:
                found.append((agent, server))
    return found


def family(process: psutil.Process) -> set[int]:
    """A process and all below it."""
    with contextlib.suppress(psutil.Error):
        return {process.pid, *(child.pid for child in process.children(recursive=True))}
    return {process.pid}


def victims(kind: str, mark: str, training: set[int]) -> list[psutil.Process]:
    """Whom a fault of a worker may strike; ``training`` are the process ids of the trials that run."""
    match kind:
        case "child killed":
            return [process for process in processes(mark) if process.pid in training]
        case "fork server killed":
            return [server for _, server in workers(mark)]
        case "worker killed" | "worker frozen":
            return [agent for agent, _ in workers(mark)]
        case "executor killed":
            return [process for process in processes(mark, EXECUTOR) if family(process) & training]
    raise ValueError(kind)


def freeze(process: psutil.Process) -> None:
    """``SIGSTOP``, and ``SIGCONT`` once it was declared lost, unless it was killed for that."""

    def wake() -> None:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)

    process.send_signal(signal.SIGSTOP)
    timer = threading.Timer(FROZEN_SECONDS, wake)
    timer.daemon = True
    timer.start()


def knock(driver: int, rng: random.Random) -> None:
    """A stranger at the driver's ports: a few kilobytes of nothing that it knows."""
    with contextlib.suppress(psutil.Error, OSError):
        connections = psutil.Process(driver).net_connections("tcp")
        for port in [each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN]:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as stranger:
                stranger.sendall(rng.randbytes(rng.randrange(1, 8192)))


def sweep(mark: str) -> int:
    """Count the processes of a run that are still there five seconds after its end, and kill them."""
    deadline = time.monotonic() + 5.0

    def left() -> list[psutil.Process]:
        daemons = [daemon for name in DAEMONS for daemon in processes(mark, name)]
        return [process for process in processes(mark) if process not in daemons and process.pid != os.getpid()]

    while (found := left()) and time.monotonic() < deadline:
        psutil.wait_procs(found, timeout=0.2)
    for process in found:
        print("left over:", process.pid, *process.cmdline()[:4], file=sys.stderr)
        process.kill()
    return len(found)


# -- a search, disturbed or not --------------------------------------------------------------------------


class Campaign:
    """One search.

    Args:
        directory: All files of it.
        is_disturbed: Whether its callbacks misbehave and nobody reads its driver's stdout until it has its result.
        options: What :mod:`benchmarks.chaos_search` takes besides.

    Attributes:
        mark: Value of :data:`MARK` in the environment of all its processes.
    """

    def __init__(self, directory: Path, *, is_disturbed: bool, **options: Any) -> None:
        self.directory = directory
        self.mark = os.urandom(8).hex()
        self.options = {"directory": str(directory), "callbacks": is_disturbed, **options}

    def start(self, *, resume: bool = False) -> subprocess.Popen[bytes]:
        """A driver."""
        blocks_stdout = self.options["callbacks"]
        options = json.dumps({**self.options, "resume": resume})
        with (self.directory / "output.txt").open("ab") as output:
            driver = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.chaos_search", options],
                env={**os.environ, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if blocks_stdout else output,
                stderr=output,
                start_new_session=True,
            )
        if blocks_stdout:
            threading.Thread(target=self._read_late, args=[driver], daemon=True).start()
        return driver

    def _read_late(self, driver: subprocess.Popen[bytes]) -> None:
        assert driver.stdout is not None
        while driver.poll() is None and not (self.directory / "result.json").exists():
            time.sleep(0.1)
        while driver.poll() is None and os.read(driver.stdout.fileno(), 1 << 20):
            pass
        driver.stdout.close()

    def lines(self, name: str) -> list[dict[str, Any]]:
        """What the trials wrote down."""
        path = self.directory / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def running(self) -> list[dict[str, Any]]:
        """The newest start of each trial that has not ended."""
        over = {(line["trial"], line["attempt"]) for line in self.lines("ends")}
        newest = {line["trial"]: line for line in self.lines("starts")}
        return [start for start in newest.values() if (start["trial"], start["attempt"]) not in over]

    @property
    def result(self) -> dict[str, Any]:
        """What the search returned."""
        found: dict[str, Any] = json.loads((self.directory / "result.json").read_text())
        return found


class Monkey:
    """Breaks things at their times.

    Args:
        campaign: The search.
        seed: Draws what and whom.
        worker_faults: Kinds of them.
    """

    def __init__(self, campaign: Campaign, seed: int, worker_faults: list[str]) -> None:
        self._campaign = campaign
        self._rng = random.Random(seed)
        self._trial_kinds, self._worker_kinds = self._deck(sorted(FAULTS)), self._deck(worker_faults)
        self._worker_kind = next(self._worker_kinds)
        self._faults = 0

    def _deck(self, kinds: list[str]) -> Iterator[str]:
        """The kinds in a random order, again and again: each comes as often as any other."""
        while True:
            yield from self._rng.sample(kinds, len(kinds))

    def disturb(self, driver: subprocess.Popen[bytes], deadline: float) -> subprocess.Popen[bytes]:
        """Watch the search to its end, killing its driver at three points; faults come meanwhile."""
        campaign = self._campaign
        kills, begun = list(DRIVER_KILLS), time.time()
        due = {what: time.monotonic() + seconds for what, seconds in EVERY.items()}
        while driver.poll() is None and (now := time.monotonic()) < deadline:
            ended = len({line["trial"] for line in campaign.lines("ends")})
            if kills and ended >= kills[0] * campaign.options["trials"]:
                kills.pop(0)
                self._record("driver killed", campaign.running())
                driver.kill()
                driver.wait()
                driver, begun = campaign.start(resume=True), time.time()
                continue
            for what in [what for what, at in due.items() if now >= at]:
                has_begun = sum(start["time"] > begun for start in campaign.lines("starts")) >= WORKERS
                is_struck = has_begun and self._strike(what, driver)  # a worker that cannot even start ends a search
                due[what] = due[what] + EVERY[what] if is_struck else now + LOOK_AGAIN
            time.sleep(0.05)
        return driver

    def _strike(self, what: str, driver: subprocess.Popen[bytes]) -> bool:
        """Whether there was somebody to strike."""
        campaign = self._campaign
        if what == "trial":
            self._faults += 1
            (campaign.directory / "orders" / f"{self._faults}-{next(self._trial_kinds)}.order").touch()
            return True
        if what == "stranger":
            knock(driver.pid, self._rng)
            self._record("stranger", [])
            return True
        running = campaign.running()
        found = victims(self._worker_kind, campaign.mark, {start["pid"] for start in running})
        found = sorted((process for process in found if process.pid != os.getpid()), key=lambda process: process.pid)
        if not found:
            return False
        victim = self._rng.choice(found)
        hit = family(victim)
        self._record(self._worker_kind, [start for start in running if start["pid"] in hit])
        with contextlib.suppress(psutil.Error):  # it may just have ended
            if self._worker_kind == "worker frozen":
                freeze(victim)
            else:
                victim.kill()
        self._worker_kind = next(self._worker_kinds)
        return True

    def _record(self, kind: str, struck: list[dict[str, Any]]) -> None:
        self._faults += 1
        for start in struck or [{"trial": None, "attempt": None}]:
            struck_trial = {"trial": start["trial"], "attempt": start["attempt"]}
            note(self._campaign.directory / "faults.jsonl", fault=f"{self._faults}-{kind}", kind=kind, **struck_trial)


def run(campaign: Campaign, monkey: Monkey | None) -> tuple[float, float, int]:
    """Run a search.

    Returns:
        Seconds from its first process to the end of its last trial, from then to the end of its last driver, in which
        slow callbacks catch up, and the number of processes that were left then.
    """
    (campaign.directory / "orders").mkdir(parents=True)
    begun, started = time.time(), time.monotonic()
    driver = campaign.start()
    try:
        if monkey is not None:
            driver = monkey.disturb(driver, started + PATIENCE)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(max(0.0, started + PATIENCE - time.monotonic()))
        seconds = time.monotonic() - started
        if driver.returncode != 0:
            raise SystemExit(
                f"the search did not end, or failed; see {campaign.directory / 'output.txt'} (--keep DIRECTORY)"
            )
    finally:
        left = sweep(campaign.mark)
    searched = max(end["time"] for end in campaign.lines("ends")) - begun
    return searched, seconds - searched, left


# -- what came of it -------------------------------------------------------------------------------------


def check(campaign: Campaign) -> dict[str, float]:
    """Hold the journal against what the trials must have measured."""
    journal = campaign.directory / RUN / "journal.jsonl"
    finals: Counter[int] = Counter()
    measured: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for line in map(json.loads, journal.read_bytes().splitlines()):
        if line["type"] == "ended" and line["state"] in FINAL:
            finals[line["trial"]] += 1
        elif line["type"] == "measured":
            steps, values = line["columns"]["value"]
            measured[line["trial"]] += zip(steps, values, strict=True)
    trials = campaign.result["trials"]
    lost = twice = 0
    for number, trial in enumerate(trials):
        expected = {(step, value(trial["x"], step)) for step in range(1, STEPS + 1)}
        lost += len(expected - set(measured[number]))
        twice += len(measured[number]) - len(set(measured[number]))
    ends = [(end["trial"], end["attempt"]) for end in campaign.lines("callback")]
    return {
        "trials": len(trials),
        "trials.ended_once": sum(count == 1 for count in finals.values()),
        "trials.completed": sum(trial["state"] == "completed" for trial in trials),
        "measurements.lost": lost,
        "measurements.twice": twice,
        "callback.ends": len(ends),
        "callback.ends_twice": len(ends) - len(set(ends)),
        "callback.raised": len(campaign.lines("raised")),
    }


def print_faults(campaign: Campaign) -> None:
    """The faults: how many, and how long until the trial that was hit ran again."""
    starts = campaign.lines("starts")
    faults: dict[str, set[str]] = defaultdict(set)
    waits: dict[str, list[float]] = defaultdict(list)
    for fault in campaign.lines("faults"):
        faults[fault["kind"]].add(fault["fault"])
        again = [s["time"] for s in starts if s["trial"] == fault["trial"] and s["attempt"] > (fault["attempt"] or 0)]
        if again and fault["kind"] != "flood":
            waits[fault["kind"]].append(min(again) - fault["time"])
    print(f"{'fault':<20} {'count':>5} {'median s':>9} {'longest s':>10}   until the trial runs again")
    for kind, numbers in sorted(faults.items()):
        times = "        -          -   it went on"
        if waits[kind]:
            times = f"{statistics.median(waits[kind]):>9.2f} {max(waits[kind]):>10.2f}"
        print(f"{kind:<20} {len(numbers):>5} {times}")


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--engine", choices=["local", "spark", "spark-tasks"], default="local")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--keep", type=Path, metavar="DIRECTORY", help="keep the runs' files there")
    arguments = options.parse_args()
    trials, seconds = (100, 0.7) if arguments.quick else (300, 1.0)
    kinds = ["child killed", "fork server killed", "worker killed"]
    kinds += [] if arguments.quick else ["worker frozen"]
    kinds += [] if arguments.engine == "local" else ["executor killed"]
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.keep or Path(temporary)
        campaigns: dict[str, Campaign] = {}
        searched: dict[str, float] = {}
        leftovers = 0
        for name in ("undisturbed", "disturbed"):
            is_disturbed = name == "disturbed"
            campaign = campaigns[name] = Campaign(
                root / name, is_disturbed=is_disturbed, trials=trials, seconds=seconds, engine=arguments.engine
            )
            monkey = Monkey(campaign, arguments.seed, kinds) if is_disturbed else None
            with contextlib.ExitStack() as stack:
                if arguments.engine != "local":
                    os.environ[MARK] = campaign.mark  # the cluster's processes are the run's own, executors among them
                    cluster = stack.enter_context(StandaloneCluster(2, cores=WORKERS // 2, memory="1g"))
                    campaign.options["conf"] = {"spark.master": cluster.master_url, **cluster.conf}
                searched[name], catching_up, left = run(campaign, monkey)
                leftovers += left
        calm, wild = campaigns["undisturbed"], campaigns["disturbed"]
        print_faults(wild)
        figures = {
            "faults": len({line["fault"] for line in wild.lines("faults")}),
            **check(wild),
            "best_ratio": wild.result["best"] / calm.result["best"],
            "seconds.undisturbed": searched["undisturbed"],
            "seconds.disturbed": searched["disturbed"],
            "search_ratio": searched["disturbed"] / searched["undisturbed"],
            "seconds.callbacks_catch_up": catching_up,
            "leftover_processes": leftovers,
            **takeover(root / "takeover"),
        }
        publish(figures, arguments.json)


if __name__ == "__main__":
    main()
