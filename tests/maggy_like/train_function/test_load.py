"""The function in a trial's process, and what it finds around it."""

from __future__ import annotations

import linecache
import pickle
import subprocess
import sys
import traceback
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from maggy_like.protocol.task import WorkerTask
from maggy_like.train_function.code import code_hash, is_comparable
from maggy_like.train_function.load import load_train_fn
from maggy_like.train_function.pickling import MAX_SOURCE, pickle_train_fn, sources_of

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
