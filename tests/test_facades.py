"""What the two packages offer by name, and what importing them loads."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import maggy_like
import maggy_like.ml
import optimizers

pytestmark = pytest.mark.slow

FACADES = (maggy_like, maggy_like.ml, optimizers)

HEAVY = (
    "IPython",
    "asyncio",
    "fsspec",
    "matplotlib",
    "optuna",
    "pandas",
    "plotly",
    "pyarrow",
    "pyspark",
    "rich",
    "scipy",
    "skopt",
    "torch",
)
"""What takes a tenth of a second and more to load, and is loaded at its first use."""


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport json, sys; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("facade", FACADES, ids=lambda facade: facade.__name__)
def test_every_name_is_found_at_its_home(facade: ModuleType) -> None:
    names = [name for name in facade.__all__ if name != "Searchspace"]
    assert sorted(names) == sorted(facade._HOMES)
    for name in facade.__all__:
        assert getattr(facade, name) is not None
    with pytest.raises(AttributeError, match=f"module '{facade.__name__}' has no attribute 'nothing'"):
        _ = facade.nothing


@pytest.mark.parametrize("facade", FACADES, ids=lambda facade: facade.__name__)
def test_type_checkers_read_the_same_homes(facade: ModuleType) -> None:
    tree = ast.parse(Path(facade.__file__ or "").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    read = {name.name: node.module for node in imports for name in node.names if name.asname is None}
    assert read == facade._HOMES


@pytest.mark.parametrize(
    "statement",
    [
        "import maggy_like",
        "from maggy_like import lagom, run, Float, Integer, Choice, FailurePolicy",
        "from maggy_like import ablate, AblationStudy",
        "import maggy_like.ml",
        "from optimizers import ASHA, Study, SearchSpace",
    ],
)
def test_an_import_loads_nothing_heavy(statement: str) -> None:
    loaded = loaded_by(statement)
    assert loaded.isdisjoint(HEAVY)


def test_the_front_door_loads_what_its_signature_needs_and_nothing_more() -> None:
    """The rest is loaded by the first call, so that the import takes 0.3 s of CPU at most."""
    loaded = loaded_by("from maggy_like import ablate, lagom, run")
    ours = {name for name in loaded if name.startswith("maggy_like.")}
    light = ("maggy_like.api", "maggy_like.argument_checks", "maggy_like.errors", "maggy_like.version")
    collector = {"maggy_like.processes", "maggy_like.processes.garbage"}
    assert not [name for name in ours - collector if not name.startswith(light)]
    assert loaded.isdisjoint({"cloudpickle", "msgspec", "numpy", "zmq"})


def test_a_worker_starts_without_numpy() -> None:
    loaded = loaded_by("import maggy_like.errors, maggy_like.worker.agent.agent, maggy_like.worker.child.process")
    assert loaded.isdisjoint({*HEAVY, "numpy", "optimizers.core.base"})


def test_a_local_search_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    options = f"engine='local', workers=1, n_trials=1, progress=False, directory={str(tmp_path)!r}"
    search = f"lagom(lambda x: x, {{'x': Float(0.0, 1.0)}}, optimizer='random', direction='max', {options})"
    loaded = loaded_by(f"from maggy_like import Float, lagom; {search}")
    special = (
        "maggy_like.ablation",
        "maggy_like.api.warm_start",
        "maggy_like.cluster_driver",
        "maggy_like.distributed",
        "maggy_like.driver.run_handle",
        "maggy_like.results.optuna_studies",
        "maggy_like.results.plots",
        "maggy_like.results.tables",
        "maggy_like.spark",
        "maggy_like.storage.checkpoints",
        "maggy_like.storage.journal.object_store",
        "maggy_like.storage.journal.repair",
        "maggy_like.trackers",
        "optimizers.comparisons",
        "optimizers.samplers.bayesian",
        "optimizers.schedulers.",
    )
    assert not [name for name in loaded if name.startswith(special)]


def test_a_home_is_loaded_once_its_name_is_used() -> None:
    home = importlib.import_module(maggy_like._HOMES["Float"])
    assert maggy_like.Float is home.Float
