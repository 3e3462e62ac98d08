"""What a trial imports is found, and imported before the next ones start."""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maggy_like.processes.imports import (
    SETTLED,
    ImportWatch,
    import_ahead,
    is_installed_file,
    is_installed_module,
    remember,
    remembered,
)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An environment's packages; returns its directory. What was imported of it is forgotten afterwards."""
    directory = tmp_path / "lib" / "python3.11" / "site-packages"
    (directory / "installed_one").mkdir(parents=True)
    (directory / "installed_one" / "__init__.py").write_text("")
    (directory / "installed_one" / "inner.py").write_text("import sys; sys.modules['installed_one.made'] = sys")
    (directory / "installed_broken.py").write_text("raise RuntimeError('no such device')")
    (tmp_path / "own_one.py").write_text("")
    monkeypatch.syspath_prepend(directory)
    monkeypatch.syspath_prepend(tmp_path)
    yield directory
    for name in [name for name in sys.modules if name.startswith(("installed_", "own_one"))]:
        del sys.modules[name]


@pytest.mark.usefixtures("packages")
def test_installed_modules_that_are_new_are_found_once() -> None:
    watch = ImportWatch(frozenset(sys.modules))
    for name in ("own_one", "installed_one.inner"):
        importlib.import_module(name)
    assert watch.new() == ["installed_one", "installed_one.inner"]
    assert watch.new() == []


@pytest.mark.usefixtures("packages")
def test_modules_are_found_although_the_newest_one_was_removed() -> None:
    """As a package does that tries an import and gives it up."""
    importlib.import_module("own_one")
    watch = ImportWatch(frozenset(sys.modules))
    del sys.modules["own_one"]
    importlib.import_module("installed_one")
    assert watch.new() == ["installed_one"]


def test_a_fork_that_looks_for_new_modules_copies_hardly_any_memory() -> None:
    """A look at each name would count a reference to it, and so copy its page."""
    names = [f"made_up.{number}{'x' * 4000}" for number in range(500)]  # each on a page of its own
    sys.modules.update((name, sys) for name in names)
    try:
        known = frozenset(sys.modules)
        read, write = os.pipe()
        if (pid := os.fork()) == 0:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            watch = ImportWatch(known)
            watch.settled()
            watch.new()
            os.write(write, b"%d" % (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))
            os._exit(0)
        os.waitpid(pid, 0)
        assert int(os.read(read, 100)) < len(names) / 2
    finally:
        for name in names:
            del sys.modules[name]
        os.close(read)
        os.close(write)


@pytest.mark.usefixtures("packages")
def test_imports_have_settled_once_no_more_come() -> None:
    watch = ImportWatch(frozenset(sys.modules))
    assert [watch.settled() for _ in range(2 * SETTLED)] == [[]] * 2 * SETTLED
    importlib.import_module("installed_one")
    assert watch.settled() == []
    importlib.import_module("installed_one.inner")
    found = [watch.settled() for _ in range(2 * SETTLED)]
    assert found[:SETTLED] == [[]] * SETTLED
    assert found[SETTLED:] == [["installed_one", "installed_one.inner"], *[[]] * (SETTLED - 1)]


@pytest.mark.usefixtures("packages")
def test_modules_are_imported_ahead_and_those_that_fail_are_left_out() -> None:
    import_ahead(["installed_broken", "installed_one.inner", "not_there"])
    assert "installed_one.inner" in sys.modules


def test_no_garbage_is_collected_during_imports_ahead(packages: Path) -> None:
    (packages / "installed_watch.py").write_text("import gc; enabled = gc.isenabled()")
    import_ahead(["installed_watch"])
    assert not sys.modules["installed_watch"].enabled
    assert gc.isenabled()


def test_what_torch_imports_for_its_first_optimizer_comes_with_it() -> None:
    import_ahead(["torch"])
    assert "torch._dynamo" in sys.modules


def test_what_was_imported_is_remembered_for_the_next_run() -> None:
    remember(["json", "json.encoder"])
    remember(["json"])
    assert remembered()[-2:] == ("json", "json.encoder")


def test_a_list_that_narwhals_reads_once_per_process_is_read_ahead() -> None:
    plugins = pytest.importorskip("narwhals.plugins")
    if not hasattr(plugins, "_discover_entrypoints"):
        pytest.skip("this narwhals has no such list")
    plugins._discover_entrypoints.cache_clear()
    import_ahead(["narwhals.dependencies"])
    assert plugins._discover_entrypoints.cache_info().currsize == 1


@pytest.mark.slow
def test_a_search_of_lightning_for_plugins_is_made_once(lightning: Any) -> None:
    import_ahead(())
    registry = importlib.import_module("lightning.fabric.utilities.registry")
    assert registry.entry_points.cache_info().currsize == 1
    found = registry.entry_points.cache_info().hits
    lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert registry.entry_points.cache_info() == (found + 1, 1, None, 1)


# -- what counts as installed: packages in whichever environment, and no project of the user's ----


def test_python_and_packages_are_installed_wherever_their_environment_is() -> None:
    assert is_installed_file(json.__file__)
    assert is_installed_file(str(np.__file__))
    assert is_installed_file("/home/ada/.local/lib/python3.11/site-packages/library/core.py")
    assert is_installed_file("/usr/lib/python3/dist-packages/library.py")
    assert not is_installed_file("/home/ada/site-packages.py")
    assert not is_installed_file("/home/ada/project/train.py")


@pytest.mark.parametrize(("directory", "expected"), [("other/site-packages", True), ("project", False)])
def test_modules_and_namespace_packages_are_judged_by_where_they_lie(
    directory: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / directory
    (place / "spread_out").mkdir(parents=True)
    (place / "spread_out" / "inner.py").touch()
    (place / "in_one.py").touch()
    monkeypatch.syspath_prepend(place)
    importlib.invalidate_caches()
    assert is_installed_module("in_one") is expected
    assert is_installed_module("spread_out.inner") is expected
    assert not is_installed_module("not_there_at_all")
    own = tmp_path / "mine"
    (own / "spread_out").mkdir(parents=True)
    monkeypatch.syspath_prepend(own)
    importlib.invalidate_caches()
    assert not is_installed_module("spread_out")  # a part of it is the user's
