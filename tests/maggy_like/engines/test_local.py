from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from maggy_like import LocalEngine
from maggy_like.engines import local as cores
from maggy_like.engines.base import EngineRun
from maggy_like.engines.inline import InlineEngine
from maggy_like.errors import ConfigError, EngineError
from maggy_like.protocol.task import WorkerTask


@pytest.mark.parametrize(("fraction", "workers"), [(1, 2), (0.5, 4), (0.3, 6), (1 / 3, 6), (0.125, 16)])
def test_workers_share_gpus_in_the_fraction_that_each_needs(fraction: float, workers: int) -> None:
    assert LocalEngine(["0", "1"], gpu_fraction=fraction).default_workers() == workers


@pytest.mark.parametrize("fraction", [0, -1, 1.5, True, "half"])
def test_a_fraction_that_is_none_is_told(fraction: object) -> None:
    with pytest.raises(ConfigError, match="gpu_fraction must be above 0 and at most 1"):
        LocalEngine([], gpu_fraction=fraction)  # type: ignore[arg-type]


def test_more_workers_than_there_are_descriptors_for_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maggy_like.engines.local.open_descriptors", lambda: [*range(10)])
    monkeypatch.setattr("maggy_like.engines.local.descriptor_limit", lambda: 60)
    LocalEngine([]).require(16)
    message = "a search with workers=17 needs about 62 open files, and this process may have 60; raise the limit "
    with pytest.raises(EngineError, match=re.escape(f"{message}(ulimit -n 124), or pass workers=16")):
        LocalEngine([]).require(17)


def test_a_gang_that_cannot_be_launched_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = WorkerTask("tcp://127.0.0.1:9", bytes(40), "run", b"", (), (), (), "", "")
    launch, launched = LocalEngine._launch_one, list[EngineRun]()

    def launch_two(engine: LocalEngine, task: WorkerTask, index: int, *where: Any) -> EngineRun:
        if len(launched) == 2:
            raise BlockingIOError("no more processes")
        launched.append(run := launch(engine, task, index, *where))
        return run

    monkeypatch.setattr(LocalEngine, "_launch_one", launch_two)
    with pytest.raises(BlockingIOError):
        LocalEngine([]).launch(task, range(3), 0, [(bytes(40), bytes(40))] * 3, str(tmp_path))
    assert [run.poll() is not None for run in launched] == [True, True]


# -- how many workers the local engine starts by itself, and what it says of too many -------------


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
