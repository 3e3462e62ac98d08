"""Ctrl-C in a script, and a driver that is killed: nothing is left running, nothing is lost."""

from __future__ import annotations

import ctypes
import operator
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from functools import partial
from pathlib import Path

import psutil
import pytest
from family import is_zygote
from faults import words
from terminal import terminal
from wire import wait_for

from maggy_like import lagom
from maggy_like.driver import loop, supervisor
from maggy_like.driver.supervisor import interrupts_to
from maggy_like.engines.inline import waits_end
from maggy_like.errors import StoreError
from maggy_like.storage.journal import Journal

pytestmark = pytest.mark.e2e

SCRIPT = """
import sys, threading
from maggy_like import Float, lagom

def train(x, reporter):
    reporter.checkpoint(x)
    reporter.report(score=x)  # after a checkpoint it goes out at once, before what is printed
    print("under way", flush=True)
    {wait}

result = lagom(train, {{"x": Float(0, 1)}}, optimizer="random", n_trials=3, workers=2, engine={engine!r},
               max_budget=5, name="run", directory=sys.argv[1], progress="plain", resume=len(sys.argv) > 2)
print("ending", result.ending, "best", result.best_value, "states", *sorted(t.state for t in result.trials))
"""
SPARK = """
from maggy_like import spark_session
from spark_jobs import active_jobs
spark = spark_session("local[2]")
"""
PATIENT = "threading.Event().wait()"
POLITE = "while not threading.Event().wait(0.05): reporter.report(score=x)"


def start(directory: Path, wait: str, engine: str = "local") -> subprocess.Popen[str]:
    """The script in a process group of its own, once a trial is under way on each worker."""
    script = directory / "script.py"
    script.write_text(SCRIPT.format(wait=wait, engine=engine))
    process = subprocess.Popen(
        [sys.executable, str(script), str(directory)],
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


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("wait", [POLITE, PATIENT], ids=["reports", "never reports"])
def test_ctrl_c_gives_the_result_so_far_and_leaves_nothing(tmp_path: Path, wait: str) -> None:
    process = start(tmp_path, wait)
    children = family(process)
    assert len(children) >= 6  # two agents, two fork servers, two trials
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "ending interrupted best 0." in out
    assert "Traceback" not in out
    assert not psutil.wait_procs(children, timeout=300)[1]


def test_ctrl_c_as_the_search_ends_keeps_its_result(tmp_path: Path) -> None:
    """The closing phase is no place to lose a finished search."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal, sys\n"
        "from maggy_like import Float, lagom\n"
        "from maggy_like.driver.supervisor import Supervisor\n"
        "leave = Supervisor.leave\n"
        "def interrupted_leave(self, *rest, **options):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    leave(self, *rest, **options)\n"
        "Supervisor.leave = interrupted_leave\n"
        "result = lagom(lambda x: x, {'x': Float(0, 1)}, optimizer='random', n_trials=2, engine='local',\n"
        "               directory=sys.argv[1], progress=False)\n"
        "print('ending', result.ending)\n"
    )
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.stdout == "ending completed\n", done.stderr


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    process = start(tmp_path, PATIENT)
    children = family(process)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=300)
    assert not psutil.wait_procs(children, timeout=300)[1]


STILL = """
import os, sys, threading
from maggy_like import Float, lagom
from maggy_like.driver import loop
from maggy_like.driver.supervisor import Monitor
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.interface import TrialSaid
from maggy_like.errors import StoreError
from maggy_like.storage.journal import Journal, backend_of
from optimizers.core.events import Measured

def train(x, reporter):
    reporter.report(score=x, step=1)
    threading.Event().wait()

def stand(kind, things):
    if any(isinstance(it, kind) for it in things):
        loop.STANDSTILL = 0.5
        stands.set()
        returns.wait()

stands, returns = threading.Event(), threading.Event()

append, handle, interrupted = Journal.append, StateMachine.handle, Monitor.interrupted
Monitor.interrupted = lambda monitor: (interrupted(monitor), os.write(1, b"pressed\\n"))
if "journal" in sys.argv:
    Journal.append = lambda journal, events: (stand(Measured, events), append(journal, events))[1]
else:
    StateMachine.handle = lambda machine, *given: (stand(TrialSaid, given), handle(machine, *given))[1]
try:
    lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=3, workers=2, engine="local", name="run",
          directory=sys.argv[1], progress="plain")
