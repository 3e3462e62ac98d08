"""How many workers the local engine starts by itself, and what it says of too many."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from maggy_like.engines import local as cores
from maggy_like.engines.inline import InlineEngine
from maggy_like.engines.local import LocalEngine

V2 = "0::/jobs/7\n"
V1 = "4:cpu,cpuacct:/jobs/7\n3:cpuset:/else\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        (V2, {}, 8),
        (V2, {"jobs/7/cpu.max": "200000 100000\n"}, 2),
        (V2, {"jobs/7/cpu.max": "max 100000\n"}, 8),
        (V2, {"jobs/7/cpu.max": "max 100000\n", "jobs/cpu.max": "300000 100000\n"}, 3),  # of all its parents the least
        (V2, {"jobs/7/cpu.max": "150000 100000\n"}, 2),
        (V2, {"jobs/7/cpu.max": "1000 100000\n"}, 1),
        (V2, {"cpu.max": "400000 100000\n"}, 4),  # in a container that sees its group as the root
        (V1, {"cpu/jobs/7/cpu.cfs_quota_us": "300000\n", "cpu/jobs/7/cpu.cfs_period_us": "100000\n"}, 3),
        (V1, {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "10000\n"}, 5),
        (V1, {"cpu/jobs/7/cpu.cfs_quota_us": "-1\n", "cpu/jobs/7/cpu.cfs_period_us": "100000\n"}, 8),
        (V2, {"jobs/7/cpu.max": "9900000 100000\n"}, 8),  # the affinity is less
        (V2, {"jobs/7/cpu.max": "garbage"}, 8),
        (None, {}, 8),
    ],
)
def test_a_quota_bounds_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str | None, files: dict[str, str], expected: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if groups is not None:
        (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(cores, "_CGROUPS", tmp_path)
    monkeypatch.setattr(cores, "_OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert cores.usable_cores() == LocalEngine([]).default_workers() == expected


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_the_affinity_bounds_the_workers() -> None:
    core = min(os.sched_getaffinity(0))
    script = "from maggy_like import LocalEngine; print(LocalEngine([]).default_workers())"
    done = subprocess.run(
        ["taskset", "-c", str(core), sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"


def test_workers_that_share_few_cores_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.engines.local.usable_cores", lambda: 2)
    assert LocalEngine([]).hints(2) == []
    assert LocalEngine([]).hints(64) == ["64 workers share 2 cores of this machine; with workers=2 each has its own"]
    assert LocalEngine(["0"]).hints(1) == []
    assert InlineEngine().hints(1) == []
