"""What is read of a training function before it runs."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest

from maggy_like.train_function.inspection import modules_of, uses_checkpoints


def trains_with_torch(lr: float) -> None:
    import torch

    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)


def only_computes_with_torch(x: float) -> float:
    import torch

    return float(torch.tensor(x) ** 2)


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


def test_modules_are_found_in_the_code_and_among_the_globals() -> None:
    assert {"torch", "torch._dynamo"} <= set(modules_of(trains_with_torch))
    assert "torch._dynamo" not in modules_of(only_computes_with_torch)
    assert "numpy" in modules_of(uses_a_global)
    assert "fsspec.implementations.local" in modules_of(hands_on)
    assert "json.encoder" in modules_of(partial(json.JSONEncoder, indent=2))  # where it is from itself
    assert not any(name.startswith(("tests", "test_inspection", "__main__")) for name in modules_of(uses_a_global))


def test_checkpoints_are_found_through_the_user_s_own_functions() -> None:
    assert uses_checkpoints(saves)
    assert uses_checkpoints(saves_elsewhere)
    assert uses_checkpoints(partial(saves_elsewhere, x=1.0))
    assert uses_checkpoints(Trainer())
    assert uses_checkpoints(lambda x, reporter: saves(reporter))
    assert not uses_checkpoints(uses_a_global)
    assert not uses_checkpoints(lambda reporter: reporter.restore())