except StoreError as error:
    print("raised", error, "with", len(error.result.trials), "trials")
    returns.set()
    for thread in threading.enumerate():
        if thread.name == "maggy-closing":
            thread.join()
    Journal(backend_of(sys.argv[1] + "/run")).close()  # nobody has it any more
    print("may be resumed")
"""


@pytest.mark.parametrize(
    ("place", "said"),
    [("journal", r"a write to \S*/run has not"), ("scheduler", r"the search has stood still for \d+ s at .*\(stand\)")],
)
def test_a_second_ctrl_c_leaves_a_call_that_does_not_return(tmp_path: Path, place: str, said: str) -> None:
    (tmp_path / "script.py").write_text(STILL)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path), place],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        warned = next(line for line in process.stdout if "press Ctrl-C twice to leave" in line)
        assert re.match(said, warned)
        children = family(process)
        for _ in range(2):
            os.killpg(process.pid, signal.SIGINT)
            next(line for line in process.stdout if "pressed" in line)  # else the second could be lost in the first
        out, _ = process.communicate(timeout=300)
        assert re.search(rf"raised {said}.* then use resume=True with \d trials", out)
        assert out.endswith("may be resumed\n")
        assert process.returncode == 0
        assert not psutil.wait_procs(children, timeout=300)[1]
    finally:
        process.kill()


def test_a_handle_leaves_a_call_that_does_not_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "STANDSTILL", 0.2)
    monkeypatch.setattr(supervisor, "STANDSTILL_CHECK", 0.2)
    append, returns, said = Journal.append, threading.Event(), list[str]()
    monkeypatch.setattr(Journal, "append", lambda *given: (returns.wait(300), append(*given))[1])
    run = lagom(lambda x: x, {"x": [1]}, optimizer="grid", direction="max", engine="local", workers=1,
                directory=tmp_path, progress="plain", block=False)  # fmt: skip
    try:
        wait_for(lambda: said.append(capfd.readouterr().out) or "to leave" in "".join(said))
        run.stop()
        with pytest.raises(StoreError, match="has not returned for"):
            run.result()
    finally:
        returns.set()
    assert re.search(r"a write to \S* has not returned for \d+ s; call stop\(\) of its handle ", "".join(said))


def test_the_exit_leaves_a_call_that_does_not_return(tmp_path: Path) -> None:
    still = STILL.replace("try:\n    lagom(", "run_handle.STANDSTILL = 0.5\ntry:\n    lagom(")
    still = still.replace('progress="plain")', "block=False)").replace("import loop", "import loop, run_handle")
    (tmp_path / "script.py").write_text(f"{still}\nstands.wait()  # else the run would stop before it comes to that\n")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path), "journal"], capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_a_killed_driver_takes_its_workers_along_and_resume_loses_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, PATIENT)
    children = family(process)
    process.kill()
    process.communicate(timeout=300)
    assert not psutil.wait_procs(children, timeout=300)[1]

    script = (
        (tmp_path / "script.py")
        .read_text()
        .replace(PATIENT, "reporter.report(score=2.0 * (reporter.restore() is not None), step=5)")
    )
    (tmp_path / "again.py").write_text(script)
    again = subprocess.run(
        [sys.executable, str(tmp_path / "again.py"), str(tmp_path), "resume"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "ending completed best 2.0 states completed completed completed" in again.stdout


COUNTED = """
import functools, itertools, os, psutil, tempfile, threading
from maggy_like import Float, lagom
from maggy_like.driver import supervisor as watch

interrupted = watch.Monitor.interrupted

