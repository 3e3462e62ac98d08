"""How it is seen whether a training function uses checkpoints."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest

from maggy_like.train_function.code import uses_budget, uses_checkpoints


def uses_a_global(x: float) -> float:
    return float(np.sqrt(x))


def saves(reporter: Any) -> None:
    reporter.checkpoint(reporter.restore())


def saves_elsewhere(x: float, reporter: Any) -> None:
    saves(reporter)


class Trainer:
    def __call__(self, x: float, reporter: Any) -> None:
        saves(reporter)


class Methodical:
    """Saves and restores in methods that ``__call__`` calls."""

    def __call__(self, x: float, reporter: Any) -> None:
        self.reporter = reporter
        self.begin()
        self.save(x)

    def begin(self) -> None:
        self.state = self.reporter.restore()

    def save(self, x: float) -> None:
        self.reporter.checkpoint(x)

    def train(self, x: float, reporter: Any) -> None:
        self.reporter = reporter
        self.begin()
        self.save(x)


class Idle(Methodical):
    def __call__(self, x: float, reporter: Any) -> None:
        reporter.report(x)


def names_alone(x: float, reporter: Any) -> None:
    """Speaks of checkpoint and restore."""
    checkpoint = restore = x  # a checkpoint to restore
    reporter.report(checkpoint + restore + len("checkpoint, restore"))


def attributes_alone(x: Any, reporter: Any) -> None:
    x.checkpoint = x.restore = 1.0
    reporter.report(x.checkpoint + x.restore)


def modules_alone(x: float, reporter: Any) -> None:
    import torch.utils.checkpoint

    torch.utils.checkpoint.checkpoint(json.loads, x)
    torch.utils.restore(x)
    checkpoint(restore(x))


def checkpoint(x: float) -> float:
    return x


restore = checkpoint


def hands_on(x: float, reporter: Any) -> None:
    keep, bring = reporter.checkpoint, reporter.restore
    keep(bring() + x)


def under_another_name(x: float, r: Any) -> None:
    def inner() -> None:
        r.checkpoint(x)

    r.restore()
    inner()


@pytest.mark.parametrize("function", [Methodical(), Methodical().train, hands_on, under_another_name])
def test_checkpoints_are_found_by_what_the_code_does(function: Any) -> None:
    assert uses_checkpoints(function)


@pytest.mark.parametrize("function", [names_alone, attributes_alone, modules_alone, Idle()])
def test_words_alone_are_no_checkpoints(function: Any) -> None:
    assert not uses_checkpoints(function)


def test_checkpoints_are_found_through_the_user_s_own_functions() -> None:
    assert uses_checkpoints(saves)
    assert uses_checkpoints(saves_elsewhere)
    assert uses_checkpoints(partial(saves_elsewhere, x=1.0))
    assert uses_checkpoints(Trainer())
    assert uses_checkpoints(lambda x, reporter: saves(reporter))
    assert not uses_checkpoints(uses_a_global)
    assert not uses_checkpoints(lambda reporter: reporter.restore())


def with_a_callback(x: float, reporter: Any) -> None:
    from maggy_like.callbacks import LightGBMReport

    LightGBMReport(reporter)


def test_a_callback_of_a_library_saves_restores_and_keeps_to_the_budget() -> None:
    assert uses_checkpoints(with_a_callback)
    assert uses_budget(with_a_callback)


@pytest.mark.parametrize("number", [100, 127, 300])
def test_code_of_many_names_is_read_too(number: int) -> None:
    calls = "".join(f"    name_{i}(x)\n" for i in range(number))
    made: dict[str, Any] = {}
    exec(f"def train(x, r):\n{calls}    r.checkpoint(r.restore())\n", made)
    assert uses_checkpoints(made["train"])
