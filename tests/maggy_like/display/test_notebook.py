from __future__ import annotations

import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_pages import chromium

from maggy_like.display import LogLine, Snapshot, WorkerLine, notebook
from maggy_like.display import notebook as html
from maggy_like.display.base import FailureLine
from maggy_like.display.notebook import LOG_LINES, NotebookDisplay
from maggy_like.protocol.endings import Ending
from optimizers.core.trial import TrialState

Snap = Callable[..., Snapshot]
Bundles = list[dict[str, str]]


class Handle:
    def __init__(self, bundles: Bundles) -> None:
        self.bundles = bundles

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.bundles.append(bundle)


@pytest.fixture
def bundles(monkeypatch: pytest.MonkeyPatch) -> Bundles:
    """What the display draws, in order."""
    sent: Bundles = []

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        return Handle(sent)

    monkeypatch.setattr(notebook, "display", display)
    return sent


class Page(HTMLParser):
    """The words of a page; fails where tags do not match."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag != "path":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return "|".join(self.words)


def test_its_place_is_the_cell_that_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[dict[str, str]] = []
    monkeypatch.setattr(notebook, "display", lambda bundle, **options: placed.append(bundle))
    NotebookDisplay()
    assert placed == [{"text/html": "", "text/plain": ""}]


def test_a_search(bundles: Bundles, snap: Snap) -> None:
    display = NotebookDisplay()
    display.start(snap(elapsed=0.0, counts={}, best_trial=None, best_value=None, workers=()))
    display.update(snap(), [LogLine(7, "epoch 3"), LogLine(None, "worker 3 was lost")])
    display.finish(snap(phase=Ending.COMPLETED, elapsed=30.1), [LogLine(8, "bye")])
    assert len(bundles) == 3
    assert all(set(bundle) == {"text/html", "text/plain"} for bundle in bundles)
    assert "starting workers" in Page(bundles[0]["text/html"]).text
    running, final = Page(bundles[1]["text/html"]).text, Page(bundles[2]["text/html"]).text
    for word in ("digits", "about 0:45 left", "12/30", "6 paused", "0.973", "<relu>", "|trial|", "|7|", "3/9", "idle"):
        assert word in running
    assert running.endswith("[trial 7] |epoch 3|worker 3 was lost")
    assert "completed" in final
    assert bundles[1]["text/plain"].startswith("[12/30] best 0.973 (trial 4) | 4 completed")
    assert bundles[2]["text/plain"].splitlines()[1:] == [
        "best accuracy 0.973 (trial 4): lr=0.01, act=<relu>",
        "files in runs/digits-1",
        "[trial 7] epoch 3",
        "worker 3 was lost",
        "[trial 8] bye",
    ]


def test_everything_is_escaped(bundles: Bundles, snap: Snap) -> None:
    evil = "<script>alert('&')</script>"
    display = NotebookDisplay()
    fields = dict.fromkeys(("name", "directory", "optimizer", "objective"), evil)
    workers = (WorkerLine(0, evil, "busy", 1), WorkerLine(1, "b", evil))
    display.start(snap(best_config={evil: evil}, workers=workers, **fields))
    display.update(snap(**fields), [LogLine(1, evil)] * (LOG_LINES + 1))
    display.finish(snap(best_config={evil: evil}, workers=workers, **fields), [])
    for bundle in bundles:
        page = Page(bundle["text/html"])
        assert "script" not in page.tags
        assert evil in page.words


def test_draws_twice_a_second_and_at_the_end(bundles: Bundles, snap: Snap) -> None:
    display = NotebookDisplay()
    display.start(snap(elapsed=0.0))
    for tenth in range(1, 20):
        display.update(snap(elapsed=tenth / 10), [LogLine(1, f"line {tenth}")])
    assert len(bundles) == 1 + 3
    display.finish(snap(elapsed=1.95), [])
    assert len(bundles) == 1 + 3 + 1
    assert all(f"line {tenth}<" in bundles[-1]["text/html"] for tenth in range(1, 20))


def test_the_log_keeps_the_newest_lines(bundles: Bundles, snap: Snap) -> None:
    display = NotebookDisplay()
    display.start(snap())
    display.update(snap(), [LogLine(1, f"line {i}") for i in range(LOG_LINES - 1)])
    display.update(snap(), [LogLine(1, "line x\nline y\nline z")])
    display.finish(snap(), [])
    page = bundles[-1]["text/html"]
    assert "2 older lines are in runs/digits-1" in page
    assert page.count('class="line t1"') == LOG_LINES
    assert "line 1<" not in page
    assert "line 2<" in page
    assert "line z<" in page


def test_the_largest_cell_stays_below_200_kb(bundles: Bundles, snap: Snap) -> None:
    display = NotebookDisplay()
    workers = tuple(WorkerLine(i, f"host{i}", "busy", 9_900 + i, 3, 9, 0.5, 12.0) for i in range(64))
    failures = tuple(FailureLine("worker_lost", 2_000, i, "<'>" * 1_000) for i in range(9))
    fields = {"workers": workers, "failures": failures, "n_trials": 10_000, "counts": {TrialState.COMPLETED: 9_936}}
    display.start(snap(**fields))
    display.update(snap(**fields), [LogLine(8_000 + i, "<'>" * 1_000) for i in range(LOG_LINES)])
    for i in range(200):
        display.update(snap(elapsed=31.0 + i, best_value=i / 7, **fields), [])
    display.finish(snap(phase=Ending.COMPLETED, elapsed=3_000.0, best_value=1.0, **fields), [])
    assert max(len(bundle["text/html"].encode()) for bundle in bundles) < 200_000


def test_failures_have_a_place_of_their_own(bundles: Bundles, snap: Snap) -> None:
    failures = (FailureLine("exception", 3, 7, "ValueError: <nan>"), FailureLine("worker_lost", 1, 2, "it is gone"))
    NotebookDisplay().start(snap(failures=failures))
    words = Page(bundles[0]["text/html"]).words
    assert "exception in 3 trials, last in trial 7: ValueError: <nan>" in words
    assert "worker lost in trial 2: it is gone" in words


def test_the_log_of_a_run_that_is_over_can_be_narrowed_to_a_trial(bundles: Bundles, snap: Snap) -> None:
    display = NotebookDisplay()
    display.start(snap())
    display.finish(snap(phase=Ending.COMPLETED), [LogLine(7, "seven"), LogLine(8, "eight")])
    assert "select" not in Page(bundles[0]["text/html"]).tags
    page = bundles[-1]["text/html"]
    assert Page(page).tags.count("option") == 3  # all, and two trials
    assert ".maggy:has(.c7:checked) .log .line:not(.t7) { display: none; }" in page


def test_workers_have_their_rows_before_they_connect(bundles: Bundles, snap: Snap) -> None:
    early = snap(counts={}, best_trial=None, n_workers=3, workers=(WorkerLine(1, "a", "joining"),))
    NotebookDisplay().start(early)
    page = Page(bundles[0]["text/html"])
    assert page.tags.count("tr") == 1 + 3
    assert "0|starting|1|joining|2|starting" in page.text


def test_paused_trials_of_a_complete_search_are_no_warning(snap: Snap) -> None:
    done, cut = snap(phase=Ending.COMPLETED), snap(phase=Ending.INTERRUPTED)
    assert "6 paused (stopped early to save time)" in html.page(done, done, [], [], 0)
    assert "save time" not in html.page(cut, cut, [], [], 0)
    red, green, blue = bytes.fromhex(html.STATE_COLORS[TrialState.PAUSED].removeprefix("#"))
    assert max(red, green, blue) - min(red, green, blue) < 32  # a grey


def test_many_workers(bundles: Bundles, snap: Snap) -> None:
    workers = tuple(WorkerLine(i, f"host{i % 2}", "busy", i, seconds=float(i)) for i in range(20))
    NotebookDisplay().start(snap(workers=workers))
    page = Page(bundles[0]["text/html"])
    assert page.tags.count("tr") == 1 + 12
    assert "and 8 more (8 busy)" in page.words
    assert "host1" in page.words


def test_a_shell_that_shows_nothing(monkeypatch: pytest.MonkeyPatch, snap: Snap) -> None:
    monkeypatch.setattr(notebook, "display", lambda *args, **options: None)
    display = NotebookDisplay()
    display.start(snap())
    display.finish(snap(), [])


def test_the_words_are_apart_where_styles_and_the_curve_are_removed(snap: Snap) -> None:
    """As by JupyterLab in a notebook that is not trusted."""
    page = html.page(snap(), snap(phase=Ending.COMPLETED), [(1.0, 0.9), (2.0, 0.973)], [LogLine(1, "epoch 1")], 0)
    words = re.sub(r"<[^>]*>", "", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL))
    for part in ("digits asha, max accuracy completed", "0.973 best accuracy (trial 4) ", "0.01 act", " 0.9 after "):
        assert part in words


def test_curve() -> None:
    assert html.curve([], 1.0) == ""
    assert html.curve([(0.0, 0.5), (1.0, math.nan)], 1.0) == ""
    line = html.curve([(10.0, 1.0), (15.0, 2.0), (20.0, 5.0)], 30.0)
    assert 'd="M0.0,44.0H60.0V33.0H120.0V0.0H240.0"' in line
    assert "from 1 to 5" in line


@pytest.mark.parametrize("values", [(1e308, -1e308), (5e-324, 0.0), (3.0, 3.0), (math.inf, 1.0, 2.0)])
def test_curve_stays_in_its_box(values: tuple[float, ...]) -> None:
    line = html.curve([(0.0, value) for value in values], 0.0)
    path = line.split(' d="M')[2].split('"')[0]
    heights = [float(part.split("H")[0]) for part in path.replace(",", "V").split("V")[1:]]
    assert len(heights) >= 2
    assert all(0 <= height <= 44 for height in heights)


@pytest.mark.browser
def test_the_height_of_the_cell_stays(snap: Snap) -> None:
    """From the start, over the first result and a full log, to the end."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if (path := chromium()) is None:
        pytest.skip("there is no Chromium")
    lines = [LogLine(trial % 9, "epoch") for trial in range(100)]
    first = snap(counts={}, best_trial=None, best_value=None, best_config=None, workers=(), n_workers=2)
    now, failed = snap(n_workers=2), snap(n_workers=2, failures=(FailureLine("exception", 3, 7, "ValueError"),))
    end = snap(n_workers=2, workers=(), phase=Ending.COMPLETED)
    bests = [(1.0, 0.9), (2.0, 0.973)]
    drawn = [
        html.page(first, first, [], [], 0),
        html.page(first, now, bests, lines[:3], 0),
        html.page(first, failed, bests, lines, 0),
        html.page(first, end, bests, lines, 0),
    ]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 900, "height": 900})
        heights = []
        for page in drawn:
            tab.set_content(page)
            heights.append(tab.evaluate("document.querySelector('.maggy').offsetHeight"))
        tab.uncheck(".fold")
        folded = tab.evaluate("document.querySelector('.maggy').offsetHeight")
        browser.close()
    assert len(set(heights)) == 1
    assert folded < heights[0] / 1.5


@pytest.mark.notebook
def test_in_a_kernel(tmp_path: Path) -> None:
    import nbclient
    import nbformat

    source = """
from maggy_like.display import LogLine, Snapshot, make_display
from maggy_like.protocol.endings import Ending, Phase
display = make_display(True)
state = dict(name="digits", directory="runs", optimizer="asha", direction="max", n_trials=3)
display.start(Snapshot(phase=Phase.STARTING, elapsed=0.0, **state))
display.update(Snapshot(phase=Phase.SEARCHING, elapsed=1.0, **state), [LogLine(1, "epoch 1")])
display.finish(Snapshot(phase=Ending.COMPLETED, elapsed=2.0, best_trial=1, best_value=0.5, **state), [])
"""
    notebook_ = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    nbclient.NotebookClient(notebook_, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (output,) = notebook_.cells[0].outputs
    assert output.data["text/plain"].splitlines() == [
        "digits: completed after 0:02, 0 trials",
        "best value 0.5 (trial 1)",
        "files in runs",
        "[trial 1] epoch 1",
    ]
    assert "epoch 1" in output.data["text/html"]
