"""The example scripts, run as a user would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.example
def test_quickstart_finds_a_good_network_and_says_where_its_files_are(run_script: Any, tmp_path: Path) -> None:
    done = run_script(EXAMPLES / "quickstart.py", "--trials", 12)
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"accuracy on held-out digits: ([0-9.]+)", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.97
    summary = re.search(r"12 trials \((\d+) completed, (\d+) paused\)", done.stdout)
    assert summary is not None
    assert int(summary[2]) >= 8  # most were cut short
    (run,) = (tmp_path / "maggy_runs").iterdir()
    assert str(run) in done.stdout
    assert (run / "journal.jsonl").exists()


@pytest.mark.spark
def test_spark_standalone_uses_both_gpus(run_script: Any) -> None:
    done = run_script(EXAMPLES / "spark_standalone.py", "--trials", 6)
    assert done.returncode == 0, done.stderr
    assert "trials ran on: GPU 0 of this machine, GPU 1 of this machine" in done.stdout
    assert ": completed after" in done.stdout
