"""Spark Connect, with a real server in a process of its own."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from maggy_like import ConnectServer
from maggy_like.errors import ConfigError, EngineError

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


def test_a_server_is_no_master_of_another() -> None:
    with pytest.raises(ConfigError, match=r"got master='sc://far:1', .* use spark_session\('sc://far:1'\)"):
        ConnectServer("sc://far:1")


def test_a_server_that_fails_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'no such class:' $2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr("maggy_like.spark.connect_server.ensure_java", lambda: None)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    with pytest.raises(EngineError, match=r"Spark Connect server ended while it started(.|\n)*no such class: org"):
        ConnectServer()
    assert list((tmp_path / "tmp").iterdir()) == []
