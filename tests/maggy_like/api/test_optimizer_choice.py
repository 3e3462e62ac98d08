"""The optimizer of a search, as the front door makes it from what it was given and what it knows of the function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from maggy_like import ASHA, BOHB, MOBSTER, Float, Hyperband, Reporter, lagom
from maggy_like.api.run_settings import build_optimizer
from optimizers.core.base import WAIT, Answer, History, Optimizer
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


class Raising(Optimizer):
    """Has one idea."""

    def ask(self, index: int, history: History) -> Answer:
        if history.observations:
            raise RuntimeError("no more ideas")
        return WAIT if index else {"x": 0.5}


@pytest.mark.e2e
def test_an_error_of_an_optimizer_s_own_kind_has_the_result_so_far(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no more ideas") as caught:
        lagom(
            plain,
            {"x": Float(0, 1)},
            optimizer=Raising(),
            n_trials=2,
            engine="inline",
            directory=tmp_path,
            direction="min",
            progress=False,
        )
    assert caught.value.result.best_config == {"x": 0.5}  # type: ignore[attr-defined]
