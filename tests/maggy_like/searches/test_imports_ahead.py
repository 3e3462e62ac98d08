"""What a trial imports and what its function holds, a worker loads once, and gets it wrong in no search."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from maggy_like import Float, Result, lagom

pytestmark = [pytest.mark.e2e, pytest.mark.cold]

SPACE = {"x": Float(0.0, 1.0)}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts packages into an environment and into the user's project: ``packages(installed={...}, own={...})``."""
    installed_directory = tmp_path / "lib" / "python3.11" / "site-packages"
    installed_directory.mkdir(parents=True)
    monkeypatch.syspath_prepend(installed_directory)
    monkeypatch.syspath_prepend(tmp_path)

    def write(installed: dict[str, str] | None = None, own: dict[str, str] | None = None) -> None:
        for directory, sources in ((installed_directory, installed or {}), (tmp_path, own or {})):
            for name, source in sources.items():
                (directory / f"{name}.py").write_text(dedent(source))

    return write


def search(train: Callable[..., Any], directory: Path, n_trials: int = 8, **options: Any) -> Result:
    """A search on one worker."""
    options = {"engine": "local", "workers": 1, "metric": "pid", "direction": "max", "optimizer": "random", **options}
    return lagom(train, SPACE, n_trials=n_trials, directory=str(directory), progress=False, **options)


def imports_of(result: Result, module: str) -> list[bool]:
    """Whether each trial began with a module."""
    return [module in trial.attributes["had"] for trial in result.trials]


def test_what_a_trial_imports_later_trials_and_later_searches_begin_with(
    packages: Callable[..., None], tmp_path: Path
) -> None:
    packages(
        installed={
            "learned_library": "",
            "library_with_a_thread": """
                import threading
                threading.Thread(target=threading.Event().wait, daemon=True).start()
            """,
            "library_that_refuses_templates": """
                import os, sys
                if "running" not in os.environ.get("A_TRIAL", ""):
                    raise ImportError("no device here")
            """,
        }
    )
    names = ["learned_library", "library_with_a_thread", "library_that_refuses_templates"]

    def train(x: float) -> dict[str, Any]:
        import importlib
        import sys
        import time

        had = [name for name in names if name in sys.modules]
        os.environ["A_TRIAL"] = "running"
        for name in names:
            importlib.import_module(name)
        deadline = time.monotonic() + 100.0
        logs = [tmp_path / "runs"]
        while "learned_library" not in had and len(logs) == 1 and time.monotonic() < deadline:
            time.sleep(0.01)  # until later trials begin with it
            logs += (log for log in tmp_path.glob("runs/*/workers/*.log") if "learned_library" in log.read_text())
        return {"pid": os.getpid(), "had": had}

    first = search(train, tmp_path / "runs")
    had = imports_of(first, "learned_library")
    assert not had[0]
    assert all(had[1:])
    for name in names[1:]:
        assert not any(imports_of(first, name))
    (log,) = (Path(first.directory) / "workers").glob("*.log")
    assert "not library_with_a_thread, since it starts a thread" in log.read_text()
    assert "not library_that_refuses_templates, since it cannot be imported there (ImportError)" in log.read_text()
    second = search(train, tmp_path / "runs", n_trials=2)
    assert all(imports_of(second, "learned_library"))
    for name in names[1:]:
        assert not any(imports_of(second, name))
    assert {trial.state for trial in (*first.trials, *second.trials)} == {"completed"}


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("import os; os.environ.get('A_TRIAL') or os._exit(3)", id="ends the process"),
        pytest.param(
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
            id="starts a thread",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "import subprocess; helper = subprocess.Popen(['cat'], stdin=subprocess.PIPE)", id="starts a process"
        ),
    ],
)
def test_a_library_that_the_code_names_and_no_fork_can_share_is_imported_in_each_trial(
    packages: Callable[..., None], tmp_path: Path, source: str
) -> None:
    packages(installed={"odd_library": source, "fine_library": ""})

    def train(x: float) -> dict[str, Any]:
        import sys

        had = [name for name in ("fine_library", "odd_library") if name in sys.modules]
        os.environ["A_TRIAL"] = "running"
        import fine_library  # noqa: F401
        import odd_library  # noqa: F401

        return {"pid": os.getpid(), "had": had}

    result = search(train, tmp_path / "runs", n_trials=6)
    assert {trial.state for trial in result.trials} == {"completed"}
    assert not any(imports_of(result, "odd_library"))
    if "_exit" not in source:  # which leaves nobody to say what was at fault
        assert all(imports_of(result, "fine_library"))


class Counted:
    """Data that takes note of each time it is loaded."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.table = np.arange(1000.0)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        (self.directory / f"loaded-{os.getpid()}").touch()


def test_what_the_function_holds_is_loaded_once_per_worker_and_each_trial_has_its_own(tmp_path: Path) -> None:
    data = Counted(tmp_path)

    def train(x: float) -> dict[str, float]:
        data.table[0] += 1.0  # of no other trial
        return {"pid": os.getpid(), "first": data.table[0]}

    result = search(train, tmp_path / "runs", workers=2)
    assert {trial.metrics["first"] for trial in result.trials} == {1.0}
    loaded = {int(path.name.partition("-")[2]) for path in tmp_path.glob("loaded-*")}
    # The check before the start loads it, too, and one worker may be through before the other has started.
    assert 2 <= len(loaded) <= 3
    assert loaded.isdisjoint(int(trial.metrics["pid"]) for trial in result.trials)


def test_a_module_that_is_edited_between_two_searches_is_imported_anew(
    packages: Callable[..., None], tmp_path: Path
) -> None:
    def train(x: float) -> dict[str, float]:
        import own_settings

        return {"pid": os.getpid(), "answer": own_settings.ANSWER}

    for answer in (1.0, 22.0):
        packages(own={"own_settings": f"ANSWER = {answer}"})
        result = search(train, tmp_path / "runs", n_trials=3)
        assert {trial.metrics["answer"] for trial in result.trials} == {answer}


@pytest.mark.long
def test_a_module_that_forks_cannot_share_is_imported_in_each_trial(
    packages: Callable[..., None], tmp_path: Path
) -> None:
    packages(
        own={
            "own_training": f"""
                import atexit, os, random
                random.seed(7)
                atexit.register(lambda: open({str(tmp_path)!r} + f"/left-{{os.getpid()}}", "w").close())

                def train(x):
                    return {{"pid": os.getpid(), "drawn": random.random()}}
            """
        }
    )
    import own_training

    result = search(own_training.train, tmp_path / "runs", n_trials=4)
    own_training.random.seed(7)
    assert {trial.metrics["drawn"] for trial in result.trials} == {own_training.random.random()}
    left = {int(path.name.partition("-")[2]) for path in tmp_path.glob("left-*")}
    assert {int(trial.metrics["pid"]) for trial in result.trials} <= left
