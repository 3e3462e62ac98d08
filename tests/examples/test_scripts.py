"""The example scripts: each in a process that is warm already, a few as a user would start them."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from maggy_like import load_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"

SAME = r"accuracy of the best weights: (0\.\d+); in the search: \1"

pytestmark = pytest.mark.example


@pytest.mark.long
@pytest.mark.e2e
def test_quickstart_finds_a_good_network_and_says_where_its_files_are(run_program: Any, tmp_path: Path) -> None:
    printed, _ = run_program(EXAMPLES / "quickstart.py", "--trials", 12)
    accuracy = re.search(r"accuracy on held-out digits: ([0-9.]+)", printed)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.97
    summary = re.search(r"12 trials \((\d+) completed, (\d+) paused\)", printed)
    assert summary is not None
    assert int(summary[2]) >= 8  # most were cut short
    (run,) = (tmp_path / "maggy_runs").iterdir()
    assert str(run) in printed
    assert (run / "journal.jsonl").exists()


def test_a_script_runs_as_a_user_starts_it(run_script: Any) -> None:
    pytest.importorskip("xgboost")
    done = run_script(EXAMPLES / "xgboost_cv.py", "--trials", 3, "--rounds", 9)
    assert done.returncode == 0, done.stderr
    assert re.search(r"log loss of the folds: 0\.\d+ after [1-9] ", done.stdout)
    assert re.search(r"3 trials \(", done.stdout)


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("lightning_module.py", SAME),
        ("keras_model.py", SAME),
        ("lora.py", r"best accuracy: 0\.\d+, with [\d,]+ trained weights of"),
    ],
)
def test_a_library_is_tuned(run_program: Any, script: str, said: str) -> None:
    printed, _ = run_program(EXAMPLES / script, "--trials", 3, "--epochs", 3)
    assert re.search(said, printed)
    assert re.search(r"3 trials \(", printed)


@pytest.fixture
def run_on_spark(spark_local: SparkSession, run_program: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``run_program`` with the session that other tests use too, so the example does not stop it."""
    monkeypatch.setattr(type(spark_local), "stop", lambda session: None)
    return run_program


@pytest.mark.long
@pytest.mark.spark
def test_lightgbm_trains_and_predicts_on_the_rows_of_a_dataframe(run_on_spark: Any) -> None:
    printed, _ = run_on_spark(EXAMPLES / "lightgbm_spark.py", "--trials", 3, "--rows", 2000)
    errors = re.search(r"error of the predictions on Spark: ([0-9.]+); in the search: ([0-9.]+)", printed)
    assert errors is not None
    assert errors[1] == errors[2]


@pytest.mark.long
@pytest.mark.spark
def test_a_layer_on_the_features_of_another_network_learns_new_images(run_on_spark: Any) -> None:
    printed, _ = run_on_spark(EXAMPLES / "image_features.py")
    right = re.search(r"right on ([0-9.]+)% of \d+ others", printed)
    assert right is not None
    assert float(right[1]) > 85


@pytest.mark.long
@pytest.mark.e2e
def test_images_are_augmented_and_the_best_is_trained_by_two_workers_as_by_one(run_program: Any) -> None:
    printed, _ = run_program(EXAMPLES / "search_then_train.py", "--trials", 3)
    assert "shift=" in printed
    difference = re.search(r"losses on 2 workers and on one differ by (\S+) at most", printed)
    assert difference is not None
    assert float(difference[1]) < 1e-5


@pytest.mark.long
@pytest.mark.spark
def test_on_a_standalone_cluster_both_gpus_are_used(run_script: Any, tmp_path: Path) -> None:
    done = run_script(EXAMPLES / "search_then_train.py", "spark", "--trials", 3)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^(train-\S+): completed after", done.stdout, re.M)
    assert found is not None, done.stdout
    run = load_run(tmp_path / "maggy_runs" / found[1])
    for rank in range(2):
        seen = re.search(r"^GPU (\S+) of this machine", run.log(run.training.trial.id, rank=rank), re.M)
        assert seen is not None
        assert set(seen[1].split(",")) == {"0", "1"}
    assert re.search(r"^trials ran on: GPU [01] of this machine", done.stdout, re.M)  # both, unless one worker was late
    assert re.search(r"on 2 workers and on one differ by \d\.\de-\d\d at most", done.stdout)


