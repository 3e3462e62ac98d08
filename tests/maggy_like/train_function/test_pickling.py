"""What of a training function cannot be sent to the workers."""

from __future__ import annotations

import gc
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import sklearn.svm
from pyspark.accumulators import INT_ACCUMULATOR_PARAM, Accumulator
from pyspark.core.broadcast import Broadcast
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from maggy_like import Float, lagom, run
from maggy_like.errors import TrainFunctionError
from maggy_like.train_function.code import MAX_VALUES, held_values
from maggy_like.train_function.modules import imports_of, modules_of
from maggy_like.train_function.pickling import LARGE, pickle_train_fn, size_hints


def train(x: float, data: Any) -> float:
    return float(x * data.value[0])


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [
        (Broadcast.__new__(Broadcast), "pass its value"),
        (Accumulator(0, 0, INT_ACCUMULATOR_PARAM), "report the values with reporter.report(count=...), or return them"),
    ],
)
def test_a_shared_variable_of_spark_is_refused_since_it_would_not_work_in_a_trial(variable: Any, remedy: str) -> None:
    said = f"train uses the argument 'data' of type {type(variable).__name__}, which cannot be sent .*; "
    with pytest.raises(TrainFunctionError, match=rf"{said}{re.escape(remedy)}$"):
        pickle_train_fn(partial(train, data=variable))
    with pytest.raises(TrainFunctionError, match=f"{re.escape(remedy)}$"):
        pickle_train_fn(partial(train, data=[variable]))


class DataFrame:
    """What stands for a table of Spark Connect, which can be pickled and not be read."""


def test_a_table_of_spark_is_refused_with_what_to_send_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataFrame, "__module__", "pyspark.sql.connect.dataframe")
    with pytest.raises(
        TrainFunctionError,
        match=r"uses the argument 'data' of type DataFrame, .*: Spark's sessions and tables exist only on the driver; "
        r"let the function refer to the rows themselves \(df\.toPandas\(\)\), or write them",
    ):
        pickle_train_fn(partial(train, data=DataFrame()))


def _around(data: Any) -> Callable[[float], float]:
    def learn(x: float) -> float:
        return x * len(data) + (learn(x) if x > 1 else 0)

    return learn


class Learner:
    def __init__(self, data: Any) -> None:
        self.data = data

    def learn(self, x: float) -> float:
        return x * len(self.data)


def _through_a_helper(data: Any) -> Callable[[float], float]:
    helper = _around(data)
    return lambda x: helper(x)


def _itself(data: Any) -> Callable[[float], float]:
    def again(x: float) -> float:
        return again(x - 1) if x > 1 else len(data)

    return again


@pytest.mark.parametrize(
    ("around", "what"),
    [
        (lambda data: Learner(data).learn, "learn uses the attribute 'data'"),
        (lambda data: partial(Learner(data).learn), "learn uses the attribute 'data'"),
        (lambda data: partial(partial(train, data=data)), "train uses the argument 'data'"),
        (lambda data: _around(Learner(data).learn), "learn uses the attribute 'data'"),
        (_through_a_helper, "<lambda> uses the variable 'data'"),
        (_itself, "again uses the variable 'data'"),
    ],
)
def test_what_cannot_be_sent_is_named_wherever_it_is_held(around: Any, what: str) -> None:
    with pytest.raises(TrainFunctionError, match=f"{what} of type lock, which cannot be sent .*; create it inside"):
        pickle_train_fn(around(threading.Lock()))


def test_a_shell_command_or_a_magic_of_a_cell_is_called_what_the_user_wrote() -> None:
    cell: dict[str, Any] = {"get_ipython": threading.Lock()}
    exec("def train(x):\n    get_ipython().system('nvidia-smi')\n    return x", cell)
    with pytest.raises(TrainFunctionError, match=r"train has a line that begins with ! or %.*use subprocess\.run"):
        pickle_train_fn(cell["train"])


@pytest.mark.parametrize(
    "around",
    [_around, _through_a_helper, lambda data: partial(train, data=data), lambda data: Learner(data).learn],
    ids=["a closure", "a closure of a helper", "a partial", "a method"],
)
def test_large_variables_are_named_with_their_sizes_and_how_to_share_data(around: Any) -> None:
    function = around(np.zeros(LARGE // 8 + 1000))
    payload = pickle_train_fn(function)
    (hint,) = size_hints(function, payload, "process")
    assert "uses 'data' (50 MB), which each worker receives" in hint
    assert "numpy.load(path, mmap_mode='r') or ParquetLoader" in hint
    assert len(hint.split()) <= 40
    assert size_hints(function, payload, "none") == ()
    assert size_hints(_around(b"few"), pickle_train_fn(_around(b"few")), "process") == ()


@pytest.mark.e2e
def test_a_large_variable_is_named_as_the_run_starts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"engine": "local", "workers": 1, "directory": tmp_path, "progress": "plain"}
    function = _around(np.zeros(LARGE // 8 + 1000))
    lagom(function, {"x": Float(0, 1)}, optimizer="random", n_trials=1, **options)
    assert "learn uses 'data' (50 MB), which each worker receives" in capfd.readouterr().out
    run(function, {"x": 0.5}, **options)
    assert "learn uses 'data' (50 MB), which each worker receives" in capfd.readouterr().out


# -- which installed modules a training function is found to use ----------------------------------


def trains_with_torch(lr: float) -> None:
    import torch

    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)


def uses_a_global(x: float) -> float:
    return float(np.sqrt(x))


def test_modules_are_found_in_the_code_and_among_the_globals() -> None:
    assert "torch" in modules_of(trains_with_torch)
    assert "numpy" in modules_of(uses_a_global)
    assert "json.encoder" in modules_of(partial(json.JSONEncoder, indent=2))  # where it is from itself
    assert not any(name.startswith(("tests", "test_modules", "__main__")) for name in modules_of(uses_a_global))


class Holder:
    """An object of an installed package with attributes, when its class says that it is of one."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self.itself = partial(self)

    def __call__(self, x: float) -> Any:
        return self.held


def takes(x: float, held: Any = None) -> Any:
    return held


def uses_lightgbm(x: float) -> Any:
    import lightgbm

    return lightgbm


def uses_an_attribute(x: float) -> Any:
    return sklearn.svm.SVC(C=x)


uses_an_attribute.__module__ = "__main__"  # a script's own source is not read

TREE = DecisionTreeClassifier()
PIPELINE = Pipeline([("scale", StandardScaler()), ("classify", TREE)])
MODULES = {"sklearn.pipeline", "sklearn.preprocessing._data", "sklearn.tree._classes"}


@pytest.mark.parametrize(
    ("train_fn", "found"),
    [
        pytest.param(partial(takes, held=PIPELINE), MODULES, id="an argument of a partial"),
        pytest.param(partial(partial(takes), 0.5, {"one": [PIPELINE]}), MODULES, id="in a container"),
        pytest.param(lambda x: PIPELINE, MODULES, id="a global"),
        pytest.param(Holder(PIPELINE), MODULES, id="an attribute of a callable"),
        pytest.param(Holder(PIPELINE).__call__, MODULES, id="an attribute of a method's object"),
        pytest.param(partial(takes, held=uses_lightgbm), {"lightgbm"}, id="a function in a partial"),
        pytest.param(Holder(uses_lightgbm), {"lightgbm"}, id="a function in an attribute"),
        pytest.param(Holder(partial(takes, held=Holder([TREE]))), {"sklearn.tree._classes"}, id="nested"),
        pytest.param(uses_an_attribute, {"sklearn.svm"}, id="an attribute of a module"),
    ],
)
def test_modules_are_found_in_what_a_function_holds(
    train_fn: Any, found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found <= set(modules_of(train_fn))
    if isinstance(train_fn, Holder):
        monkeypatch.setattr(Holder, "__module__", "maggy_like.sklearn.folds")
        monkeypatch.setattr(Holder.__call__, "__module__", "maggy_like.sklearn.folds")
        assert found <= set(modules_of(train_fn))


def test_only_a_part_of_much_data_is_looked_at() -> None:
    held = [[[n] for n in range(100)] for _ in range(MAX_VALUES // 10)]
    assert len(list(held_values(partial(takes, held=held)))) <= MAX_VALUES


PROJECT = {
    "project/__init__.py": "",
    "project/loop.py": """
        import typing
        from .data import rows
        from project import metrics
        if typing.TYPE_CHECKING:
            import keras

        def train(x):
            import lightgbm
            return rows() + metrics.score(x)

        def other():
            import xgboost
    """,
    "project/data.py": "try:\n    import pyarrow.parquet\nexcept ImportError:\n    pass\nrows = list",
    "project/metrics.py": "from sklearn.metrics import r2_score\nimport project.loop\nscore = r2_score",
    "project/broken.py": "import (",
}


def calls_the_project(x: float) -> Any:
    from project import loop

    return loop.train(x)


def calls_a_broken_project(x: float) -> Any:
    import project.broken
    import project.not_there

    return project.broken, project.not_there


def test_modules_are_found_in_the_source_of_the_users_own_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, source in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    found = set(modules_of(calls_the_project))
    assert {"pyarrow.parquet", "sklearn.metrics", "lightgbm"} <= found
    assert found.isdisjoint({"keras", "xgboost", "project", "project.loop"})
    assert set(modules_of(calls_a_broken_project)).isdisjoint(PROJECT)
    assert "project" not in sys.modules  # none of it was run


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("value = " + "(" * 300 + ")" * 300, id="nested-too-deeply-for-the-parser"),
        pytest.param("total = " + "+".join(["1"] * 3000), id="a-deep-tree"),
        pytest.param("if a0:\n    pass\n" + "".join(f"elif a{n}:\n    pass\n" for n in range(1, 2000)), id="elif"),
        pytest.param("from .... import beyond", id="beyond-the-package"),
        pytest.param("text = '\\ud800'\x00", id="a-null-byte"),
    ],
)
def test_source_that_python_cannot_read_stops_nothing(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert imports_of(["odd_module"], []) == []


def let_others_run(*_: object) -> None:
    time.sleep(0.0)


def test_threads_parse_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nested = "\n".join("    " * depth + f"if a{depth}:" for depth in range(40)) + "\n" + "    " * 40 + "import yaml\n"
    (tmp_path / "long_module.py").write_text(nested * 20)
    monkeypatch.syspath_prepend(tmp_path)
    found: list[list[str]] = []
    gc.callbacks.append(let_others_run)  # in the middle of a parse
    threads = [threading.Thread(target=lambda: found.append(imports_of(["long_module"], []))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.callbacks.remove(let_others_run)
    assert found == [["yaml"]] * 8


def test_a_function_that_exec_made_has_no_module() -> None:
    names: dict[str, Any] = {}
    exec("import json\ndef helper(x):\n    return json.dumps(x)\n\ndef train(x):\n    helper(x)\n    return x", names)
    assert names["train"].__module__ is None
    result = lagom(names["train"], {"x": [1, 2]}, optimizer="grid", direction="max", engine="inline", progress=False)
    assert result.best_value == 2
