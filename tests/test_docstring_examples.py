"""The examples in docstrings run and print what they say.

A docstring is a test of its own, so a new example is found without an entry here. An example may use without defining:

- the public names of ``maggy_like``, ``maggy_like.ml`` and ``optimizers``, and what its own module defines;
- a library of ``LIBRARIES``;
- the names of ``Shared``: data, a training function and its space, and what a search and an ablation of it return;
- ``spark`` and ``df``, with which it runs in a session.

``lagom``, ``ablate`` and ``run`` run in this process with few short trials, unless the example says otherwise.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib
import random
import re
import shutil
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import maggy_like
import optimizers
from maggy_like import AblationStudy, Float, Integer, Reporter

ROOT = Path(__file__).parent.parent

LIBRARIES = {
    **{name: name for name in ("keras", "lightgbm", "maggy_like", "mlflow", "optuna", "pandas", "torch", "xgboost")},
    "nn": "torch.nn",
    "pa": "pyarrow",
}
"""Modules by the name under which an example finds them."""

RUNS = ("august", "random", "asha")
"""Runs in the directory ``maggy_runs`` of each example that has the directory's name in it."""

NOT_RUN = {
    "maggy_like.driver.run_handle.RunHandle.stacks": "shows what happens to run",
    "maggy_like.ml.estimator.model.TorchModel": "reads a model from S3",
    "maggy_like.ml.pyfunc.log_pyfunc": "needs a server of MLflow",
    "maggy_like.results.files.TrialFiles.fetch": "writes to the working directory",
    "maggy_like.results.result.Result.files": "needs trials that write files, as the example of TrialFiles has",
    "maggy_like.results.result.Result.stop": "needs a run whose driver is in a cluster",
    "maggy_like.spark.engine.engine.SparkEngine": "needs a cluster with GPUs",
    "maggy_like.spark.servers.ConnectServer": "starts a server of Spark Connect, as its own tests do",
    "maggy_like.spark.servers.StandaloneCluster": "starts a cluster, as its own tests do",
    "maggy_like.trackers.mlflow.MLflow": "needs a server of MLflow",
}
"""Why statements with ``# doctest: +SKIP`` in a docstring do not run. The others of it run."""

OWN = {"LineSession", "Module", "Trainer", "TrainingArguments", "data", "held_out", "loader", "make_model"}
"""A reader's own functions and objects, in functions that no example calls."""

LARGE = {
    "maggy_like.api.run.run",
    "maggy_like.api.run.run_script",
    "maggy_like.callbacks.keras.KerasReport",
    "maggy_like.callbacks.lightning.LightningReport",
    "maggy_like.callbacks.transformers.TransformersReport",
    "maggy_like.distributed.ddp.DataParallel",
    "maggy_like.engines.local.LocalEngine",
    "maggy_like.processes.zygote.client.warm_up",
    "maggy_like.sklearn.search_cv.SearchCV",
}
"""Docstrings whose examples run workers in processes of their own, or import a library that takes seconds."""

