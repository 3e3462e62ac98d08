"""The dashboard's page in a browser: it follows a run, keeps what a reader has chosen, and executes no foreign text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from report_pages import BEGUN, SPACE, STEPS, events, write_run
from served import Served

from maggy_like import AblationStudy, Reporter, ablate, lagom
from maggy_like.dashboard import followed_run
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.state_names import log_name
from maggy_like.storage.journal import Journal, RunStatus
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured, TrialCreated
from optimizers.core.trial import Failure, FailureKind, TrialState

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

Serve = Callable[..., Served]
Open = Callable[..., "Page"]

HOSTILE = "<img src=x onerror='window.hacked = 1'><script>window.hacked = 1</script>"
FIGURES = "[...document.querySelectorAll('[data-figure]')]"
DRAWN = f"{FIGURES}.length && {FIGURES}.every((it) => it.hidden || it.dataset.drawn)"
PLOT = "document.querySelector('[data-figure*=history]')"


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Open a page that must log no error, and load nothing from elsewhere."""
    tabs: list[tuple[Page, str, list[str], list[str]]] = []

    def start(url: str, address: str = "", width: int = 1200, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        tab, errors, requests = context.new_page(), list[str](), list[str]()
        tab.set_default_timeout(120_000)
        tab.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(url + address)
        tabs.append((tab, url, errors, requests))
        return tab

    yield start
    for tab, url, errors, requests in tabs:
        assert errors == []
        assert [request for request in requests if not request.startswith((url, "data:", "blob:"))] == []
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        tab.context.close()


def trial(number: int, value: float, **config: Any) -> list[Event]:
    """The events of a trial that runs, and has reported a value."""
    given = SPACE.sample(np.random.default_rng(number)) | config
    return [
        TrialCreated(number, given, ask=number),
        AttemptStarted(number, 1, number % 3, STEPS, BEGUN + 1.0 + number, given, ask=number),
        Measured(number, 1, "accuracy", {"accuracy": ([1, 2], [value / 2, value])}),
    ]


def ended(number: int, failure: Failure | None = None) -> AttemptEnded:
    state = TrialState.COMPLETED if failure is None else TrialState.FAILED
    return AttemptEnded(number, 1, state, BEGUN + 9.0 + number, failure=failure)


def test_it_follows_a_run_and_keeps_zoom_and_open_parts(
    serve: Serve, open_page: Open, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_run, "LONG_REST", 0.0)
    failure = Failure(FailureKind.EXCEPTION, "ValueError: nan", "the traceback", ("ValueError",), "train")
    journal.append([*trial(0, 0.5), ended(0), *trial(1, 0.25), ended(1, failure)])
    served = serve(tmp_path)
    tab = open_page(served.server.url, "?run=live")
    tab.wait_for_selector(".card.best >> text=0.5")
    tab.wait_for_function(DRAWN)
    tab.evaluate(f"Plotly.relayout({PLOT}, {{'xaxis.range': [2, 8]}})")
    tab.click("summary")  # the first cause of failures is open
    before = tab.evaluate(f"{PLOT}.dataset.drawn")
    journal.append([*trial(2, 0.75)])
    tab.wait_for_selector("text=Running now")
    tab.wait_for_selector("tbody >> text=2 of 27")
    tab.wait_for_selector(".card.best >> text=0.75")
    journal.append([ended(2)])
    tab.wait_for_selector("text=No trial is running.")
    tab.wait_for_function(f"{PLOT}.dataset.drawn !== '{before}' && {PLOT}.data.some((it) => it.y.includes(0.75))")
    assert tab.evaluate(f"{PLOT}._fullLayout.xaxis.range") == [2, 8]
    assert not tab.evaluate("document.querySelector('details').open")
    journal.note(RunStatus(Ending.COMPLETED, BEGUN + 20.0, 20.0))
    tab.wait_for_selector(".head >> text=completed")
    assert "0.75" in tab.title()


@pytest.mark.long
def test_an_axis_follows_its_values_after_extreme_ones_were_left_out(
    serve: Serve, open_page: Open, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_run, "LONG_REST", 0.0)
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 60.0]
    journal.append([event for place, value in enumerate(values) for event in (*trial(place, value), ended(place))])
    tab = open_page(serve(tmp_path).server.url, "?run=live")
    tab.wait_for_function(f"{DRAWN} && {PLOT}._fullLayout.yaxis.range[1] < 2")
    later = [event for place in range(9, 29) for event in (*trial(place, 2.0 * place), ended(place))]
    journal.append(later)
    tab.wait_for_function(f"{PLOT}._fullLayout.yaxis.range[1] > 60 && {PLOT}._fullLayout.yaxis.range[0] < 0")


