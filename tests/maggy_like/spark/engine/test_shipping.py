"""What reaches workers that have none of the driver's directories, by a real ``spark-submit`` on a real cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest

import maggy_like
from maggy_like import StandaloneCluster

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]

MAIN = """
import json, os, sys
from maggy_like import Float, SparkEngine, lagom, spark_session
from maggy_like.errors import MaggyError
import beside, mine
from pack import inner

spark = spark_session()
spark.sparkContext.addPyFile(os.path.abspath("added.py"))

def train(x):
    import added, tiny, hatched, os, sys
    from pyspark import SparkFiles
    beside_it = open("data.txt").read()
    os.chdir("/")
    import maggy_like
    import late  # from the zip, after the working directory has changed
    return {"score": mine.DOUBLE * x, "sum": added.ONE + inner.TWO + hatched.THREE + tiny.SEVEN + late.NINE,
            "executable": sys.executable, "maggy": maggy_like.__file__,
            "has_directory": os.path.exists(sys.argv[1] + "/main.py"),
            "files": [beside_it, open(SparkFiles.get("data.txt")).read()]}

def lacks_own(x):
    return x * beside.FOUR

def lacks_package(x):
    import nowhere_to_be_found
    return x

settings = dict(engine=SparkEngine(spark, barrier=False), optimizer="random", n_trials=2, progress="plain",
                directory=sys.argv[2])
result = lagom(train, {"x": Float(0, 1)}, metric="score", **settings)
print("RESULT", json.dumps([trial.attributes | trial.metrics for trial in result.trials]))
for function in (lacks_own, lacks_package):
    try:
        lagom(function, {"x": Float(0, 1)}, **settings)
    except Exception as error:
        print("ERROR", " ".join(str(error).split()))
spark.stop()
"""

# The directory of the driver is a mount of its own: no other process of this machine sees what lies in it.
ALONE = """
set -e
mount -t tmpfs none "$1"
cp -r "$2"/. "$1"
cd "$1"
shift 2
exec "$@"
"""


def zipped(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def zipped_package(path: Path) -> Path:
    """What a user makes of the two packages by ``zip -r``: their modules alone."""
    home = Path(maggy_like.__file__).parents[1]
    sources = [file for name in ("maggy_like", "optimizers") for file in (home / name).rglob("*.py")]
    return zipped(path, {str(file.relative_to(home)): file.read_text() for file in sources})


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with one small package in it, packed as the page on shipping says."""
    directory = tmp_path_factory.mktemp("packed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory / "env"], check=True)
    [packages] = (directory / "env" / "lib").glob("python3.*/site-packages")
    (packages / "tiny.py").write_text("SEVEN = 7\n")
    packed = directory / "env.tar.gz"
    subprocess.run([sys.executable, "-m", "venv_pack", "-q", "-p", directory / "env", "-o", packed], check=True)
    return packed


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    directory = tmp_path / "sources"
    directory.mkdir()
    (directory / "main.py").write_text(MAIN)
    (directory / "mine.py").write_text("DOUBLE = 2\n")
    (directory / "beside.py").write_text("FOUR = 4\n")
    (directory / "data.txt").write_text("data")
    (directory / "added.py").write_text("ONE = 1\n")
    zipped(directory / "pack.zip", {"pack/__init__.py": "", "pack/inner.py": "TWO = 2\n", "late.py": "NINE = 9\n"})
    zipped(directory / "hatched.egg", {"hatched.py": "THREE = 3\n"})
    zipped_package(directory / "maggy.zip")
    return directory


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"
)
def test_workers_that_see_none_of_the_driver_s_directories_have_what_was_shipped_and_say_what_they_lack(
    free_cluster: StandaloneCluster, environment: Path, sources: Path, tmp_path: Path
) -> None:
    directory, runs = tmp_path / "driver", tmp_path / "runs"
    directory.mkdir()
    conf = {
        **free_cluster.conf,
        "spark.archives": f"{environment}#env",
        "spark.pyspark.python": "./env/bin/python",
        "spark.pyspark.driver.python": sys.executable,
        # The packages of the tests, since those are not packed; and no maggy_like, which is shipped.
        "spark.executorEnv.PYTHONPATH": sysconfig.get_paths()["purelib"],
    }
    settings = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    home = Path(pyspark.__file__).parent
    shipped = "mine.py,pack.zip,hatched.egg,maggy.zip"
    submit = [str(home / "bin" / "spark-submit"), "--master", free_cluster.master_url, *settings]
    command = [*submit, "--py-files", shipped, "--files", "data.txt", "main.py", str(directory), str(runs)]
    ran = subprocess.run(
        ["unshare", "-m", "sh", "-c", ALONE, "alone", str(directory), str(sources), *command],
        env={**os.environ, "SPARK_HOME": str(home), "PYTHONPATH": str(Path(maggy_like.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=400,
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    [result] = [line.removeprefix("RESULT ") for line in ran.stdout.splitlines() if line.startswith("RESULT ")]
    for trial in json.loads(result):
        check_trial(trial)
    own, package = [line for line in ran.stdout.splitlines() if line.startswith("ERROR ")]
    assert "No module named 'beside'" in own
    assert f"on the driver's machine it is {directory}/beside.py, which the worker lacks; send it with" in own
    assert "No module named 'nowhere_to_be_found'" in package
    assert "/env/bin/python on " in package
    assert "/env/lib/python3" in package
    assert "-m pip install ...), or send an environment with spark.archives" in package


def check_trial(trial: dict[str, Any]) -> None:
    assert trial["sum"] == 22
    assert trial["executable"].endswith("/env/bin/python")
    assert os.path.isabs(trial["executable"])
    assert "/maggy.zip/maggy_like/" in trial["maggy"]
    assert trial["has_directory"] is False
    assert trial["files"] == ["data", "data"]
