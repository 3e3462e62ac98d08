"""What a trial costs beside its training: trials of no work, five reports each, two at once, by us and by others.

``*.trials_per_s`` is from the first trial's first line to the last one's. ``*.cpu_s_per_trial`` is the CPU time of all
processes that a system starts, by what their parents waited for or by a look at them ten times a second, whichever is
more (Ray's daemon waits for none); what a run of two trials takes is taken off first, so that neither counts an import
or a start of Java. ``zmq`` is a bare round trip for each message that a trial needs: one to begin, five reports, one
to end.

    python -m benchmarks.overhead [--peers-python PATH] [--only NAME ...] [--quick] [--json PATH]

The others run in an interpreter that has them: ``pip install "ray[tune]" optuna grpcio protobuf hyperopt pyspark
syne-tune setuptools``. Those that it lacks are left out, and said to be.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import zmq

from benchmarks.common import parser, publish
from benchmarks.dispatch import ECHO
from maggy_like.processes.lifeline import adopt_orphans, children

SYSTEMS = Path(__file__).with_name("overhead_systems.py")
OURS = ("local.process", "local.worker", "spark.process", "spark.worker")
OTHERS = {
    "ray.fresh": "ray",
    "ray.reused": "ray",
    "optuna.sqlite": "optuna",
    "optuna.journal": "optuna",
    "optuna.grpc": "optuna",
    "hyperopt.spark": "hyperopt",
    "syne_tune.local": "syne-tune",
}
"""The package of each."""

SLOW = ("ray.fresh", "hyperopt.spark", "syne_tune.local")
"""Those that need a second or so for a trial: they get a fifth of the trials."""

MESSAGES = 7
PATIENCE = 1200.0


def accounted(command: list[str]) -> float:
    """Run a command; the CPU seconds of all that it started, which has ended or is ended then.

    Raises:
        RuntimeError: It failed.
    """
    accountant = subprocess.run(
        [sys.executable, "-m", "benchmarks.overhead", "--account", *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    if accountant.returncode != 0:
        raise RuntimeError(f"{command}: {(accountant.stdout + accountant.stderr)[-2000:]}")
    return float(accountant.stdout.split()[-1])


def account(command: list[str]) -> int:
    """Run a command, end what it leaves behind, and print the CPU seconds of it all."""
    adopt_orphans()
    seen: dict[tuple[int, float], float] = {}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as process:
        while process.poll() is None:
            look(seen)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
    look(seen)
    for sig in (0, signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + 5.0
        for pid in children():
            os.kill(pid, sig)
        while time.monotonic() < until and children():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            time.sleep(0.01)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(max(used.ru_utime + used.ru_stime, sum(seen.values())))
    return process.returncode


def look(seen: dict[tuple[int, float], float]) -> None:
    """Write down the CPU seconds of each process below this one; the last look at each counts."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seen[process.pid, process.create_time()] = times.user + times.system


def measure(name: str, python: str, trials: int) -> dict[str, float]:
    """The figures of a system."""
    runs = []
    for count in (2, trials):
        with tempfile.TemporaryDirectory() as folder:
            used = accounted([python, str(SYSTEMS), name, str(count), folder])
            runs.append((used, sorted(map(float, Path(folder, "marks").read_text().split()))))
    (used_before, before), (used, begun) = runs
    return {
        f"{name}.trials_per_s": (len(begun) - 1) / (begun[-1] - begun[0]),
        f"{name}.cpu_s_per_trial": (used - used_before) / (len(begun) - len(before)),
        f"{name}.trials": len(begun),
    }


def bare(trials: int) -> dict[str, float]:
    """Round trips of ZeroMQ, two hundred bytes each, between two processes."""
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as echo:
        assert echo.stdout is not None
        port = int(echo.stdout.readline())
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.connect(f"tcp://127.0.0.1:{port}")
            started = time.monotonic()
            for _ in range(trials * MESSAGES):
                socket.send(b"x" * 200)
                socket.recv()
            seconds = time.monotonic() - started
            socket.send(b"end")
    return {"zmq.trials_per_s": trials / seconds}


def versions(python: str) -> dict[str, str]:
    """The packages that an interpreter has, of those that are compared."""
    names = sorted({*OTHERS.values(), "pyspark"})
    code = f"""
import importlib.metadata, json
found = {{}}
for name in {names!r}:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
    found: dict[str, str] = json.loads(subprocess.run([python, "-c", code], capture_output=True, check=True).stdout)
    return found


def main() -> int:
    """Measure and print."""
    if sys.argv[1:2] == ["--account"]:
        return account(sys.argv[2:])
    made = parser(__doc__)
    made.add_argument("--peers-python", default=sys.executable, metavar="PATH", help="an interpreter with the others")
    made.add_argument("--only", nargs="+", choices=[*OURS, *OTHERS], metavar="NAME", help="these alone")
    arguments = made.parse_args()
    trials = 100 if arguments.quick else 200
    there = versions(arguments.peers_python)
    print("beside:", ", ".join(f"{name} {version}" for name, version in there.items()) or "nothing", file=sys.stderr)
    figures = bare(trials)
    for name in arguments.only or [*OURS, *OTHERS]:
        if name in OTHERS and OTHERS[name] not in there:
            print(f"{name}: left out, {OTHERS[name]} is not installed", file=sys.stderr)
            continue
        python = sys.executable if name in OURS else arguments.peers_python
        figures |= measure(name, python, trials // 5 if name in SLOW else trials)
        print(*(f"{key} {value:.4g}" for key, value in figures.items() if key.startswith(name)), file=sys.stderr)
    publish(figures, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
