"""The quickstart notebook in the real JupyterLab and a browser: run, stopped, saved and opened again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lab import CELL, CONNECTED, PATIENCE, ROOT, RUN_ALL, jupyterlab
from report_pages import chromium

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

DELAY = """() => {
  const times = [...document.body.innerText.matchAll(/printed at ([0-9.]+)/g)].map(found => Number(found[1]));
  return times.length ? Date.now() / 1000 - Math.max(...times) : null;
}"""

pytestmark = [pytest.mark.long, pytest.mark.notebook, pytest.mark.browser]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where JupyterLab runs: the notebook, with a search that only a person ends, whose trials print the time.

    It is read as JSON: nbformat takes 3 seconds to import, in each process that collects the tests.
    """
    notebook = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())
    cells = notebook["cells"]
    printed = "accuracy {accuracy:.4f}, printed at {__import__('time').time():.3f}\")"
    for cell in cells:
        source = "".join(cell["source"]).replace("n_trials=18", "n_trials=100_000")
        cell["source"] = source.replace('accuracy {accuracy:.4f}")', printed)
    end = next(place for place, cell in enumerate(cells) if cell["source"] == "result")
    del cells[end + 1 :]
    assert "printed at" in str(cells)
    assert "100_000" in str(cells)
    made = tmp_path / "notebooks"
    made.mkdir()
    (made / "quickstart.ipynb").write_text(json.dumps(notebook))
    return made


@pytest.fixture
def address(directory: Path, tmp_path: Path) -> Iterator[str]:
    """The address of the notebook in a JupyterLab."""
    with jupyterlab(directory, tmp_path) as lab:
        yield f"{lab}/quickstart.ipynb"


@pytest.fixture
def browser() -> Iterator[BrowserContext]:
    sync_api = pytest.importorskip("playwright.sync_api")
    if (path := chromium()) is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            context = chrome.new_context(viewport={"width": 1280, "height": 1000})
            context.set_default_timeout(1000 * PATIENCE)
            yield context
        finally:
            chrome.close()


def test_a_person_sees_a_search_run_stops_it_and_finds_it_again(
    browser: BrowserContext, address: str, directory: Path, tmp_path: Path
) -> None:
    page: Page = browser.new_page()
    page.goto(address)
    page.wait_for_function(CONNECTED)  # the notebook says "idle" before, and asks for a kernel if it is run then
    page.evaluate(RUN_ALL)
    page.locator(CELL).wait_for()
    page.locator(".jp-CodeCell").last.scroll_into_view_if_needed()  # the cell above it is drawn anew all the time
    delay = page.wait_for_function(DELAY).json_value()
    print(f"a line is in the cell {delay:.2f} s after it was printed")  # pytest -rP shows it
    assert -1 < delay < PATIENCE
    page.locator(CELL).get_by_text(re.compile(r"best accuracy")).wait_for()
    page.screenshot(path=tmp_path / "running.png")

    page.locator('[data-command="notebook:interrupt-kernel"]').first.click()
    page.locator(CELL).get_by_text("interrupted", exact=True).wait_for()
    page.locator("table.dataframe").first.wait_for()  # the cell below shows the result so far
    page.screenshot(path=tmp_path / "interrupted.png")

    with page.expect_response(
        lambda reply: reply.request.method == "PUT" and "/api/contents/quickstart.ipynb" in reply.url
    ):
        page.locator('[data-command="docmanager:save"]').first.click()
    page.close()
    assert "interrupted" in (directory / "quickstart.ipynb").read_text()

    again = browser.new_page()
    again.goto(address)
    again.locator(CELL).get_by_text("interrupted", exact=True).wait_for()
    again.locator(CELL).get_by_text(re.compile("printed at")).last.wait_for()
    again.screenshot(path=tmp_path / "again.png")