def test_foreign_text_is_shown_and_never_executed(
    serve: Serve, open_page: Open, journal: Journal, tmp_path: Path
) -> None:
    failure = Failure(FailureKind.EXCEPTION, f"ValueError: {HOSTILE}", HOSTILE, ("ValueError",), "train")
    given = {"activation": HOSTILE, HOSTILE: HOSTILE}
    journal.append([*trial(0, 0.5, **given), ended(0), *trial(1, 0.5, **given), ended(1, failure), *trial(2, 0.1)])
    (tmp_path / "live" / "logs").mkdir()
    (tmp_path / "live" / "logs" / log_name(1, 0, 1)).write_text(f"printed {HOSTILE}\n")
    tab = open_page(serve(tmp_path).server.url)
    tab.wait_for_selector("tbody >> text=live")
    tab.click("tbody >> text=live")
    for title, plots in (("Overview", 1), ("Trials", 0), ("Curves", 1), ("Parameters", 3), ("Workers", 1), ("Log", 0),
                         ("Decisions", 0), ("Settings", 0)):  # fmt: skip
        tab.click(f".tabs >> text={title}")
        tab.wait_for_selector(f".tabs [aria-current] >> text={title}")
        tab.wait_for_function(f"{FIGURES}.length === {plots} && {FIGURES}.every((it) => it.hidden || it.dataset.drawn)")
        if title == "Curves":
            tab.select_option("select", "activation")
            tab.wait_for_function(f"document.querySelector('[data-figure*=by]') && {DRAWN}")
    tab.click(".tabs >> text=Overview")
    tab.click("section >> text=trial 1")
    tab.wait_for_selector("pre >> text=printed <img")
    tab.wait_for_function(DRAWN)
    assert HOSTILE in tab.inner_text("summary")
    assert HOSTILE in tab.inner_text(".facts")
    assert tab.evaluate("window.hacked") is None
    assert tab.evaluate("document.querySelectorAll('main img, main script').length") == 0


def test_a_failed_trial_says_why_what_happened_and_what_it_printed(
    serve: Serve, open_page: Open, searched: Path
) -> None:
    tab = open_page(serve(searched.parent).server.url, "?run=august")
    tab.click("section >> text=trial 28")
    tab.wait_for_selector("h2 >> text=Why it failed")
    assert "line 12, in train" in tab.inner_text("details pre")
    assert "attempt 1 starts on worker" in tab.inner_text("main")
    tab.wait_for_function(DRAWN)
    assert "trial=28" in tab.url
    tab.go_back()
    tab.wait_for_selector(".tabs")


def writes(units: int, reporter: Reporter) -> float:
    (reporter.directory / "notes <b>.txt").write_text(f"{units} units")
    return float(units)


