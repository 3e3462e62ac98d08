"""What the pages for users say: links, arguments, names of tests and files."""

from __future__ import annotations

import ast
import configparser
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from platforms.kubernetes_settings import SETTINGS_ON_KUBERNETES
from platforms.settings import SETTINGS

import maggy_like
from maggy_like.spark.session import MIN_JAVA

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "coming-from").glob("*.md")])


def calls(page: Path) -> Iterator[ast.Call]:
    for block in re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(textwrap.dedent(block))):
            if isinstance(node, ast.Call):
                yield node


def on_pages(wrong: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What is wrong, by page."""
    return {str(page.relative_to(ROOT)): found for page in PAGES if (found := wrong(page))}


def test_links_lead_somewhere() -> None:
    def broken(page: Path) -> list[str]:
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        return [link for link in links if not (page.parent / link).exists()]

    assert on_pages(broken) == {}


def test_examples_can_be_read_and_pass_arguments_that_there_are() -> None:
    def unknown(page: Path) -> list[str]:
        found = []
        for call in calls(page):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name not in maggy_like.__all__ or name == "Constant":
                continue
            known = inspect.signature(getattr(maggy_like, name)).parameters
            if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
                found += [f"{name}({it.arg})" for it in call.keywords if it.arg is not None and it.arg not in known]
        return found

    assert on_pages(unknown) == {}


def test_the_settings_of_spark_that_pages_name_are_tested() -> None:
    rows = [row for page in PAGES for row in re.findall(r"rows? `([^`]+)`", page.read_text())]
    assert rows
    assert [row for row in rows if row not in SETTINGS | SETTINGS_ON_KUBERNETES] == []


def test_benchmarks_and_tests_that_are_named_are_there() -> None:
    benchmarks = {path.name.removesuffix(".py") for path in (ROOT / "benchmarks").iterdir()}
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests = set(re.findall(r"def (test_\w+)\(", sources))

    def missing(page: Path) -> list[str]:
        text = page.read_text()
        named = set(re.findall(r"(?:-m |`)benchmarks\.(\w+)", text)) - benchmarks
        return sorted(named | set(re.findall(r"`(test_\w+)`", text)) - tests)

    assert on_pages(missing) == {}


def test_the_table_of_supported_versions_is_that_of_the_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = "\n".join(setup["options.extras_require"].values())
    table = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE))

    def oldest(name: str) -> str:
        found = re.search(r"\d+(\.\d+)*", table[name])
        assert found is not None
        return found[0]

    assert setup["options"]["python_requires"] == f">={oldest('Python')}"
    for package in ("pyspark", "torch", "pandas"):
        assert re.search(rf"^{package}>={oldest(package)}\b", extras, re.MULTILINE), package
    assert oldest("Java, for Spark") == str(MIN_JAVA)
    tested = set(re.findall(r'Row\("(3\.\d+)"', (ROOT / "tests" / "versions.py").read_text()))
    assert tested == set(re.findall(r"Python :: (3\.\d+)", setup["metadata"]["classifiers"]))


def test_the_directories_that_the_choices_name_are_there() -> None:
    named = [
        (page.name, path)
        for page in sorted((ROOT / "docs" / "adr").glob("*.md"))
        for path in re.findall(r"`([a-z_]+/[a-z_/0-9]+\.py)`", page.read_text())
    ]
    assert named
    assert [each for each in named if not any((root / each[1]).exists() for root in (ROOT, ROOT / "maggy_like"))] == []
