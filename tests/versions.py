"""Run the fast tests that need no torch with other versions of Python and of the dependencies.

``python tests/versions.py [NAME ...]`` makes an environment for each row of the matrix in ``build/versions``, runs the
tests there, and prints a table. It needs a package index and the interpreters: on the PATH, or made by pyenv.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DIRECTORY = ROOT / "build" / "versions"

PACKAGES = [".[connect,lightgbm,mlflow,notebook,optuna,report,sklearn,skopt,spark,tensorboard]", "s3fs>=2024.12"]
TOOLS = [
    "griffelib",  # reads signatures, as the site of the docs does
    "hypothesis>=6.150",
    "matplotlib",  # of the plots of benchmarks
    "mypy",  # of a test of what a type checker knows
    "psutil>=5.9",
    "pytest>=8,<9.2",
    "pytest-timeout>=2.4",
    "pytest-xdist>=3.8",
    "requests",  # of a file system that a test names
    "xgboost-cpu",  # xgboost without the libraries for GPUs
]
FAST = "not spark and not gpu and not notebook and not browser and not example and not e2e and not conformance"


class Row(NamedTuple):
    """A version of Python, and which versions of the packages pip's resolver is to choose."""

    python: str
    resolution: str


MATRIX = {
    "lowest": Row("3.11", "lowest-direct"),
    "newest-3.11": Row("3.11", "highest"),
    "newest-3.12": Row("3.12", "highest"),
    "newest-3.13": Row("3.13", "highest"),
}


def interpreter(version: str) -> str | None:
    """Return the path of an interpreter of that version, or None if there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in (f"python{version}", *map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))):
        code = "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2])"
        try:
            done = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
        except OSError:
            continue
        if done.returncode == 0 and done.stdout.split()[-1:] == [version]:
            return done.stdout.split()[0]
    return None


def run(name: str, row: Row) -> str:
    """Make the environment of a row and run the tests there; return the last line of pytest, or what went wrong."""
    if (python := interpreter(row.python)) is None:
        return f"no Python {row.python} found"
    environment = DIRECTORY / name
    subprocess.run([python, "-m", "venv", "--clear", str(environment)], check=True)
    binary = environment / "bin" / "python"
    subprocess.run([binary, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv"], check=True)
    install = [binary, "-m", "uv", "pip", "install", "--quiet", "--python", binary]
    subprocess.run([*install, "--resolution", row.resolution, *PACKAGES], cwd=ROOT, check=True)
    subprocess.run([*install, *TOOLS], cwd=ROOT, check=True)
    with (DIRECTORY / f"{name}.txt").open("w") as frozen:
        subprocess.run([binary, "-m", "uv", "pip", "freeze", "--python", binary], check=True, stdout=frozen)
    # Without the source of frames: Python 3.11 may fail to parse it while a deep recursion unwinds.
    tests = [binary, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-m", FAST, "-p", "no:cacheprovider"]
    tests += ["--tb", "native"]
    log = DIRECTORY / f"{name}.log"
    with log.open("w") as output:  # so that a long run can be followed
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(tests, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=environ)
    found = re.findall(r"\d+ (?:passed|failed|error).* in .*", log.read_text())
    return (found or [f"pytest ended with {done.returncode}"])[-1]


def main() -> None:
    """Run the rows that are named, or all."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in sys.argv[1:] or MATRIX:
        print(f"{name}: Python {MATRIX[name].python}, {MATRIX[name].resolution}", flush=True)
        results[name] = run(name, MATRIX[name])
        print(f"  {results[name]}", flush=True)
    if any("failed" in result or "error" in result or "passed" not in result for result in results.values()):
        sys.exit(f"see {DIRECTORY}/*.log")


if __name__ == "__main__":
    main()