VARIES = {
    "maggy_like.api.lagom.lagom",
    "maggy_like.api.saved_runs.compare_runs",
    "maggy_like.api.saved_runs.list_runs",
    "maggy_like.api.saved_runs.load_run",
    "maggy_like.driver.run_handle.RunHandle",
    "maggy_like.driver.settings.Confirmation",
    "maggy_like.results.result.Result.decision_log",
    "maggy_like.results.result.Result.importance",
}
"""Docstrings whose figures depend on the time or on the machine: a number in their output stands for any number."""

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class AnyNumber(doctest.OutputChecker):
    """Accepts other numbers than the expected ones."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(self.without_numbers(want), self.without_numbers(got), optionflags)

    def without_numbers(self, text: str) -> str:
        return re.sub(r"\b(\d{8}-\d{6}-[0-9a-f]{4}|\d[\d.:e-]*)", "#", text)


def examples_of(path: Path) -> Iterator[doctest.DocTest]:
    """Yield the docstrings of a file that have examples, without importing it."""
    text = path.read_text()
    if ">>>" not in text:
        return
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    parser = doctest.DocTestParser()

    def found(node: ast.AST, name: str) -> Iterator[doctest.DocTest]:
        for child in ast.iter_child_nodes(node):
            is_named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            yield from documented(child, f"{name}.{child.name}") if is_named else found(child, name)

    def documented(node: Any, name: str) -> Iterator[doctest.DocTest]:
        if docstring := ast.get_docstring(node, clean=False):
            test = parser.get_doctest(docstring, {"__name__": module}, name, str(path), node.body[0].lineno - 1)
            if test.examples:
                yield test
        yield from found(node, name)

    yield from documented(ast.parse(text), module)


EXAMPLES = {
    test.name: test
    for package in ("maggy_like", "optimizers")
    for path in sorted(ROOT.joinpath(package).rglob("*.py"))
    for test in examples_of(path)
}


def names_in(test: doctest.DocTest) -> set[str]:
    """The names that the statements of a docstring use."""
    nodes = (node for example in test.examples for node in ast.walk(ast.parse(example.source)))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def defined_by(test: doctest.DocTest) -> set[str]:
    """The names that the statements of a docstring define, inside of functions too."""
    defined: set[str] = set()
    for node in (node for example in test.examples for node in ast.walk(ast.parse(example.source))):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                defined.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                defined |= {alias.asname or alias.name for alias in aliases}
    return defined


def is_skipped(example: doctest.Example) -> bool:
    return example.options.get(doctest.SKIP, False)


NEEDS_SPARK = {name for name, test in EXAMPLES.items() if names_in(test) & {"spark", "df"}}


def train_fn(
    reporter: Reporter,
    lr: float = 0.01,
    units: int = 64,
    dropout: float = 0.1,
    augment: bool = True,
    seed: int = 0,
    model: Any = None,
    features: Any = (),
) -> None:
    """Report an accuracy that all arguments change, and save a state with each one."""
    from torch import nn

    luck = random.Random(f"{seed} {dropout} {augment} {len(features)} {'Identity' in str(model)}").uniform(-0.01, 0.01)
    state_dict = nn.Linear(2, 1).state_dict()
    state = reporter.restore() or {"step": 0}
    for step in range(state["step"] + 1, reporter.budget + 1):
        accuracy = 0.9 - abs(lr - 0.01) - 1 / (units + step) - 0.2 * abs(dropout - 0.1) - 0.02 * (not augment) + luck
        reporter.checkpoint({"step": step, "model": state_dict})
        reporter.report(accuracy=accuracy, step=step)


def make_network(n_features: int = 30, dropout: float = 0.1, width: int = 16) -> Any:
    """A network with a normalization and a residual block."""
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))

        def forward(self, x: Any) -> Any:
            return x + self.inner(x)

    layers = {
        "norm": nn.BatchNorm1d(n_features),
        "inlet": nn.Linear(n_features, width),
        "block": Block(),
        "head": nn.Linear(width, 2),
    }
    network = nn.Sequential()
    for name, layer in layers.items():
        network.add_module(name, layer)
    return network


class Shared:
    """The names that an example may use without defining them, each made at its first use."""

    train_fn = staticmethod(train_fn)
    make_network = staticmethod(make_network)

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        run_here = {"engine": "inline", "progress": False, "max_budget": 3, "directory": "maggy_runs"}
        self.lagom = partial(maggy_like.lagom, **{**run_here, "n_trials": 4, "seed": 0})
        self.ablate = partial(maggy_like.ablate, **run_here)
        self.run = partial(maggy_like.run, engine="inline", progress=False)

    @property
    def space(self) -> dict[str, Any]:
        return {"lr": Float(1e-4, 1e-1, log=True), "units": Integer(16, 256)}

    @property
    def reporter(self) -> Reporter:
        return Reporter(budget=9)

    @property
    def model(self) -> Any:
        from torch import nn

        return nn.Linear(2, 1)

    @cached_property
    def table(self) -> Any:
        from sklearn.datasets import load_breast_cancer

        return load_breast_cancer(as_frame=True).frame

    @cached_property
    def split(self) -> Any:
        from sklearn.model_selection import train_test_split

        table = self.table
        return train_test_split(table.drop(columns="target").to_numpy(), table["target"].to_numpy(), random_state=0)

    @property
    def x(self) -> Any:
        return self.split[0]

    @property
    def x_test(self) -> Any:
        return self.split[1]

    @property
    def y(self) -> Any:
        return self.split[2]

    @property
    def y_test(self) -> Any:
        return self.split[3]

    @property
    def study(self) -> AblationStudy:
        return AblationStudy(model=make_network, data=self.table, label="target").modules("norm").config(dropout=0.0)

    @cached_property
    def result(self) -> Any:
        return self.searched("august", n_trials=20)

    @cached_property
    def runs(self) -> Path:
        """A directory with ``RUNS``, in this order."""
        _ = self.result, self.searched("random"), self.searched("asha", optimizer="asha", n_trials=6)
        return self.directory / "maggy_runs"

    def searched(self, name: str, **given: Any) -> Any:
        options = {"optimizer": "random", "directory": self.directory / "maggy_runs", "name": name, **given}
        return self.lagom(train_fn, self.space, **options)

    @cached_property
    def answer(self) -> Any:
        return self.ablate(train_fn, self.study, directory=self.directory / "ablations", name="study")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return Shared(tmp_path_factory.mktemp("shared"))


def meaning(name: str, home: ModuleType, shared: Shared) -> Any:
    """What a name stands for in an example of a module; None for one that the example itself defines."""
    if hasattr(shared, name):
        return getattr(shared, name)
    if getattr(vars(home).get(name), "__module__", None) == home.__name__:
        return vars(home)[name]
    for package in (maggy_like, optimizers, importlib.import_module("maggy_like.ml")):
        if name in package.__all__:
            return getattr(package, name)
    return importlib.import_module(LIBRARIES[name]) if name in LIBRARIES else None


def check(test: doctest.DocTest, shared: Shared, **given: Any) -> None:
    """Run the statements of a docstring in the working directory."""
    home = importlib.import_module(test.globs["__name__"])
    names = {name: meaning(name, home, shared) for name in names_in(test)}
    known = {"__name__": "__main__", **{name: value for name, value in names.items() if value is not None}, **given}
    assert names.keys() <= known.keys() | defined_by(test) | vars(builtins).keys() | OWN
    if "maggy_runs" in str(test.docstring) or "list_runs" in known:
        for name in RUNS:
            shutil.copytree(shared.runs / name, Path("maggy_runs", name))
    test = doctest.DocTest(test.examples, known, test.name, test.filename, test.lineno, test.docstring)
    printed: list[str] = []
    checker = AnyNumber() if test.name in VARIES else doctest.OutputChecker()
    outcome = doctest.DocTestRunner(checker, optionflags=FLAGS, verbose=False).run(test, out=printed.append)
    assert outcome.failed == 0, "".join(printed)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in NEEDS_SPARK | LARGE])
def test_the_examples_of_a_docstring_run(
    name: str, shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(EXAMPLES[name], shared)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras on torch
@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.parametrize("name", sorted(LARGE))
def test_the_examples_of_a_docstring_run_on_a_large_scale(
    name: str, shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    Path("train.py").touch()
    here = {"engine": "local", "progress": False}
    check(EXAMPLES[name], shared, **{f.__name__: partial(f, **here) for f in (maggy_like.run, maggy_like.run_script)})


@pytest.fixture(scope="module")
def in_session(spark_local: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A session, a table, a network that was trained on it, and an Estimator that trains in this process."""
    from torch import nn

    from maggy_like.ml import TorchEstimator

    rows = [(n, [n / 60, 0.5, 0.0, 1.0], n % 3, "abc"[n % 3], n % 7) for n in range(60)]
    df = spark_local.createDataFrame(rows, "id int, features array<float>, label int, store string, day int")
    here = {"engine": "inline", "directory": str(tmp_path_factory.mktemp("model")), "runOptions": {"progress": False}}
    model = TorchEstimator(model=nn.Linear(4, 3), loss="cross_entropy", epochs=1, **here).fit(df)
    return {"spark": spark_local, "df": df, "model": model, "TorchEstimator": partial(TorchEstimator, engine="inline")}


@pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType:UserWarning")  # of MLflow's own modules
@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(NEEDS_SPARK))
def test_the_examples_of_a_docstring_run_in_a_session(
    name: str,
    shared: Shared,
    spark_local: Any,
    in_session: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    check(EXAMPLES[name], shared, **in_session)


def test_each_statement_that_does_not_run_has_a_reason() -> None:
    assert {name for name, test in EXAMPLES.items() if any(map(is_skipped, test.examples))} == {*NOT_RUN}
