from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maggy_like.ablation import Ablation, AblationStudy, Design, Run
from optimizers.trial import Failure, Trial, TrialState

SEEDS = 6


@pytest.fixture
def design() -> Design:
    return AblationStudy(data=["A", "B_1", "C&D", "y"]).features("A", "B_1", "C&D").designed()


def runs(design: Design, seeds: int = SEEDS, *, sign: float = 1.0) -> list[Run]:
    """A is worth 1, B_1 costs 1, C&D is worth nothing."""
    rng = np.random.default_rng(3)
    worth = {"base": 0.0, "without A": -1.0, "without B_1": 1.0, "without C&D": 0.0}
    return [
        Run(v.name, seed, sign * (worth[v.name] + 10 + shared + 0.1 * float(rng.normal())), 2.0 - 0.5 * len(v.removed))
        for seed, shared in enumerate(rng.normal(size=seeds).tolist())
        for v in design.variants
    ]


def verdicts(ablation: Ablation) -> list[str]:
    return [row.verdict for row in ablation.rows]


@pytest.mark.parametrize(("direction", "sign"), [("max", 1.0), ("min", -1.0)])
def test_verdicts_are_in_the_direction_of_the_metric(design: Design, direction: Any, sign: float) -> None:
    found = Ablation(design, runs(design, sign=sign), direction=direction)
    assert verdicts(found) == ["worse without it", "better without it", "no difference seen"]
    first = found.rows[0]
    assert first.with_it is not None
    assert first.without_it is not None
    assert first.difference == pytest.approx(first.without_it - first.with_it)
    assert math.copysign(1.0, first.difference) == -sign
    assert first.low < first.difference < first.high
    assert first.seconds_saved == pytest.approx(0.5)
    assert first.parameters_saved is None


def test_an_interaction_says_what_both_make_beyond_each() -> None:
    design = AblationStudy(data=["A", "B", "y"]).features("A", "B").designed("pairs")
    rng = np.random.default_rng(0)
    values = {"base": 1.0, "without A": 1.0, "without B": 1.0, "without A and B": 0.0}
    made = [Run(name, seed, value + 0.05 * rng.normal()) for name, value in values.items() for seed in range(8)]
    *_, pair, interaction = Ablation(design, made).rows
    assert (pair.component, pair.verdict) == ("A and B", "worse without it")
    assert (interaction.component, interaction.verdict) == ("A x B", "both: worse than the sum")
    assert interaction.with_it is None


def test_failed_trials_are_told(design: Design) -> None:
    made = [Run(r.variant, r.seed, None) if (r.variant, r.seed) == ("without A", 2) else r for r in runs(design)]
    found = Ablation(design, made)
    assert [(row.repeats, row.dropped) for row in found.rows] == [(5, 1), (6, 0), (6, 0)]
    assert "seeds left out, since a trial failed: A (1)" in repr(found)


@pytest.mark.parametrize(("seeds", "note"), [(1, "one repeat says nothing"), (2, "two repeats find")])
def test_few_repeats_are_told(design: Design, seeds: int, note: str) -> None:
    found = Ablation(design, runs(design, seeds))
    assert note in repr(found)
    if seeds == 1:
        assert verdicts(found) == ["not tested"] * 3
        assert all(row.p is None and row.low == -math.inf for row in found.rows)


def test_nothing_at_all_is_no_error(design: Design, tmp_path: Path) -> None:
    found = Ablation(design, [])
    assert "no seed has all results" in repr(found)
    found.plot(tmp_path / "empty.png")
    assert found.to_markdown()


def test_a_seed_that_is_not_used_is_told(design: Design) -> None:
    made = [Run(v.name, seed, 1.0 - 0.1 * len(v.removed)) for v in design.variants for seed in range(5)]
    assert "is the seed used?" in repr(Ablation(design, made))


def test_an_adaptive_study_that_ended_early_is_undecided(design: Design) -> None:
    found = Ablation(design, runs(design, 3), bound=20)
    assert set(verdicts(found)) <= {"undecided", "no difference seen"}
    assert "undecided" in verdicts(found)
    assert "ended before it was decided" in repr(found)
    assert "group sequential" in found.method


def test_trials_of_the_runtime(design: Design) -> None:
    trials = [
        Trial(0, {"variant": "base", "seed": 0}, TrialState.COMPLETED, value=1.0, seconds=3.0),
        Trial(1, {"variant": "without A", "seed": 0}, TrialState.FAILED, value=2.0, failure=Failure("exception", "no")),
        Trial(2, {"variant": "without A", "seed": 1}, TrialState.RUNNING, value=2.0),
    ]
    found = Ablation.of_trials(design, trials, metric="loss", direction="min")
    assert found.runs == (Run("base", 0, 1.0, 3.0), Run("without A", 0, None, None))
    assert Ablation.of_trials(design, trials, seeds=0).runs == ()


def test_tables(design: Design, tmp_path: Path) -> None:
    found = Ablation(design, runs(design), metric="accuracy")
    latex = found.to_latex()
    assert r"C\&D" in latex
    assert r"B\_1" in latex
    assert r"95 \% interval" in latex
    assert "$<$0.001" in latex
    assert latex.count(r"\\") == 4
    assert found.to_markdown().splitlines()[0].startswith("| accuracy (higher is better) | with | without |")
    assert "C&amp;D" in found._repr_html_()
    assert list(found.to_pandas()["verdict"]) == verdicts(found)
    assert "parameters saved" not in repr(found)  # there is no model
    assert "corrected for 3 comparisons by Holm's method" in repr(found)
    for suffix in ("png", "pdf"):
        found.plot(tmp_path / f"forest.{suffix}")
        assert (tmp_path / f"forest.{suffix}").stat().st_size > 1000
