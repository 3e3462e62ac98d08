from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.spark

A_SESSION_OF_THEIR_OWN = """
import os, sys, time
from pathlib import Path
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from maggy_like import Float, lagom

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
context = spark.sparkContext._jsc.sc()

def train(x):
    time.sleep(1.5)  # Spark draws after half a second
    return x

def bar():
    return context.progressBar().isDefined()

seen = [bar()]
lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=2, directory=Path("runs"), progress="plain",
      callbacks=[lambda event: seen.append(bar())])
print(seen[0], any(seen[1:]), bar())
spark.stop()
"""


def test_a_session_of_their_own_draws_no_bar_into_our_lines_and_has_it_back(run_script: Any) -> None:
    done = run_script(A_SESSION_OF_THEIR_OWN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True False True"
    assert "[Stage" not in done.stderr
