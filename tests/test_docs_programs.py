"""The code of the docs runs as pasted: the blocks of a page are one program, from top to bottom.

A block whose first line is a comment ``# needs ...``, ``# takes ...`` or ``# ends ...`` is not run, and its reader sees
why. The source of a page has marks that a reader does not see:

- ``<!-- setup`` ... ``-->``: code of the tests, before the blocks below;
- ``<!-- needs: spark -->``: the blocks below need a session. Masters, buckets and numbers of workers are replaced by
  what there is here (:data:`STAND_INS`), and the page says which extra to install;
- ``<!-- output -->`` before a block of text: lines that the code prints, in this order. Numbers may differ by 2 %.
  Times, names of runs and the directories in front of a run's are not compared;
- ``<!-- output: exact -->``: nothing may differ;
- ``<!-- output: varies -->``: numbers are not compared, because several workers report in no fixed order. The page
  tells its reader that they differ;
- ``<!-- session -->`` before commands of ``maggy-like`` and what they print, as typed in a shell.
"""

from __future__ import annotations

import ast
import builtins
import configparser
import math
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

NUMBER = re.compile(r"[-+]?\d[\d,.:]*(?:e[+-]\d+)?")

UNSTEADY = re.compile(
    r"\S*/(?=maggy_runs)|\d{4}-\d\d-\d\d \d\d:\d\d|-\d{8}-\d{6}-[0-9a-f]{4}|\b\d+:\d\d\b|\b[\d.]+ s\b"
)
"""What differs in each run: directories, dates, the names of runs, times."""

TOLERANCE = 0.02

STAND_INS = {
    r"(spark|k8s|sc)://[\w.:/]+": "local[2]",
    r"(s3|s3a|gs)://bucket": "/shared",
    r"\bworkers=(?:[3-9]|\d\d+)": "workers=2",
}

