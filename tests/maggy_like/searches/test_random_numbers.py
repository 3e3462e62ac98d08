"""A function that sets no seed draws random numbers of its own in each trial, as in a process of its own."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from maggy_like import lagom, run

pytestmark = pytest.mark.e2e


def draws(repeat: int) -> dict[str, float]:
    own = {
        "value": torch.rand(1, dtype=torch.float64).item(),
        "numpy": float(np.random.rand()),
        "python": random.random(),
    }
    torch.manual_seed(7)
    np.random.seed(7)
    return {**own, "seeded": torch.rand(1).item() + float(np.random.rand())}


def both_ranks() -> list[float]:
    torch.distributed.init_process_group("gloo")
    found = [torch.zeros(2, dtype=torch.float64) for _ in range(2)]
    torch.distributed.all_gather(
        found, torch.tensor([torch.rand(1, dtype=torch.float64).item(), np.random.rand()], dtype=torch.float64)
    )
    return torch.cat(found).tolist()  # type: ignore[no-any-return]


def test_trials_draw_numbers_of_their_own_and_a_seed_of_the_function_holds(tmp_path: Path) -> None:
    space = {"repeat": [*range(6)]}
    trials = lagom(draws, space, metric="value", direction="max", optimizer="grid", workers=2, engine="local",
                   directory=tmp_path, progress=False).trials  # fmt: skip
    assert len({trial.value for trial in trials}) == 6
    assert len({trial.metrics["numpy"] for trial in trials}) == 6
    assert len({trial.metrics["python"] for trial in trials}) == 6
    assert len({trial.metrics["seeded"] for trial in trials}) == 1


@pytest.mark.long
def test_ranks_draw_numbers_of_their_own(tmp_path: Path) -> None:
    found = run(both_ranks, workers=2, engine="local", directory=tmp_path, progress=False)
    assert len(set(found)) == 4
