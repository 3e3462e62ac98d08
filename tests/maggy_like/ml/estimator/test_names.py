"""Losses and optimizers by name, class, object and function."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from maggy_like.errors import ConfigError
from maggy_like.ml.estimator.objective import make_optimizer, read_loss

PARAMETERS = [nn.Parameter(torch.zeros(2))]


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        ("cross_entropy", "classes"),
        ("CrossEntropyLoss", "classes"),
        ("bce_with_logits", "binary"),
        ("mse", "values"),
        ("mae", "values"),
        (nn.NLLLoss, "classes"),
        (nn.HuberLoss(delta=2.0), "values"),
        (functional.cross_entropy, "classes"),
        (lambda output, label: (output - label).abs().sum(), "other"),
    ],
)
def test_a_loss_says_what_its_labels_are(loss: object, kind: str) -> None:
    assert read_loss(loss).kind == kind


def test_a_loss_of_torch_gives_one_for_each_row_too() -> None:
    output, label = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0])
    for given in ("mse", nn.MSELoss(), functional.mse_loss):
        loss = read_loss(given)
        assert loss.per_row is not None
        assert loss.per_row(output, label).tolist() == [1.0, 9.0]
        assert loss.function(output, label).item() == 5.0


def test_an_unknown_loss_is_told_with_what_is_near() -> None:
    with pytest.raises(ConfigError, match=r"known loss of torch\.nn, got 'crosentropy'"):
        read_loss("crosentropy")


def test_an_optimizer_has_its_rate_and_options() -> None:
    assert make_optimizer("sgd", PARAMETERS, 0.5, {"momentum": 0.9}).defaults["momentum"] == 0.9
    assert make_optimizer(torch.optim.AdamW, PARAMETERS, 0.5, {}).defaults["lr"] == 0.5
    of_function = make_optimizer(
        lambda p, nesterov: torch.optim.SGD(p, 0.1, 0.9, nesterov=nesterov), PARAMETERS, 0.5, {"nesterov": True}
    )
    assert of_function.defaults["lr"] == 0.1


def test_one_that_was_made_keeps_its_options_for_other_parameters() -> None:
    made = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.25, weight_decay=0.5)
    mine = make_optimizer(made, PARAMETERS, None, {})
    assert (mine.defaults["lr"], mine.defaults["weight_decay"]) == (0.25, 0.5)
    assert mine.param_groups[0]["params"] == PARAMETERS


@pytest.mark.parametrize(
    ("optimizer", "options", "message"),
    [
        ("adem", {}, "name of an optimizer of torch.optim, got 'adem'"),
        ("sgd", {"betas": (0.9, 0.99)}, "optimizerParams must be arguments of"),
        (lambda parameters: 1, {}, "must return an optimizer of torch"),
    ],
)
def test_a_wrong_optimizer_is_told(optimizer: object, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_optimizer(optimizer, PARAMETERS, 0.1, options)
