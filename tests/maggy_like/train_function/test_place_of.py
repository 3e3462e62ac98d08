"""Where another process finds a training function."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from maggy_like.train_function.code import name_of, place_of, rerun_hint


def at_top_level(x: float) -> float:
    return x


class Trains:
    def __call__(self, x: float) -> float:
        return x


def test_a_function_of_a_file_is_found_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(__file__)
    monkeypatch.chdir(here.parents[1])
    assert place_of(at_top_level) == f"train_function/{here.name}:at_top_level"
    monkeypatch.chdir(here.root)
    assert place_of(at_top_level) == f"{here.relative_to(here.root)}:at_top_level"


def test_a_file_outside_the_working_folder_has_its_whole_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of(at_top_level) == f"{__file__}:at_top_level"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    os.rmdir(gone)
    assert place_of(at_top_level) == f"{__file__}:at_top_level"


def nested() -> Any:
    def train(x: float) -> float:
        return x

    return train


@pytest.mark.parametrize(
    ("function", "place"),
    [(nested(), "train"), (partial(at_top_level, 1), "train_fn"), (Trains(), "train_fn")],
)
def test_other_functions_have_only_a_name(function: Any, place: str) -> None:
    assert place_of(function) == place


@pytest.mark.parametrize("function", [name_of, partial(name_of, 1), partial(partial(name_of), 1)])
def test_a_function_of_this_package_has_no_place(function: Any) -> None:
    assert place_of(function) == ""
    assert rerun_hint(place_of(function), "runs/first", 7) == ""


def test_the_command_is_quoted_for_a_shell() -> None:
    assert rerun_hint("my train.py:train", "my runs/first", 7) == (
        "to debug it: maggy-like rerun 'my runs/first' 7 'my train.py:train' --pdb"
    )
    assert rerun_hint("train", "runs/first", 7) == "to debug it: load_run('runs/first').rerun(7, train)"
