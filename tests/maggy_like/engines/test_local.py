from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from maggy_like import LocalEngine
from maggy_like.engines.base import EngineRun
from maggy_like.errors import ConfigError
from maggy_like.protocol.task import WorkerTask


@pytest.mark.parametrize(("fraction", "workers"), [(1, 2), (0.5, 4), (0.3, 6), (1 / 3, 6), (0.125, 16)])
def test_workers_share_gpus_in_the_fraction_that_each_needs(fraction: float, workers: int) -> None:
    assert LocalEngine(["0", "1"], gpu_fraction=fraction).default_workers() == workers


@pytest.mark.parametrize("fraction", [0, -1, 1.5, True, "half"])
def test_a_fraction_that_is_none_is_told(fraction: object) -> None:
    with pytest.raises(ConfigError, match="gpu_fraction must be above 0 and at most 1"):
        LocalEngine([], gpu_fraction=fraction)  # type: ignore[arg-type]


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
