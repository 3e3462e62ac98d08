from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from maggy_like.ablation import Ablation, AblationStudy, Design, Run
from maggy_like.errors import UserError

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
    assert row.with_it is not None
    assert row.without_it is not None
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
        (lambda: {"a": answer(0)}, "at least two data sets"),
        (lambda: [answer(0), answer(1)], "at least two data sets"),
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
