"""Ctrl-C in a script, and a driver that is killed: nothing is left running, nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = """
import sys, threading
from maggy_like import Float, lagom

def train(x, reporter):
    reporter.report(score=x)
    reporter.checkpoint(x)
    print("under way", flush=True)
    {wait}

result = lagom(train, {{"x": Float(0, 1)}}, optimizer="random", n_trials=3, workers=2, engine={engine!r},
               max_budget=5, name="run", directory=sys.argv[1], progress="plain", resume=len(sys.argv) > 2)
print("ending", result.ending, "best", result.best_value, "states", *sorted(t.state for t in result.trials))
"""
PATIENT = "threading.Event().wait()"
POLITE = "while not threading.Event().wait(0.05): reporter.report(score=x)"


def start(folder: Path, wait: str, engine: str = "local") -> subprocess.Popen[str]:
    """The script in a process group of its own, once a trial is under way on each worker."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(wait=wait, engine=engine))
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += "under way" in line
        if seen == 2:
            return process
    pytest.fail(f"the script ended early with status {process.wait()}")


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has just ended
        return []


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("wait", [POLITE, PATIENT], ids=["reports", "never reports"])
def test_ctrl_c_gives_the_result_so_far_and_leaves_nothing(tmp_path: Path, wait: str) -> None:
    process = start(tmp_path, wait)
    children = family(process)
    assert len(children) >= 6  # two agents, two fork servers, two trials
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "ending interrupted best 0." in out
    assert "Traceback" not in out
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_ctrl_c_as_the_search_ends_keeps_its_result(tmp_path: Path) -> None:
    """The closing phase is no place to lose a finished search."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "from maggy_like import Float, lagom\n"
        "from maggy_like.gang import Gang\n"
        "leave = Gang.leave\n"
        "def interrupted_leave(self, timeout):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    leave(self, timeout)\n"
        "Gang.leave = interrupted_leave\n"
        "result = lagom(lambda x: x, {'x': Float(0, 1)}, optimizer='random', n_trials=2, engine='local',\n"
        "               directory=sys.argv[1], progress=False)\n"
        "print('ending', result.ending)\n"
    )
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ending completed\n", done.stderr


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    process = start(tmp_path, PATIENT)
    children = family(process)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_a_killed_driver_takes_its_workers_along_and_resume_loses_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, PATIENT)
    children = family(process)
    process.kill()
    process.communicate(timeout=20)
    assert not psutil.wait_procs(children, timeout=10)[1]

    script = (tmp_path / "script.py").read_text().replace(PATIENT, "return reporter.restore() is not None")
    (tmp_path / "again.py").write_text(script)
    again = subprocess.run(
        [sys.executable, str(tmp_path / "again.py"), str(tmp_path), "resume"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "ending completed best 1.0 states completed completed completed" in again.stdout


@pytest.mark.spark
def test_ctrl_c_on_spark_cancels_the_job_and_leaves_no_trial(tmp_path: Path) -> None:
    script = tmp_path / "spark.py"
    session = "from maggy_like import spark_session\nspark = spark_session('local[2]')\n"
    script.write_text(session + SCRIPT.format(wait=PATIENT, engine="spark")
                      + "print('jobs', len(spark.sparkContext.statusTracker().getActiveJobsIds()))\n")  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += "under way" in line
        if seen == 2:
            break
    trials = [p for p in family(process) if "maggy_like.worker.forkserver" in command_of(p)]
    assert len(trials) >= 4  # two fork servers and their children
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert "ending interrupted best 0." in out
    assert "jobs 0" in out
    assert not psutil.wait_procs(trials, timeout=10)[1]
