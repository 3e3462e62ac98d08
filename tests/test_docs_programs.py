"""The code of the docs runs: the blocks of a page are one program, from top to bottom.

A page may say in HTML comments, which a reader of the source sees:

- ``<!-- setup`` ... ``-->``: code that the blocks below need and the page does not show;
- ``<!-- not run: REASON -->`` before a block that cannot run here;
- ``<!-- needs: spark -->``: a session is there;
- ``<!-- output -->`` before a block of text: lines that the code prints, in this order. Numbers and the folders in
  front of a run's are not compared, since no two machines agree on them; ``<!-- output: exact -->`` compares all;
- ``<!-- session -->`` before commands of ``maggy-like`` and what they print, as typed in a shell.
"""

from __future__ import annotations

import re
import runpy
import shlex
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

DOCS = Path(__file__).parent.parent / "docs"

NUMBER = re.compile(r"[-+]?\d[\d,.:]*(e[+-]\d+)?")

PART = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->"
    r"|^ *<!-- not run: (?P<reason>[^\n]+) -->\n+(?=^ *```python)"
    r"|^<!-- output(?P<exact>: exact)? -->\n+```text\n(?P<output>.*?)^```"
    r"|^<!-- session -->\n+```console\n(?P<session>.*?)^```"
    r"|^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)


class Program(NamedTuple):
    """The code of a page.

    Attributes:
        code: What runs.
        reasons: Why the other blocks do not.
        needs_spark: Whether it needs a session.
        outputs: The lines that the page says are printed, and whether all of them holds.
    """

    code: str
    reasons: list[str]
    needs_spark: bool
    outputs: list[tuple[str, bool]]


def program_of(text: str) -> Program:
    """Read a page."""
    program = Program("", [], "<!-- needs: spark -->" in text, [])
    parts, is_run = [], True
    for part in PART.finditer(text):
        if part["reason"]:
            program.reasons.append(part["reason"])
            is_run = False
        elif part["setup"]:
            parts.append(part["setup"])
        elif part["output"] is not None:
            program.outputs.extend((line, part["exact"] is not None) for line in part["output"].splitlines() if line)
        elif part["session"] is not None:
            commands = re.findall(r"^\$ maggy-like (.*)$", part["session"], re.MULTILINE)
            parts.extend(f"assert maggy_like.command_line.main({shlex.split(command)}) == 0\n" for command in commands)
            program.outputs.extend(
                (line, False) for line in part["session"].splitlines() if line and not line.startswith("$")
            )
        else:
            if is_run:
                parts.append(textwrap.dedent(part["code"]))
            is_run = True
    return program._replace(code="\n".join(parts))


def compared(line: str, *, exact: bool) -> str:
    """A line of output as far as it is compared."""
    line = " ".join(re.sub(r"\S*/(?=maggy_runs)", "", line).split())
    return line if exact else NUMBER.sub("0", line)


def missing(outputs: list[tuple[str, bool]], printed: str) -> str | None:
    """The first line that a page shows and its code does not print, after the lines before it."""
    lines = iter(printed.splitlines())
    for line, exact in outputs:
        if not any(compared(line, exact=exact) == compared(each, exact=exact) for each in lines):
            return line
    return None


PROGRAMS = {str(page.relative_to(DOCS)): program_of(page.read_text()) for page in sorted(DOCS.rglob("*.md"))}
LOCAL = [name for name, program in PROGRAMS.items() if program.code and not program.needs_spark]
ON_SPARK = [name for name, program in PROGRAMS.items() if program.code and program.needs_spark]


def test_a_page_is_read_as_one_program() -> None:
    shown = "text\n```python\ny = x\n```\n"
    page = f"<!-- setup\nx = 1\n-->\n{shown}<!-- not run: needs a cluster -->\n```python\nz = 1\n```\n"
    page += "<!-- output -->\n```text\ny = 1.5\n```\n<!-- output: exact -->\n```text\ntwo\n```\n"
    page += "<!-- session -->\n```console\n$ maggy-like list 'a b'\nnone\n```\n"
    code = "x = 1\n\ny = x\n\nassert maggy_like.command_line.main(['list', 'a b']) == 0\n"
    outputs = [("y = 1.5", False), ("two", True), ("none", False)]
    assert program_of(page) == Program(code, ["needs a cluster"], needs_spark=False, outputs=outputs)


def test_output_that_is_shown_is_compared() -> None:
    outputs = [("best 0.98  in /home/me/maggy_runs/a", False), ("n = 3", True)]
    assert missing(outputs, "noise\nbest 1.25e-07 in /tmp/x/maggy_runs/a\nn = 3\n") is None
    assert missing(outputs, "best 1 in maggy_runs/a\nn = 4\n") == "n = 3"
    assert missing(outputs, "n = 3\n") == outputs[0][0]


@pytest.mark.example
@pytest.mark.e2e
@pytest.mark.parametrize("page", LOCAL)
def test_the_code_of_a_page_runs(page: str, run_program: Any, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[page].code)
    printed, _ = run_program(program)
    assert missing(PROGRAMS[page].outputs, printed) is None, printed


@pytest.mark.spark
@pytest.mark.example
@pytest.mark.parametrize("page", ON_SPARK)
def test_the_code_of_a_page_that_needs_spark_runs(
    page: str, spark_local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[page].code.replace("/shared/", f"{tmp_path}/"))  # Java has a folder of its own
    runpy.run_path(str(program), run_name="__main__")  # in this process, which has a session already
    printed = capfd.readouterr().out
    assert missing(PROGRAMS[page].outputs, printed) is None, printed
