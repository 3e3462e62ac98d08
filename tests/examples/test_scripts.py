"""The example scripts, run as a user would."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

SAME = r"accuracy of the best weights: (0\.\d+); in the search: \1"


@pytest.mark.example
def test_quickstart_finds_a_good_network_and_says_where_its_files_are(run_script: Any, tmp_path: Path) -> None:
    done = run_script(EXAMPLES / "quickstart.py", "--trials", 12)
    assert done.returncode == 0, done.stderr
    accuracy = re.search(r"accuracy on held-out digits: ([0-9.]+)", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.97
    summary = re.search(r"12 trials \((\d+) completed, (\d+) paused\)", done.stdout)
    assert summary is not None
    assert int(summary[2]) >= 8  # most were cut short
    (run,) = (tmp_path / "maggy_runs").iterdir()
    assert str(run) in done.stdout
    assert (run / "journal.jsonl").exists()


@pytest.mark.example
@pytest.mark.parametrize(
    ("script", "library", "arguments", "said"),
    [
        (
            "xgboost_cv.py",
            "xgboost",
            ("--trials", 3, "--rounds", 9),
            r"log loss of the folds: 0\.\d+ after [1-9] ",
        ),
        ("lightning_module.py", "lightning", ("--trials", 3, "--epochs", 3), SAME),
        ("keras_model.py", "keras", ("--trials", 3, "--epochs", 3), SAME),
        ("lora.py", "peft", ("--trials", 3, "--epochs", 3), r"best accuracy: 0\.\d+, with [\d,]+ trained weights of"),
    ],
)
def test_a_library_is_tuned(run_script: Any, script: str, library: str, arguments: tuple[Any, ...], said: str) -> None:
    if find_spec(library) is None:  # without importing it: keras would look for its backend
        pytest.skip(f"{library} is not installed")
    done = run_script(EXAMPLES / script, *arguments)
    assert done.returncode == 0, done.stderr
    assert re.search(said, done.stdout)
    assert re.search(r"3 trials \(", done.stdout)


@pytest.mark.spark
@pytest.mark.example
def test_lightgbm_trains_and_predicts_on_the_rows_of_a_dataframe(run_script: Any) -> None:
    done = run_script(EXAMPLES / "lightgbm_spark.py", "--trials", 3, "--rows", 2000)
    assert done.returncode == 0, done.stderr
    errors = re.search(r"error of the predictions on Spark: ([0-9.]+); in the search: ([0-9.]+)", done.stdout)
    assert errors is not None
    assert errors[1] == errors[2]


@pytest.mark.example
def test_images_are_augmented_and_the_best_is_trained_by_two_workers_as_by_one(run_script: Any) -> None:
    done = run_script(EXAMPLES / "search_then_train.py", "--trials", 3)
    assert done.returncode == 0, done.stderr
    assert "shift=" in done.stdout
    difference = re.search(r"losses on 2 workers and on one differ by (\S+) at most", done.stdout)
    assert difference is not None
    assert float(difference[1]) < 1e-5


@pytest.mark.spark
@pytest.mark.example
def test_on_a_standalone_cluster_both_gpus_are_used(run_script: Any) -> None:
    done = run_script(EXAMPLES / "search_then_train.py", "spark", "--trials", 6)
    assert done.returncode == 0, done.stderr
    assert "trials ran on: GPU 0 of this machine, GPU 1 of this machine" in done.stdout
    assert ": completed after" in done.stdout
    assert re.search(r"on 2 workers and on one differ by \d\.\de-\d\d at most", done.stdout)


@pytest.mark.example
@pytest.mark.e2e
def test_an_ablation_prints_a_table_and_draws_it(run_program: Any) -> None:
    printed, _ = run_program(EXAMPLES / "ablation.py", "--repeats", 8)
    rows = check_ablation(printed, 8)
    assert rows["size"] == "worse without it"


@pytest.mark.spark
def test_an_ablation_runs_on_spark(run_script: Any) -> None:
    done = run_script(EXAMPLES / "ablation.py", "--spark", "--repeats", 3)
    assert done.returncode == 0, done.stderr
    check_ablation(done.stdout, 3)


def check_ablation(printed: str, repeats: int) -> dict[str, str]:
    """Check what the example printed; what it says of each component."""
    assert f"{7 * repeats} trials ({7 * repeats} completed)" in printed
    rows = dict(
        re.findall(
            r"^(\w+) .* (worse without it|better without it|no difference seen|no larger than 0.02)$", printed, re.M
        )
    )
    assert list(rows) == ["size", "texture", "norm", "residual", "dropout", "weight_decay"]
    assert f"{repeats} seeds, paired by seed" in printed
    report = re.search(r"^report: (.*)$", printed, re.M)
    assert report is not None
    assert Path(report[1]).stat().st_size > 10_000
    return rows
