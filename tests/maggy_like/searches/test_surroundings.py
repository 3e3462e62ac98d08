"""Where people start their searches: odd module paths, few descriptors, no /proc, a directory that is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import train_functions as fns

from maggy_like import Float, lagom
from maggy_like.errors import ConfigError

pytestmark = pytest.mark.e2e

HELPER = """
import os, sys

def allowed(config):
    return config["x"] > 0.1

def train(x):
    assert sys.argv[1:] == [*map(os.fsdecode, {arguments})]
    assert os.environb.get(b"ODD") == {odd}
    assert os.path.exists("script.py")  # under the name that it has in the caller's working directory
    return x
"""

SCRIPT = """
import os, resource, sys
from pathlib import Path

import helper
from maggy_like import Float, SearchSpace, lagom, load_run

if __name__ == "__main__":
    exec(os.environ["FIRST"])
    space, path = SearchSpace(x=Float(0, 1)).where(helper.allowed), os.fsdecode({directory})
    options = dict(optimizer="bayesian", direction="max", name="odd", directory=path, engine="local", progress="plain")
    result = lagom(helper.train, space, n_trials=12, workers=2, **options)
    print(result)
    assert len(result.trials) == 12 and not result.failures
    assert lagom(helper.train, space, n_trials=13, workers=1, resume=True, **options).counts
    print(len(load_run(os.path.join(path, "odd")).trials))
"""


def search(
    place: bytes,
    *,
    first: str = "",
    arguments: tuple[bytes, ...] = (),
    environment: dict[bytes, bytes] | None = None,
    directory: bytes = b"runs",
    prefix: tuple[str, ...] = (),
) -> None:
    """Run a script in a directory that searches with an optimizer in its own process, resumes and reads the run."""
    environment = environment or {}
    os.makedirs(place)
    helper = HELPER.format(arguments=arguments, odd=environment.get(b"ODD"))
    for name, text in ((b"helper.py", helper), (b"script.py", SCRIPT.format(directory=directory))):
        with open(os.path.join(place, name), "w") as file:
            file.write(text)
    done = subprocess.run(
        [*map(os.fsencode, (*prefix, sys.executable)), b"script.py", *arguments],
        cwd=place,
        env={**os.environb, b"FIRST": first.encode(), b"PYTHONIOENCODING": b"utf-8:strict", **environment},
        capture_output=True,
        timeout=300,
    )
    said = (done.stdout + done.stderr).decode(errors="backslashreplace")
    assert done.returncode == 0, said
    assert done.stdout.split()[-1] == b"13", said


ODD = """
from maggy_like import warm_up
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
os.mkdir("beside")
for name in ("sitecustomize", "enum", "functools", "re", "runpy", "types", "warnings"):
    Path("beside", f"{name}.py").write_text("raise ImportError('of the script, not of Python')")
sys.path.insert(0, os.path.abspath("beside"))  # Python has imported its own before it searches this
sys.path.insert(0, Path("src"))
warm_up("json")
"""


@pytest.mark.long
def test_few_descriptors_names_that_are_not_utf_8_and_modules_named_like_python_s(tmp_path: Path) -> None:
    """Workers and the optimizer's process find modules where Python does, and no others."""
    directory, odd = os.fsencode(tmp_path) + b"/13:00:00 caf\xe9", {b"ODD": b"caf\xe9", b"N\xe9": b"x"}
    search(directory, first=ODD, arguments=(b"d\xe9j\xe0.csv",), environment=odd, directory=b"vu\xe9")


def test_a_result_in_such_a_directory_is_shown_and_reported(tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_trials": 2, "max_budget": 2, "engine": "inline", "metric": "score", "progress": False}
    result = lagom(fns.climb_on, {"x": Float(0, 1)}, direction="max", directory=f"{tmp_path}/caf\udce9", **options)
    assert r"caf\udce9" in repr(result)
    result.report(str(tmp_path / "report.html"))
    assert r"caf\udce9" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_store_that_the_journal_cannot_record_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="store must be a directory whose path is UTF-8, since the journal"):
        lagom(fns.talk, {"x": Float(0, 1)}, n_trials=2, directory=str(tmp_path), store=f"{tmp_path}/caf\udce9")
    assert not list(tmp_path.iterdir())


WITHOUT_PROC = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh")


def can_hide_proc() -> bool:
    return (
        shutil.which("unshare") is not None
        and not subprocess.run([*WITHOUT_PROC, "true"], capture_output=True).returncode
    )


@pytest.mark.long
def test_a_search_needs_no_proc(tmp_path: Path) -> None:
    if not can_hide_proc():
        pytest.skip("this user cannot hide /proc from a process")
    search(os.fsencode(tmp_path / "hidden"), prefix=WITHOUT_PROC)


@pytest.mark.parametrize(("engine", "directory"), [("local", "runs"), ("local", "{}"), ("inline", "runs")])
def test_a_working_directory_that_is_gone_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, directory: str
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(
        ConfigError, match=r"the working directory of this process was deleted .*; call os.chdir\(\.\.\.\)"
    ):
        lagom(
            fns.talk,
            {"x": Float(0, 1)},
            n_trials=2,
            engine=engine,
            directory=directory.format(tmp_path),
            direction="max",
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("optimizers.py", "optimizers.py"),
        ("optimizers/errors.py", "optimizers/__init__.py"),
        ("optimizers/space/domains.py", "optimizers/__init__.py"),
    ],
)
def test_a_module_of_the_user_s_with_the_name_of_a_package_of_ours_is_named(
    tmp_path: Path, file: str, found: str
) -> None:
    for path in (tmp_path / file, tmp_path / found):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "script.py").write_text("from maggy_like import Float, lagom")
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=300)
    assert f"Python finds {tmp_path / found} under that name; rename your file" in done.stderr.splitlines()[-1]


WITH_CHILDREN = """
import multiprocessing
from maggy_like import Float, lagom

def search(name):
    return lagom(lambda x: x, {{"x": Float(0, 1)}}, optimizer="random", n_trials=2, direction="max", name=name,
                 engine="inline", directory="runs", progress=False)

def start():
    search("first")
    for method in ("spawn", "forkserver"):
        child = multiprocessing.get_context(method).Process(target=search, args=(method,))
        child.start()
        child.join()
        print("child:", child.exitcode)

{guard}start()
"""


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_child_that_imports_the_script_starts_no_search_of_its_own(tmp_path: Path, is_guarded: bool) -> None:
    guard = 'if __name__ == "__main__": ' if is_guarded else ""
    (tmp_path / "script.py").write_text(WITH_CHILDREN.format(guard=guard))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    runs = {path.name for path in (tmp_path / "runs").iterdir()}
    if is_guarded:
        assert runs == {"first", "spawn", "forkserver"}
        assert done.stdout == "child: 0\n" * 2
    else:
        assert runs == {"first"}
        assert done.stderr.count("UserError: a child process of multiprocessing imports this script") == 2
        assert done.stderr.count("under if __name__ == '__main__':") == 2
        assert done.stdout == "child: 1\n" * 2
