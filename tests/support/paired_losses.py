"""Losses of a made-up ablation study with two components, and its contrasts."""

from __future__ import annotations

import numpy as np

CONTRASTS = {name: {f"without {name}": 1.0, "base": -1.0} for name in ("A", "dropout")}


def losses_of(
    effects: dict[str, float], seeds: int, *, noise: float = 1.0, seed: int = 0
) -> dict[tuple[str, int], float]:
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=seeds)
    return {
        (name, number): effect + shared[number] + noise * rng.normal()
        for name, effect in {"base": 0.0, **effects}.items()
        for number in range(seeds)
    }
