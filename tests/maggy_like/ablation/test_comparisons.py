"""What a sceptical reader of an answer looks for."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from maggy_like.ablation import Ablation, AblationStudy, Design, Run
from maggy_like.ablation.text import colour_of
from maggy_like.errors import UserError
from optimizers.comparisons.paired_tests import expected_level

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


def test_a_fixed_study_that_ended_early_is_undecided(design: Design) -> None:
    """Who stops at the first difference seen would find one in a quarter of studies without any."""
    found = Ablation(design, runs(design, 4), planned=10)
    assert verdicts(found) == ["undecided"] * 3
    assert all(row.p is None for row in found.rows)
    assert "4 of 10 seeds, so undecided: A, B_1, C&D" in found.notes[0]
    assert verdicts(Ablation(design, runs(design, 10), planned=10))[0] == "worse without it"


def test_a_failed_trial_has_ended_and_does_not_hold_a_study_up(design: Design) -> None:
    made = [replace(r, value=None) if (r.variant, r.seed) == ("without A", 2) else r for r in runs(design)]
    assert verdicts(Ablation(design, made, planned=SEEDS))[0] == "worse without it"


def test_what_always_fails_without_a_component_says_so(design: Design) -> None:
    made = [replace(run, value=None) if run.variant == "without A" else run for run in runs(design)]
    found = Ablation(design, made)
    assert verdicts(found)[0] == "fails without it"
    assert [row.failed for row in found.rows] == [SEEDS, 0, 0]
    assert "failed" in repr(found)[: repr(found).index("---")]
    assert "0 to" not in found.method


def test_a_component_that_changes_nothing_is_told_from_a_seed_that_does_nothing(design: Design) -> None:
    unchanged = [Run(v.name, seed, 0.1 * seed) for v in design.variants for seed in range(5)]
    assert "changed nothing with any seed (is it used?): A, B_1, C&D" in repr(Ablation(design, unchanged))
    constant = [Run(v.name, seed, 0.5) for v in design.variants for seed in range(5)]
    assert "the seed is not used" in repr(Ablation(design, constant))


def test_splits_of_the_same_rows_widen_the_intervals(design: Design) -> None:
    plain, split = Ablation(design, runs(design)), Ablation(design, runs(design), resampled=0.3 / 0.7)
    for a, b in zip(plain.rows, split.rows, strict=True):
        wider = math.sqrt((1 / SEEDS + 0.3 / 0.7) / (1 / SEEDS))
        assert b.high - b.low == pytest.approx(wider * (a.high - a.low))
    assert "the variance of Nadeau and Bengio" in split.method


def test_an_answer_has_effect_sizes_and_the_differences_of_each_seed(design: Design) -> None:
    table = Ablation(design, runs(design)).to_pandas()
    by_seed = table["by_seed"][0]
    assert list(by_seed) == [*range(SEEDS)]
    assert np.mean([*by_seed.values()]) == pytest.approx(table["difference"][0])
    assert table["effect_size"][0] == pytest.approx(table["difference"][0] / np.std([*by_seed.values()], ddof=1))


def test_what_is_shown_to_be_negligible_says_so(design: Design) -> None:
    found = Ablation(design, runs(design), negligible=0.5)
    assert verdicts(found) == ["worse without it", "better without it", "no larger than 0.5"]
    assert "within ±0.5 is called no larger (two one-sided tests)" in found.method
    assert verdicts(Ablation(design, runs(design), negligible=0.01))[2] == "no difference seen"
    there = Ablation(design, runs(design), negligible=99)
    assert verdicts(there) == ["worse, no larger than 99", "better, no larger than 99", "no larger than 99"]
    assert [*map(colour_of, there.rows)] == [*map(colour_of, found.rows)]


def test_power_is_that_of_a_noncentral_t_at_the_level_of_the_joint_test() -> None:
    study = AblationStudy(data=[*"ABCDEF", "y"], label="y").features(*"ABCDEF")
    critical, shift = stats.t.isf(expected_level([*study.designed().contrasts.values()], 20, 0.05) / 2, 19), 20**0.5
    exact = stats.nct.sf(critical, 19, shift) + stats.nct.cdf(-critical, 19, shift)
    assert study.power(effect=0.01, sd=0.01, repeats=20) == pytest.approx(exact, abs=1e-6)
    assert exact > 0.93  # Bonferroni's correction gives 0.921
    assert study.power(effect=-0.01, sd=0.01, repeats=20, resampled=0.3 / 0.7) < 0.15
    with pytest.raises(UserError, match=r"got 0\.01 and 0"):
        study.power(effect=0.01, sd=0, repeats=20)


def test_skewed_differences_are_told() -> None:
    design = AblationStudy(data=["A", "y"]).features("A").designed()
    noise = np.random.default_rng(1).exponential(size=20) ** 2
    made = [Run("base", seed, 0.0) for seed in range(20)]
    made += [Run("without A", seed, value) for seed, value in enumerate(noise.tolist())]
    assert "skewed" in Ablation(design, made).notes[0]
    assert "together" not in repr(Ablation(design, made))
    even = [replace(run, value=run.seed - 9.5 if run.variant != "base" else 0.0) for run in made]
    assert not Ablation(design, even).notes


def test_skewness_shows_in_all_lines_together_where_none_shows_it_alone() -> None:
    names = "ABCDEF"
    design = AblationStudy(data=[*names, "y"]).features(*names).designed()
    noise = np.random.default_rng(1).exponential(size=(7, 20))
    noise[0] = 0.0
    variants = [variant.name for variant in design.variants]
    made = [Run(variant, seed, float(noise[v, seed])) for v, variant in enumerate(variants) for seed in range(20)]
    assert "the differences of all lines together are skewed" in repr(Ablation(design, made))
    symmetric = np.random.default_rng(1).normal(size=(7, 20))
    made = [replace(run, value=float(symmetric[variants.index(run.variant), run.seed])) for run in made]
    assert "skewed" not in repr(Ablation(design, made))


def test_what_an_adaptive_study_found_is_told_without_its_luck(design: Design) -> None:
    noisy = [replace(run, value=(run.value or 0.0) + 0.5 * math.sin(7.0 * i)) for i, run in enumerate(runs(design, 20))]
    found = Ablation(design, noisy, bound=20)
    row = found.rows[0]
    assert row.verdict == "worse without it"
    assert row.unbiased is not None
    assert row.difference < row.unbiased < 0.0
    assert "unbiased" in repr(found).splitlines()[1] + repr(found).splitlines()[0]
    assert "unbiased has median-unbiased estimates" in found.method
    assert found.to_pandas()["unbiased"][0] == row.unbiased
    fixed = Ablation(design, noisy)
    assert [row.unbiased for row in fixed.rows] == [row.difference for row in fixed.rows]
    assert "unbiased" not in repr(fixed)


def test_what_was_given_up_says_after_how_many_seeds(design: Design) -> None:
    rng = np.random.default_rng(0)
    made = [Run(variant.name, seed, rng.normal()) for seed in range(20) for variant in design.variants]
    found = Ablation(design, made, bound=20)
    assert [row.verdict for row in found.rows] == [f"given up after {row.repeats} seeds" for row in found.rows]
    assert all(row.repeats < 20 for row in found.rows)


def test_the_seconds_saved_have_intervals(design: Design) -> None:
    rng = np.random.default_rng(0)
    made = [replace(run, seconds=(run.seconds or 0.0) + 0.1 * rng.normal()) for run in runs(design)]
    first = Ablation(design, made).rows[0]
    assert first.seconds_low is not None
    assert first.seconds_high is not None
    seconds = {(run.variant, run.seed): run.seconds or 0.0 for run in made}
    saved = [seconds["base", seed] - seconds["without A", seed] for seed in range(SEEDS)]
    wide = stats.t.interval(1 - 0.05 / 3, SEEDS - 1, np.mean(saved), stats.sem(saved))  # Bonferroni's
    narrow = stats.t.interval(0.95, SEEDS - 1, np.mean(saved), stats.sem(saved))
    assert wide[0] - 1e-9 <= first.seconds_low < narrow[0] < 0.5 < narrow[1] < first.seconds_high <= wide[1] + 1e-9
    assert f"{first.seconds_saved:+.2f} ± " in Ablation(design, made).to_markdown()


def test_a_factorial_that_lacks_trials_is_fitted_and_says_so() -> None:
    design = AblationStudy(data=[*"ABCD", "more", "y"]).features(*"ABCD").designed("factorial")
    rng = np.random.default_rng(0)
    made = [
        Run(v.name, seed, None if rng.random() < 0.1 else 1.0 * ("A" in v.features) + 0.1 * rng.normal(), 1.0)
        for v in design.variants
        for seed in range(8)
    ]
    found = Ablation(design, made, planned=8)
    assert [row.verdict for row in found.rows[:2]] == ["worse without it", "no difference seen"]
    assert all(row.repeats == 8 and row.fitted for row in found.rows)
    first = found.rows[0]
    assert first.difference == pytest.approx(-1.0, abs=0.1)
    assert first.with_it is not None
    assert first.without_it is not None
    assert first.without_it - first.with_it == pytest.approx(first.difference)
    assert f"fitted by least squares with no interaction of three and more: A ({first.fitted})" in " ".join(found.notes)
