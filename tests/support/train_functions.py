"""Training functions of the tests, in a module that the workers can import."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from maggy_like import Reporter


def climb(x: float, reporter: Reporter) -> None:
    """Report each step; the value grows with x and with the steps."""
    for step in range(1, reporter.budget + 1):
        reporter.report(score=x * step, step=step)


def climb_on(x: float, reporter: Reporter) -> dict[str, float]:
    """The same from where the last checkpoint was; tells at which step it began."""
    start = (reporter.restore() or 0) + 1
    for step in range(start, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)
    return {"score": x * reporter.budget, "start": start, "pid": os.getpid()}


def climb_with_schedule(directory: str, x: float, reporter: Reporter) -> None:
    """``climb_on``, with a schedule over the budget; leaves a file that is named after the process as it ends."""
    budget = reporter.budget
    try:
        for step in range((reporter.restore() or 0) + 1, budget + 1):
            reporter.checkpoint(step)
            reporter.report(score=x * step, step=step, budget=budget, pid=os.getpid())
    finally:
        Path(directory, str(os.getpid())).touch()


def square(x: float) -> float:
    """Neither read a budget nor report."""
    return x**2


def square_of_reporter(x: float, reporter: Reporter) -> float:
    """Train to the budget, and report nothing."""
    return x**2 / reporter.budget


def square_of_budget(x: float, budget: int) -> dict[str, float]:
    """Train to the budget, and tell it."""
    return {"score": x**2 / budget, "trained": budget}


def talk(x: float) -> float:
    """Print by all the ways there are."""
    print("from print")
    print("from stderr", file=sys.stderr)
    ctypes.CDLL(None).puts(b"from C")
    subprocess.run(["echo", "from a grandchild"], check=True)
    return x


def swallow_everything(x: float, reporter: Reporter) -> None:
    """Keep reporting, and catch whatever a careless training catches."""
    while True:
        try:
            reporter.report(score=x)
        except Exception:
            continue


def hang(x: float) -> None:
    """Never report, never return."""
    threading.Event().wait()


def keep_shared_memory(mark: str, how: str, x: float) -> float:
    """Make shared memory, write its name to a file, and end without removing it: return, be killed, or hang."""
    memory = SharedMemory(create=True, size=1000)
    Path(mark).write_text(memory.name)
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "is cut off":
        hang(x)
    return x


def wait_at_gate(gate: str, x: float, reporter: Reporter) -> float:
    """Report once, then wait until somebody has opened the named pipe for writing."""
    reporter.report(score=x)
    open(gate, "rb").close()
    return x


def climb_on_past_gate(gate: str, x: float, reporter: Reporter) -> dict[str, float]:
    """``climb_on``, once the gate is open."""
    open(gate, "rb").close()
    return climb_on(x, reporter)


def climb_on_past_gate_at(step: int, gate: str, x: float, reporter: Reporter) -> None:
    """``climb_on``; before this step it waits until the gate is open."""
    for at in range((reporter.restore() or 0) + 1, reporter.budget + 1):
        if at == step:
            open(gate, "rb").close()
        reporter.checkpoint(at)
        reporter.report(score=x * at, step=at)


def die_once_before_the_last_report(marks: str, x: float, reporter: Reporter) -> None:
    """Save the last step, and die before it is reported; the second time, live."""
    for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        if step == reporter.budget and not os.path.exists(f"{marks}/died"):
            open(f"{marks}/died", "wb").close()
            os.kill(os.getpid(), signal.SIGKILL)
        reporter.report(score=x * step, step=step)


def read_command_line(x: float) -> float:
    """The number behind ``--lr`` of the driver's command line."""
    return float(sys.argv[sys.argv.index("--lr") + 1])


def leave_exit_hooks(how: str, x: float) -> float:
    """Register a hook that prints, and perhaps one that hangs."""
    atexit.register(print, "from an exit hook")
    if how == "hang":
        atexit.register(threading.Event().wait)
    return x


def look_for_predecessor(directory: str, x: float) -> dict[str, float]:
    """Whether the process of this GPU's last trial is still there."""
    mark = Path(directory) / f"gpu-{os.environ['CUDA_VISIBLE_DEVICES']}"
    alive = mark.exists() and Path(f"/proc/{mark.read_text()}").exists()
    mark.write_text(str(os.getpid()))
    return {"score": x, "alive": float(alive), "gpu": float(os.environ["CUDA_VISIBLE_DEVICES"])}
