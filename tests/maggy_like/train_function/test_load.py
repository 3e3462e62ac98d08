"""The function in a trial's process: what it finds around it, and where it was found."""

from __future__ import annotations

import contextlib
import linecache
import os
import pickle
import shutil
import subprocess
import sys
import traceback
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from maggy_like.errors import TrainFunctionError
from maggy_like.protocol.task import WorkerTask
from maggy_like.train_function import script as scripts
from maggy_like.train_function.code import code_hash, is_comparable, name_of, place_of, rerun_hint
from maggy_like.train_function.load import load_train_fn
from maggy_like.train_function.pickling import MAX_SOURCE, pickle_train_fn, sources_of
from maggy_like.train_function.script import Script, read_script

CELL = """
class Box:
    pass

def helper():
    return Box

def train(x):
    if x:
        raise ValueError(x)  # in a cell
    return helper, Box
"""


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A ``__main__`` of a notebook with one cell; afterwards the process has its own again."""
    module = types.ModuleType("__main__")
    module.__file__ = "script.py"
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setitem(linecache.cache, "<cell>", (len(CELL), None, CELL.splitlines(keepends=True), "<cell>"))
    exec(compile(CELL, "<cell>", "exec"), vars(module))
    return module


def load(train_fn: Callable[..., Any], **fields: Any) -> Callable[..., Any]:
    sources = sources_of(train_fn)
    data = pickle_train_fn(train_fn)
    linecache.clearcache()
    return load_train_fn(WorkerTask("", b"", "", data, (), (), (), "", "", sources=sources, **fields))


def test_functions_and_classes_of_main_are_pickled_by_name_in_a_trial(main: types.ModuleType) -> None:
    helper, box = load(main.train)(x=0)
    assert sys.modules["__main__"] is not main
    assert not hasattr(sys.modules["__main__"], "__file__")  # or multiprocessing's spawn would run the script again
    assert helper is not main.helper
    assert pickle.loads(pickle.dumps(helper)) is helper
    assert type(pickle.loads(pickle.dumps(box()))) is box


def test_in_the_caller_s_own_process_nothing_is_changed(main: types.ModuleType) -> None:
    load(main.train, isolation="none")
    assert sys.modules["__main__"] is main


def test_a_traceback_has_the_lines_of_a_notebook_s_cell(main: types.ModuleType) -> None:
    train = load(main.train)
    with pytest.raises(ValueError, match="1") as raised:
        train(x=1)
    assert "raise ValueError(x)  # in a cell" in "".join(traceback.format_exception(raised.value))


def test_sources_are_those_of_main_s_functions_and_bounded(main: types.ModuleType, monkeypatch: Any) -> None:
    assert sources_of(main.train) == {"<cell>": CELL}
    assert sources_of(load) == {}
    long = "#\n" * MAX_SOURCE
    monkeypatch.setitem(linecache.cache, "<cell>", (len(long), None, long.splitlines(keepends=True), "<cell>"))
    assert sources_of(main.train) == {}


# -- what counts as another training function -----------------------------------------------------
TRAIN = """
SPREAD = 2

def helper(x):
    return x + 1

def train(x, reporter):
    for name in {"a", "b", "c", "d", "e"}:
        reporter.report(score=helper(x) * 3)
    return [helper(part) for part in (1, 2)]
"""


def hash_of(source: str) -> str:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "script.py", "exec"), names)
    return code_hash(names["train"])


@pytest.mark.parametrize(
    "change",
    [("* 3", "* 4"), ("x + 1", "x - 1"), ("score=", "loss="), ("(1, 2)", "(1, 3)"), ('"e"}', '"f"}')],
    ids=lambda change: " to ".join(change),
)
def test_another_body_is_another_function(change: tuple[str, str]) -> None:
    assert (changed := TRAIN.replace(*change)) != TRAIN
    assert hash_of(changed) != hash_of(TRAIN)
    assert is_comparable(hash_of(changed), hash_of(TRAIN))


def test_another_decorator_is_another_function() -> None:
    source = """
import functools

def tripled(function):
    @functools.wraps(function)
    def call(x):
        return function(x) * 3
    return call

@tripled
def train(x):
    return x
