from __future__ import annotations

import math
import pickle
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from maggy_like.ablation import Ablation, AblationStudy, Design, Run
from maggy_like.ablation.text import color_of
from maggy_like.errors import UserError
from optimizers.comparisons.paired_tests import expected_level
from optimizers.core.trial import Failure, FailureKind, Trial, TrialState

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
    assert "undecided after 4 of 10 seeds: A, B_1, C&D" in found.notes[0]
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
    assert [*map(color_of, there.rows)] == [*map(color_of, found.rows)]


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
    assert first.without_it - first.with_it == pytest.approx(first.difference)
    assert f"fitted by least squares with no interaction of three and more: A ({first.fitted})" in " ".join(found.notes)


# -- outcome --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("direction", "sign"), [("max", 1.0), ("min", -1.0)])
def test_verdicts_are_in_the_direction_of_the_metric(design: Design, direction: Any, sign: float) -> None:
    found = Ablation(design, runs(design, sign=sign), direction=direction)
    assert verdicts(found) == ["worse without it", "better without it", "no difference seen"]
    first = found.rows[0]
    assert first.difference == pytest.approx(first.without_it - first.with_it)
    assert math.copysign(1.0, first.difference) == -sign
    assert first.low < first.difference < first.high
    assert first.seconds_saved == pytest.approx(0.5)
    assert first.parameters_saved is None


def test_small_numbers_are_written_with_powers_of_ten(design: Design) -> None:
    made = [replace(run, value=1e-9 * (run.value or 0.0)) for run in runs(design)]
    shown = repr(Ablation(design, made))
    assert re.search(r"A +8\.7454e-09 +-1\.04e-09 +\[-1\.2\de-09, -8\.\d\de-10\]", shown)
    assert "9.7877e-09 with everything" in " ".join(shown.split())


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_an_interval_that_excludes_zero_shows_it(sign: float) -> None:
    design = AblationStudy(data=["A", "y"]).features("A").designed()
    noise = 0.02 * np.random.default_rng(0).normal(size=8)
    half = stats.t.isf(0.025, 7) * stats.sem(noise)
    values = {"base": [0.9] * 8, "without A": 0.9 + noise - noise.mean() + sign * 1.002 * half}
    answer = Ablation(design, [Run(name, seed, x) for name, xs in values.items() for seed, x in enumerate(xs)])
    assert answer.rows[0].verdict == ("better without it" if sign > 0.0 else "worse without it")
    low, high = map(float, re.search(r"\[(.*), (.*)\]", repr(answer)).groups())  # type: ignore[union-attr]
    assert low * high > 0.0


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
    assert "seeds left out, because a trial failed: A (1)" in repr(found)


@pytest.mark.parametrize(("seeds", "note"), [(1, "one repeat does not measure the noise"), (2, "two repeats find")])
def test_few_repeats_are_told(design: Design, seeds: int, note: str) -> None:
    found = Ablation(design, runs(design, seeds))
    assert note in repr(found)
    if seeds == 1:
        assert verdicts(found) == ["not tested"] * 3
        assert all(row.p is None and row.low == -math.inf for row in found.rows)


def test_nothing_at_all_is_no_error(design: Design) -> None:
    found = Ablation(design, [])
    assert "no seed has all results" in repr(found)
    assert repr(found).splitlines()[0].split() == ["component", "verdict"]
    assert len(found.plot().data) == 0
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


@pytest.mark.parametrize("bound", [None, 6])
def test_the_first_seed_changes_no_finding(design: Design, bound: int | None) -> None:
    made = runs(design)
    later = [replace(run, seed=run.seed + 40) for run in made]
    found, moved = Ablation(design, made, bound=bound), Ablation(design, later, bound=bound, first_seed=40)
    assert repr(moved) == repr(found)
    assert [{seed - 40: value for seed, value in row.by_seed.items()} for row in moved.rows] == [
        row.by_seed for row in found.rows
    ]