PART = re.compile(
    r"^<!-- setup\n(?P<setup>.*?)^-->"
    r"|^<!-- needs: (?P<needs>spark) -->"
    r"|^<!-- output(?:: (?P<how>exact|varies))? -->\n+```text\n(?P<output>.*?)^```"
    r"|^<!-- session -->\n+```console\n(?P<session>.*?)^```"
    r"|^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)

NOT_RUN = re.compile(r"\s*# (needs|takes|ends) ")


class Program(NamedTuple):
    """The code of a page.

    Attributes:
        code: What runs without a session: everything above the mark, or all if there is none.
        on_spark: What runs with a session: everything, or nothing if there is no mark.
        outputs: The lines that the code prints, and how each is compared.
        outputs_on_spark: The same for all of the page.
    """

    code: str
    on_spark: str
    outputs: list[tuple[str, str]]
    outputs_on_spark: list[tuple[str, str]]


def program_of(text: str) -> Program:
    """Read a page."""
    parts: list[str] = []
    outputs: list[tuple[str, str]] = []
    above: tuple[str, list[tuple[str, str]]] | None = None
    for part in PART.finditer(text):
        if part["needs"]:
            above = "\n".join(parts), list(outputs)
        elif part["setup"]:
            parts.append(part["setup"])
        elif part["output"] is not None:
            outputs.extend((line, part["how"] or "") for line in part["output"].splitlines() if line)
        elif part["session"] is not None:
            commands = re.findall(r"^\$ maggy-like (.*)$", part["session"], re.MULTILINE)
            parts.extend(f"assert maggy_like.command_line.main({shlex.split(command)}) == 0\n" for command in commands)
            outputs.extend((line, "") for line in part["session"].splitlines() if line and not line.startswith("$"))
        elif not NOT_RUN.match(part["code"]):
            parts.append(textwrap.dedent(part["code"]))
    code = "\n".join(parts)
    if above is None:
        return Program(code, "", outputs, [])
    for name, stand_in in STAND_INS.items():
        code = re.sub(name, stand_in, code)
    return Program(above[0], code, above[1], outputs)


def is_alike(line: str, printed: str, how: str) -> bool:
    """Whether a line that is shown is the one that was printed."""
    if how == "exact":
        return line.split() == printed.split()
    line, printed = (" ".join(UNSTEADY.sub(" ", text).split()) for text in (line, printed))
    if NUMBER.sub("0", line) != NUMBER.sub("0", printed):
        return False
    pairs = zip(NUMBER.findall(line), NUMBER.findall(printed), strict=True)
    return how == "varies" or all(math.isclose(_number(a), _number(b), rel_tol=TOLERANCE) for a, b in pairs)


def _number(text: str) -> float:
    """The value of a number, with the commas, full stops and colons of a sentence left out."""
    return float(text.replace(",", "").replace(":", "").rstrip("."))


def missing(outputs: list[tuple[str, str]], printed: str) -> str | None:
    """The first line that a page shows and its code does not print, after the lines before it."""
    lines = iter(printed.splitlines())
    for line, how in outputs:
        if not any(is_alike(line, each, how) for each in lines):
            return line
    return None


PAGES = {"README.md": ROOT / "README.md"} | {str(page.relative_to(DOCS)): page for page in sorted(DOCS.rglob("*.md"))}
PROGRAMS = {name: program_of(page.read_text()) for name, page in PAGES.items()}
LOCAL = [name for name, program in PROGRAMS.items() if program.code.strip()]
ON_SPARK = [name for name, program in PROGRAMS.items() if program.on_spark.strip()]

SHORT, SHORT_ON_SPARK = ("README.md", "index.md"), ("estimator.md",)
"""Pages whose code ``make test`` runs, on processes and on Spark. ``make test-long`` runs all."""


def with_marks(pages: list[str], short: tuple[str, ...]) -> list[Any]:
    """The pages as parameters of a test. Those that are not short are left to ``make test-long``."""
    return [page if page in short else pytest.param(page, marks=pytest.mark.long) for page in pages]


MODULES = {name: name for name in ("lightgbm", "xgboost", "lightning", "keras", "transformers", "sklearn", "torch")} | {
    "joblib": "sklearn",
    "mlflow": "mlflow",
    "optuna": "optuna",
    "pandas": "pandas",
    "pyarrow": "ml",
    "pyspark": "spark",
}
"""The extra that has a module."""

MEMBERS = {"to_pandas": "pandas", "curves": "pandas", "to_optuna": "optuna", "importance": "optuna", "plot": "report"}
"""The extra that a member of a result needs."""


def includes() -> dict[str, set[str]]:
    """What each extra brings: itself, and the extras that it names."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = {
        name: set(re.findall(r"[\w-]+", ",".join(re.findall(r"maggy_like\[(.*?)\]", text))))
        for name, text in setup["options.extras_require"].items()
    }
    whole = {name: {name} | within for name, within in extras.items()}
    for _ in extras:
        whole = {name: within.union(*(whole[other] for other in within)) for name, within in whole.items()}
    needed = {"ml": "pyarrow", "spark": "pyarrow", "lightning": "torch", "transformers": "torch"}
    return whole | {name: whole[name] | {package} for name, package in needed.items()}


def named_extras(text: str) -> set[str]:
    """The extras that a page tells its reader to install, with what they bring."""
    known = includes()
    lists = re.findall(r"pip install [^\n\[]*\[([\w,-]+)\]", text)
    named = {name for names in lists for name in names.split(",")} & known.keys()
    return named.union(*(known[name] for name in named))


def used_extras(code: str) -> set[str]:
    """The extras that the code of a page needs."""
    used = {"report"} if "command_line.main(['report'" in code else set()
    for node in ast.walk(ast.parse(code)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        used |= {MODULES[top] for name in names if (top := name.partition(".")[0]) in MODULES}
        used |= {"ml"} if "maggy_like.ml" in names else set()
        if isinstance(node, ast.Attribute):
            used |= {MEMBERS[node.attr]} if node.attr in MEMBERS else set()
            used |= {"report"} if node.attr == "report" and ast.unparse(node.value) in {"result", "answer"} else set()
            used |= {"spark"} if ast.unparse(node) == "spark.sparkContext" else set()
        if isinstance(node, ast.Name) and node.id == "spark_session":
            used |= {"spark"}
    return used


def test_a_page_is_read_as_one_program() -> None:
    shown = "text\n```python\ny = x\n```\n"
    page = f"<!-- setup\nx = 1\n-->\n{shown}```python\n# needs a cluster\nz = 1\n```\n"
    page += "<!-- output -->\n```text\ny = 1.5\n```\n<!-- output: exact -->\n```text\ntwo\n```\n"
    page += "<!-- session -->\n```console\n$ maggy-like list 'a b'\nnone\n```\n"
    code = "x = 1\n\ny = x\n\nassert maggy_like.command_line.main(['list', 'a b']) == 0\n"
    outputs = [("y = 1.5", ""), ("two", "exact"), ("none", "")]
    assert program_of(page) == Program(code, "", outputs, [])


def test_what_stands_below_the_mark_runs_with_a_session_and_stand_ins() -> None:
    page = "```python\nx = 1\n```\n<!-- needs: spark -->\n"
    page += '```python\nf("spark://h:7077", "s3://bucket/a", workers=8)\n```\n'
    below = 'f("local[2]", "/shared/a", workers=2)\n'
    assert program_of(page) == Program("x = 1\n", "x = 1\n\n" + below, [], [])


@pytest.mark.parametrize(
    ("line", "printed", "how", "alike"),
    [
        ("best 0.98 in /home/me/maggy_runs/a", "best 0.981 in /tmp/x/maggy_runs/a", "", True),
        ("best 0.98", "best 0.9", "", False),
        ("best 0.98", "best 0.9", "varies", True),
        ("best 0.98", "worst 0.98", "varies", False),
        (
            "train-20261125-202248-356d: completed after 0:05",
            "train-20261128-101010-abcd: completed after 0:07",
            "",
            True,
        ),
        ("{'lr': 0.0972}", "{'lr': 0.0973}", "", True),
        ("n = 3", "n = 3.01", "exact", False),
    ],
)
def test_output_that_is_shown_is_compared_with_its_numbers(line: str, printed: str, how: str, *, alike: bool) -> None:
    assert is_alike(line, printed, how) is alike
    assert (missing([(line, how)], f"noise\n{printed}\n") is None) is alike


@pytest.mark.parametrize("page", [page for page in PROGRAMS if not page.startswith(("adr/", "reference/"))])
def test_a_page_names_the_extras_that_its_code_needs(page: str) -> None:
    program = PROGRAMS[page]
    used = used_extras(program.on_spark or program.code)
    assert used <= named_extras(PAGES[page].read_text()), "add `pip install 'maggy_like[...]'` before the first block"


def test_a_page_whose_numbers_vary_says_so() -> None:
    silent = [
        page
        for page, path in PAGES.items()
        if "<!-- output: varies -->" in (text := path.read_text()) and "differ" not in text
    ]
    assert silent == []


def undefined(text: str) -> list[str]:
    """The names that the code which a page shows and runs uses and does not define."""
    blocks = [part["code"] for part in PART.finditer(text) if part["code"] and not NOT_RUN.match(part["code"])]
    nodes = list(ast.walk(ast.parse("\n".join(map(textwrap.dedent, blocks)))))
    known = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    known |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    known |= {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            known |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    return sorted(used - known - set(dir(builtins)) - {"__name__"})


@pytest.mark.parametrize("page", [page for page in PROGRAMS if not page.startswith(("adr/", "reference/"))])
def test_a_page_shows_what_its_code_uses(page: str) -> None:
    assert undefined(PAGES[page].read_text()) == []


WARNED = re.compile(r"\w*Warning: .*|^warning\b.*", re.MULTILINE | re.IGNORECASE)
"""What Python or the log of a run prints when it warns."""


def check(program_outputs: list[tuple[str, str]], printed: str, errors: str) -> None:
    """What a program printed is what its page shows, without a warning that the page does not show."""
    assert missing(program_outputs, printed) is None, printed
    shown = {" ".join(line.split()) for line, _ in program_outputs}
    warned = WARNED.findall(f"{printed}\n{errors}")
    assert [line for line in warned if " ".join(line.split()) not in shown] == []


@pytest.mark.example
@pytest.mark.e2e
@pytest.mark.parametrize("page", with_marks(LOCAL, SHORT))
def test_the_code_of_a_page_runs(page: str, run_program: Any, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[page].code)
    check(PROGRAMS[page].outputs, *run_program(program))


@pytest.mark.spark
@pytest.mark.example
@pytest.mark.parametrize("page", with_marks(ON_SPARK, SHORT_ON_SPARK))
def test_the_code_of_a_page_that_needs_spark_runs(
    page: str, spark_local: Any, run_program: Any, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAMS[page].on_spark.replace("/shared", str(tmp_path)))  # Java has a directory of its own
    check(PROGRAMS[page].outputs_on_spark, *run_program(program))
