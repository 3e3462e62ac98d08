"""From tables to predictions: the tables' truth, and the programs, run as a user would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_once_all_effects_are_taken_away_the_noise_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import retail_tables as retail

    tables = retail.make_tables(40, 200)
    rows = tables["sales"].query("open").merge(tables["stores"], on="store").merge(tables["states"], on="store")
    rows = rows.merge(tables["weather"], on=["state", "date"])
    date = pd.to_datetime(rows["date"])
    has_rival = date > pd.to_datetime(rows["competition_since"])
    effects = (
        retail.WEEKDAYS[date.dt.dayofweek]
        + rows["promo"] * rows["assortment"].map(retail.PROMOTION)
        - np.where(has_rival, 0.3 * np.exp(-rows["competition_distance"].fillna(0) / 2000), 0)
        - 0.01 * rows["rain"]
        + 0.1 * np.sin(2 * np.pi * date.dt.dayofyear / 365)
    )
    rest = np.log(rows["sales"]) - effects
    assert rest.groupby(rows["store"]).std().mean() == pytest.approx(retail.NOISE, rel=0.03)
    assert len(tables["sales"]) == 40 * 200
    assert tables["stores"]["competition_distance"].isna().any()
    again = retail.make_tables(40, 200)
    assert all(tables[name].equals(again[name]) for name in tables)


@pytest.mark.spark
@pytest.mark.example
def test_only_the_gang_has_gpus_and_predictions_are_those_without_spark(run_script: Any) -> None:
    done = run_script(EXAMPLES / "pipeline.py", "--stores", 12, "--trials", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = re.findall(r"^(.+): \d+ tasks on executors with (\d) GPU", done.stdout, re.MULTILINE)  # in Spark's event log
    assert ran == [("joins, indexing and predictions", "0"), ("the search", "1")]
    assert re.search(r"trial 0\] GPU [01]$", done.stdout, re.MULTILINE)
    assert re.search(r"rank 0\] GPU (0,1|1,0)$", done.stdout, re.MULTILINE)
    differences = re.findall(r"differing from those without Spark by (\S+) at most", done.stdout)
    assert [float(difference) < 1e-6 for difference in differences] == [True, True]  # in batch, on the stream
    errors = re.search(r"no training has seen: ([0-9.]+); by the stores' levels alone ([0-9.]+)", done.stdout)
    assert errors is not None
    assert float(errors[1]) < 0.6 * float(errors[2])


@pytest.mark.spark
@pytest.mark.example
def test_a_layer_on_the_features_of_another_network_learns_new_images(run_script: Any) -> None:
    done = run_script(EXAMPLES / "images.py")
    assert done.returncode == 0, done.stdout + done.stderr
    right = re.search(r"right on ([0-9.]+)% of \d+ others", done.stdout)
    assert right is not None
    assert float(right[1]) > 85
