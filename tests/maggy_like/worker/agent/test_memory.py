"""Which of the kernel's counters of killed processes is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from maggy_like.worker.agent import template as memory

V2 = "0::/jobs/7\n"
V1 = "9:cpu,cpuacct:/jobs/7\n4:memory:/jobs/7\n0::/\n"
FILES = {
    "jobs/7/memory.events": "oom 1\noom_kill 2\n",
    "memory/jobs/7/memory.oom_control": "under_oom 0\noom_kill 3\n",
    "memory.events": "oom_kill 4\n",
    "memory/memory.oom_control": "oom_kill 5\n",
    "vmstat": "pgfault 1\noom_kill 6\n",
}


@pytest.mark.parametrize(
    ("groups", "files", "kills"),
    [
        (V2, ["jobs/7/memory.events", "vmstat"], 2),
        (V2, ["memory.events", "vmstat"], 4),  # in a container that sees its group as the root, by the host's name
        (V1, ["memory/jobs/7/memory.oom_control", "memory/memory.oom_control", "vmstat"], 3),
        (V1, ["memory/memory.oom_control", "vmstat"], 5),
        (V2, ["vmstat"], 6),
        (None, ["vmstat"], 6),
        (V2, [], 0),
    ],
)
def test_the_own_group_counts_before_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str | None, files: list[str], kills: int
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(FILES[name])
    if groups is not None:
        (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN", tmp_path / "own")
    monkeypatch.setattr(memory, "_MACHINE", tmp_path / "vmstat")
    assert memory.oom_kills() == kills
