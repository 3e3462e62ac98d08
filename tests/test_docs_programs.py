"""The code of the docs runs: the blocks of a page are one program, from top to bottom.

A page may say in HTML comments, which a reader of the source sees:

- ``<!-- setup`` ... ``-->``: code that the blocks below need and the page does not show;
- ``<!-- not run: REASON -->`` before a block that cannot run here;
- ``<!-- needs: spark -->``: a session is there.
"""

from __future__ import annotations

import inspect
import re
import runpy
from pathlib import Path
from typing import Any, NamedTuple

import pytest

DOCS = Path(__file__).parent.parent / "docs"

PART = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->"
    r"|^ *<!-- not run: (?P<reason>[^\n]+) -->\n+(?=^ *```python)"
    r"|^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)


class Program(NamedTuple):
    """The code of a page.

    Attributes:
        code: What runs.
        reasons: Why the other blocks do not.
        needs_spark: Whether it needs a session.
    """

    code: str
    reasons: list[str]
    needs_spark: bool


def program_of(text: str) -> Program:
    """Read a page."""
    parts, reasons, is_run = [], [], True
    for part in PART.finditer(text):
        if part["reason"]:
            reasons.append(part["reason"])
            is_run = False
        elif part["setup"]:
            parts.append(part["setup"])
        else:
            if is_run:
                parts.append(inspect.cleandoc(part["code"]) + "\n")
            is_run = True
    return Program("\n".join(parts), reasons, "<!-- needs: spark -->" in text)


PROGRAMS = {str(page.relative_to(DOCS)): program_of(page.read_text()) for page in sorted(DOCS.rglob("*.md"))}
LOCAL = [name for name, program in PROGRAMS.items() if program.code and not program.needs_spark]
ON_SPARK = [name for name, program in PROGRAMS.items() if program.code and program.needs_spark]


def test_a_page_is_read_as_one_program() -> None:
    shown = "text\n```python\ny = x\n```\n"
    page = f"<!-- setup\nx = 1\n-->\n{shown}<!-- not run: needs a cluster -->\n```python\nz = 1\n```\n"
    assert program_of(page) == Program("x = 1\n\ny = x\n", ["needs a cluster"], needs_spark=False)


@pytest.mark.example
@pytest.mark.e2e
@pytest.mark.parametrize("page", LOCAL)
def test_the_code_of_a_page_runs(page: str, run_program: Any, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[page].code)
    run_program(program)


@pytest.mark.spark
@pytest.mark.example
@pytest.mark.parametrize("page", ON_SPARK)
def test_the_code_of_a_page_that_needs_spark_runs(
    page: str, spark_local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[page].code.replace("/shared/", f"{tmp_path}/"))  # Java has a folder of its own
    runpy.run_path(str(program), run_name="__main__")  # in this process, which has a session already
