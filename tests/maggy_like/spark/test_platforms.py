"""The same search of 20 trials under every setting of Spark that users have: ``make test-platforms``.

Each setting runs in a process of its own, with its own session, and its own cluster where it needs one. The search runs
twice in it, with the same result everywhere, and nothing stays behind.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from platforms.kubernetes_settings import SETTINGS_ON_KUBERNETES
from platforms.leftovers import MARK, Leftovers
from platforms.searching import Outcome, search
from platforms.settings import QUICK, SETTINGS

PATIENCE = 600.0
"""Seconds that a setting gets; one that takes longer is killed."""

CANCEL_AIM = 5.0
"""Seconds from a cancel to the return of ``lagom``."""

ROOT = Path(__file__).parents[3]
SUPPORT = ROOT / "tests" / "support"


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The best value of the search, which no setting changes."""
    found = search(tmp_path_factory.mktemp("runs"), engine="inline").best_value
    assert found is not None
    return found


def run(name: str, directory: Path) -> tuple[Outcome | None, str, list[str]]:
    """Run one setting in a process of its own: what it came to, what it printed, and what it left behind."""
    (directory / "tmp").mkdir()
    mark, answer = os.urandom(8).hex(), directory / "outcome.json"
    leftovers = Leftovers(mark, directory)
    paths = os.pathsep.join([str(SUPPORT), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with (directory / "output.txt").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "platforms", name, str(answer)],
            cwd=directory,
            env={**os.environ, MARK: mark, "PYTHONPATH": paths, "TMPDIR": str(directory / "tmp")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            left = leftovers.found()
    outcome = Outcome.read(answer) if answer.exists() else None
    return outcome, (directory / "output.txt").read_text(errors="replace"), left


@pytest.mark.spark
@pytest.mark.e2e
@pytest.mark.timeout(PATIENCE + 60)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in QUICK else pytest.mark.platform)
        for name in SETTINGS | SETTINGS_ON_KUBERNETES
    ],
)
def test_a_search_comes_out_the_same_and_leaves_nothing(name: str, best: float, tmp_path: Path) -> None:
    outcome, printed, left = run(name, tmp_path)
    assert outcome is not None, printed[-2000:]
    assert outcome.wrong == []
    assert outcome.leftovers + left == []
    assert outcome.lost == 0
    assert math.isnan(outcome.best) or outcome.best == pytest.approx(best, abs=1e-9)
    assert math.isnan(outcome.cancel) or outcome.cancel < CANCEL_AIM


def test_what_a_process_left_is_found_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platforms.leftovers.PATIENCE", 0.05)  # the process would never leave by itself
    mark = uuid.uuid4().hex
    leftovers = Leftovers(mark, tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.lock").write_text("process 1 on a machine")
    (tmp_path / "journal.lock").touch()  # as one is that was given back
    program = "print('started', flush=True); input()"
    environment = os.environ | {MARK: mark}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()  # just after its start, its environment may still read as empty
        found = leftovers.found()
        assert process.wait(60) < 0
    assert found[0].startswith(f"process {process.pid} ")
    assert f"lock {tmp_path / 'run' / 'journal.lock'}" in found[1:]
    assert f"lock {tmp_path / 'journal.lock'}" not in found
