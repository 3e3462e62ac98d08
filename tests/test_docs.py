"""What the pages for users say can be checked without running anything: links, arguments, names of tests."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import maggy_like
from benchmarks.platforms.settings import SETTINGS

ROOT = Path(__file__).parent.parent
PAGES = [path for folder in (ROOT, ROOT / "docs") for path in sorted(folder.glob("*.md"))]
NAMES = {page: str(page.relative_to(ROOT)) for page in PAGES}


def calls(page: Path) -> Iterator[ast.Call]:
    for block in re.findall(r"^ *```python\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(inspect.cleandoc(block))):
            if isinstance(node, ast.Call):
                yield node


@pytest.mark.parametrize("page", PAGES, ids=NAMES.__getitem__)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES.__getitem__)
def test_examples_can_be_read_and_pass_arguments_that_there_are(page: Path) -> None:
    for call in calls(page):
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name not in maggy_like.__all__ or name == "Constant":
            continue
        known = inspect.signature(getattr(maggy_like, name)).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            continue
        wrong = [each.arg for each in call.keywords if each.arg is not None and each.arg not in known]
        assert wrong == [], f"{name}({', '.join(map(str, wrong))})"


def test_the_rows_that_the_page_on_clusters_names_are_there() -> None:
    rows = re.findall(r"rows? `([^`]+)`", (ROOT / "docs" / "clusters.md").read_text())
    assert rows
    assert [row for row in rows if row not in SETTINGS] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES.__getitem__)
def test_tests_that_are_named_are_there(page: Path) -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    names = re.findall(r"`(test_\w+)`", page.read_text())
    assert [name for name in names if f"def {name}(" not in sources] == []
