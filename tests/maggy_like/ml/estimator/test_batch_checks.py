"""Checks of a network with a batch of two rows: each error names the column."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from maggy_like.errors import ConfigError, DataError, UserError
from maggy_like.ml.data import ColumnStatistics, Statistics
from maggy_like.ml.estimator.batch_checks import (
    check_magnitudes,
    check_sample,
    check_whole_numbers,
    fit_to_rows,
    remedy,
)
from maggy_like.ml.estimator.plan import Data, TrainingPlan


def network(hidden: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3))


PLAN = TrainingPlan(network, "cross_entropy", ("x",), ("label",), Data((), (), 120))
BATCH = {"x": torch.ones(2, 4), "label": torch.tensor([0.0, 2.0])}
CLASSES = ColumnStatistics(0, 0, least=0, greatest=2, total=120)


class Two(nn.Linear):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return x, x


WRONG: list[tuple[dict[str, Any], ColumnStatistics, type[UserError], str]] = [
    ({"model": nn.Linear(3, 3)}, CLASSES, ConfigError, r"model failed with 'x' of shape \[2, 4\]"),
    ({"model": Two(4, 3)}, CLASSES, ConfigError, r"one tensor for each column of labelCol, 1 \(label\), got 2"),
    ({}, replace(CLASSES, greatest=3), DataError, "'label' must have classes 0 to 2, .* got labels from 0 to 3"),
    ({}, replace(CLASSES, least=-1), DataError, "'label' must have classes 0 to 2, .* got labels from -1 to 2"),
    (
        {},
        replace(CLASSES, fractions=7),
        DataError,
        "'label' must have classes 0, 1, .* got 7 labels that are not integers",
    ),
    (
        {"loss": "bce_with_logits"},
        CLASSES,
        DataError,
        "'label' must have labels from 0 to 1 for BCEWithLogitsLoss, got labels from 0 to 2",
    ),
    (
        {"loss": "mse"},
        CLASSES,
        ConfigError,
        r"MSELoss must have outputs and labels of one shape.*\[2, 3\].*'label'",
    ),
    ({"loss": lambda output, label: output @ label}, CLASSES, ConfigError, "cannot be computed from .*'label'"),
    ({"class_weights": (1.0, 2.0)}, CLASSES, ConfigError, "classWeights must have 3 weights.* got 2"),
    ({"freeze": ("body",)}, CLASSES, ConfigError, "freeze must have patterns of modules, got 'body'"),
    ({"freeze": ("*",)}, CLASSES, ConfigError, "parameters to train, got none; freeze fewer"),
    ({"optimizer": "adem"}, CLASSES, ConfigError, "name of an optimizer of torch.optim, got 'adem'"),
    ({"model_params": {"width": 3}}, CLASSES, ConfigError, "model must take the arguments"),
    ({"loss": ["mse", "mse"]}, CLASSES, ConfigError, "one loss for each of 1 columns of labelCol, got 2"),
]


@pytest.mark.parametrize(("given", "found", "kind", "message"), WRONG)
def test_what_does_not_fit_is_told(
    given: dict[str, Any], found: ColumnStatistics, kind: type[UserError], message: str
) -> None:
    assert check_sample(PLAN, BATCH, Statistics(120, {"label": CLASSES}), []) == [(3,)]
    with pytest.raises(kind, match=message):
        check_sample(replace(PLAN, **given), BATCH, Statistics(120, {"label": found}), [])


def own_loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return ((output - label) ** 2).mean()


def of_pairs(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return (output.flatten() * (label[:, None] == label)).mean()


@pytest.mark.parametrize("labels", [[0.0, 0.0], [0.0, 2.0]])
def test_a_loss_that_combines_all_pairs_of_rows_by_its_shapes_is_refused(labels: list[float]) -> None:
    """Two rows with equal labels have equal losses, so the shapes count and not the values."""
    batch, found = {"x": torch.ones(2, 4), "label": torch.tensor(labels)}, Statistics(120, {"label": CLASSES})
    plan = replace(PLAN, model=nn.Linear(4, 1), loss=own_loss)
    message = r"own_loss must compare each output .* outputs of shape \[2, 1\], and labels 'label' of shape \[2\]"
    with pytest.raises(ConfigError, match=message):
        check_sample(plan, batch, found, [])
    upright = {**batch, "label": batch["label"][:, None]}
    flat = replace(plan, model=nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)))
    with pytest.raises(ConfigError, match=r"outputs of shape \[2\], and labels 'label' of shape \[2, 1\]"):
        check_sample(flat, upright, found, [])
    for loss in (lambda output, label: own_loss(output[:, 0], label), of_pairs):
        assert check_sample(replace(plan, loss=loss), batch, found, []) == [(1,)]
    assert check_sample(plan, upright, found, []) == [(1,)]


def test_a_column_of_numbers_is_no_row_of_the_network() -> None:
    batch = {"x": torch.ones(2), "label": torch.tensor([0.0, 1.0])}
    message = (
        r"number for each class of each row for CrossEntropyLoss, got outputs of shape \[2\] for 'x' of shape \[2\]"
    )
    with pytest.raises(ConfigError, match=message):
        check_sample(replace(PLAN, model=nn.Linear(2, 2)), batch, Statistics(120, {"label": CLASSES}), [])


class Mixed(nn.Module):
    """Takes numbers of words and whole amounts."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.amounts = nn.Embedding(10, 3), nn.Linear(2, 3)

    def forward(self, words: torch.Tensor, amounts: torch.Tensor) -> torch.Tensor:
        return self.words(words).sum(1) + self.amounts(amounts)


