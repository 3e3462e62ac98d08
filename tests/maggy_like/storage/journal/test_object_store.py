"""A run whose journal and checkpoints are in an object store outlives its driver, and its driver's folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.e2e

SCRIPT = """
import sys, threading
from maggy_like import Float, lagom
from optimizers.core.events import AttemptEnded, AttemptStarted

def train(x, reporter):
    for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)
        if {hangs} and x == 0.5 and step == 2:
            print("at step 2", flush=True)
            threading.Event().wait()
    return {{"score": x * reporter.budget}}

def tell(event):
    if isinstance(event, AttemptStarted | AttemptEnded):
        print(type(event).__name__, event.trial, event.attempt, flush=True)

result = lagom(train, {{"x": Float(0, 1)}}, optimizer="random", n_trials=4, workers=2, engine="local", max_budget=3,
               points_to_evaluate=[{{"x": 0.25}}, {{"x": 0.5}}], callbacks=[tell], name="run",
               directory="s3://runs/of-a-killed-driver", store="s3://runs/states", progress="plain",
               resume=len(sys.argv) > 1)
print("states", *(t.state for t in result.trials), "steps", *(len(t.curve) for t in result.trials))
"""

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_killed_driver_s_run_goes_on_from_the_store_alone(
    object_store: dict[str, str], run_script: RunScript, tmp_path: Path
) -> None:
    script = tmp_path / "first.py"
    script.write_text(SCRIPT.format(hangs=True))
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, **object_store}, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if any("at step 2" in text for text in said) and sum("AttemptEnded" in text for text in said) == 3:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
    assert children, "".join(said)
    assert not psutil.wait_procs(children, timeout=300)[1]

    again = run_script(SCRIPT.format(hangs=False), "resume", env=object_store)
    assert "states completed completed completed completed steps 3 3 3 3" in again.stdout, again.stderr
    started = [line for line in again.stdout.splitlines() if line.startswith("AttemptStarted")]
    assert started == ["AttemptStarted 1 2"]  # at once: the lease of a dead process of this host counts for nothing
    listing = run_script(
        "import fsspec; print(*fsspec.filesystem('s3').glob('s3://runs/of-a-killed-driver/run/journal*'))",
        env=object_store,
    )
    assert listing.stdout.split() == [
        f"runs/of-a-killed-driver/run/journal-000001{epoch}.jsonl" for epoch in ("-2.0", "")
    ], listing.stderr