"""
    assert len({hash_of(source), hash_of(source.replace("* 3", "* 4")), hash_of(source.replace("@tripled", ""))}) == 3


def test_lines_and_comments_do_not_count() -> None:
    assert hash_of("# a comment\n\n" + TRAIN.replace("def train", "# another\ndef train")) == hash_of(TRAIN)


def test_it_is_the_same_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{TRAIN}\nfrom maggy_like.train_function.code import code_hash\nprint(code_hash(train))")
    runs = [
        subprocess.run(
            [sys.executable, str(script)], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert runs == [hash_of(TRAIN)] * 2


def test_whatever_can_be_called_has_one_or_none() -> None:
    def train(x: float) -> float:
        return x

    class Trainer:
        def __call__(self, x: float) -> float:
            return x

    assert code_hash(partial(train, 1.0)) == code_hash(train)
    assert code_hash(Trainer())
    assert code_hash(print) == ""
    assert not is_comparable("", code_hash(train))
    assert not is_comparable("cpython-39:" + code_hash(train).partition(":")[2], code_hash(train))


# -- where another process finds it -----------------------------------------------------------------


def at_top_level(x: float) -> float:
    return x


class Trains:
    def __call__(self, x: float) -> float:
        return x


def test_a_function_of_a_file_is_found_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__)
    monkeypatch.chdir(here.parents[1])
    assert place_of(at_top_level) == f"train_function/{here.name}:at_top_level"
    monkeypatch.chdir(here.root)
    assert place_of(at_top_level) == f"{here.relative_to(here.root)}:at_top_level"


@contextlib.contextmanager
def from_another_file() -> Any:
    yield


@from_another_file()
def decorated(x: float) -> float:
    return x


def test_a_decorated_function_is_found_where_it_is_written() -> None:
    assert place_of(decorated).endswith(f"{Path(__file__).name}:decorated")


def test_a_file_outside_the_working_directory_has_its_whole_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of(at_top_level) == f"{__file__}:at_top_level"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    os.rmdir(gone)
    assert place_of(at_top_level) == f"{__file__}:at_top_level"


def nested() -> Any:
    def train(x: float) -> float:
        return x

    return train


@pytest.mark.parametrize(
    ("function", "place"),
    [
        (nested(), "train"),
        (partial(at_top_level, 1), "train_fn"),
        (Trains(), "train_fn"),
        (lambda x: x, "train_fn"),
    ],
)
def test_other_functions_have_only_a_name(function: Any, place: str) -> None:
    assert place_of(function) == place


@pytest.mark.parametrize("function", [name_of, partial(name_of, 1), partial(partial(name_of), 1)])
def test_a_function_of_this_package_has_no_place(function: Any) -> None:
    assert place_of(function) == ""
    assert rerun_hint(place_of(function), "runs/first", 7) == ""


def test_the_command_is_quoted_for_a_shell() -> None:
    assert rerun_hint("my train.py:train", "my runs/first", 7) == (
        "to debug it: maggy-like rerun 'my runs/first' 7 'my train.py:train' --pdb"
    )
    assert rerun_hint("train", "runs/first", 7) == "to debug it: load_run('runs/first').rerun(7, train)"


# -- a script as a function: what travels, and what it finds where it runs --------------------------


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("one", "helper", "pack", "pack.inner"):  # is forgotten in the end
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    directory = tmp_path / "code"
    for name, text in {
        "main.py": "import sys\nimport one\nfrom pack.inner import two\n"
        "print(__name__, one.three, two, sys.argv[1:], __file__)\nassert sys.modules['__main__'].one is one\n",
        "one.py": "from helper import three\n",
        "helper.py": "three = 3\n",
        "unused.py": "",
        "pack/inner.py": "two = 2\n",
        "data.csv": "1\n",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def test_what_it_imports_from_its_directory_travels(directory: Path) -> None:
    assert set(read_script(directory / "main.py").files) == {"main.py", "one.py", "helper.py", "pack/inner.py"}


def test_it_runs_as_main_in_its_directory_and_leaves_all_as_it_was(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.argv, sys.path, sys.modules["__main__"]
    read_script(directory / "main.py", ["--epochs", 3])()
    assert capsys.readouterr().out == f"__main__ 3 2 ['--epochs', '3'] {directory / 'main.py'}\n"
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_where_its_directory_is_not_seen_it_runs_from_a_copy(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = cloudpickle.dumps(read_script(directory / "main.py"))
    shutil.rmtree(directory)
    script: Script = cloudpickle.loads(sent)
    script()
    *words, where = capsys.readouterr().out.split()
    assert words == ["__main__", "3", "2", "[]"]
    assert Path(where).name == "main.py"
    assert not Path(where).parent.exists()


def test_a_script_finds_types_in_its_annotations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "main.py"
    script.write_text("def train(epochs: int = 3): ...\nprint(train.__annotations__)\n")
    read_script(script)()
    assert capsys.readouterr().out == "{'epochs': <class 'int'>}\n"


@pytest.mark.parametrize(("code", "fails"), [("", False), ("0", False), ("3", True), ("'words'", True)])
def test_its_exit_status(tmp_path: Path, code: str, fails: bool) -> None:
    (tmp_path / "leave.py").write_text(f"import sys\nsys.exit({code})\n")
    script = read_script(tmp_path / "leave.py")
    if fails:
        with pytest.raises(SystemExit):
            script()
    else:
        script()


def test_too_much_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "MAX_BYTES", 100)
    with pytest.raises(TrainFunctionError, match="install the larger modules where the workers run"):
        read_script(directory / "main.py")
