"""The quickstart notebook in the real JupyterLab and a browser: run, stopped, saved and opened again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from report_pages import chromium

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

ROOT = Path(__file__).parents[2]
PATIENCE = 200.0
"""Seconds that anything may take on a machine that does much else; a few pass on an idle one."""

SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # else what is scrolled away is not in the page
}

CELL = ".jp-OutputArea-output .maggy"
KERNEL = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
CONNECTED = f"() => {KERNEL}?.connectionStatus === 'connected'"
DELAY = """() => {
  const times = [...document.body.innerText.matchAll(/printed at ([0-9.]+)/g)].map(found => Number(found[1]));
  return times.length ? Date.now() / 1000 - Math.max(...times) : null;
}"""

pytestmark = [pytest.mark.notebook, pytest.mark.browser]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
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
def jupyterlab(folder: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab with the notebook; it ends with all that it has started."""
    for name, values in SETTINGS.items():
        settings = tmp_path / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps(values))
    places = {
        name: str(tmp_path / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    }
    environment = os.environ | places | {"IPYTHONDIR": str(tmp_path / "ipython"), "PYTHONPATH": str(ROOT)}
    environment["JUPYTERLAB_SETTINGS_DIR"] = str(tmp_path / "settings")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    command += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", "--LabApp.extension_manager=readonly"]
    command += ["--LabApp.expose_app_in_browser=True"]
    server = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    ready, said = threading.Event(), list[str]()

    def read() -> None:
        assert server.stderr is not None
        for line in server.stderr:
            said.append(line)
            if f"http://127.0.0.1:{port}/lab" in line:
                ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert ready.wait(PATIENCE), "".join(said)
        yield f"http://127.0.0.1:{port}/lab/tree/quickstart.ipynb"
    finally:
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        server.terminate()
        _, left = psutil.wait_procs(family, timeout=2)  # the server itself takes more than 20 s
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        server.wait()
        reader.join(10)
        if server.stderr is not None:
            server.stderr.close()


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
    browser: BrowserContext, jupyterlab: str, folder: Path, tmp_path: Path
) -> None:
    page: Page = browser.new_page()
    page.goto(jupyterlab)
    page.wait_for_function(CONNECTED)  # the notebook says "idle" before, and asks for a kernel if it is run then
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.locator(CELL).wait_for()
    page.locator(".jp-CodeCell").last.scroll_into_view_if_needed()  # the cell above it is drawn anew all the time
    delay = page.wait_for_function(DELAY).json_value()
    print(f"a line is in the cell {delay:.2f} s after it was printed")  # pytest -rP shows it
    assert -1 < delay < PATIENCE
    page.locator(CELL).get_by_text(re.compile(r"best accuracy")).wait_for()
    page.screenshot(path=tmp_path / "running.png")

    page.locator('[data-command="notebook:interrupt-kernel"]').first.click()
    page.locator(CELL).get_by_text("interrupted", exact=True).wait_for()
    page.get_by_text(re.compile(r"interrupted after")).first.wait_for()  # the cell below prints the result so far
    page.screenshot(path=tmp_path / "interrupted.png")

    with page.expect_response(
        lambda reply: reply.request.method == "PUT" and "/api/contents/quickstart.ipynb" in reply.url
    ):
        page.locator('[data-command="docmanager:save"]').first.click()
    page.close()
    assert "interrupted" in (folder / "quickstart.ipynb").read_text()

    again = browser.new_page()
    again.goto(jupyterlab)
    again.locator(CELL).get_by_text("interrupted", exact=True).wait_for()
    again.locator(CELL).locator("summary").click()
    again.locator(CELL).get_by_text(re.compile("printed at")).last.wait_for()
    again.screenshot(path=tmp_path / "again.png")
