"""What counts as installed: packages in whichever environment, and no project of the user's."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

from maggy_like.processes.imports import is_installed_file, is_installed_module


def test_python_and_packages_are_installed_wherever_their_environment_is() -> None:
    assert is_installed_file(json.__file__)
    assert is_installed_file(str(np.__file__))
    assert is_installed_file("/home/ada/.local/lib/python3.11/site-packages/library/core.py")
    assert is_installed_file("/usr/lib/python3/dist-packages/library.py")
    assert not is_installed_file("/home/ada/site-packages.py")
    assert not is_installed_file("/home/ada/project/train.py")


@pytest.mark.parametrize(("folder", "expected"), [("other/site-packages", True), ("project", False)])
def test_modules_and_namespace_packages_are_judged_by_where_they_lie(
    folder: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / folder
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