presses = itertools.count(1)

def tell(self):
    interrupted(self)
    os.write(1, f"pressed {next(presses)}\\n".encode())

watch.Monitor.interrupted = tell

def train(x, reporter):
    reporter.report(score=x)
    print("under way", flush=True)
    threading.Event().wait()

def words(process):
    "The command line; none of a dead process, whether somebody has waited for it or not, and of a zygote."
    try:
        found = " ".join(process.cmdline()) if process.status() != psutil.STATUS_ZOMBIE else ""
        return "" if "maggy_like.processes.zygote" in found else found  # which the next search uses
    except psutil.Error:  # it has just ended
        return ""

def left():
    "Processes, ports, temporary files, threads and jobs of the search."
    me = psutil.Process()
    workers = [p for p in me.children(recursive=True) if "maggy_like" in words(p)]
    processes = len(psutil.wait_procs(workers, timeout=300)[1])
    ports = sorted(c.laddr.port for c in me.net_connections() if c.status == psutil.CONN_LISTEN)
    jobs = active_jobs(spark) if spark else 0
    return processes, ports, sorted(os.listdir(tempfile.gettempdir())), threading.active_count(), jobs

def search(call=lagom, **options):
    before = left()
    result = call(train, {"x": Float(0, 1)}, optimizer="random", n_trials=3, workers=2, directory="runs",
                   max_budget=5, progress="plain", **options)
    after = left()
    print("ending", result.ending, "trials", len(result.trials), "left", "nothing" if after == before else after,
          flush=True)

"""
LOCAL = "spark = None\n"
PRESS = "search()\n"
STOP = """
from background import Background
background, started = Background(), []

def on_event(event):
    started.append(event)
    if len(started) == 4:  # two trials created, two started
        threading.Thread(target=background.stop).start()