def test_trials_of_the_runtime(design: Design) -> None:
    trials = [
        Trial(0, {"variant": "base", "seed": 0}, TrialState.COMPLETED, last_value=1.0, seconds=3.0),
        Trial(
            1,
            {"variant": "without A", "seed": 0},
            TrialState.FAILED,
            last_value=2.0,
            failure=Failure(FailureKind.EXCEPTION, "no"),
        ),
        Trial(2, {"variant": "without A", "seed": 1}, TrialState.RUNNING, last_value=2.0),
    ]
    found = Ablation.of_trials(design, trials, metric="loss", direction="min")
    assert found.runs == (Run("base", 0, 1.0, 3.0), Run("without A", 0, None, None))
    assert Ablation.of_trials(design, trials, seeds=0).runs == ()


VALUES = st.one_of(st.none(), st.floats(), st.sampled_from([1.7e308, -1.7e308]), st.floats(-1.0, 1.0))


@given(
    st.dictionaries(st.tuples(st.integers(0, 6), st.integers(0, 5)), VALUES, max_size=40),
    st.sampled_from(["max", "min"]),
    st.sampled_from([None, 5]),
)
def test_whatever_was_found_is_shown_and_told_alike(found: Any, direction: Any, bound: int | None) -> None:
    design = AblationStudy(data=["A", "B", "C", "y"]).features("A", "B", "C").designed("pairs")
    made = [Run(design.variants[place].name, seed, value, 1.0) for (place, seed), value in found.items()]
    ablation = Ablation(design, made, direction=direction, bound=bound)
    for row in ablation.rows:
        if row.repeats:
            assert row.low <= row.difference <= row.high
        if row.verdict == "fails without it":
            assert row.repeats == 0
        elif "without it" in row.verdict or "both" in row.verdict:
            assert row.p <= 0.05
            assert row.low > 0.0 or row.high < 0.0
            assert ("better" in row.verdict) is ((row.difference > 0.0) is (direction == "max"))
    width = len(ablation.rows) + len(ablation.notes)
    assert all(shown.count("\n") >= width for shown in (repr(ablation), ablation.to_markdown(), ablation.to_latex()))


def test_tables(design: Design) -> None:
    found = Ablation(design, runs(design), metric="accuracy")
    latex = found.to_latex()
    assert r"C\&D" in latex
    assert r"B\_1" in latex
    assert r"95 \% interval" in latex
    assert "$<$0.001" in latex
    assert latex.count(r"\\") == 4
    assert found.to_markdown().splitlines()[0].startswith("| component | without | difference |")
    assert "C&amp;D" in found._repr_html_()
    assert list(found.to_pandas()["verdict"]) == verdicts(found)
    assert "parameters saved" not in repr(found)  # there is no model
    assert "corrected for 3 comparisons by max-T" in repr(found)


@pytest.mark.parametrize(
    ("seeds", "said"),
    [(0, "No seed has given a difference in value yet."), (1, "is one seed, so nothing is tested."), (2, "t-tests")],
)
def test_the_sentence_below_the_table_claims_no_more_than_was_done(design: Design, seeds: int, said: str) -> None:
    found = Ablation(design, runs(design, seeds))
    assert found.method.endswith(said) if seeds < 2 else said in found.method
    assert found.method in found.to_markdown()


@pytest.mark.parametrize("direction", ["max", "min"])
def test_nothing_is_minus_nothing(design: Design, direction: Any) -> None:
    made = [
        Run(variant.name, seed, seed + 1e-9 * (variant.name != "base"))
        for variant in design.variants
        for seed in range(4)
    ]
    assert "-0.0" not in repr(Ablation(design, made, direction=direction))


def test_names_are_no_markup() -> None:
    names = ["a$b", "c$d", "<b>*`|", "long_" * 40, "__x__", "[y](z)"]
    design = AblationStudy(data=[*names, "y"]).features(*({name.strip(): name} for name in names)).designed()
    found = Ablation(design, [Run(variant.name, seed, float(seed)) for variant in design.variants for seed in range(2)])
    table, _, below = found.to_markdown().partition("\n\n")
    for text in (table, below):
        for escaped in (r"a\$b", r"\<b\>\*\`\|", r"\_\_x\_\_", r"\[y\](z)", "long_long_"):
            assert escaped in text
    figure = found.plot()
    assert list(figure.layout.yaxis.ticktext[:3]) == ["a$b", "c$d", "&lt;b&gt;*`|"]
    assert len(figure.layout.yaxis.ticktext[3]) <= 40


