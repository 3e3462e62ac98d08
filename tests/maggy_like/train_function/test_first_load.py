"""What a function of a script uses is there in a worker, or an error says what is missing before anything starts."""

from __future__ import annotations

import builtins
import importlib
import linecache
import os
import resource
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from maggy_like import run
from maggy_like.errors import TrainFunctionError
from maggy_like.processes.system import open_descriptors
from maggy_like.train_function.first_load import load_first
from maggy_like.train_function.pickling import pickle_train_fn

TRAVELLERS = """
import enum, functools, itertools, typing

P = typing.ParamSpec("P")
UserId = typing.NewType("UserId", int)

@functools.lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

@functools.singledispatch
def text(value):
    return str(value)

@text.register(list)
def _(value):
    return [text(part) for part in value]

def kept(function: typing.Callable[P, int]) -> typing.Callable[P, int]:
    @functools.wraps(function)
    def kept(*args: P.args, **kwargs: P.kwargs) -> int:
        return function(*args, **kwargs)
    return kept

@kept
def twice(x: int) -> int:
    return 2 * x

class Data:
    @functools.lru_cache(maxsize=3)
    def load(self, n):
        return n + 1

    @functools.cached_property
    def table(self):
        return [1, 2, 3]

    @functools.singledispatchmethod
    def kind(self, x):
        return "any"

    @kind.register
    def _(self, x: int):
        return "int"

    @staticmethod
    @functools.cache
    def fixed(n):
        return 2 * n

    parsed = functools.partialmethod(load, 4)

def check():
    assert fib(20) == 6765 and fib.cache_info().misses == 21
    assert text([1, [2.0]]) == ["1", ["2.0"]]
    assert twice(2) == 4 and P.__name__ == "P" and UserId(3) == 3
    data = Data()
    assert (data.load(1), Data.load.cache_parameters()["maxsize"], data.table, Data.fixed(2)) == (2, 3, [1, 2, 3], 4)
    assert (data.kind(1), data.kind(""), data.parsed()) == ("int", "any", 5)
    return 1

class Checked:
    def __reduce__(self):
        return check, ()

checked = Checked()

def train(x):
    return checked
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], types.ModuleType]:
    """Make a script ``__main__``, or the module of a child of multiprocessing, with this text."""

    def make(text: str, name: str = "__main__") -> types.ModuleType:
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, "__main__", module)
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setitem(linecache.cache, "my.py", (len(text), None, text.splitlines(keepends=True), "my.py"))
        exec(compile(text, "my.py", "exec"), vars(module))
        return module

    return make


def load(train: Callable[..., object]) -> None:
    load_first(train, pickle_train_fn(train), lambda: None)


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["__main__", "__mp_main__"])
def test_what_a_script_has_and_only_names_travels(script: Callable[..., types.ModuleType], name: str) -> None:
    load(script(TRAVELLERS, name).train)


UNFOUND = {
    "an object": """
        class Handle:
            def __reduce__(self):
                return "handle"
        handle = Handle()
        def helper(x):
            return x + (handle is None)
        def train(x):
            return helper(x)
    """,
    "a module": """
        import hidden
        def train(x):
            return hidden.f(x)
    """,
    "a function": """
        from hidden import f as found
        def train(x):
            return found(x)
    """,
}
SAID = {
    "an object": r"^train uses 'handle' \(my\.py, line 7: return x \+ \(handle is None\)\), which a worker cannot "
    r"load: only the process that started the run has __main__\.handle; define it in a module",
    "a module": r"^train uses 'hidden' \(my\.py, line 4: return hidden\.f\(x\)\), which a worker cannot load: "
    r"ModuleNotFoundError: No module named 'hidden'; add its directory to PYTHONPATH",
    "a function": r"^train uses 'found' \(my\.py, line 4: return found\(x\)\), which a worker cannot load: "
    r"ModuleNotFoundError: No module named 'hidden'; add its directory to PYTHONPATH",
}


@pytest.mark.e2e
@pytest.mark.parametrize("what", UNFOUND)
def test_what_a_worker_does_not_find_is_named_with_the_line_that_uses_it(
    what: str, script: Callable[..., types.ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = types.ModuleType("hidden")
    hidden.__spec__ = importlib.machinery.ModuleSpec("hidden", None)
    exec("def f(x): return x", vars(hidden))
    monkeypatch.setitem(sys.modules, "hidden", hidden)
    with pytest.raises(TrainFunctionError, match=SAID[what]):
        load(script(textwrap.dedent(UNFOUND[what])).train)


MODULES = {
    "fails": ("import builtins\nvalue = builtins.set_by_the_script", r"cannot be loaded by a worker.*AttributeError: "),
    "exits": ("import os, builtins\nif not hasattr(builtins, 'set_by_the_script'): os._exit(3)", "ends the process"),
    "searches": (
        "import builtins, maggy_like\nif not hasattr(builtins, 'set_by_the_script'): maggy_like.run(print)",
        "UserError: this module is imported to load train_fn, which would start a second run; move the calls",
    ),
}


@pytest.mark.e2e
@pytest.mark.parametrize("kind", MODULES)
def test_a_module_that_a_worker_cannot_import_is_reported_with_its_line(
    kind: str, script: Callable[..., types.ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, said = MODULES[kind]
    (tmp_path / f"own_{kind}.py").write_text(f"{text}\ndef f(x): return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(builtins, "set_by_the_script", 1, raising=False)
    module = script(f"import own_{kind} as own\ndef train(x):\n    return own.f(x)\n")
    with pytest.raises(TrainFunctionError, match=said) as raised:
        load(module.train)
    assert kind == "exits" or f"own_{kind}.py" in raised.value.__notes__[0]


@pytest.mark.e2e
def test_a_module_may_start_a_run_while_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions travel by value, since a worker that imported it would start the same run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_search.py").write_text(
        "import maggy_like\nBASE = 3\ndef train():\n    return BASE\n"
        "found = maggy_like.run(train, workers=1, engine='local', progress=False)\n"
    )
    assert importlib.import_module("own_search").found == 3


def test_a_load_that_takes_too_long_is_left_to_the_first_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load of several seconds, while this process has imports of as many: an alarm ends it."""
    alarm = "import os, signal\nif os.getpid() != int(os.environ['LOADED_BY']): signal.raise_signal(signal.SIGALRM)\n"
    (tmp_path / "own_alarm.py").write_text(f"{alarm}def train(x): return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LOADED_BY", str(os.getpid()))
    load(importlib.import_module("own_alarm").train)


def test_a_function_that_does_not_fit_into_the_temporary_directory_is_loaded_by_its_worker_first() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    before = open_descriptors()
    try:
        load_first(abs, pickle_train_fn(abs), lambda: pytest.fail("it was loaded here"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert open_descriptors() == before


@pytest.mark.e2e
def test_nothing_is_left_of_a_run_whose_function_cannot_be_loaded(
    script: Callable[..., types.ModuleType], tmp_path: Path
) -> None:
    module = script(textwrap.dedent(UNFOUND["an object"]))
    with pytest.raises(TrainFunctionError, match="uses 'handle'"):
        run(module.train, {"x": 1}, workers=1, engine="local", progress=False, directory=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