def test_a_trial_has_links_to_its_files(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    lagom(writes, {"units": [16]}, optimizer="grid", engine="inline", direction="max", directory=tmp_path, name="run",
          progress=False)  # fmt: skip
    tab = open_page(serve(tmp_path).server.url, "?run=run&trial=0")
    with tab.expect_popup() as opened:
        tab.click("section >> text=notes <b>.txt")
    assert opened.value.inner_text("body") == "16 units"


def test_a_sorted_and_filtered_table_is_in_the_address(serve: Serve, open_page: Open, searched: Path) -> None:
    tab = open_page(serve(searched.parent).server.url)
    tab.click("tbody >> text=august")
    tab.click(".tabs >> text=Trials")
    first = "tbody tr:first-child td:nth-child({})"
    tab.wait_for_selector(first.format(3) + " >> text=0.93177")  # the best one
    tab.click("th >> text=lr")
    tab.click("button >> text=failed")
    tab.wait_for_function("document.querySelectorAll('tbody tr').length === 2")
    assert tab.inner_text(first.format(1)) == "39"  # the lowest lr
    tab.reload()
    tab.wait_for_function("document.querySelectorAll('tbody tr').length === 2")
    assert {"sort=config%3Alr-asc", "state=failed"} <= set(tab.url.partition("?")[2].split("&"))
    tab.fill("input[type=search]", "39")
    tab.wait_for_function("document.querySelectorAll('tbody tr').length === 1")


PLACES = ("", "?run=august", "?run=august&tab=trials", "?run=august&tab=parameters", "?run=august&trial=28")


@pytest.mark.parametrize(
    ("width", "scheme", "places"),
    [
        (390, "dark", ["", "?run=august"]),
        pytest.param(390, "light", PLACES, marks=pytest.mark.long),
        pytest.param(1200, "dark", PLACES, marks=pytest.mark.long),
    ],
)
def test_it_suits_narrow_windows_and_dark_rooms(
    width: int, scheme: str, places: Sequence[str], serve: Serve, open_page: Open, searched: Path
) -> None:
    url = serve(searched.parent).server.url
    for place in places:
        tab = open_page(url, place, width=width, color_scheme=scheme)
        tab.wait_for_selector("main h1")
        tab.wait_for_function(DRAWN if "run" in place and "trials" not in place else "true")
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    paper = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 25, 29)"}[scheme]
    tab.click(f"button >> text={'Dark' if scheme == 'light' else 'Light'}")
    tab.wait_for_function(f"getComputedStyle(document.body).backgroundColor !== '{paper}'")


def two(units: int) -> dict[str, float]:
    return {"accuracy": 1 - 4 / units, "latency": units / 4}


def test_several_objectives_have_a_pareto_set(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    lagom(two, {"units": [16, 32, 64]}, optimizer="grid", engine="inline", metric=["accuracy", "latency"],
          directory=tmp_path, name="two", progress=False, direction=["max", "min"])  # fmt: skip
    tab = open_page(serve(tmp_path).server.url, "?run=two")
    tab.wait_for_selector("h2 >> text=Pareto set")
    tab.wait_for_function(DRAWN)
    assert tab.locator("tbody tr").count() == 3
    assert tab.evaluate("document.querySelector('[data-figure*=pareto]').data.map((it) => it.name)") == [
        "dominated", "Pareto set",
    ]  # fmt: skip


def ablated(dropout: float, seed: int) -> float:
    return 0.8 + dropout / 10 + seed / 1000 * (1 + dropout)


def test_an_ablation_has_its_table_and_its_forest_plot(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    ablate(ablated, AblationStudy(config={"dropout": 0.2}).config(dropout=0.0), repeats=3, engine="inline",
           metric="accuracy", directory=tmp_path, name="study", progress=False)  # fmt: skip
    tab = open_page(serve(tmp_path).server.url, "?run=study")
    tab.wait_for_selector("td >> text=worse without it")
    tab.wait_for_function(DRAWN)
    assert tab.locator("[data-figure*=differences] .plot-container").count() == 1
    assert tab.locator(".tabs >> text=Parameters").count() == 0


@pytest.mark.long
def test_ten_thousand_trials_are_shown_in_parts(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    write_run(tmp_path, "large", 10_000, 16)
    tab = open_page(serve(tmp_path).server.url, "?run=large&tab=trials")
    tab.wait_for_selector(".more >> text=1 to 50 of 10,000")
    assert tab.evaluate("document.querySelectorAll('*').length") < 2000
    tab.click(".tabs >> text=Overview")
    tab.wait_for_function(DRAWN)
    assert "drawn, the best among them" in tab.inner_text("main")


def test_a_dashboard_that_does_not_answer_is_named_until_it_answers(
    serve: Serve, browser: Browser, journal: Journal, tmp_path: Path
) -> None:
    journal.append(list(events(3, 1)))
    tab = browser.new_context().new_page()
    tab.goto(f"{serve(tmp_path).server.url}?run=live")
    tab.wait_for_selector(".tabs")
    tab.route("**/api/**", lambda route: route.abort())
    tab.wait_for_selector("text=What is shown may be old.")
    tab.unroute("**/api/**")
    tab.wait_for_selector(".live.yes")
    assert tab.locator(".banner").count() == 0
    tab.context.close()