def test_the_forest_of_a_report_says_whole_sentences(design: Design) -> None:
    figure = Ablation(design, runs(design), metric="accuracy").plot()
    assert figure.layout.xaxis.title.text.startswith("change of accuracy, 95 % intervals (simultaneous)")
    hovers = [trace.text for trace in figure.data]
    assert hovers
    assert all("…" not in said and "; " in said for said in hovers)


def test_the_forest_has_no_interval_without_a_test(design: Design) -> None:
    made = [run for run in runs(design) if run.seed == 0]
    figure = Ablation(design, made, metric="accuracy").plot()
    assert {trace.mode for trace in figure.data} == {"markers"}
    assert all(note.text.endswith(", not tested") for note in figure.layout.annotations)


def test_the_footer_is_made_of_short_sentences(design: Design) -> None:
    footer = Ablation(design, runs(design), metric="accuracy", direction="max").method
    sentences = footer.split(". ")
    assert sentences[0].startswith("A difference is accuracy without a component minus accuracy with it (higher is ")
    assert sentences[1:] == [
        f"Differences are means over {SEEDS} seeds, paired by seed",
        "The 95 % confidence intervals are simultaneous",
        "The p-values are those of paired t-tests, corrected for 3 comparisons by max-T",
        "Both hold for the test rows that the seeds had.",
    ]
    alone = Ablation(replace(design, effects=design.effects[:1]), runs(design)).method
    assert "The interval is a 95 % confidence interval. The p-value is that of paired t-tests." in alone


def test_what_all_lines_share_stands_in_the_sentence(design: Design) -> None:
    found = Ablation(design, runs(design))
    mean = found.rows[0].with_it
    heads = repr(found).splitlines()[1].split()
    assert heads[:4] == ["component", "without", "difference", "95"]
    assert f"(higher is better, {mean:.2f} with everything)" in found.method
    assert f"means over {SEEDS} seeds" in found.method
    failed = Ablation(design, [run for run in runs(design) if (run.variant, run.seed) != ("without A", 0)])
    assert repr(failed).splitlines()[1].split()[1:3] == ["with", "without"]
    assert "repeats" in repr(failed)
    assert "everything" not in failed.method


@pytest.mark.parametrize(
    ("longest", "hidden"), [(9, []), (20, ["seconds saved"]), (30, ["seconds saved", "parameters saved"])]
)
def test_the_table_fits_into_100_columns(longest: int, hidden: list[str]) -> None:
    names = ["A", "B" * longest]
    study = AblationStudy(model=lambda features: Sized(len(features)), data=[*names, "y"], label="y").features(*names)
    design = study.designed()
    made = [
        Run(variant.name, seed, 0.95 + 0.01 * seed * len(variant.features), 12.3 + len(variant.features))
        for variant in design.variants
        for seed in range(5)
    ]
    found = Ablation(design, made)
    assert max(map(len, repr(found).splitlines())) <= 100
    assert (f"the table is too wide for {' and '.join(hidden)}" in repr(found)) is bool(hidden)
    assert ("saved" in repr(found).splitlines()[1]) is ("parameters saved" not in hidden)
    for head in hidden:
        assert head not in found.to_markdown().splitlines()[0]
        assert head in found.to_latex()  # paper and page have room
        assert head in found._repr_html_()
        assert head.replace(" ", "_") in found.to_pandas()


def test_an_answer_can_be_pickled_whatever_made_its_variants(table: Any) -> None:
    study = AblationStudy(model=lambda n_features: n_features, data=table).features("texture")
    design = study.custom("more", lambda variant: variant.changed(model=lambda model: model)).designed()
    found = Ablation(design, [Run(v.name, seed, float(seed)) for v in design.variants for seed in range(3)])
    arrived = pickle.loads(pickle.dumps(found))
    assert repr(arrived) == repr(found)
    assert arrived.design.variant("without texture").features == design.variant("without texture").features
    assert design.variant("base").model() == 5  # the one here keeps its functions