def test_whole_numbers_are_fractions_where_the_network_wants_them() -> None:
    whole = {"x": torch.ones(2, 4, dtype=torch.int64), "label": torch.tensor([0, 2])}
    assert fit_to_rows(PLAN, BATCH)[0].as_fractions == ()
    plan, _ = fit_to_rows(PLAN, whole)
    assert plan.as_fractions == ("x",)
    assert check_sample(plan, whole, Statistics(120, {"label": CLASSES}), []) == [(3,)]
    several = {"words": torch.ones(2, 5, dtype=torch.int32), "amounts": torch.ones(2, 2, dtype=torch.int8)}
    plan, _ = fit_to_rows(
        replace(PLAN, model=Mixed, features=("words", "amounts")), several | {"label": whole["label"]}
    )
    assert plan.as_fractions == ("amounts",)
    wrong = replace(PLAN, model=nn.Linear(3, 3))
    with pytest.raises(ConfigError, match=r"model failed with 'x' of shape \[2, 4\] of int64 \("):
        check_sample(fit_to_rows(wrong, whole)[0], whole, Statistics(120, {"label": CLASSES}), [])


class Each(nn.Module):
    """A layer for each amount, or an embedding for each word."""

    def __init__(self, kinds: str, width: int = 1) -> None:
        super().__init__()
        self.kinds = kinds
        self.words = nn.ModuleList(nn.Embedding(10, 3) for kind in kinds if kind == "w")
        self.amounts = nn.ModuleList(nn.Linear(width, 3) for kind in kinds if kind == "a")

    def forward(self, *columns: torch.Tensor) -> torch.Tensor:
        words, amounts = iter(self.words), iter(self.amounts)
        made: list[torch.Tensor] = [
            next(words)(it) if kind == "w" else next(amounts)(it[:, None])
            for kind, it in zip(self.kinds, columns, strict=True)
        ]
        return torch.stack(made).sum(0)


def test_many_columns_of_whole_numbers_take_few_tries() -> None:
    built = []

    def make(width: int) -> nn.Module:
        built.append(width)
        return Each("wa" * 6, width)

    names = tuple(f"c{number}" for number in range(12))
    batch = {name: torch.ones(2, dtype=torch.int64) for name in names} | {"label": torch.tensor([0, 2])}
    plan, _ = fit_to_rows(replace(PLAN, model=make, model_params={"width": 1}, features=names), batch)
    assert plan.as_fractions == names[1::2]
    assert check_sample(plan, batch, Statistics(120, {"label": CLASSES}), []) == [(3,)]
    wrong, _ = fit_to_rows(replace(plan, model_params={"width": 2}, as_fractions=()), batch)
    assert wrong.as_fractions == ()
    assert len(built) < 10


