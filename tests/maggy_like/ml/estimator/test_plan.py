"""How many workers can share the rows of a training."""

from __future__ import annotations

import pytest

from maggy_like.errors import ConfigError
from maggy_like.ml.estimator.plan import check_ranks, most_ranks


@pytest.mark.parametrize(
    ("rows", "ranks", "message"),
    [(100, 33, "33 workers cannot share batches of batchSize=32"), (32, 33, "33 workers cannot share 32 rows")],
)
def test_too_many_workers_are_told(rows: int, ranks: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_ranks(rows, ranks, 32)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"held": 3}, "4 workers cannot share 3 rows to validate on; use workers=3 or fewer, or set more rows apart"),
        ({"held": 1}, "4 workers cannot share 1 rows to validate on; use workers=1, or"),
        (
            {"least": 9},
            r"share batches of batchSize=32, because each needs 9 rows .*use batchSize=36 or more, or workers=3",
        ),
        (
            {"least": 30},
            "4 workers cannot share 100 rows to train on, because each needs 30 rows of a batch .*workers=1$",
        ),
    ],
)
def test_workers_without_a_row_are_told(given: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_ranks(100, 4, 32, **given)
    check_ranks(100, most_ranks(100, 32, **given), 32, **given)
