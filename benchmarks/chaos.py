"""A search under faults beside the same search undisturbed: nothing is lost, and what that costs.

Every 2 seconds a trial breaks (exception, exit, segmentation fault, kill, out of memory, hang, closed descriptors,
a flood of output, things left behind), every 20 seconds a worker does (its child, fork server or agent is killed, or
frozen until it is declared lost; on Spark executors too; what finds nobody to strike, since the driver is just being
started again, comes as soon as it does), strangers knock at the port, and three times the driver is killed and the run
resumed. Meanwhile one callback is slow and another one raises, and nobody reads the driver's stdout before the search
has ended. All drawn by a seed, all real. In the end a driver on an object store stands still inside a put, while
another one takes its run over.

    python -m benchmarks.chaos [--quick] [--engine local|spark|spark-tasks] [--seed N] [--json PATH]

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos_search import FAULTS, RUN, STEPS, WORKERS, note, value
from benchmarks.chaos_takeover import takeover
from benchmarks.common import parser, publish
from maggy_like import StandaloneCluster

MARK = "MAGGY_LIKE_CHAOS"
FROZEN_SECONDS = 20.0
"""Longer than the driver waits for a silent worker: it is declared lost, then wakes."""


@dataclass(frozen=True)
class Supervisor:
    """The processes of a run, as they are now.

    Attributes:
        driver: Runs ``lagom``.
        mark: Value of :data:`MARK` in the environment of all.
    """

    driver: psutil.Process
    mark: str

    def all(self) -> Iterator[psutil.Process]:
        """Every process of the run, wherever it was started."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    yield process

    def fork_servers(self) -> list[psutil.Process]:
        """One of each worker."""
        return [
            process
            for process in self.all()
            if _runs(process, "maggy_like.worker.agent.fork_server") and _is_leader(process)
        ]

    def agents(self) -> list[psutil.Process]:
        """The workers themselves: on Spark its Python workers."""
        return [parent for server in self.fork_servers() if (parent := _parent(server)) is not None]

    def executors(self) -> list[psutil.Process]:
        """Spark's executors."""
        return [process for process in self.all() if _runs(process, "CoarseGrainedExecutorBackend")]


def is_daemon(process: psutil.Process) -> bool:
    """Whether it belongs to the Spark cluster and not to the run."""
    return _runs(process, "org.apache.spark.deploy.master") or _runs(process, "org.apache.spark.deploy.worker.Worker")


def _runs(process: psutil.Process, what: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(what in argument for argument in process.cmdline())
    return False


def _is_leader(process: psutil.Process) -> bool:
    """A fork server and not one of its children, whose command line is the same."""
    parent = _parent(process)
    return parent is not None and not _runs(parent, "maggy_like.worker.agent.fork_server")


def _parent(process: psutil.Process) -> psutil.Process | None:
    with contextlib.suppress(psutil.Error):
        return process.parent()
    return None


def family(process: psutil.Process) -> set[int]:
    """A process and all below it."""
    with contextlib.suppress(psutil.Error):
        return {process.pid, *(child.pid for child in process.children(recursive=True))}
    return {process.pid}


def kill(process: psutil.Process) -> None:
    """``kill -9``; one that has just ended is fine."""
    with contextlib.suppress(psutil.Error):
        process.kill()


def freeze(process: psutil.Process) -> None:
    """``SIGSTOP``, and ``SIGCONT`` once it was declared lost, unless it was killed for that."""

    def wake() -> None:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)

    with contextlib.suppress(psutil.Error):
        process.send_signal(signal.SIGSTOP)
        timer = threading.Timer(FROZEN_SECONDS, wake)
        timer.daemon = True
        timer.start()


