"""A journal that cannot be written any more, refused by the kernel itself."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from maggy_like.journal import place_of, read_journal
from optimizers.events import AttemptStarted, TrialCreated

pytestmark = pytest.mark.e2e

SCRIPT = """
import os, resource, sys
from pathlib import Path
from maggy_like import Float, lagom
from maggy_like.journal.local import LocalPlace

folder, resumes = Path(sys.argv[1]), len(sys.argv) > 2

def train(x, reporter):
    (folder / f"ran-{{x}}").touch()
    for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)

append = LocalPlace.append

def append_while_there_is_room(place, data):  # room for this process; the workers have their own limit
    append(place, data)
    if b'"type":"created"' in data and not resumes:  # between two appends: nothing is written meanwhile
        LocalPlace.append = append
        limit = (folder / "run" / "journal.jsonl").stat().st_size + {room}
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

LocalPlace.append = append_while_there_is_room

result = lagom(train, {{"x": Float(0, 1)}}, optimizer="random", n_trials=8, workers=2, engine="local", max_budget=3,
               name="run", directory=folder, progress=False, resume=resumes)
print(result.ending, *(t.state for t in result.trials), *(len(t.curve) for t in result.trials))
"""

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("room", [2, 777])
def test_a_full_disk_ends_the_search_at_once_and_loses_nothing(
    run_script: RunScript, tmp_path: Path, room: int
) -> None:
    script = SCRIPT.format(room=room)
    failed = run_script(script, tmp_path)
    assert failed.returncode == 1
    assert "resume=True goes on with it" in failed.stderr
    told = rf"JournalError: the journal in {tmp_path}/run cannot be written: .*File too large; make room .* resume=True"
    assert re.search(told, failed.stderr), failed.stderr

    journal = (tmp_path / "run" / "journal.jsonl").read_bytes()
    assert not journal.endswith(b"\n")  # the half of a record
    before = read_journal(place_of(str(tmp_path / "run")))
    started = {event.config["x"] for event in before.events if isinstance(event, AttemptStarted)}
    ran = {float(name.removeprefix("ran-")) for name in os.listdir(tmp_path) if name.startswith("ran-")}
    assert ran <= started  # nothing was sent that depended on what could not be written

    again = run_script(script, tmp_path, "resume")
    assert again.stdout == " ".join(["completed"] * 9 + ["3"] * 8) + "\n", again.stderr
    after = read_journal(place_of(str(tmp_path / "run")))
    assert after.events[: len(before.events)] == before.events
    assert not after.damage
    assert sum(isinstance(event, TrialCreated) for event in after.events) == 8
