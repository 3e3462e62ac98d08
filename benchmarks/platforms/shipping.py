"""Code that the cluster does not have: it is sent with the application."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pyspark

from benchmarks.platforms.outcome import Outcome
from benchmarks.platforms.search import TRIALS, make_train
from benchmarks.platforms.twice import session, twice

MODULE = "mgplat_shipped"
CLUSTER = "local-cluster[2,1,1024]"


def archive() -> Path:
    """A zip file with a module that is nowhere else; its ``train`` is the training."""
    source = f"""
from __future__ import annotations

import time

TRIALS = {TRIALS}

{inspect.getsource(make_train)}

_train = make_train()


def train(rate, decay, reporter):
    _train(rate, decay, reporter)
"""
    path = Path("shipped.zip").resolve()
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{MODULE}.py", source)
    return path


def added() -> Outcome:
    with session(CLUSTER) as spark:
        spark.sparkContext.addPyFile(str(archive()))
        return twice(spark, train=importlib.import_module(MODULE).train)


def unpacked() -> Outcome:
    """A small environment, packed: it finds its packages in this one's folder, as this machine has them already."""
    venv.create("env", with_pip=False)
    [site] = Path("env").glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    with tarfile.open("env.tar.gz", "w:gz") as file:
        file.add("env", ".")
    os.environ |= {"PYSPARK_PYTHON": "./env/bin/python", "PYSPARK_DRIVER_PYTHON": sys.executable}
    with session(CLUSTER, {"spark.archives": f"{Path('env.tar.gz').resolve()}#env"}) as spark:
        return twice(spark)


def submitted() -> Outcome:
    """An application of ``spark-submit --py-files``."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    file = Path("submitted.json").resolve()
    Path("application.py").write_text(
        "import sys\nfrom pathlib import Path\nfrom benchmarks.platforms.shipping import application\n"
        "application().write(Path(sys.argv[1]))\n"
    )
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [f"{home}/bin/spark-submit", "--master", CLUSTER, "--py-files", str(archive()), "application.py"]
    done = subprocess.run([*command, str(file)], env=environment)
    return Outcome.read(file) if file.exists() else Outcome([f"spark-submit ended with status {done.returncode}"])


def application() -> Outcome:
    """What the application does."""
    with session(None) as spark:
        return twice(spark, train=importlib.import_module(MODULE).train)


SETTINGS = {"addPyFile": added, "--py-files": submitted, "spark.archives": unpacked}