def knock(driver: psutil.Process, rng: random.Random) -> None:
    """A stranger at the driver's port: a few kilobytes of nothing that it knows."""
    with contextlib.suppress(psutil.Error, OSError):
        ports = [c.laddr.port for c in driver.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        for port in ports:
            with socket.create_connection(("127.0.0.1", port), timeout=1.0) as stranger:
                stranger.sendall(rng.randbytes(rng.randrange(1, 8192)))


Victim = tuple[psutil.Process, Callable[[psutil.Process], None]]


def draw_victim(kind: str, gang: Supervisor, training: set[int], rng: random.Random) -> Victim | None:
    """Who is struck by a fault of a worker, and how; None if there is nobody just now.

    Args:
        training: Process ids of the trials that run.
    """
    match kind:
        case "child killed":
            found, how = [process for process in gang.all() if process.pid in training], kill
        case "fork server killed":
            found, how = gang.fork_servers(), kill
        case "worker killed":
            found, how = gang.agents(), kill
        case "worker frozen":
            found, how = gang.agents(), freeze
        case "executor killed":
            found, how = [process for process in gang.executors() if family(process) & training], kill
        case _:
            raise ValueError(kind)
    found = [process for process in found if process.pid != os.getpid()]
    return (rng.choice(sorted(found, key=lambda process: process.pid)), how) if found else None


TRIAL_SECONDS = 1.0
DRIVER_KILLS = (0.25, 0.5, 0.75)  # shares of the trials that have ended
TRIAL_FAULT_EVERY = 2.0
WORKER_FAULT_EVERY = 20.0
KNOCK_EVERY = 5.0
LOOK_AGAIN = 0.5
"""Seconds until a fault that finds nobody looks again."""

PATIENCE = 900.0
FINAL = {"completed", "failed", "stopped"}


@dataclass
class Campaign:
    """One search, disturbed or not.

    Attributes:
        folder: All files of it.
        command: Starts its driver.
        n_trials: How many there are.
        blocks_stdout: Whether nobody reads the driver's stdout until it has its result.
        wall: Seconds from its first process to the end of its last driver.
        leftovers: Processes that were still there afterwards.
    """

    folder: Path
    command: list[str]
    n_trials: int
    blocks_stdout: bool = False
    mark: str = field(default_factory=lambda: os.urandom(8).hex())
    wall: float = 0.0
    leftovers: int = 0

    def start(self, *, resume: bool = False) -> subprocess.Popen[bytes]:
        """A driver."""
        with (self.folder / "output.txt").open("ab") as output:
            driver = subprocess.Popen(
                [*self.command, *(["--resume"] if resume else [])],
                env={**os.environ, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.blocks_stdout else output,
                stderr=output,
                start_new_session=True,
            )
        if self.blocks_stdout:
            threading.Thread(target=self._read_late, args=[driver], daemon=True).start()
        return driver

    def _read_late(self, driver: subprocess.Popen[bytes]) -> None:
        assert driver.stdout is not None
        while driver.poll() is None and not (self.folder / "result.json").exists():
            time.sleep(0.1)
        while driver.poll() is None and os.read(driver.stdout.fileno(), 1 << 20):
            pass
        driver.stdout.close()

    def lines(self, name: str) -> list[dict[str, Any]]:
        """What the trials wrote down."""
        path = self.folder / name
        return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def ended(self) -> int:
        """How many trials have come to their end."""
        return len({line["trial"] for line in self.lines("ends.jsonl")})

    @property
    def result(self) -> dict[str, Any]:
        """What the search returned."""
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found


@dataclass
class Monkey:
    """Breaks things at their times.

    Args:
        campaign: The search.
        rng: Draws what and whom.
        worker_faults: Kinds of them.
    """

    campaign: Campaign
    rng: random.Random
    worker_faults: list[str]
    faults: int = 0

    def __post_init__(self) -> None:
        self._trial_kinds = deck(sorted(FAULTS), self.rng)
        self._worker_kinds = deck(self.worker_faults, self.rng)
        self._worker_kind = next(self._worker_kinds)

    def disturb(self, driver: subprocess.Popen[bytes], deadline: float) -> None:
        """Watch the search to its end, killing its driver at three points; faults come meanwhile."""
        kills, begun = list(DRIVER_KILLS), time.time()
        now = time.monotonic()
        every = {"trial": TRIAL_FAULT_EVERY, "worker": WORKER_FAULT_EVERY, "stranger": KNOCK_EVERY}
        due = {what: now + seconds for what, seconds in every.items()}
        while driver.poll() is None:
            now = time.monotonic()
            if now > deadline:
                driver.kill()
                raise SystemExit(f"the search did not end; see {self.campaign.folder / 'output.txt'}")
            if kills and self.campaign.ended() >= kills[0] * self.campaign.n_trials:
                kills.pop(0)
                self._record("driver killed", self._running())
                driver.kill()
                driver.wait()
                driver, begun = self.campaign.start(resume=True), time.time()
                continue
            for what in [what for what, at in due.items() if now >= at]:
                has_begun = sum(start["time"] > begun for start in self.campaign.lines("starts.jsonl")) >= WORKERS
                is_struck = has_begun and self._strike(what, driver)  # a worker that cannot even start ends a search
                due[what] = due[what] + every[what] if is_struck else now + LOOK_AGAIN
            time.sleep(0.05)
        if driver.returncode:
            raise SystemExit(f"the driver failed; see {self.campaign.folder / 'output.txt'}")

    def _strike(self, what: str, driver: subprocess.Popen[bytes]) -> bool:
        """Whether there was somebody to strike."""
        if what == "trial":
            self.faults += 1
            kind = next(self._trial_kinds)
            (self.campaign.folder / "orders" / f"{self.faults}-{kind}.order").touch()
            return True
        gang = Supervisor(psutil.Process(driver.pid), self.campaign.mark)
        if what == "stranger":
            knock(gang.driver, self.rng)
            self._record("stranger", [])
            return True
        running = self._running()
        found = draw_victim(self._worker_kind, gang, {start["pid"] for start in running}, self.rng)
        if found is None:
            return False
        victim, how = found
        hit = family(victim)
        struck = [start for start in running if start["pid"] in hit]
        self._record(self._worker_kind, struck)
        how(victim)
        self._worker_kind = next(self._worker_kinds)
        return True

    def _running(self) -> list[dict[str, Any]]:
        """The newest start of each trial that has not ended."""
        over = {(line["trial"], line["attempt"]) for line in self.campaign.lines("ends.jsonl")}
        newest = {line["trial"]: line for line in self.campaign.lines("starts.jsonl")}
        return [start for start in newest.values() if (start["trial"], start["attempt"]) not in over]

    def _record(self, kind: str, struck: list[dict[str, Any]]) -> None:
        self.faults += 1
        for start in struck or [{"trial": None, "attempt": None}]:
            struck_trial = {"trial": start["trial"], "attempt": start["attempt"]}
            note(self.campaign.folder / "faults.jsonl", fault=f"{self.faults}-{kind}", kind=kind, **struck_trial)


def deck(kinds: list[str], rng: random.Random) -> Iterator[str]:
    """The kinds in a random order, again and again: each comes as often as any other."""
    while True:
        yield from rng.sample(kinds, len(kinds))


def run(campaign: Campaign, monkey: Monkey | None) -> None:
    """From the first process to the last."""
    (campaign.folder / "orders").mkdir(parents=True)
    started = time.monotonic()
    driver = campaign.start()
    try:
        if monkey is None:
            if driver.wait(PATIENCE):
                raise SystemExit(f"the driver failed; see {campaign.folder / 'output.txt'}")
        else:
            monkey.disturb(driver, started + PATIENCE)
        campaign.wall = time.monotonic() - started
    finally:
        campaign.leftovers = sweep(campaign.mark)


def sweep(mark: str) -> int:
    """Processes of a run that are still there five seconds after its end; they are killed."""
    deadline = time.monotonic() + 5.0
    gang = Supervisor(psutil.Process(), mark)
    while (left := [process for process in gang.all() if not is_daemon(process)]) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.2)
    for process in left:
        print("left over:", process.pid, *process.cmdline()[:4], file=sys.stderr)
        process.kill()
    return len(left)


def check(campaign: Campaign) -> dict[str, float]:
    """Hold the journal against what the trials must have measured."""
    journal = campaign.folder / RUN / "journal.jsonl"
    finals: Counter[int] = Counter()
    measured: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for line in map(json.loads, journal.read_bytes().splitlines()):
        if line["type"] == "ended" and line["state"] in FINAL:
            finals[line["trial"]] += 1
        elif line["type"] == "measured":
            steps, values = line["columns"]["value"]
            measured[line["trial"]] += zip(steps, values, strict=True)
    lost = twice = 0
    for number, trial in enumerate(campaign.result["trials"]):
        expected = {(step, value(trial["x"], step)) for step in range(1, STEPS + 1)}
        lost += len(expected - set(measured[number]))
        twice += len(measured[number]) - len(set(measured[number]))
    return {
        "trials": len(campaign.result["trials"]),
        "trials.ended_once": sum(count == 1 for count in finals.values()),
        "trials.completed": sum(trial["state"] == "completed" for trial in campaign.result["trials"]),
        "measurements.lost": lost,
        "measurements.twice": twice,
        "callback.ends": len(ends := [(end["trial"], end["attempt"]) for end in campaign.lines("callback.jsonl")]),
        "callback.ends_twice": len(ends) - len(set(ends)),
        "callback.raised": len(campaign.lines("raised.jsonl")),
    }


def table(campaign: Campaign) -> Iterator[str]:
    """The faults: how many, and how long until the trial that was hit ran again."""
    starts = campaign.lines("starts.jsonl")
    faults: dict[str, set[str]] = defaultdict(set)
    waits: dict[str, list[float]] = defaultdict(list)
    for fault in campaign.lines("faults.jsonl"):
        faults[fault["kind"]].add(fault["fault"])
        again = [s["time"] for s in starts if s["trial"] == fault["trial"] and s["attempt"] > (fault["attempt"] or 0)]
        if again and fault["kind"] != "flood":
            waits[fault["kind"]].append(min(again) - fault["time"])
    yield f"{'fault':<20} {'count':>5} {'median s':>9} {'longest s':>10}   until the trial runs again"
    for kind, numbers in sorted(faults.items()):
        count = len(numbers)
        if waits[kind]:
            yield f"{kind:<20} {count:>5} {statistics.median(waits[kind]):>9.2f} {max(waits[kind]):>10.2f}"
        else:
            yield f"{kind:<20} {count:>5} {'-':>9} {'-':>10}   it went on"


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--engine", choices=["local", "spark", "spark-tasks"], default="local")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the runs' files there")
    arguments = options.parse_args()
    n_trials = 100 if arguments.quick else 300
    seconds = TRIAL_SECONDS * (0.7 if arguments.quick else 1.0)
    on_spark = arguments.engine != "local"
    kinds = ["child killed", "fork server killed", "worker killed"]
    kinds += [] if arguments.quick else ["worker frozen"]
    kinds += ["executor killed"] if on_spark else []
    with contextlib.ExitStack() as stack:
        root = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = [sys.executable, "-m", "benchmarks.chaos_search"]
        options_of_run = ["--trials", str(n_trials), "--seconds", str(seconds), "--engine", arguments.engine]
        campaigns = {}
        for name in ("undisturbed", "disturbed"):
            folder = root / name
            is_disturbed = name == "disturbed"
            campaign = Campaign(folder, [*command, str(folder), *options_of_run], n_trials, blocks_stdout=is_disturbed)
            campaign.command += ["--callbacks"] * is_disturbed
            with contextlib.ExitStack() as cluster_stack:
                if on_spark:
                    os.environ[MARK] = campaign.mark  # the cluster's processes are the run's own, executors among them
                    cluster = cluster_stack.enter_context(StandaloneCluster(2, cores=WORKERS // 2, memory="1g"))
                    conf = {"spark.master": cluster.master_url, **cluster.conf}
                    campaign.command += ["--conf", json.dumps(conf)]
                rng = random.Random(arguments.seed)
                monkey = Monkey(campaign, rng, kinds) if is_disturbed else None
                run(campaign, monkey)
            campaigns[name] = campaign
        calm, wild = campaigns["undisturbed"], campaigns["disturbed"]
        print(*table(wild), sep="\n")
        figures = {
            "faults": len({line["fault"] for line in wild.lines("faults.jsonl")}),
            **check(wild),
            "best_ratio": wild.result["best"] / calm.result["best"],
            "seconds.undisturbed": calm.wall,
            "seconds.disturbed": wild.wall,
            "wall_ratio": wild.wall / calm.wall,
            "leftover_processes": calm.leftovers + wild.leftovers,
            **takeover(root / "takeover"),
        }
        publish(figures, arguments.json)


if __name__ == "__main__":
    main()
