"""What is read of a training function before it runs."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np

from maggy_like.inspection import modules_of, uses_checkpoints


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


def test_modules_are_found_in_the_code_and_among_the_globals() -> None:
    assert {"torch", "torch._dynamo"} <= set(modules_of(trains_with_torch))
    assert "torch._dynamo" not in modules_of(only_computes_with_torch)
    assert "numpy" in modules_of(uses_a_global)
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
