"""ARCHITECTURE.md against the code: its table is the layers contract, its code paths name functions that exist."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()

STEPS = re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", TEXT, re.MULTILINE)
FILES = sorted(set(re.findall(r"`([\w/]+\.py)`", TEXT)))


def path_of(file: str) -> Path:
    """A file that the page names by its path in the project, or in maggy_like."""
    return next(path for path in (ROOT / file, ROOT / "maggy_like" / file) if path.exists())


def test_the_table_of_layers_is_the_layers_contract() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    layers = config["importlinter:contract:layers"]["layers"].split("\n")[1:]
    highest = len(layers)
    contract = {(highest - place, room.strip()) for place, layer in enumerate(layers) for room in layer.split("|")}
    table = {(int(floor), room) for floor, room in re.findall(r"^\| (\d+) \| `(\w+)` \|", TEXT, re.MULTILINE)}
    assert table == contract


def test_the_walks_have_steps() -> None:
    assert len(STEPS) > 20


@pytest.mark.parametrize(("file", "name"), STEPS)
def test_a_step_of_a_walk_is_a_function(file: str, name: str) -> None:
    *outer, function = name.split(".")
    defined = ast.walk(ast.parse(path_of(file).read_text()))
    if outer:
        (body,) = (node for node in defined if isinstance(node, ast.ClassDef) and node.name == outer[0])
        defined = ast.walk(body)
    assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in defined)


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_named_exists(file: str) -> None:
    assert path_of(file).exists()
