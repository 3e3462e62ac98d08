"""Make the screenshots of the docs again: real searches in JupyterLab, in its terminal and in a browser.

``python tests/images.py [cell] [terminal] [report] [forest] [--to FOLDER]`` writes them to ``docs/images``, by default
all. It needs the environment of ``make test``, and a Chromium on the PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from benchmarks.report import chromium  # noqa: E402
from lab import CELL, CONNECTED, PATIENCE, RUN_ALL, jupyterlab  # noqa: E402
from PIL import Image  # noqa: E402

from maggy_like import load_run  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

COLOURS = 128
"""Of a saved image, which makes it a third as large."""

THEME = "window.jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {}'}})"
MIDDLE = f"/about [0-9:]+ left/.test(document.querySelector('{CELL}')?.innerText)"
"""Whether the cell shows how long the search will take, which is when five trials have ended."""


TERMINAL = "window.jupyterapp.shell.currentWidget.content._term"
SCREEN = (
    f"[...Array({TERMINAL}.rows).keys()].map(row => "
    f"{TERMINAL}.buffer.active.getLine({TERMINAL}.buffer.active.baseY + row)?.translateToString()).join()"
)
"""The text of a terminal, which is drawn on a canvas."""


@contextlib.contextmanager
def browser(width: int, height: int) -> Iterator[BrowserContext]:
    """A browser with sharp text: an image has twice as many pixels as the page."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        context = chrome.new_context(viewport={"width": width, "height": height}, device_scale_factor=1.5)
        context.set_default_timeout(1000 * PATIENCE)
        yield context
        chrome.close()


def save(picture: bytes, path: Path) -> None:
    """Save a screenshot with few colours, as a small file."""
    image = Image.open(BytesIO(picture)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    image.save(path, optimize=True)
    print(f"{path}: {image.width} x {image.height}, {path.stat().st_size / 1000:.0f} kB")


def take(page: Page, selector: str, path: Path) -> None:
    """Save what an element shows, without waiting until it is drawn no more."""
    box = page.evaluate(
        "(selector) => { const one = document.querySelector(selector); one.scrollIntoView({block: 'nearest'});"
        " const {x, y, width, height} = one.getBoundingClientRect(); return {x, y, width, height}; }",
        selector,
    )
    box |= {"x": box["x"] - 8, "y": box["y"] - 4, "width": box["width"] + 16, "height": box["height"] + 4}
    save(page.screenshot(clip=box), path)


def cell(folder: Path, to: Path) -> None:
    """The live cell of the quickstart notebook in the middle of its search, light and dark."""
    notebook = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())
    for each in notebook["cells"]:
        each["source"] = "".join(each["source"]).replace("n_trials=18", 'n_trials=60, name="digits"')
    last = next(place for place, each in enumerate(notebook["cells"]) if "lagom(train" in each["source"])
    del notebook["cells"][last + 1 :]
    (folder / "lab").mkdir()
    (folder / "lab" / "quickstart.ipynb").write_text(json.dumps(notebook))
    with jupyterlab(folder / "lab", folder / "jupyter") as address, browser(1000, 1000) as context:
        page = context.new_page()
        page.goto(f"{address}/quickstart.ipynb")
        page.wait_for_function(CONNECTED)
        page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
        page.evaluate(RUN_ALL)
        for theme, name in (("Light", "cell.png"), ("Dark", "cell-dark.png")):
            page.evaluate(THEME.format(theme))
            page.wait_for_timeout(1500)  # the colours change over some time
            page.wait_for_function(f"() => {MIDDLE}")
            take(page, CELL, to / name)


def terminal(folder: Path, to: Path) -> None:
    """``make demo`` in a terminal, in the middle of its search."""
    (folder / "shell").mkdir()
    with jupyterlab(folder / "shell", folder / "jupyter-shell") as address, browser(900, 560) as context:
        page = context.new_page()
        page.goto(address)
        page.wait_for_function("window.jupyterapp?.commands.hasCommand('terminal:create-new')")
        page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
        page.evaluate("window.jupyterapp.commands.execute('terminal:create-new')")
        page.locator(".xterm-screen").wait_for()
        page.evaluate(THEME.format("Dark"))
        page.wait_for_timeout(1500)
        page.keyboard.type(f"PS1='$ '; clear; {sys.executable} {ROOT}/examples/quickstart.py --trials 60\n")
        page.wait_for_function(f"/about [0-9:]+ left/.test({SCREEN})")
        take(page, ".xterm-screen", to / "terminal.png")
        page.keyboard.press("Control+C")
        page.wait_for_timeout(3000)


def report(folder: Path, to: Path) -> None:
    """The beginning of the report of ``make demo``."""
    command = [sys.executable, str(ROOT / "examples" / "quickstart.py"), "--trials", "30"]
    subprocess.run(command, cwd=folder, check=True)
    run = next((folder / "maggy_runs").iterdir())
    load_run(run).report(folder / "report.html")
    with browser(1000, 1180) as context:
        page = context.new_page()
        page.goto((folder / "report.html").as_uri())
        page.wait_for_function("document.querySelectorAll('[data-drawn]').length >= 2")
        save(page.screenshot(), to / "report.png")


def forest(folder: Path, to: Path) -> None:
    """The forest plot of the first ablation study of the docs."""
    page = (ROOT / "docs" / "ablation.md").read_text().partition("## Read the table")[0]
    code = re.findall(r"(?s)```python\n(.*?)```", page)
    program = "\n".join([*code, f"answer.plot({str(folder / 'forest.png')!r})"])
    (folder / "study.py").write_text(program)
    subprocess.run([sys.executable, "study.py"], cwd=folder, check=True)
    save((folder / "forest.png").read_bytes(), to / "forest.png")


IMAGES: dict[str, Callable[[Path, Path], None]] = {
    "cell": cell,
    "terminal": terminal,
    "report": report,
    "forest": forest,
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("images", nargs="*", choices=[*IMAGES, []], help="which images to make; default all")
    options.add_argument("--to", type=Path, default=ROOT / "docs" / "images", help="folder (default: docs/images)")
    args = options.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    for name in args.images or IMAGES:
        with tempfile.TemporaryDirectory() as folder:
            IMAGES[name](Path(folder).resolve(), args.to.resolve())


if __name__ == "__main__":
    main()
