"""Files of this machine are used as fsspec would, without fsspec."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from maggy_like.errors import ConfigError
from maggy_like.storage.file_systems import modules_for, open_url
from maggy_like.storage.local_files import LocalFiles, absolute_path


def opened(fs: Any, at: str) -> bytes:
    with fs.open(f"{at}/file", "rb") as file:
        return bytes(file.read())


OPERATIONS: dict[str, Callable[[Any, str], Any]] = {
    "a file is read": lambda fs, at: fs.cat_file(f"{at}/file"),
    "a part of it": lambda fs, at: fs.cat_file(f"{at}/file", start=2, end=4),
    "its end": lambda fs, at: fs.cat_file(f"{at}/file", start=3),
    "past its end": lambda fs, at: fs.cat_file(f"{at}/file", start=9, end=20),
    "what is not there": lambda fs, at: fs.cat_file(f"{at}/none"),
    "a directory is read": lambda fs, at: fs.cat_file(f"{at}/directory"),
    "a file is opened": opened,
    "a file is written": lambda fs, at: fs.pipe_file(f"{at}/new", b"new"),
    "a file is replaced": lambda fs, at: fs.pipe_file(f"{at}/file", b"new"),
    "a file is created": lambda fs, at: fs.pipe_file(f"{at}/new", b"new", mode="create"),
    "a file is created twice": lambda fs, at: fs.pipe_file(f"{at}/file", b"new", mode="create"),
    "a file in no directory": lambda fs, at: fs.pipe_file(f"{at}/none/new", b"new"),
    "a file is copied": lambda fs, at: fs.get_file(f"{at}/file", f"{at}/copy"),
    "a file is put": lambda fs, at: fs.put_file(f"{at}/file", f"{at}/copy"),
    "what is not there is copied": lambda fs, at: fs.get_file(f"{at}/none", f"{at}/copy"),
    "a directory is copied": lambda fs, at: fs.get(f"{at}/directory", f"{at}/copy", recursive=True),
    "a file as a directory": lambda fs, at: fs.get(f"{at}/file", f"{at}/copy", recursive=True),
    "a file is moved": lambda fs, at: fs.mv(f"{at}/file", f"{at}/directory/inner"),
    "a directory is moved": lambda fs, at: fs.mv(f"{at}/directory", f"{at}/moved"),
    "what is not there is moved": lambda fs, at: fs.mv(f"{at}/none", f"{at}/moved"),
    "a file is removed": lambda fs, at: fs.rm_file(f"{at}/file"),
    "what is not there is removed": lambda fs, at: fs.rm_file(f"{at}/none"),
    "a directory is removed": lambda fs, at: fs.rm(f"{at}/directory", recursive=True),
    "a link to a directory is removed": lambda fs, at: fs.rm(f"{at}/link", recursive=True),
    "directories are made": lambda fs, at: fs.makedirs(f"{at}/one/two"),
    "a directory is made twice": lambda fs, at: fs.makedirs(f"{at}/directory"),
    "a directory may exist": lambda fs, at: fs.makedirs(f"{at}/directory", exist_ok=True),
    "entries": lambda fs, at: sorted(path.removeprefix(at) for path in fs.ls(at, detail=False)),
    "entries of nothing": lambda fs, at: fs.ls(f"{at}/none", detail=False),
    "what exists": lambda fs, at: [fs.exists(f"{at}/{name}") for name in ("file", "directory", "none", "dangling")],
    "what is a directory": lambda fs, at: [fs.isdir(f"{at}/{name}") for name in ("file", "directory", "none", "link")],
    "a size": lambda fs, at: fs.size(f"{at}/file"),
    "a time": lambda fs, at: fs.modified(f"{at}/file").utcoffset(),
    "a parent": lambda fs, at: (fs._parent(f"{at}/file").removeprefix(at), fs._parent("/a")),
}


def tried(operation: Callable[[Any, str], Any], fs: Any, directory: Path) -> tuple[Any, dict[str, bytes | None]]:
    """What an operation returns or raises in a new directory, and the files and directories that it leaves."""
    (directory / "directory").mkdir(parents=True)
    (directory / "file").write_bytes(b"content")
    (directory / "directory" / "inner").write_bytes(b"inner")
    (directory / "link").symlink_to(directory / "directory")
    (directory / "dangling").symlink_to(directory / "none")
    try:
        outcome = operation(fs, str(directory))
    except OSError as error:
        outcome = type(error)
    left = {str(it.relative_to(directory)): it.read_bytes() if it.is_file() else None for it in directory.rglob("*")}
    return outcome, left


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_like_that_of_fsspec(name: str, tmp_path: Path) -> None:
    ours = tried(OPERATIONS[name], LocalFiles(), tmp_path / "ours")
    assert ours == tried(OPERATIONS[name], LocalFileSystem(), tmp_path / "theirs")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/runs/mine/", "/runs/mine"),
        ("/", "/"),
        ("mine", "{here}/mine"),
        ("./mine", "{here}/mine"),
        ("../mine", "{here}/../mine"),
        ("a::b", "{here}/a::b"),
        ("file:///runs/mine", "/runs/mine"),
        ("local:///runs/100%", "/runs/100%"),
    ],
)
def test_paths_and_urls_of_this_machine_are_paths(
    given: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fs, path = open_url(given)
    assert isinstance(fs, LocalFiles)
    assert path == expected.format(here=tmp_path)


def test_a_path_may_begin_with_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert absolute_path("~/runs") == "/home/ada/runs"


def test_a_relative_path_needs_a_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="the working directory of this process was deleted"):
        open_url("mine")


def test_workers_import_what_serves_a_url_before_their_first_trial(tmp_path: Path) -> None:
    assert modules_for(tmp_path) == ()
    assert modules_for("memory://runs") == ("fsspec.implementations.memory",)


SCRIPT = """
import sys
from maggy_like import lagom, Float

def train(x, reporter):
    reporter.checkpoint({"x": x})
    reporter.report(x)
    return {"value": x, "loaded": [name for name in sys.modules if name.startswith("fsspe")]}

if __name__ == "__main__":
    result = lagom(train, {"x": Float(0, 1)}, optimizer="random", direction="max", n_trials=2, workers=1)
    found = {name for trial in result.trials for name in trial.attributes["loaded"]}
    print(sorted(found | {"fsspec"} & sys.modules.keys()))
"""


@pytest.mark.e2e
def test_a_search_on_this_machine_does_without_fsspec(run_script: Any) -> None:
    done = run_script(SCRIPT)
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr
