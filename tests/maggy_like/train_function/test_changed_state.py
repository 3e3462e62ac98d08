"""What a script has set in modules, and no trial will see, is said before the trials."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
import torch

from maggy_like import Float, lagom
from maggy_like.train_function.changed_state import state_hints
from maggy_like.train_function.code import uses_budget, uses_checkpoints

SETTINGS = """
import os

RATE = 0.1
NAME: str = "plain"
LAYERS = {"one": 16}
REGISTRY = {}
FILLED = {"first": 1}
COMPUTED = os.getpid()
TWICE = 1
TWICE = TWICE + 1
CHOSEN = 1
if os.name:
    CHOSEN = 2
counted = 0

def count():
    global counted
    counted += 1

def fill(name):
    FILLED[name] = len(FILLED)

def train(x):
    import own_settings

    return x * RATE, own_settings.NAME, REGISTRY, FILLED, COMPUTED, TWICE, CHOSEN, counted
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the user's own."""
    (tmp_path / "own_settings.py").write_text(SETTINGS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_settings", raising=False)
    yield importlib.import_module("own_settings")
    del sys.modules["own_settings"]


def test_nothing_is_said_of_modules_as_they_are_written(settings: Any) -> None:
    assert state_hints(settings.train, "process") == ()
    settings.count()
    settings.fill("second")
    settings.REGISTRY["x"] = 1
    settings.unused = 3
    assert state_hints(settings.train, "process") == ()


@pytest.mark.parametrize("by_name", [True, False])
def test_a_constant_that_was_changed_is_named_with_both_values(settings: Any, by_name: bool) -> None:
    def reads(x: float) -> Any:
        return x * settings.RATE, settings.NAME

    settings.RATE = 0.5
    settings.NAME = np.arange(3)
    (hint,) = state_hints(settings.train if by_name else reads, "process")
    assert hint.startswith(
        "own_settings.RATE is 0.5 here and 0.1 in its source, own_settings.NAME is array([0, 1, 2]) here and 'plain' "
        "in its source: trials import modules again"
    )
    assert state_hints(settings.train, "none") == ()


def test_so_is_a_dict_that_the_module_itself_never_touches(settings: Any) -> None:
    def reads(x: float) -> Any:
        return settings.LAYERS

    settings.LAYERS["one"] = 32
    assert "own_settings.LAYERS is {'one': 32} here" in state_hints(reads, "process")[0]


@pytest.mark.parametrize(
    "sets",
    [
        "globals()['VALUE'] = 2",
        "globals().update(VALUE=2)",
        "vars().update(VALUE=2)",
        "exec('VALUE = 2')",
        "import sys; setattr(sys.modules[__name__], 'VALUE', 2)",
        "def VALUE(): pass",
        "class VALUE: pass",
        "match [2, 3]:\n    case [*VALUE]: pass",
        "match {'x': 2}:\n    case {**VALUE}: pass",
        "match 2:\n    case int() as VALUE: pass",
    ],
)
def test_nothing_is_said_of_a_name_that_the_module_sets_again(
    sets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_values.py").write_text(f"VALUE = 1\n{sets}\ndef train(x): return VALUE\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_values", raising=False)
    importlib.invalidate_caches()
    module = importlib.import_module("own_values")
    try:
        assert vars(module)["VALUE"] != 1
        assert state_hints(module.train, "process") == ()
    finally:
        del sys.modules["own_values"]


def test_changed_settings_of_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def uses_numpy(x: float) -> Any:
        return np.sqrt(x)

    def uses_all(x: float) -> Any:
        return np.sqrt(x), sklearn.base, torch.ones(1)

    def uses_none(x: float) -> float:
        return x

    for function in (uses_numpy, uses_all, uses_none):
        function.__module__ = "__main__"  # whose source is not read
    monkeypatch.setattr("maggy_like.train_function.modules.remembered", lambda: ())
    assert state_hints(uses_all, "process") == ()
    with np.errstate(all="raise"), sklearn.config_context(assume_finite=True):
        torch.set_default_dtype(torch.float64)
        try:
            (hint,) = state_hints(uses_all, "process")
            assert hint.startswith("numpy.seterr(...), sklearn.set_config(...), torch.set_default_dtype(...) was ")
            assert "numpy.seterr(...) was called here" in state_hints(uses_numpy, "process")[0]
            assert state_hints(uses_none, "process") == ()
        finally:
            torch.set_default_dtype(torch.float32)


FILLED: list[float] = []
COUNTED: dict[str, int] = {}
CACHE: dict[str, float] = {}


def note(x: float) -> None:
    FILLED.append(x)


def fills(x: float) -> float:
    note(x)
    COUNTED["calls"] += 1
    COUNTED["last"] = 3
    return x


def caches(x: float) -> float:
    if "data" not in CACHE:
        CACHE["data"] = 1.0
    return x * CACHE["data"]


def test_a_container_that_trials_fill_and_never_read_is_named() -> None:
    seen = set[float]()

    def adds(x: float) -> None:
        seen.add(x)
        own = []
        own.append(x)

    (hint,) = state_hints(fills, "process")
    assert hint == (
        "COUNTED, FILLED will stay unchanged in this process, because each trial changes a copy of its own; report or "
        "return the values instead"
    )
    assert state_hints(adds, "process")[0].startswith("seen will stay unchanged")
    assert state_hints(fills, "none") == state_hints(caches, "process") == ()
    assert state_hints(lambda x: FILLED.append(x), "process") == ()  # whose source is not a statement


BEST = 0.0
MODEL = None


def keeps_the_best(x: float) -> float:
    global BEST, MODEL
    if MODEL is None or x > BEST:
        BEST, MODEL = x, object()
    return x


def reads_the_best(x: float) -> float:
    return max(x, BEST)


def test_a_number_that_trials_set_is_named_but_not_a_value_that_they_may_load() -> None:
    count = 0

    def counts(x: float) -> float:
        nonlocal count
        count += 1
        return x

    assert state_hints(keeps_the_best, "process")[0].startswith("BEST will stay unchanged in this process")
    assert state_hints(counts, "process")[0].startswith("count will stay unchanged in this process")
    assert state_hints(reads_the_best, "process") == ()


@pytest.mark.e2e
def test_a_search_says_so(settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings.RATE = 0.5

    def reads(x: float) -> float:
        return x * float(settings.RATE)

    options: Any = {"n_trials": 2, "optimizer": "random", "direction": "max", "directory": tmp_path, "workers": 1}
    lagom(reads, {"x": Float(0, 1)}, engine="local", progress="plain", **options)
    assert "own_settings.RATE is 0.5 here and 0.1 in its source" in capsys.readouterr().out
    lagom(reads, {"x": Float(0, 1)}, engine="inline", progress="plain", **options)
    assert "own_settings" not in capsys.readouterr().out


# -- how it is seen whether a training function uses checkpoints ----------------------------------


def uses_a_global(x: float) -> float:
    return float(np.sqrt(x))


def saves(reporter: Any) -> None:
    reporter.checkpoint(reporter.restore())


def saves_elsewhere(x: float, reporter: Any) -> None:
    saves(reporter)


class Trainer:
    def __call__(self, x: float, reporter: Any) -> None:
        saves(reporter)


class Methodical:
    """Saves and restores in methods that ``__call__`` calls."""

    def __call__(self, x: float, reporter: Any) -> None:
        self.reporter = reporter
        self.begin()
        self.save(x)

    def begin(self) -> None:
        self.state = self.reporter.restore()

    def save(self, x: float) -> None:
        self.reporter.checkpoint(x)

    def train(self, x: float, reporter: Any) -> None:
        self.reporter = reporter
        self.begin()
        self.save(x)


class Idle(Methodical):
    def __call__(self, x: float, reporter: Any) -> None:
        reporter.report(x)


def names_alone(x: float, reporter: Any) -> None:
    """Speaks of checkpoint and restore."""
    checkpoint = restore = x  # a checkpoint to restore
    reporter.report(checkpoint + restore + len("checkpoint, restore"))


def attributes_alone(x: Any, reporter: Any) -> None:
    x.checkpoint = x.restore = 1.0
    reporter.report(x.checkpoint + x.restore)


def modules_alone(x: float, reporter: Any) -> None:
    import torch.utils.checkpoint

    torch.utils.checkpoint.checkpoint(json.loads, x)
    torch.utils.restore(x)
    checkpoint(restore(x))


def checkpoint(x: float) -> float:
    return x


restore = checkpoint


def hands_on(x: float, reporter: Any) -> None:
    keep, bring = reporter.checkpoint, reporter.restore
    keep(bring() + x)


def under_another_name(x: float, r: Any) -> None:
    def inner() -> None:
        r.checkpoint(x)

    r.restore()
    inner()


@pytest.mark.parametrize("function", [Methodical(), Methodical().train, hands_on, under_another_name])
def test_checkpoints_are_found_by_what_the_code_does(function: Any) -> None:
    assert uses_checkpoints(function)


@pytest.mark.parametrize("function", [names_alone, attributes_alone, modules_alone, Idle()])
def test_words_alone_are_no_checkpoints(function: Any) -> None:
    assert not uses_checkpoints(function)


def test_checkpoints_are_found_through_the_user_s_own_functions() -> None:
    assert uses_checkpoints(saves)
    assert uses_checkpoints(saves_elsewhere)
    assert uses_checkpoints(partial(saves_elsewhere, x=1.0))
    assert uses_checkpoints(Trainer())
    assert uses_checkpoints(lambda x, reporter: saves(reporter))
    assert not uses_checkpoints(uses_a_global)
    assert not uses_checkpoints(lambda reporter: reporter.restore())


def continued(function: Callable[..., float]) -> Callable[..., None]:
    @functools.wraps(function)
    def loop(self: Any, x: float, reporter: Any) -> None:
        for step in range(reporter.restore() or 0, reporter.budget):
            reporter.report(function(self, x, reporter))
            reporter.checkpoint(step + 1)

    return loop


def unchanged(function: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)

    return call


@continued
def wrapped(self: Any, x: float, reporter: Any) -> float:
    return x


class Wrapped:
    def save(self, reporter: Any) -> None:
        reporter.checkpoint(reporter.restore())

    @contextlib.contextmanager
    def opened(self, x: float, reporter: Any) -> Iterator[None]:
        self.save(reporter)
        yield

    @unchanged
    def train(self, x: float, reporter: Any) -> None:
        self.save(reporter)


@pytest.mark.parametrize("function", [wrapped, Wrapped().opened, Wrapped().train])
def test_the_code_of_a_decorator_and_of_what_it_wraps_is_read(function: Any) -> None:
    assert uses_checkpoints(function)
    assert uses_budget(function) == (function is wrapped)


def with_a_callback(x: float, reporter: Any) -> None:
    from maggy_like.callbacks import LightGBMReport

    LightGBMReport(reporter)


def test_a_callback_of_a_library_saves_restores_and_keeps_to_the_budget() -> None:
    assert uses_checkpoints(with_a_callback)
    assert uses_budget(with_a_callback)


@pytest.mark.parametrize("number", [100, 127, 300])
def test_code_of_many_names_is_read_too(number: int) -> None:
    calls = "".join(f"    name_{i}(x)\n" for i in range(number))
    made: dict[str, Any] = {}
    exec(f"def train(x, r):\n{calls}    r.checkpoint(r.restore())\n", made)
    assert uses_checkpoints(made["train"])