def test_columns_that_have_to_be_fractions_together_are_found() -> None:
    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Bilinear(4, 4, 3)  # which takes two inputs of one type

        def forward(self, *columns: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.stack(columns[:4], 1), torch.stack(columns[4:], 1))  # type: ignore[no-any-return]

    names = tuple(f"c{number}" for number in range(8))
    batch = {name: torch.ones(2, dtype=torch.int64) for name in names} | {"label": torch.tensor([0, 2])}
    assert fit_to_rows(replace(PLAN, model=Pairs, features=names), batch)[0].as_fractions == names


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (ColumnStatistics(0, 0, least=0, greatest=10), 10),
        (ColumnStatistics(0, 0, least=-1, greatest=9), -1),
        (ColumnStatistics(0, 0, 1, 1, least=0, greatest=10, extremes=([0], [10])), [10]),
    ],
)
def test_numbers_that_the_network_has_no_place_for_are_told(column: ColumnStatistics, value: Any) -> None:
    rows = torch.as_tensor([value, value]) * 0
    batch = {"amounts": torch.ones(2, 1), "words": rows, "label": torch.tensor([0, 2])}
    plan = replace(PLAN, model=lambda: Each("aw"), features=("amounts", "words"))
    if rows.dim() == 2:
        plan = replace(PLAN, model=lambda: nn.Sequential(nn.Embedding(10, 3), nn.Flatten()), features=("words",))
    whole = replace(column, least=0, greatest=9, extremes=([0], [9]) if column.extremes else ())
    check_whole_numbers(plan, batch, Statistics(120, {"amounts": CLASSES, "words": whole}))
    with pytest.raises(
        DataError, match=r"column 'words' has numbers from (-1|0) to (9|10), .* index out of range in self"
    ):
        check_whole_numbers(plan, batch, Statistics(120, {"amounts": CLASSES, "words": column}))


@pytest.mark.parametrize(
    ("layer", "frozen", "least"),
    [(nn.BatchNorm1d(4), (), 2), (nn.BatchNorm1d(4), ("0",), 1), (nn.LayerNorm(4), (), 1), (nn.Dropout(), (), 1)],
)
def test_a_network_that_needs_two_rows_is_known(layer: nn.Module, frozen: tuple[str, ...], least: int) -> None:
    plan = replace(PLAN, model=nn.Sequential(layer, nn.Linear(4, 3)), freeze=frozen)
    assert fit_to_rows(plan, BATCH)[0].least_share == least
    one = {name: rows[:1] for name, rows in BATCH.items()}
    assert fit_to_rows(plan, one)[0].least_share == least


def test_numbers_that_are_infinite_to_the_network_are_told() -> None:
    def told(largest: float, kind: torch.dtype = torch.float64, **given: Any) -> str:
        column = ColumnStatistics(0, 0, largest=largest)
        found = Statistics(9, {"x": column, "label": replace(CLASSES, largest=2)})
        plan, precision = replace(PLAN, **given), torch.float32
        check_magnitudes(found, plan, {"x": torch.ones(2, 4, dtype=kind), "label": BATCH["label"]}, precision)
        return remedy(found, plan, precision)

    assert told(1e19).startswith("lower learningRate, or scale")
    assert (
        told(1e20)
        == "column 'x' has numbers up to 1e+20, and their squares are infinite as float32; scale the column before fit"
    )
    with pytest.raises(DataError, match=r"column 'x' must have numbers up to 3.4e\+38 \(float32\), got 1e\+39"):
        told(1e39)
    with pytest.raises(DataError, match=r"up to 6.55e\+04 \(float16\), got 1e\+05; scale"):
        told(1e5, torch.float16)
    assert told(1e5, torch.int32)
