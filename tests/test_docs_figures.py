"""A measured figure is the same on every page: that of the published table in ``benchmarks/README.md``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = "benchmarks/README.md"
ABLATION = "docs/ablation-studies.md"
EVIDENCE = "docs/evidence.md"

FIGURES = {
    "38 to 67 ms": [
        (SOURCE, r"LightGBM, 11 ms.* 38 ms;"),
        (SOURCE, r"Lightning module.* 67 ms;"),
        ("README.md", r"one trial in a fresh process.*"),
        ("docs/performance.md", r"a real trial of one epoch.*"),
    ],
    "0.06 s": [
        (SOURCE, r"from the last trial to the first step.*"),
        ("README.md", r"from the last trial to the first step.*"),
        ("docs/performance.md", r"last trial to first step of training.*"),
        (EVIDENCE, r"the time between search and training.*"),
    ],
    "66 to 82 %": [
        (SOURCE, r"the same with two real workers on Spark.* 0\.66 to 0\.82"),
        ("README.md", r"time that early stopping saves over stages.*"),
        ("docs/performance.md", r"two real workers on Spark it saved.*"),
    ],
    "93 to 96 %": [
        (SOURCE, r"time saved over stages by early stopping.* 0\.93 to 0\.96 \(simulated\)"),
        ("README.md", r"the same with 8 to 512 workers \(simulated\).*"),
        ("docs/performance.md", r"early stopping saves 93.*simulated"),
    ],
    "2.0 ms": [(SOURCE, r"from one trial to the next.* 2\.0 and"), ("docs/performance.md", r"idle time between two.*")],
    "1.0 to 1.6 ms": [(SOURCE, r"the same with reused.*"), ("docs/performance.md", r"the same, processes reused.*")],
    "2.0 s": [(SOURCE, r"the same with a first search.*"), ("docs/performance.md", r"first search of a process.*")],
    "0.14 s": [
        (SOURCE, r"first trial of the second search.*"),
        ("docs/performance.md", r"later searches of the process.*"),
    ],
    "0.24 s": [(SOURCE, r"first trial of the second search.*"), ("docs/performance.md", r"a live Spark session.*")],
    "0.55 to 1.6 times": [
        (SOURCE, r"the same in the second epoch.* 1\.6, 0\.55"),
        ("docs/performance.md", r"rows read into.*"),
    ],
    "1.6 times": [
        (SOURCE, r"predictions per second.* 1\.6 "),
        ("docs/performance.md", r"compared with `predict_batch.*"),
    ],
    "1.1 s": [
        (SOURCE, r"five folds, takes `SearchCV`.*"),
        ("README.md", r"eight LightGBM pipelines.*"),
        ("docs/performance.md", r"five folds on two cores, took `SearchCV`.*"),
    ],
    "0.8 s": [
        (SOURCE, r"`RandomizedSearchCV` takes.*"),
        ("README.md", r"eight LightGBM pipelines.*"),
        ("docs/performance.md", r"`RandomizedSearchCV` took.*"),
    ],
    "3.2 s": [
        (SOURCE, r"`RandomizedSearchCV` takes 0\.8 s.*"),
        ("README.md", r"eight LightGBM pipelines.*"),
        ("docs/performance.md", r"took 0\.8 s in one process and.*"),
    ],
    "2.33": [
        (SOURCE, r'mean rank of `"bayesian"`.*'),
        ("benchmarks/optimizers.md", r"\*\*`bayesian`\*\*.*"),
        ("docs/optimizers.md", r"full training, 10 tasks.*"),
    ],
    "1.65": [
        (SOURCE, r"the same next to other libraries.*"),
        ("benchmarks/optimizers.md", r"\*\*`asha`\*\*.*"),
        ("docs/optimizers.md", r"early stopping, 7 held-out tasks.*"),
    ],
    "0.074": [(SOURCE, r"as many more trials, normal noise.*"), (EVIDENCE, r"\| normal, 0\.3.*")],
    "0.135": [(SOURCE, r"as many more trials, normal noise.*"), (EVIDENCE, r"\| normal, 0\.3.*")],
    "0.963": [(SOURCE, r"intervals that cover the true mean.*"), (EVIDENCE, r"skewed \(exponential\).*")],
    "0.992": [(SOURCE, r"intervals that cover the true mean.*"), (EVIDENCE, r"heavy tails.*")],
    "0.050": [(SOURCE, r"the same with skewed noise.*"), (EVIDENCE, r"skewed \(exponential\).*")],
    "0.037": [(SOURCE, r"the same with skewed noise.*"), (EVIDENCE, r"skewed \(exponential\).*")],
    "5.2 %": [
        (SOURCE, r"normal noise, 2 to 60 components \| 0\.047 to 0\.052"),
        (EVIDENCE, r"studies without any difference.*"),
    ],
    "16 %": [(SOURCE, r"differences with skewed noise.* 0\.16, 0\.43"), (ABLATION, r"t-tests find too many.*")],
    "43 %": [(SOURCE, r"differences with skewed noise.* 0\.16, 0\.43"), (ABLATION, r"t-tests find too many.*")],
    "0.93": [
        (SOURCE, r"difference of one deviation, 20 seeds; adaptive.*"),
        (ABLATION, r"finding it, of six components.*"),
    ],
    "0.86": [
        (SOURCE, r"difference of one deviation, 20 seeds; adaptive.*"),
        (ABLATION, r"finding it, of six components.*"),
    ],
    "59 %": [
        (SOURCE, r"trials that the adaptive design needs \| 0\.59 of"),
        (ABLATION, r"trials, of six components.*"),
    ],
    "8.8 s": [(SOURCE, r"10,000 workers: the same.*"), ("docs/performance.md", r"10,000 \| 2 s \| 7,060.*")],
    "46 and 37 µs": [
        (SOURCE, r"driver's time per event.* 46, 32, 37 us"),
        ("docs/performance.md", r"driver's time per event with.*"),
    ],
    "1.5 kB": [
        (SOURCE, r"memory per trial; replay.* 1,500 bytes"),
        ("docs/performance.md", r"memory of the driver.*"),
    ],
}
"""Each figure, and where it stands: a page, and a pattern of the words around it. Where the words of the pattern have a
figure themselves, it is written in another unit there."""

PLACES = [(figure, page, pattern) for figure, places in FIGURES.items() for page, pattern in places]


@pytest.mark.parametrize(("figure", "page", "pattern"), PLACES)
def test_a_figure_is_that_of_the_benchmark(figure: str, page: str, pattern: str) -> None:
    text = " ".join((ROOT / page).read_text().split()) if page.startswith("docs") else (ROOT / page).read_text()
    found = re.search(pattern[: -len(".*")] + ".{0,160}" if pattern.endswith(".*") else pattern, text)
    assert found, f"{page} has no such words"
    assert not pattern.endswith(".*") or figure in found[0], found[0]


RATIOS = re.compile(
    r"^\| (Optuna|Ray Tune|Syne Tune|SparkTrials|random search, own loop)[ \d.]* \| 0\.(\d\d) \| 0\.\d\d \|", re.M
)


def test_the_ratios_of_the_recorded_race_are_those_of_the_benchmark() -> None:
    published = dict(RATIOS.findall((ROOT / SOURCE).read_text()))
    table = re.search(r"^\| (Optuna .*) \|\n.*\n\| (.*) \|$", (ROOT / "docs" / "comparison.md").read_text(), re.M)
    assert table
    shown = dict(zip(table[1].split(" | "), table[2].split(" | "), strict=True))
    assert shown == {name: f"{ratio} %" for name, ratio in published.items()}
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"needs {shown['Optuna']} of the 180 s to reach Optuna's final value" in readme
    assert f"{shown['Ray Tune']} to reach Ray Tune's, and {shown['Syne Tune']} to reach Syne Tune's" in readme


TIMES = re.compile(r"^\| (maggy_like|Optuna|Syne Tune|Ray Tune)[ \d.]* \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", re.M)


def test_the_times_of_the_race_are_those_of_the_benchmark() -> None:
    published = TIMES.findall((ROOT / SOURCE).read_text().split("\n## The race\n")[1])[:4]
    assert TIMES.findall((ROOT / "docs" / "comparison.md").read_text()) == published
    _, digits, boosting, transformer = next(row for row in published if row[0] == "maggy_like")
    assert f"{digits}, {boosting} and {transformer} s" in " ".join((ROOT / "README.md").read_text().split())
