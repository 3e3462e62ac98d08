"""The site of the docs: it is built without a warning, names all that is public, and asks no other host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import maggy_like
import maggy_like.callbacks
import maggy_like.ml
import maggy_like.sklearn
import maggy_like.trackers
import optimizers

ROOT = Path(__file__).parent.parent
REFERENCE = "\n".join(page.read_text() for page in sorted((ROOT / "docs" / "reference").glob("*.md")))
FACADES = r"maggy_like|maggy_like\.(?:callbacks|ml|sklearn|trackers)|optimizers"
NAMED = set(re.findall(rf"^::: (?:{FACADES})\.(\w+)$", REFERENCE, re.M))

HELPERS = {"Searchspace", "Config", "Domain", "Event", "WAIT"}
"""Another spelling, and names for type hints."""


@pytest.mark.parametrize(
    "facade",
    [maggy_like, maggy_like.callbacks, maggy_like.ml, maggy_like.sklearn, maggy_like.trackers, optimizers],
    ids=lambda facade: str(facade.__name__),
)
def test_the_reference_has_all_that_is_public(facade: object) -> None:
    public = set(facade.__all__) - HELPERS  # type: ignore[attr-defined]
    assert public <= NAMED


@pytest.mark.example
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        loaded = re.findall(
            r"<(?:script|img|iframe|link rel=\"stylesheet\")[^>]+(?:src|href)=\"(https?:)?//", page.read_text()
        )
        assert not loaded, page
