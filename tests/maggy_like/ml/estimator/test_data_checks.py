"""Checks of what Spark has counted in the rows: each error names the column."""

from __future__ import annotations

import pytest

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.data import ColumnStatistics, Statistics
from maggy_like.ml.estimator.data_checks import check_classes, check_rows, check_weight


@pytest.mark.parametrize(
    ("rows", "column", "message"),
    [
        (0, ColumnStatistics(0, 0), "no rows to train on"),
        (9, ColumnStatistics(2, 0), "column 'x' must not be or contain null, got 2 such rows of 9"),
        (9, ColumnStatistics(0, 3), "column 'x' must not be or contain NaN or infinity, got 3 such rows of 9"),
        (9, ColumnStatistics(0, 0, 1, 3), "column 'x' must have arrays of equal length, got 1 to 3 elements"),
        (
            9,
            ColumnStatistics(0, 0, 2, 2, (3, 4), (3, 5)),
            "column 'x' must have arrays of equal length within its arrays, got 4 to 5 elements",
        ),
    ],
)
def test_rows_that_no_network_takes_are_told(rows: int, column: ColumnStatistics, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_rows(Statistics(rows, {"x": column}))


@pytest.mark.parametrize(
    ("column", "is_decoded", "kind"),
    [(ColumnStatistics(0, 0, 1, 1), False, "arrays"), (ColumnStatistics(0, 0), True, "bytes")],
)
def test_classes_that_cannot_be_weighted_are_told(column: ColumnStatistics, is_decoded: bool, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"classWeights must be used with .*, got {kind} in labelCol 'y'; use a loss"):
        check_classes("y", column, is_decoded)


def test_labels_between_two_classes_are_not_weighted_by_class() -> None:
    with pytest.raises(DataError, match=r"an integer as the class of each row, got 7 other numbers in labelCol 'y'"):
        check_classes("y", ColumnStatistics(0, 0, least=0, greatest=1, fractions=7), False)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (ColumnStatistics(0, 0, least=-0.5, total=3), "weightCol 'w' must have weights of at least 0, got -0.5"),
        (ColumnStatistics(0, 0, least=0, total=0), "weightCol 'w' must have a weight above 0 in some row"),
        (ColumnStatistics(0, 0), "weightCol 'w' must have one number in each row; cast or compute one"),
        (ColumnStatistics(0, 0, 1, 1, least=1, greatest=1), "weightCol 'w' must have one number in each row"),
    ],
)
def test_wrong_weights_are_told(column: ColumnStatistics, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_weight("w", column)
