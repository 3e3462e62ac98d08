"""Each option is declared once, and help(), signatures, the reference and type checkers all show it."""

from __future__ import annotations

import dataclasses
import inspect
import os
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import griffe
import pytest

from maggy_like import ablate, lagom, run
from maggy_like.api.ablate import AblationOptions
from maggy_like.api.lagom import SearchOptions
from maggy_like.api.run import FunctionOptions

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]

TAKEN: dict[Callable[..., Any], type] = {lagom: SearchOptions, ablate: AblationOptions, run: FunctionOptions}

every_function = pytest.mark.parametrize("function", TAKEN, ids=lambda function: function.__name__)


def described(function: Callable[..., Any]) -> dict[str, str]:
    """The text of each argument in the docstring."""
    text = (inspect.getdoc(function) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    return dict(re.findall(r"^    (\w+): (.+)", text, re.M))


@every_function
def test_each_option_has_a_type_a_default_and_a_text(function: Callable[..., Any]) -> None:
    fields = {field.name: field for field in dataclasses.fields(TAKEN[function])}
    parameters = inspect.signature(function).parameters
    assert set(parameters) == set(fields) == set(described(function))
    for name, parameter in parameters.items():
        assert parameter.annotation == fields[name].type
        assert parameter.default is (
            inspect.Parameter.empty if fields[name].default is dataclasses.MISSING else fields[name].default
        )


@every_function
def test_help_shows_each_option(function: Callable[..., Any]) -> None:
    shown = pydoc.plain(pydoc.render_doc(function))
    for name, parameter in inspect.signature(function).parameters.items():
        assert f"{name}: " in shown
        assert described(function)[name] in shown
        assert parameter.default is parameter.empty or f"{name}: {parameter.annotation!r} = " in shown


@pytest.fixture(scope="module")
def reference() -> Any:
    """The package as the reference reads it."""
    extensions = griffe.load_extensions(ROOT / "docs" / "site_docstrings.py")
    return griffe.load("maggy_like", search_paths=[ROOT], extensions=extensions)


@every_function
def test_the_reference_has_each_option_in_the_same_order(function: Callable[..., Any], reference: Any) -> None:
    shown = reference["api"][function.__name__][function.__name__].parameters
    parameters = inspect.signature(function).parameters
    assert [parameter.name for parameter in shown] == list(parameters)
    assert [str(parameter.annotation) for parameter in shown] == [it.annotation for it in parameters.values()]


PROGRAM = """
from maggy_like.api.lagom import lagom

reveal_type(lagom)
reveal_type(lagom(print, {}, n_trials=3))
reveal_type(lagom(print, {}, n_trials=3, block=False))
lagom(print, {}, n_trials="many")
lagom(print, {}, n_trails=3)
"""


def test_a_type_checker_knows_each_option(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    read = [ROOT / "maggy_like" / "api" / "lagom.py", ROOT / "maggy_like" / "api" / "options.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--follow-imports=skip", f"--cache-dir={tmp_path}",
         program, *read],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    said = [line.removeprefix(f"{program}:") for line in done.stdout.splitlines() if line.startswith(str(program))]
    names = [name for name in inspect.signature(lagom).parameters if name != "block"]
    assert re.findall(r"(?:\[\[|, )\*?(\w+): ", said[0]) == names  # in the order in which an editor shows them
    assert "n_trials: int | None =" in said[0]
    assert "RunHandle" not in said[1]
    errors = [int(line.partition(":")[0]) for line in said if ": error: " in line]
    assert errors == [7, 8]


SCRIPT = """
from maggy_like import ASHA, Float, Integer, Reporter, lagom

def train(lr: float, units: int, reporter: Reporter) -> None:
    for step in range(1, reporter.budget + 1):
        reporter.report(accuracy=1 - lr / units, step=step)

space = {"lr": Float(1e-4, 1e-1, log=True), "units": Integer(16, 256), "activation": ["relu", "gelu"]}
result = lagom(train, space, optimizer=ASHA(eta=3), metric="accuracy", n_trials=4, max_budget=9)
print(result.best_config, result.to_pandas())
rate: str = result.best_value
handle = lagom(train, space, block=False)
print(handle.status(), handle.result().best_trial, handle.stacks())
handle.best_value
reporter: Reporter = Reporter(budget="3")
"""


@pytest.mark.long
@pytest.mark.e2e
def test_a_type_checker_finds_the_package_from_a_user_s_directory(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    cache = request.config.cache.mkdir("mypy-of-users") if request.config.cache else tmp_path
    done = subprocess.run(
        [sys.executable, "-m", "mypy", f"--cache-dir={cache}", "script.py"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "", "MYPYPATH": ""},
    )  # fmt: skip
    assert [int(line) for line in re.findall(r"^script\.py:(\d+): error: ", done.stdout, re.MULTILINE)] == [11, 14, 15]
    assert "import-untyped" not in done.stdout
