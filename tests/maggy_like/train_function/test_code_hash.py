"""What counts as another training function."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from maggy_like.train_function.code import code_hash, is_comparable

TRAIN = """
SPREAD = 2

def helper(x):
    return x + 1

def train(x, reporter):
    for name in {"a", "b", "c", "d", "e"}:
        reporter.report(score=helper(x) * 3)
    return [helper(part) for part in (1, 2)]
"""


def hash_of(source: str) -> str:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "script.py", "exec"), names)
    return code_hash(names["train"])


@pytest.mark.parametrize(
    "change",
    [("* 3", "* 4"), ("x + 1", "x - 1"), ("score=", "loss="), ("(1, 2)", "(1, 3)"), ('"e"}', '"f"}')],
    ids=lambda change: " to ".join(change),
)
def test_another_body_is_another_function(change: tuple[str, str]) -> None:
    assert (changed := TRAIN.replace(*change)) != TRAIN
    assert hash_of(changed) != hash_of(TRAIN)
    assert is_comparable(hash_of(changed), hash_of(TRAIN))


def test_lines_and_comments_do_not_count() -> None:
    assert hash_of("# a comment\n\n" + TRAIN.replace("def train", "# another\ndef train")) == hash_of(TRAIN)


def test_it_is_the_same_in_every_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{TRAIN}\nfrom maggy_like.train_function.code import code_hash\nprint(code_hash(train))")
    runs = [
        subprocess.run(
            [sys.executable, str(script)], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    assert runs == [hash_of(TRAIN)] * 2


def test_whatever_can_be_called_has_one_or_none() -> None:
    def train(x: float) -> float:
        return x

    class Trainer:
        def __call__(self, x: float) -> float:
            return x

    assert code_hash(partial(train, 1.0)) == code_hash(train)
    assert code_hash(Trainer())
    assert code_hash(print) == ""
    assert not is_comparable("", code_hash(train))
    assert not is_comparable("cpython-39:" + code_hash(train).partition(":")[2], code_hash(train))
