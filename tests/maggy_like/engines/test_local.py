from __future__ import annotations

import pytest

from maggy_like import LocalEngine
from maggy_like.errors import ConfigError


@pytest.mark.parametrize(("fraction", "workers"), [(1, 2), (0.5, 4), (0.3, 6), (1 / 3, 6), (0.125, 16)])
def test_workers_share_gpus_in_the_fraction_that_each_needs(fraction: float, workers: int) -> None:
    assert LocalEngine(["0", "1"], gpu_fraction=fraction).default_workers() == workers


@pytest.mark.parametrize("fraction", [0, -1, 1.5, True, "half"])
def test_a_fraction_that_is_none_is_told(fraction: object) -> None:
    with pytest.raises(ConfigError, match="gpu_fraction must be above 0 and at most 1"):
        LocalEngine([], gpu_fraction=fraction)  # type: ignore[arg-type]
