"""A journal that cannot be written any more, refused by the kernel itself."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from maggy_like.storage.journal import backend_of, read_journal
from optimizers.core.events import AttemptStarted, TrialCreated

pytestmark = pytest.mark.e2e

SCRIPT = """
import os, resource, sys, time
from functools import partial
from pathlib import Path
from maggy_like import Float, lagom
from maggy_like.driver import loop as driver
from maggy_like.driver.loop import WriteAhead
from maggy_like.storage.journal.journal import LocalBackend

folder, resumes = Path(sys.argv[1]), len(sys.argv) > 2
driver.WriteAhead = partial(WriteAhead, patience={patience})

def train(x, reporter):
    (folder / f"ran-{{x}}").touch()
    for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)

append, tries = LocalBackend.append, 0

def append_while_there_is_room(backend, data):  # room for this process; the workers have their own limit
    global tries
    tries += tries > 0
    if tries == {serves_at}:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    append(backend, data)
    if b'"type":"created"' in data and not resumes and not tries:
        tries = 1  # between two appends: nothing is written meanwhile
        limit = (folder / "run" / "journal.jsonl").stat().st_size + {room}
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

LocalBackend.append = append_while_there_is_room

result = lagom(train, {{"x": Float(0, 1)}}, optimizer="random", n_trials=8, workers=2, engine="local", max_budget=3,
               name="run", directory=folder, progress="plain" if {serves_at} else False, resume=resumes)
print("END", result.ending, *(t.state for t in result.trials), *(len(t.curve) for t in result.trials),
      *(t.attempt for t in result.trials))
"""

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_disk_that_is_full_for_a_while_costs_nothing_but_that_while(run_script: RunScript, tmp_path: Path) -> None:
    done = run_script(SCRIPT.format(room=2, patience=600, serves_at=7), tmp_path)
    end = " ".join(["END", *["completed"] * 9, *["3"] * 8, *["1"] * 8])
    assert end in done.stdout.splitlines(), done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    told = rf"the journal in {tmp_path}/run cannot be written: .*File too large; the search waits and tries again"
    assert len(re.findall(told, said)) == 1, said
    assert said.count("the journal can be written again after") == 1
    contents = read_journal(backend_of(str(tmp_path / "run")))
    assert not contents.damage
    assert sum(isinstance(event, TrialCreated) for event in contents.events) == 8


@pytest.mark.parametrize("room", [2, 777])
def test_a_disk_that_stays_full_ends_the_search_and_loses_nothing(
    run_script: RunScript, tmp_path: Path, room: int
) -> None:
    script = SCRIPT.format(room=room, patience=0.5, serves_at=0)
    failed = run_script(script, tmp_path)
    assert failed.returncode == 1
    assert "use resume=True to continue" in failed.stderr
    told = (
        rf"StoreError: the journal in {tmp_path}/run cannot be written: .*File too large, for \d+ s now; free space .*"
    )
    assert re.search(told, failed.stderr), failed.stderr

    before = read_journal(backend_of(str(tmp_path / "run")))
    assert not before.damage  # no half of a record is left
    started = {event.config["x"] for event in before.events if isinstance(event, AttemptStarted)}
    ran = {float(name.removeprefix("ran-")) for name in os.listdir(tmp_path) if name.startswith("ran-")}
    assert ran <= started  # nothing was sent that depended on what could not be written

    again = run_script(script, tmp_path, "resume")
    assert " ".join(["END", *["completed"] * 9, *["3"] * 8]) in again.stdout, again.stderr
    after = read_journal(backend_of(str(tmp_path / "run")))
    assert after.events[: len(before.events)] == before.events
    assert not after.damage
    assert sum(isinstance(event, TrialCreated) for event in after.events) == 8


def test_ctrl_c_ends_the_wait(run_script: RunScript, tmp_path: Path) -> None:
    interrupts = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background would ignore it
refused = WriteAhead._refused
def refuse(self, *args):
    refused(self, *args)
    if self._pause > 0.3:
        os.kill(os.getpid(), signal.SIGINT)
WriteAhead._refused = refuse
"""
    script = SCRIPT.format(room=2, patience=600, serves_at=0).replace("append, tries =", interrupts + "append, tries =")
    failed = run_script(script, tmp_path)
    assert re.search(r"StoreError: the journal in .* cannot be written: .* for \d s now", failed.stderr), failed.stderr
    again = run_script(script, tmp_path, "resume")
    assert " ".join(["END", *["completed"] * 9, *["3"] * 8]) in again.stdout, again.stderr