search(functools.partial(background.run, lagom), callbacks=[on_event])
"""
NOTHING_LEFT = r"ending {} trials 2 left nothing"


def freeze_workers(pid: int) -> None:
    """Suspend a driver's children, but for its zygote: that one is to see the driver's end."""
    for process in psutil.Process(pid).children():
        if not is_zygote(process):
            process.suspend()


def test_ctrl_c_in_a_terminal_leaves_nothing(tmp_path: Path) -> None:
    with terminal(tmp_path, COUNTED + LOCAL + PRESS) as shown:
        shown.until("under way", times=2)
        shown.press_ctrl_c()
        shown.until(NOTHING_LEFT.format("interrupted"))
        assert "Traceback" not in shown.text


@pytest.mark.parametrize("first", ["terminate", "press_ctrl_c"])
def test_a_second_ctrl_c_is_quicker_where_workers_do_not_leave(tmp_path: Path, first: str) -> None:
    with terminal(tmp_path, COUNTED + LOCAL + "watch.LEAVE_PATIENCE = 1e6\n" + PRESS) as shown:
        shown.until("under way", times=2)
        freeze_workers(shown.pid)
        getattr(shown, first)()
        shown.until("pressed 1")
        shown.press_ctrl_c()
        shown.until(NOTHING_LEFT.format("interrupted"))  # long before the patience with workers is at its end


@pytest.mark.parametrize("progress", ["terminal", "plain"])
def test_sigterm_is_one_ctrl_c(tmp_path: Path, progress: str) -> None:
    """The result so far is there, the terminal as it was, and how to go on is said."""
    counted = COUNTED.replace('progress="plain"', f'progress={progress!r}, name="august"')
    with terminal(tmp_path, counted + LOCAL + PRESS) as shown:
        shown.until("under way", times=2)
        shown.terminate()
        shown.until("pressed 1")
        shown.until(NOTHING_LEFT.format("interrupted"))
        assert "Traceback" not in shown.text
        _, _, end = shown.text.partition(": interrupted after")
        assert "pass name='august', resume=True to continue it" in end
        assert "about" not in end
        hidden, visible = (shown.text.rfind(code) for code in ("\x1b[?25l", "\x1b[?25h"))
        assert (hidden >= 0) is (progress == "terminal")
        assert visible >= hidden


def test_sigterm_ends_an_inline_search_too(tmp_path: Path) -> None:
    code = SCRIPT.format(wait=PATIENT, engine="inline").replace("workers=2, ", "")
    (tmp_path / "script.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert any("under way" in line for line in process.stdout)
    process.terminate()
    out, _ = process.communicate(timeout=300)
    assert (process.returncode, "ending interrupted" in out) == (0, True), out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_handled_as_before_once_it_is_over(number: signal.Signals) -> None:
    counts: list[int] = []
    before = signal.getsignal(number)
    with interrupts_to(counts.append):
        signal.raise_signal(number)
        signal.raise_signal(number)
    assert (counts, signal.getsignal(number)) == ([1, 2], before)
    signal.signal(number, signal.SIG_IGN)
    try:
        with interrupts_to(counts.append):
            signal.raise_signal(number)
        assert (counts, signal.getsignal(number)) == ([1, 2], signal.SIG_IGN)
    finally:
        signal.signal(number, before)


def raise_interrupt(count: int) -> None:
    raise KeyboardInterrupt


def test_a_signal_that_comes_just_before_a_wait_without_an_end_ends_it() -> None:
    """Nothing handles the signal between the two calls: both are C, and so is what makes them."""
    came = partial(getattr(ctypes.CDLL(None), "raise"), signal.SIGTERM)
    lock = threading.Lock()
    lock.acquire()
    nudges = signal.getsignal(signal.SIGURG)
    with pytest.raises(KeyboardInterrupt), interrupts_to(raise_interrupt), waits_end():
        deque(map(operator.call, [came, lock.acquire]))
    assert signal.getsignal(signal.SIGURG) == nudges
    assert not [thread for thread in threading.enumerate() if thread.name == "maggy-signals"]


def test_whoever_hears_of_signals_hears_of_them_while_waits_end_too() -> None:
    heard, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told)
    try:
        with interrupts_to(lambda _: None), waits_end():
            signal.raise_signal(signal.SIGTERM)
        assert os.read(heard, 1) == bytes([signal.SIGTERM])
    finally:
        assert signal.set_wakeup_fd(before) == told
        os.close(heard)
        os.close(told)


def test_stop_from_another_thread_leaves_nothing(tmp_path: Path) -> None:
    with terminal(tmp_path, COUNTED + LOCAL + STOP) as shown:
        shown.until(NOTHING_LEFT.format("stopped"))


@pytest.mark.spark
def test_ctrl_c_and_stop_on_spark_leave_no_job(tmp_path: Path) -> None:
    with terminal(tmp_path, COUNTED + SPARK + STOP + PRESS) as shown:
        shown.until(NOTHING_LEFT.format("stopped"))
        shown.until("(?s)ending stopped.*under way.*under way")  # the first search may stop before a trial says so
        below = psutil.Process(shown.pid).children(recursive=True)
        trials = [process for process in below if "maggy_like.worker.agent.fork_server" in words(process)]
        assert len(trials) >= 4  # two fork servers and their children
        shown.press_ctrl_c()
        shown.until(NOTHING_LEFT.format("interrupted"))
        assert not psutil.wait_procs(trials, timeout=60)[1]


@pytest.mark.notebook
def test_an_interrupted_notebook_keeps_its_kernel_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_client.manager import run_kernel

    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    shown = ""
    with run_kernel(cwd=str(tmp_path)) as client:
        client.execute(COUNTED + LOCAL + PRESS)
        while not re.search(r"ending .*\n", shown):  # it may come in pieces
            message = client.get_iopub_msg(timeout=300)
            before = shown.count("under way")
            shown += message["content"].get("text", "")
            if before < 2 <= shown.count("under way"):
                client.parent.interrupt_kernel()
    assert re.search(NOTHING_LEFT.format("interrupted"), shown), shown
