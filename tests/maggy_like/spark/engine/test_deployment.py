"""A driver that runs in the cluster: its own disk is no place for a run, a URL is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like.spark.engine import engine as deployment
from maggy_like.spark.engine.engine import path_hints
from maggy_like.storage.run_paths import RunPaths

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]

MOUNTS = r"""
overlay / overlay rw,relatime 0 0
/dev/sdb /work ext4 rw 0 0
nas:/runs /shared nfs4 rw 0 0
nas:/two /with\040space nfs4 rw 0 0
fuse-overlayfs /odd fuse.fuse-overlayfs rw 0 0
s3fs /bucket fuse.s3fs rw 0 0
tmpfs /shared/hidden tmpfs rw 0 0
"""

CLUSTER = {"spark.submit.deployMode": "cluster"}
POD = {"spark.master": "k8s://https://10.0.0.1:443"}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


class Session:
    """As much of a session as is asked; classic if it has a ``_sc``."""

    def __init__(self, conf: dict[str, str], *, is_classic: bool = True) -> None:
        self.conf = conf
        if is_classic:
            self._sc = self.sparkContext = SimpleNamespace(_conf=conf)


@pytest.fixture(autouse=True)
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounts").write_text(MOUNTS.lstrip())
    monkeypatch.setattr(deployment, "_MOUNTS", tmp_path / "mounts")
    for name in ("KUBERNETES_SERVICE_HOST", "CONTAINER_ID", "DATABRICKS_RUNTIME_VERSION"):
        monkeypatch.delenv(name, raising=False)


def hints(directory: str, conf: dict[str, str] = CLUSTER, **options: Any) -> list[str]:
    where = directory if "://" in directory else Path(directory)
    session: Any = Session(conf, is_classic=options.pop("is_classic", True))
    store = f"{directory}/checkpoints" if "://" in directory else f"file://{directory}/checkpoints"
    return path_hints(session, RunPaths(where, options.get("store", store)))


def test_a_disk_of_the_driver_s_own_is_told_of() -> None:
    (told,) = hints("/app/maggy_runs/first")
    assert told.startswith(
        "the driver runs in the cluster (spark.submit.deployMode=cluster), and directory='/app/maggy_runs' is on its "
        "own disk, which is removed with it; use directory='s3://bucket/runs' or another permanent URL"
    )
    for lost in ("/local/runs/first", "/odd/first", "/shared/hidden/first", "/sharedness/first"):
        assert hints(lost)
    assert hints("/app/first", store="s3://b/first")


def test_what_stays_is_not_told_of() -> None:
    for stays in (
        "s3://bucket/first", "file:///app/first", "/shared/runs/first", "/with space/first", "/bucket/first",
        "/dbfs/first", "/Volumes/main/first", "/Workspace/Users/me/first",
    ):  # fmt: skip
        assert not hints(stays), stays


@pytest.mark.parametrize(("conf", "environment", "where"), [
    (CLUSTER, {}, "spark.submit.deployMode=cluster"), (*POD, "a Kubernetes pod"),
    ({"spark.master": "yarn"}, {"CONTAINER_ID": "container_17"}, "YARN's container_17"),
    ({}, {"DATABRICKS_RUNTIME_VERSION": "17.3"}, "Databricks 17.3"),
    ({"spark.master": "yarn", "spark.submit.deployMode": "client"}, {}, None), (POD[0], {}, None),
    ({"spark.master": "local[2]"}, POD[1], None), ({}, {}, None),
])  # fmt: skip
def test_how_it_is_seen_where_the_driver_is(
    conf: dict[str, str], environment: dict[str, str], where: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    told = hints("/app/first", conf)
    assert [f"({where})" in line for line in told] == ([] if where is None else [True])


def test_a_client_of_spark_connect_is_where_it_is_whatever_the_server_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hints("/app/first", CLUSTER, is_classic=False)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "client.3.0")
    assert hints("/app/first", {}, is_classic=False)


SCRIPT = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession
from maggy_like import Float, lagom, load_run
from maggy_like.spark.engine.engine import SparkEngine
from optimizers.schedulers.asha import ASHA

def train(x, reporter):
    for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
        print("at", x)
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)

SparkContext._ensure_initialized()  # spark-submit, which starts it, would refuse a shell in the cluster
conf = {"spark.submit.deployMode": "cluster", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=conf).getOrCreate()

def search(directory, **options):
    return lagom(train, {"x": Float(0, 1)}, max_budget=2, engine=SparkEngine(spark), name="run", directory=directory,
                 progress="plain", **options)

result = search(sys.argv[1], optimizer=ASHA(mode="promotion", eta=2), n_trials=2, workers=2)
assert result.ending == "completed", result
print("--", flush=True)
at_home = search("home", optimizer="random", n_trials=1, workers=1)
assert at_home.ending == "completed", at_home
spark.stop()
again = load_run(sys.argv[1] + "/run")
assert again == result
assert again.load_best() == 2
assert sorted(trial.attempt for trial in again.trials) == [1, 2]  # one was promoted
for trial in again.trials:
    assert again.log(trial.id).count(f"at {trial.config['x']}") == trial.step, again.log(trial.id)
print("done")
"""


@pytest.mark.long
@pytest.mark.spark
def test_executors_that_see_nothing_but_the_store_and_a_driver_in_the_cluster(
    object_store: dict[str, str], run_script: RunScript, tmp_path: Path
) -> None:
    env = {**object_store, "TMPDIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    ran = run_script(SCRIPT, "s3://runs/spark", env=env)
    assert ran.stdout.endswith("done\n"), ran.stdout + ran.stderr
    at_url, _, at_home = ran.stdout.partition("\n--\n")
    assert "the driver runs in the cluster" not in at_url
    assert "files in s3://runs/spark/run" in at_url
    assert "runs in the cluster (spark.submit.deployMode=cluster), and directory=" in " ".join(at_home.split())
    assert {path.name for path in (tmp_path / "home").iterdir()} == {"run"}
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("maggy")]
