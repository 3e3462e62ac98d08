"""The report: one page, which loads nothing."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from report_pages import write_run

from maggy_like import Float, Reporter, Result, lagom, load_run
from maggy_like.display.text import as_html
from maggy_like.errors import UserError
from maggy_like.results.report import Section, saved, write_report
from optimizers.core.trial import Trial, TrialState

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

pytest.importorskip("plotly")


@pytest.fixture
def result(tmp_path: Path) -> Result:
    return load_run(write_run(tmp_path, "<run>", 60, 4))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of that run."""
    directory = tmp_path_factory.mktemp("page")
    load_run(write_run(directory, "<run>", 60, 4)).report(directory / "report.html")
    return directory / "report.html"


def test_the_page_has_what_there_is_to_say(page: Path) -> None:
    text = page.read_text()
    assert page.stat().st_size < 2.5e6
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == [
        "Best configuration", "History", "Learning curves", "Importance", "Slices", "Parallel coordinates", "Workers",
        "Best trials", "Failures", "Environment",
    ]  # fmt: skip
    assert "<title>&lt;run&gt;</title>" in text
    assert "ValueError: the loss is nan" in text
    assert "line 12, in train" in text
    assert re.search(r"saved by stopping and pausing: \d\d % of full trainings", text)
    assert ">96.4 %</b><span>4 workers busy<" in text
    assert "max accuracy, by ASHA.</p>" in text
    assert "<th>optimizer</th><td>ASHA(eta=3)</td>" in text.split('id="environment"')[1]
    assert "default-src 'none'" in text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text)


def test_curves_are_distinguished_by_a_parameter_that_a_report_is_about(result: Result, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(result, page, [Section("Differences")], by="activation")
    found = re.search(r'id="figures">(.*?)</script>', page.read_text())
    assert found is not None
    figures = json.loads(gzip.decompress(base64.b64decode(found[1])))["figures"]
    assert [trace["name"] for trace in figures["learning-curves"]["data"][:3]] == ["relu", "tanh", "gelu"]


def test_a_run_without_its_journal_has_a_report_that_says_so(result: Result, tmp_path: Path) -> None:
    shutil.rmtree(result.directory)
    result.report(str(tmp_path / "report.html"))
    text = (tmp_path / "report.html").read_text()
    assert "Not drawn: the run&#x27;s journal is missing" in text
    assert "Slices" in text


def test_a_report_goes_to_any_file_system(result: Result) -> None:
    import fsspec

    result.report("memory://reports/one.html")
    assert fsspec.filesystem("memory").cat_file("/reports/one.html").startswith(b"<!doctype html>")


def test_a_page_has_links_to_the_files_of_the_best_trials(tmp_path: Path) -> None:
    def train(x: float, reporter: Reporter) -> float:
        (reporter.directory / "<b> 100%.txt").write_text(str(x))
        return x

    found = lagom(train, {"x": Float(0, 1)}, optimizer="random", direction="max", n_trials=1, engine="inline",
                  directory=tmp_path, progress=False)  # fmt: skip
    found.report(tmp_path / "report.html")
    link = re.search(r'Its files: <a href="([^"]+)">&lt;b&gt; 100%.txt</a>', (tmp_path / "report.html").read_text())
    assert link is not None
    with urlopen(link[1]) as file:
        assert file.read().decode() == str(found.best_trial.config["x"])


def test_where_it_cannot_be_written_is_said(result: Result, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be written to .*IsADirectoryError.*use the path of a file"):
        result.report(tmp_path)


def test_stopping_saves_what_full_trainings_would_have_taken_longer() -> None:
    full, early = Trial(0, {}, TrialState.COMPLETED, seconds=10.0), Trial(1, {}, TrialState.STOPPED, seconds=2.0)
    for trial, steps in ((full, 10), (early, 2)):
        trial.objective = "x"
        trial.curves["x"] = curve = type(trial.curve)()
        curve.extend(list(range(1, steps + 1)), [0.0] * steps)
    assert saved([full, early], max_budget=10) == (8.0, 12.0)


def test_numbers_of_a_column_are_aligned_at_their_points() -> None:
    hidden = '<span style="visibility:hidden" aria-hidden="true">'
    table = as_html(["name", "value"], [["a", "0.25"], ["b", "1"], ["c", "0.5"]])
    assert re.findall(r'<td class="number">(.*?)</td>', table) == [
        "0.25", f"1{hidden}.00</span>", f"0.5{hidden}0</span>"
    ]  # fmt: skip
    assert '<th class="number">value</th>' in table
    assert hidden not in as_html(["trial"], [["1"], ["12"]])


FIGURES = "[...document.querySelectorAll('[data-figure]')]"


@pytest.mark.browser
def test_a_browser_draws_it_without_an_error_or_a_request(page: Path, browser: Browser) -> None:
    size: Any = {"width": 390, "height": 900}
    tab = browser.new_context(color_scheme="dark", viewport=size, offline=True).new_page()
    tab.set_default_timeout(300_000)
    errors, requests = list[str](), list[str]()
    tab.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(page.as_uri())
    assert tab.evaluate(f"{FIGURES}.length") == 6
    for place in range(6):
        tab.evaluate(f"{FIGURES}[{place}].scrollIntoView()")
        tab.wait_for_function(f"{FIGURES}[{place}].dataset.drawn")
    assert (errors, requests) == ([], [page.as_uri()])
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.mark.browser
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.long), "dark"])
def test_the_buttons_of_a_plot_suit_the_page(scheme: Any, page: Path, browser: Browser) -> None:
    tab = browser.new_context(color_scheme=scheme).new_page()
    tab.goto(page.as_uri())
    tab.wait_for_selector(".modebar-group", state="attached")
    places = "document.body", "document.querySelector('.modebar-group')"
    found = [tab.evaluate(f"getComputedStyle({place}).backgroundColor") for place in places]
    buttons = tab.evaluate("[...document.querySelectorAll('.modebar-btn')].map((one) => one.dataset.title)")
    assert found[0] == found[1]
    assert "Zoom" in buttons
    assert not [title for title in buttons if "Share" in title]  # that would send the data of the run to a service


