"""From tables to predictions: the programs, run as a user would."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.spark, pytest.mark.example]


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


def test_a_layer_on_the_features_of_another_network_learns_new_images(run_script: Any) -> None:
    done = run_script(EXAMPLES / "image_features.py")
    assert done.returncode == 0, done.stdout + done.stderr
    right = re.search(r"right on ([0-9.]+)% of \d+ others", done.stdout)
    assert right is not None
    assert float(right[1]) > 85
