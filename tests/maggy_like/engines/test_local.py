from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from maggy_like import LocalEngine
from maggy_like.engines.base import EngineRun
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
