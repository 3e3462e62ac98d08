"""Which installed modules a training function is found to use."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np

from maggy_like.train_function.modules import modules_of


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


def test_modules_are_found_in_the_code_and_among_the_globals() -> None:
    assert {"torch", "torch._dynamo"} <= set(modules_of(trains_with_torch))
    assert "torch._dynamo" not in modules_of(only_computes_with_torch)
    assert "numpy" in modules_of(uses_a_global)
    assert "fsspec.implementations.local" in modules_of(saves)
    assert "json.encoder" in modules_of(partial(json.JSONEncoder, indent=2))  # where it is from itself
    assert not any(name.startswith(("tests", "test_modules", "__main__")) for name in modules_of(uses_a_global))
