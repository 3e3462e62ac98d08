"""The site of the docs: it is built without a warning, names all that is public, and asks no other host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_pages import chromium

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "facade",
    [maggy_like, maggy_like.callbacks, maggy_like.ml, maggy_like.sklearn, maggy_like.trackers, optimizers],
    ids=lambda facade: str(facade.__name__),
)
def test_the_reference_has_all_that_is_public(facade: object) -> None:
    public = set(facade.__all__) - HELPERS  # type: ignore[attr-defined]
    assert public <= NAMED


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the built site."""
    directory = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.mark.long
@pytest.mark.example
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    for page in pages:
        loaded = re.findall(
            r"<(?:script|img|iframe|link rel=\"stylesheet\")[^>]+(?:src|href)=\"(https?:)?//", page.read_text()
        )
        assert not loaded, page


PAGES = (
    "index",
    "concepts",
    "five-minutes",
    "search",
    "ablation",
    "storage",
    "reference/search",
    "reference/results",
)

TOO_WIDE = """() => {
  const wide = (part) => part.scrollWidth > part.clientWidth + 1;
  const parts = document.querySelectorAll(".md-content pre > code, .md-content .md-typeset__scrollwrap");
  return [document.documentElement, ...parts].filter(wide).map((part) => part.innerText.slice(0, 40));
}"""


@pytest.mark.long
@pytest.mark.example
@pytest.mark.browser
def test_code_and_tables_fit_into_their_column_on_a_laptop_and_pages_on_a_phone(site: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    if (path := chromium()) is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        laptop, phone = (browser.new_page(viewport={"width": width, "height": 900}) for width in (1280, 400))
        for page in PAGES:
            laptop.goto((site / f"{page}.html").as_uri())
            assert laptop.evaluate(TOO_WIDE) == [], page
            phone.goto((site / f"{page}.html").as_uri())
            assert phone.evaluate("document.documentElement.scrollWidth") == 400, page
            assert phone.evaluate("[...document.images].filter((one) => !one.alt).length") == 0, page
        browser.close()


SEARCHES = {
    "hyperparameter optimization": ("index", "search"),
    "HPO": ("search",),
    "tuning": ("five-minutes", "search"),
    "pruning": ("early-stopping",),
    "early stopping": ("early-stopping",),
    "distributed training": ("training",),
    "DDP": ("training",),
    "PySpark": ("clusters", "estimator"),
    "ASHA": ("optimizers",),
    "BOHB": ("optimizers",),
    "Horovod": ("coming-from/maggy",),
    "Optuna": ("comparison", "coming-from/search-tools"),
    "SageMaker": ("comparison",),
    "out of memory": ("failures",),
    "memory": ("parallel-trials",),
    "reproducible": ("faq",),
    "uninstall": ("faq", "install"),
    "cost": ("faq", "standalone"),
    "MLflow": ("trackers",),
    "kubernetes": ("kubernetes",),
    "resume": ("resume",),
    "torchrun": ("training",),
    "debugger": ("logs-debugging",),
    "XGBoost": ("tutorial-boosting", "libraries"),
    "ModuleNotFoundError": ("shipping",),
}
"""What people type, and the pages of which one comes first."""

FOUND = """async ([code, index, queries]) => {
  const worker = new Worker(URL.createObjectURL(new Blob([code], {type: "text/javascript"})));
  const ask = (type, data) => new Promise((resolve) => {
    worker.onmessage = (event) => resolve(event.data.data);
    worker.postMessage({type, data});
  });
  const {config, docs} = JSON.parse(index);
  await ask(0, {config, docs, options: {suggest: false}});
  const first = {};
  for (const query of queries) first[query] = (await ask(2, query)).items[0]?.[0].location.split(".html")[0];
  return first;
}"""


@pytest.mark.long
@pytest.mark.example
@pytest.mark.browser
def test_a_search_of_the_site_finds_the_page_by_the_words_that_people_type(site: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    if (path := chromium()) is None:
        pytest.skip("there is no Chromium")
    (code,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    index = (site / "search" / "search_index.json").read_text()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        first = browser.new_page().evaluate(FOUND, [code.read_text(), index, list(SEARCHES)])
        browser.close()
    assert {query: page for query, page in first.items() if page not in SEARCHES[query]} == {}


@pytest.mark.long
@pytest.mark.example
def test_the_decisions_and_files_of_the_project_are_not_in_the_search_of_the_site(site: Path) -> None:
    assert not re.findall(r'"location":"(?:adr|project)/[^"]*"', (site / "search" / "search_index.json").read_text())