class Sized(nn.Module):
    """A model of a thousand parameters a feature."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1000 * n_features))


# -- an answer over several data sets ---------------------------------------------------------------


WORTH = {"base": 0.0, "without A": -1.0, "without B": 0.0}


def answer(number: int, *, columns: str = "AB", metric: str = "value", **options: Any) -> Ablation:
    """That of one data set; A is worth about 1 on each, more on some."""
    design: Design = AblationStudy(data=[*columns, f"own {number}", "y"]).features(*columns).designed()
    rng = np.random.default_rng(number)
    more = rng.normal(size=2) * 0.3
    runs = [
        Run(
            v.name,
            seed,
            number + WORTH.get(v.name, 0.0) + float(more @ [*(c in v.name for c in "AB")]) + 0.1 * rng.normal(),
        )
        for v in design.variants
        for seed in range(6)
    ]
    return Ablation(design, runs, metric=metric, **options)


@pytest.fixture
def answers() -> dict[str, Ablation]:
    return {f"set {number}": answer(number) for number in range(8)}


def test_data_sets_take_the_place_of_seeds(answers: dict[str, Ablation]) -> None:
    together = Ablation.across(answers)
    means = [answer.rows[0].difference for answer in answers.values()]
    row = together.rows[0]
    assert row.difference == pytest.approx(np.mean(means))
    assert row.by_seed == pytest.approx(dict(zip(answers, means, strict=True)))
    assert row.difference == pytest.approx(row.without_it - row.with_it)
    plain, bonferroni = (stats.t.interval(level, 7, np.mean(means), stats.sem(means)) for level in (0.95, 0.975))
    assert bonferroni[0] - 1e-9 <= row.low < plain[0] < plain[1] < row.high <= bonferroni[1] + 1e-9
    assert [row.verdict for row in together.rows] == ["worse without it", "no difference seen"]
    assert together.signed_ranks[0] == pytest.approx(stats.wilcoxon(means).pvalue)
    assert "means over 8 data sets (set 0, set 1," in together.method
    assert "not corrected for the number of comparisons: A 0.008,\nB 0.55" in repr(together)
    assert together.method in together.to_markdown()
    assert "means over 8 data sets" in together.to_latex()
    assert len(together.plot().layout.annotations) == 2


def test_the_spread_of_data_sets_is_what_seeds_do_not_explain(answers: dict[str, Ablation]) -> None:
    table = Ablation.across(answers).to_pandas()
    values = np.array([*table["by_seed"][0].values()])
    by_seeds = np.mean([a.findings["A"].sample.error ** 2 for a in answers.values()])
    assert table["spread"][0] == pytest.approx(np.sqrt(values.var(ddof=1) - by_seeds))


def test_a_study_has_no_more_certainty_than_its_data_sets(answers: dict[str, Ablation]) -> None:
    """A hundred seeds of two data sets are two values."""
    two = Ablation.across({name: answers[name] for name in ("set 0", "set 1")})
    assert two.rows[0].repeats == 2
    assert "2 data sets find only large differences" in repr(two)
    assert two.rows[0].high - two.rows[0].low > answers["set 0"].rows[0].high - answers["set 0"].rows[0].low


def test_what_is_negligible_everywhere_says_so(answers: dict[str, Ablation]) -> None:
    assert Ablation.across(answers, negligible=2.0).rows[1].verdict == "no larger than 2"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: {"a": answer(0)}, r"at least two data sets, .* got \['a'\];"),
        (lambda: [answer(0), answer(1)], "at least two data sets, .* got a list;"),
        (lambda: {0: answer(0), 1: answer(1)}, "the names of data sets must be text, got 0; use '0'"),
        (lambda: {"a": answer(0), "b": 3}, "the answer on 'b' must be a result of ablate"),
        (
            lambda: {"a": answer(0), "b": answer(1, columns="AC")},
            r"the comparisons must be the same .* got \['A', 'C'\] on 'b'",
        ),
        (
            lambda: {"a": answer(0), "b": answer(1, metric="loss")},
            "the metric must be the same on all data sets, got 'loss' on 'b'",
        ),
        (lambda: {"a": answer(0), "b": answer(1, planned=10)}, "the study on 'b' must be complete.*resume=True"),
    ],
)
def test_mistakes_are_told(made: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Ablation.across(made())


@pytest.mark.parametrize("negligible", ["x", -1, math.nan, True])
def test_negligible_is_checked_for_several_data_sets_too(negligible: Any) -> None:
    with pytest.raises(UserError, match="negligible must be a difference above 0"):
        Ablation.across({"a": answer(0), "b": answer(1)}, negligible=negligible)
