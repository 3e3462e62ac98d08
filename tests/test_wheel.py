"""The wheel and the sdist hold what an installation needs, and the README's example runs from the wheel alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist of a copy of the project, and the wheel that is built of that."""
    directory, source = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("source")
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    for name in files.stdout.split("\n"):
        if (name.startswith(("maggy_like/", "optimizers/")) or "/" not in name) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(directory)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (sdist,) = directory.glob("*.tar.gz")
    wheel = ["wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", str(directory), str(sdist)]
    environment = os.environ | {"PIP_BUILD_CONSTRAINT": ""}
    subprocess.run([*PIP, *wheel], cwd=ROOT, check=True, capture_output=True, env=environment)
    return directory


@pytest.mark.long
def test_both_hold_all_modules_and_the_licence(built: Path) -> None:
    modules = {
        str(path.relative_to(ROOT)) for name in ("maggy_like", "optimizers") for path in ROOT.glob(f"{name}/**/*.py")
    }
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if name.endswith(".py")} == modules
    assert {"maggy_like/py.typed", "optimizers/py.typed"} <= names
    assert any(name.endswith("/LICENSE") for name in names)
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert modules | {"README.md", "LICENSE", "setup.cfg", "pyproject.toml"} <= packed


@pytest.mark.long
def test_the_example_of_the_readme_runs_from_the_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    target = str(tmp_path / "lib")
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", target, str(wheel)], cwd=ROOT, check=True)
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    check = "import maggy_like, optimizers\nprint(maggy_like.__file__, optimizers.__file__)\n"
    (tmp_path / "example.py").write_text(example + check)
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "lib")},  # comes before the editable installation
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        f"{tmp_path}/lib/maggy_like/__init__.py {tmp_path}/lib/optimizers/__init__.py"
    )
