"""The optimizer of a search, as the front door makes it from what it was given and what it knows of the function."""

from __future__ import annotations

from typing import Any

import pytest

from maggy_like import ASHA, BOHB, MOBSTER, Hyperband, Reporter
from maggy_like.api.optimizer_choice import build_optimizer
from optimizers.schedulers.stopping import MedianRule


def plain(x: float, reporter: Reporter) -> None:
    reporter.report(loss=x)


def resumable(x: float, reporter: Reporter) -> None:
    state = reporter.restore()
    reporter.report(loss=x)
    reporter.checkpoint(state or {})


@pytest.mark.parametrize("kind", [ASHA, MOBSTER, Hyperband, BOHB])
@pytest.mark.parametrize(("train_fn", "mode"), [(plain, "stopping"), (resumable, "promotion")])
def test_the_form_suits_the_function_however_the_optimizer_is_given(kind: Any, train_fn: Any, mode: str) -> None:
    name = kind.__name__.lower()
    made = [build_optimizer(given, train_fn) for given in (name, kind, kind())]
    assert [optimizer.mode for optimizer in made] == [mode] * 3  # type: ignore[attr-defined]
    assert len({optimizer.describe() for optimizer in made}) == 1


def test_a_form_that_was_given_stays() -> None:
    given = ASHA(mode="promotion")
    assert build_optimizer(given, plain) is given


def test_a_wrapped_optimizer_is_suited_as_well() -> None:
    assert "mode='stopping'" in build_optimizer(MedianRule("asha"), plain).describe()