@pytest.mark.browser
def test_the_legend_of_a_plot_is_below_its_note(result: Result, tmp_path: Path, browser: Browser) -> None:
    figure = result.plot.history()
    figure.update_layout(title_subtitle_text="Extreme values lie outside.")
    figure.write_html(tmp_path / "history.html")
    tab = browser.new_page()
    tab.goto((tmp_path / "history.html").as_uri())
    note, legend = (tab.locator(part).bounding_box() for part in (".gtitle-subtitle", ".legend"))
    assert note is not None
    assert legend is not None
    assert note["y"] + note["height"] <= legend["y"]


@pytest.mark.long
@pytest.mark.browser
def test_a_printed_page_has_all_pictures_in_ink_that_shows_on_paper(page: Path, browser: Browser) -> None:
    tab = browser.new_context(color_scheme="dark").new_page()
    tab.goto(page.as_uri())
    tab.wait_for_selector("[data-drawn]")  # the first picture; the others have not been scrolled to
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.wait_for_function(f"{FIGURES}.every((figure) => figure.dataset.drawn)")
    widths = tab.evaluate(f"{FIGURES}.map((figure) => figure._fullLayout.width)")
    inks = tab.evaluate(f"{FIGURES}.map((figure) => figure._fullLayout.font.color)")
    tab.emulate_media(media="print")
    text = tab.evaluate("getComputedStyle(document.body).color")
    tab.emulate_media(media="screen")
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.wait_for_function(f"{FIGURES}.every((figure) => figure._fullLayout.width > 1000)")
    after = tab.evaluate(f"{FIGURES}[0]._fullLayout.font.color")
    assert widths == [700] * 6
    assert len(set(inks)) == 1
    assert after != inks[0]
    assert text == "rgb(31, 41, 51)"