@pytest.mark.long
@pytest.mark.e2e
def test_an_ablation_prints_a_table_and_draws_it(run_program: Any) -> None:
    rows = check_ablation(run_program(EXAMPLES / "ablation.py", "--repeats", 8)[0], 8)
    assert rows["size"] == "worse without it"


@pytest.mark.long
@pytest.mark.spark
def test_an_ablation_runs_on_spark(run_on_spark: Any) -> None:
    check_ablation(run_on_spark(EXAMPLES / "ablation.py", "--spark", "--repeats", 3)[0], 3)


def check_ablation(printed: str, repeats: int) -> dict[str, str]:
    """Check what the example printed; what it says of each component."""
    assert f"{7 * repeats} trials ({7 * repeats} completed)" in printed
    verdicts = "worse without it|better without it|no difference seen|no larger than 0.02"
    rows = dict(re.findall(rf"^(\w+) .* ({verdicts})$", printed, re.M))
    assert list(rows) == ["size", "texture", "norm", "residual", "dropout", "weight_decay"]
    assert f"{repeats} seeds, paired by seed" in printed
    report = re.search(r"^report: (.*)$", printed, re.M)
    assert report is not None
    assert Path(report[1]).stat().st_size > 10_000
    return rows


@pytest.mark.long
@pytest.mark.spark
def test_only_the_search_has_gpus_and_predictions_are_those_without_spark(run_script: Any, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    settings = {
        "dir": (tmp_path / "events").as_uri(), "enabled": "true", "rolling.enabled": "false", "compress": "false",
    }  # fmt: skip
    conf = [f"--conf=spark.eventLog.{name}={value}" for name, value in settings.items()]
    done = run_script(EXAMPLES / "pipeline.py", "--stores", 12, "--trials", 2, *conf)
    assert done.returncode == 0, done.stdout + done.stderr
    assert tasks_by_gpus(next((tmp_path / "events").iterdir())) == {("joins", 0), ("search", 1)}
    assert re.search(r"trial 0\] GPU [01]$", done.stdout, re.MULTILINE)
    assert re.search(r"rank 0\] GPU (0,1|1,0)$", done.stdout, re.MULTILINE)
    found = re.findall(r"(\d+) predictions, differing from those without Spark by (\S+) at most", done.stdout)
    assert [(int(count), float(difference) < 1e-6) for count, difference in found] == [(12 * 33, True)] * 2
    errors = re.search(
        r"no training has seen: ([0-9.]+); by the stores' levels alone ([0-9.]+), and at best ([0-9.]+)", done.stdout
    )
    assert errors is not None
    error, without, noise = map(float, errors.groups())
    assert 0.9 * noise < error < 0.6 * without


def tasks_by_gpus(log: Path) -> set[tuple[str, int]]:
    """What ran on executors with how many GPUs, by Spark's log of events."""
    gpus, profiles, tasks = dict[str, int](), dict[int, int](), Counter[tuple[str, int]]()
    for event in map(json.loads, log.read_text().splitlines()):
        match event["Event"]:
            case "SparkListenerExecutorAdded":
                owned = event["Executor Info"]["Resources"].get("gpu", {"addresses": []})
                gpus[event["Executor ID"]] = len(owned["addresses"])
            case "SparkListenerStageSubmitted":
                profiles[event["Stage Info"]["Stage ID"]] = event["Stage Info"]["Resource Profile Id"]
            case "SparkListenerTaskEnd":
                what = "search" if profiles[event["Stage ID"]] else "joins"
                tasks[what, gpus[event["Task Info"]["Executor ID"]]] += 1
    return set(tasks)
