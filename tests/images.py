"""Make the screenshots of the docs again: real searches in JupyterLab, in a terminal and in a browser.

``python tests/images.py [cell] [terminal] [report] [dashboard] [forest] [--to DIRECTORY]`` writes them to
``docs/images``, by default all. It needs the environment of ``make test``, and a Chromium on the PATH.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from lab import CELL, CONNECTED, PATIENCE, RUN_ALL, jupyterlab  # noqa: E402
from PIL import Image  # noqa: E402
from report_pages import chromium  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.terminal_theme import SVG_EXPORT_THEME  # noqa: E402
from rich.text import Text  # noqa: E402

from maggy_like import load_run  # noqa: E402
from maggy_like.dashboard import open_dashboard  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

THEME = "window.jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {}'}})"
MIDDLE = f"/about [0-9:]+ left/.test(document.querySelector('{CELL}')?.innerText)"
"""Whether the cell shows how long the search will take, which is when five trials have ended."""


NAMED = """([name, directory]) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    texts.currentNode.data = texts.currentNode.data.replaceAll(directory, "/home/me").replaceAll(name, "digits");
  }
}"""
"""Replaces the names of a run and of its directory on a page."""

REDRAWN = re.compile(r"\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*")
"""What rich sends to a terminal before it draws its lines again."""


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
    """Save a screenshot with 256 colors, which makes the file a third as large."""
    image = (
        Image.open(BytesIO(picture)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
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


def cell(directory: Path, to: Path) -> None:
    """The live cell of the quickstart notebook in the middle of its search, light and dark."""
    notebook = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())
    for each in notebook["cells"]:
        each["source"] = "".join(each["source"]).replace("n_trials=18", 'n_trials=60, name="digits"')
    last = next(place for place, each in enumerate(notebook["cells"]) if "lagom(train" in each["source"])
    del notebook["cells"][last + 1 :]
    (directory / "lab").mkdir()
    (directory / "lab" / "quickstart.ipynb").write_text(json.dumps(notebook))
    with jupyterlab(directory / "lab", directory / "jupyter") as address, browser(1000, 1000) as context:
        page = context.new_page()
        page.goto(f"{address}/quickstart.ipynb")
        page.wait_for_function(CONNECTED)
        page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
        page.evaluate(RUN_ALL)
        for theme, name in (("Light", "cell.png"), ("Dark", "cell-dark.png")):
            page.evaluate(THEME.format(theme))
            page.wait_for_timeout(1500)  # the colors change over some time
            page.wait_for_function(f"() => {MIDDLE}")
            take(page, CELL, to / name)


def terminal(directory: Path, to: Path) -> None:
    """``make demo`` in a terminal, in the middle of its search."""
    columns, lines = "100", "24"
    pid, screen = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.environ |= {"COLUMNS": columns, "LINES": lines, "TERM": "xterm-256color"}
        os.execv(sys.executable, [sys.executable, str(ROOT / "examples" / "quickstart.py"), "--trials", "60"])
    shown, frames = "", [""]
    while not re.search(r"about .*left", frames[-1]):
        shown += os.read(screen, 65536).decode(errors="replace")
        frames = REDRAWN.split(shown.replace("\r\n", "\n"))[:-1] or [""]  # the last one may be incomplete
    os.kill(pid, signal.SIGINT)
    with contextlib.suppress(OSError):  # the terminal is closed at the end of the program
        while os.read(screen, 65536):
            pass
    os.waitpid(pid, 0)
    log = [line for frame in frames for line in frame.partition("───")[0].splitlines() if "trial" in line]
    _, rule, region = frames[-1].partition("\x1b[2m─")
    text = Text.from_ansi("\n".join([*log[-6:], f"{rule}{region}".rstrip()]))
    console = Console(record=True, width=int(columns), file=StringIO(), legacy_windows=False)
    console.print(text)
    drawn = console.export_svg(title="python examples/quickstart.py", theme=SVG_EXPORT_THEME)
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # of another host
    with browser(900, 600) as context:
        page = context.new_page()
        page.set_content(f'<body style="margin:0">{drawn.replace("Fira Code", "DejaVu Sans Mono")}</body>')
        save(page.locator("svg").first.screenshot(), to / "terminal.png")


def report(directory: Path, to: Path) -> None:
    """The beginning of the report of ``make demo``."""
    command = [sys.executable, str(ROOT / "examples" / "quickstart.py"), "--trials", "20"]
    subprocess.run(command, cwd=directory, check=True)
    run = next((directory / "maggy_runs").iterdir())
    load_run(run).report(directory / "report.html")
    text = (directory / "report.html").read_text()
    (directory / "report.html").write_text(text.replace(str(directory), "/home/me").replace(run.name, "digits"))
    with browser(1000, 1290) as context:
        page = context.new_page()
        page.goto((directory / "report.html").as_uri())
        page.wait_for_function("document.querySelectorAll('[data-drawn]').length >= 2")
        save(page.screenshot(), to / "report.png")


def dashboard(directory: Path, to: Path) -> None:
    """``make demo`` in the dashboard, in the middle of its search."""
    command = [sys.executable, str(ROOT / "examples" / "quickstart.py"), "--trials", "60"]
    with subprocess.Popen(command, cwd=directory) as search, open_dashboard(str(directory / "maggy_runs")) as opened:
        with browser(1160, 1010) as context:
            page = context.new_page()
            page.goto(opened.url)
            page.click("tbody a")
            page.wait_for_function("parseInt(document.querySelector('.counts')?.innerText) >= 30")
            page.wait_for_function("document.querySelector('[data-drawn]')")
            name = page.inner_text("h1")
            page.evaluate(NAMED, [name, str(directory)])
            save(page.screenshot(), to / "dashboard.png")
        search.send_signal(signal.SIGINT)


def forest(directory: Path, to: Path) -> None:
    """The forest plot of the first ablation study of the docs."""
    page = (ROOT / "docs" / "ablation.md").read_text().partition("## Read the table")[0]
    code = re.findall(r"(?s)```python\n(.*?)```", page)
    program = "\n".join([*code, "answer.plot().write_html('forest.html')"])
    (directory / "study.py").write_text(program)
    subprocess.run([sys.executable, "study.py"], cwd=directory, check=True)
    with browser(760, 320) as context:
        page = context.new_page()
        page.goto((directory / "forest.html").as_uri())
        save(page.locator(".plot-container").first.screenshot(), to / "forest.png")


IMAGES: dict[str, Callable[[Path, Path], None]] = {
    "cell": cell,
    "terminal": terminal,
    "report": report,
    "dashboard": dashboard,
    "forest": forest,
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("images", nargs="*", choices=[*IMAGES, []], help="which images to make; default all")
    options.add_argument("--to", type=Path, default=ROOT / "docs" / "images", help="directory (default: docs/images)")
    args = options.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    for name in args.images or IMAGES:
        with tempfile.TemporaryDirectory() as directory:
            IMAGES[name](Path(directory).resolve(), args.to.resolve())


if __name__ == "__main__":
    main()
