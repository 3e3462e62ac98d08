from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from scipy.stats import rankdata

from benchmarks.behaviour import behaviour
from benchmarks.drive import DIVERGED, drive, search
from benchmarks.figures import Field, area, regret
from benchmarks.methods import counts
from benchmarks.plots import by_workers, draw_regret, draw_scale, draw_time_saved
from benchmarks.quality import HELD_OUT, RESULTS, TUNED, _figures
from benchmarks.runs import CAP, GRID, Run, Store, improvements
from benchmarks.tables import Table, table
from optimizers import Choice, Config, History, Problem, RandomSearch, SearchSpace

pytestmark = pytest.mark.slow

SPACE = SearchSpace(x=Choice([0, 1, 2]))


@pytest.fixture
def made() -> Table:
    """Three trainings of three steps, of 1, 2 and 3 seconds a step."""
    losses = np.array([[9.0, 8.0, 7.0], [5.0, np.nan, 4.0], [3.0, 2.0, 1.0]])
    seconds = np.outer([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    return Table("made", SPACE, losses, seconds, rows={(x,): x for x in range(3)})


class InTurn:
    """Asks for 0, 1, 2, 0, ... and stops the trials named."""

    def __init__(self, stops: tuple[int, ...] = ()) -> None:
        self.stops = stops
        self.told: list[tuple[int, int, float, bool]] = []

    def ask(self, trial: int) -> Config:
        return {"x": trial % 3}

    def report(self, trial: int, step: int, loss: float, *, last: bool) -> bool:
        self.told.append((trial, step, loss, last))
        return not last and trial not in self.stops


class AtRandom(InTurn):
    """What our random search asks for, through the loop of the peers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.history = History(Problem(SPACE, seed))

    def ask(self, trial: int) -> Config:
        config = RandomSearch().ask(trial, self.history)
        assert isinstance(config, dict)
        return config


def run(method: str, name: str, seed: int, *losses: float, cpu: float = 0.0) -> Run:
    """A single-fidelity run whose trials end a second apart."""
    points = []
    for count, loss in enumerate(losses, 1):
        if not points or loss < points[-1][2]:
            points.append((count, float(count), loss))
    return Run("sf", method, name, seed, "1", cpu, len(losses), float(len(losses)), tuple(points))


def test_the_loop_gives_a_free_worker_work_at_once(made: Table) -> None:
    peer = InTurn(stops=(1,))
    reports = drive(peer, made, workers=2, n_trials=3)
    # Worker 0 trains trial 0 (1 s a step); worker 1 trial 1 (2 s a step) until it is stopped at 2 s, then trial 2.
    assert [time for time, _ in reports] == [1.0, 2.0, 2.0, 3.0, 5.0, 8.0, 11.0]
    assert peer.told == [
        (0, 1, 9.0, False),
        (0, 2, 8.0, False),
        (1, 1, 5.0, False),
        (0, 3, 7.0, True),
        (2, 1, 3.0, False),
        (2, 2, 2.0, False),
        (2, 3, 1.0, True),
    ]


def test_the_loop_ends_at_the_horizon(made: Table) -> None:
    assert [time for time, _ in drive(InTurn(), made, workers=1, horizon=4.9)] == [1.0, 2.0, 3.0]


def test_a_peer_is_not_told_what_is_not_finite(made: Table) -> None:
    peer = InTurn()
    reports = drive(peer, made, workers=1, n_trials=2)
    assert peer.told[4] == (1, 2, DIVERGED, False)
    assert math.isnan(reports[4][1])


@given(seed=st.integers(0, 100), workers=st.integers(1, 5))
@settings(max_examples=examples(15))
def test_ours_run_under_the_same_conditions(seed: int, workers: int) -> None:
    lengths = np.random.default_rng(seed).uniform(1.0, 2.0, (3, 1))  # so that no two trainings end at once
    tied = Table("t", SPACE, np.eye(3), lengths * [[1.0, 2.0, 3.0]], rows={(x,): x for x in range(3)})
    ours = search(RandomSearch(), tied, seed=seed, workers=workers, n_trials=8)
    np.testing.assert_allclose(ours, drive(AtRandom(seed), tied, workers=workers, n_trials=8))
    ours = search(RandomSearch(), tied, seed=seed, workers=workers, horizon=7.0)
    np.testing.assert_allclose(ours, drive(AtRandom(seed), tied, workers=workers, horizon=7.0))


def test_improvements_are_normalized_and_pass_over_nan(made: Table) -> None:
    # The best loss of the table is 1, the median of its last steps 4.
    reports = [(1.0, math.nan), (2.0, 7.0), (3.0, 8.0), (4.0, 2.5)]
    assert improvements(reports, made) == ((2, 2.0, 2.0), (4, 4.0, 0.5))


def test_curves_are_steps_below_a_cap() -> None:
    searched = run("a", "t", 0, 9.0, 1.0, 2.0, 0.5)
    assert searched.by_report().tolist() == [CAP, 1.0, 1.0, 0.5]
    assert searched.area == pytest.approx((CAP + 2.5) / 4)
    assert searched.regret == 0.5
    in_time = searched.by_time(8.0)
    assert in_time.shape == (GRID,)
    assert in_time[[0, GRID // 4 - 1, GRID // 2 - 2, GRID // 2 - 1, -1]].tolist() == [CAP, 1.0, 1.0, 0.5, 0.5]


def test_the_last_run_of_a_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "results" / "runs.jsonl"
    store = Store(path)
    first, second, other = run("a", "t", 0, 1.0), run("a", "t", 0, 0.5), run("a", "t", 1, 1.0)
    for each in (other, first, second):
        store.add(each)
    assert set(Store(path)) == set(store) == {second, other}
    store.tidy()
    assert list(Store(path)) == [second, other]
    assert len(path.read_text().splitlines()) == 2


def test_no_file_is_written_without_a_path() -> None:
    store = Store(None)
    store.add(run("a", "t", 0, 1.0))
    assert store.get(("sf", "a", "t", 0)) is not None


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4))
@settings(max_examples=examples(10))
def test_without_gaps_ranks_are_the_usual_ones(scores: list[list[int]]) -> None:
    field = Field.of(
        [run(f"m{m}", f"t{i % 2}", i // 2, float(score)) for m, of in enumerate(scores) for i, score in enumerate(of)],
        "sf",
        ["t0", "t1"],
        range(3),
    )
    expected = rankdata(np.array(scores, dtype=float), axis=0).mean(axis=1)
    ranks = field.ranks(regret)
    assert [ranks[f"m{m}"].mean for m in range(len(scores))] == pytest.approx(expected.tolist())
    assert all(rank.low <= rank.mean + 1e-9 and rank.mean <= rank.high + 1e-9 for rank in ranks.values())


def test_a_method_with_gaps_is_compared_where_it_has_runs() -> None:
    runs = [run("good", t, s, 0.1) for t in ("t0", "t1") for s in (0, 1)]
    runs += [run("poor", t, s, 0.2) for t in ("t0", "t1") for s in (0, 1)]
    field = Field.of([*runs, run("few", "t0", 0, 0.0), run("few", "t1", 0, 0.3)], "sf", ["t0", "t1"], [0, 1])
    ranks = field.ranks(regret)
    assert field.rivals == ["good", "poor", "few"]
    assert {name: rank.mean for name, rank in ranks.items()} == {"good": 1.5, "poor": 2.5, "few": 2.0}


def test_a_method_on_some_tables_moves_nobody() -> None:
    runs = [run("good", t, 0, 0.1) for t in ("t0", "t1")] + [run("poor", t, 0, 0.2) for t in ("t0", "t1")]
    field = Field.of([*runs, run("few", "t0", 0, 0.0)], "sf", ["t0", "t1"], [0])
    ranks = field.ranks(regret)
    assert {name: rank.mean for name, rank in ranks.items()} == {"good": 1.0, "poor": 2.0, "few": 1.0}


def test_means_weigh_tables_and_not_runs() -> None:
    runs = [run("a", "t0", 0, 0.0), run("a", "t0", 1, 0.0), run("a", "t1", 0, 1.0)]
    field = Field.of(runs, "sf", ["t0", "t1"], [0, 1])
    assert field.mean("a", regret) == 0.5
    assert field.worst("a", regret) == 1.0
    assert _figures(field)["sf.worst_seed.a"] == 1.0


def test_speed_up_is_the_ratio_of_times_to_the_same_regret() -> None:
    slow, fast = [1.0] * 7 + [0.2, 0.2, 0.2], [1.0, 0.1] + [0.1] * 8
    never = [1.0] * 10
    runs = [run("slow", t, 0, *slow) for t in ("t0", "t1")] + [run("fast", t, 0, *fast) for t in ("t0", "t1")]
    runs += [run("mixed", "t0", 0, *fast), run("mixed", "t1", 0, *never)]
    field = Field.of(runs, "sf", ["t0", "t1"], [0])
    assert 1.0 / field.time_to("fast", "slow") == pytest.approx(8.0 / 2.0)
    assert field.time_to("slow", "slow") == 1.0
    assert field.share_of_time("mixed", "slow", "t1") == pytest.approx(10.0 / 8.0)  # it never gets there
    assert field.time_to("mixed", "slow") == pytest.approx(math.sqrt(0.25 * 1.25))
    assert field.worse("mixed", ["slow"]) == ["t1"]
    assert field.worse("mixed", ["slow", "fast"], by=1.0) == ["t1"]
    assert field.worse("fast", ["slow"]) == []


def test_a_table_is_surely_worse_where_the_luck_of_the_seeds_does_not_explain_it() -> None:
    apart = {"ours": ([1.0, 1.2], [1.0, 3.0]), "other": ([0.5, 0.6], [0.5, 2.9])}
    runs = [
        run(name, f"t{table}", seed, losses[seed % 2])
        for name, tables in apart.items()
        for table, losses in enumerate(tables)
        for seed in range(10)
    ]
    field = Field.of(runs, "sf", ["t0", "t1"], range(10))
    assert field.worse("ours", ["other"]) == ["t0", "t1"]
    assert field.surely_worse("ours", ["other"]) == ["t0"]
    assert field.surely_worse("other", ["ours"]) == []
    assert field.surely_worse("ours", ["ours"]) == []


def test_other_kinds_tables_and_seeds_are_left_out() -> None:
    wanted = run("a", "t0", 0, 1.0)
    others = [run("a", "t1", 0, 1.0), run("a", "t0", 5, 1.0), dataclasses.replace(wanted, kind="mf", method="b")]
    field = Field.of([wanted, *others], "sf", ["t0"], [0])
    assert field.runs == {"a": {("t0", 0): wanted}}
    assert field.mean("a", area) == 1.0


def test_the_made_table_diverges_and_returns_the_same_curve_near_by() -> None:
    diverging = table("diverging")
    last = np.nan_to_num(diverging.losses[:, -1], nan=np.inf)
    assert 0.35 < (last > 10.0).mean() < 0.5
    assert np.isnan(diverging.losses).any()
    assert diverging.regret(np.median(last)) == pytest.approx(1.0)
    rng = np.random.default_rng(0)
    units = [diverging.space.to_unit(diverging.space.sample(rng)) for _ in range(200)]
    same = [
        diverging(diverging.space.from_unit(u), 50) == diverging(diverging.space.from_unit(np.clip(u + 0.01, 0, 1)), 50)
        for u in units
    ]
    assert 0.5 < np.mean(same) < 1.0


def test_an_optimizer_is_told_from_others_by_what_it_does() -> None:
    class Renamed(RandomSearch):
        pass

    class Reversed(RandomSearch):
        def ask(self, trial: int, history: History) -> Config:
            config = super().ask(trial, history)
            assert isinstance(config, dict)
            return {**config, "units": 68 - config["units"]}

    shown = behaviour(RandomSearch, workers=4, n_trials=20)
    assert behaviour(Renamed, workers=4, n_trials=20) == shown
    assert behaviour(Reversed, workers=4, n_trials=20) != shown
    assert behaviour(RandomSearch, workers=4, trainings=1.0) != shown


def test_a_run_counts_while_its_optimizer_does_the_same() -> None:
    kept = Store(RESULTS).get(("sf", "random", "nas-cifar10", 0))
    assert kept is not None
    assert counts(kept)
    assert not counts(dataclasses.replace(kept, code="optimizers 0123456789ab"))
    assert not counts(dataclasses.replace(kept, method="a method of the past"))
    assert counts(dataclasses.replace(kept, method="optuna_tpe", code="optuna 0.1"))


def test_ours_is_held_against_our_others_on_each_part() -> None:
    held_out, tuned = HELD_OUT["mf"][0], TUNED["mf"][0]
    areas = {"asha": (1.0, 1.0), "asha_random": (2.0, 2.0), "mobster": (0.8, 0.95), "optuna_sh_tpe": (0.1, 0.1)}
    runs = []
    for name, both in areas.items():
        code = "optuna 5" if "tpe" in name else "optimizers 1"
        for where, loss in zip((held_out, tuned), both, strict=True):
            runs.append(dataclasses.replace(run(name, where, 0, loss), kind="mf", code=code, end=1e6))
    figures = _figures(Field.of(runs, "mf", [held_out, tuned], [0]))
    assert (figures["mf.worse_than_asha"], figures["mf.worse_than_best_own"]) == (0, 1)
    assert (figures["mf.held_out.worse_than_best_own"], figures["mf.tuned.worse_than_best_own"]) == (1, 0)
    assert figures["mf.held_out.mean_rank.asha"] == 3.0
    assert "mf.made.mean_rank.asha" not in figures


def test_a_method_with_runs_on_one_part_is_ranked_there() -> None:
    held_out, tuned = HELD_OUT["sf"][0], TUNED["sf"][0]
    runs = [run(name, where, 0, loss) for name, loss in (("ours", 0.2), ("random", 0.3)) for where in (held_out, tuned)]
    figures = _figures(Field.of([*runs, run("other", held_out, 0, 0.1)], "sf", [held_out, tuned], [0]))
    assert figures["sf.held_out.mean_rank.other"] == 1.0
    assert figures["sf.held_out.mean_rank.ours"] == 2.0
    assert figures["sf.held_out.regret.ours"] == 0.2
    assert figures["sf.mean_rank.ours"] == figures["sf.tuned.mean_rank.ours"] == 1.0
    assert "sf.mean_rank.other" not in figures


# -- pictures -------------------------------------------------------------------------------------


def test_figures_are_found_by_the_number_of_workers() -> None:
    figures = {"a.b.32": 2.0, "a.b.8": 1.0, "a.b.min.8": 0.0, "a.8": 5.0, "a.b.all": 9.0}
    assert by_workers(figures, "a.b") == ([8, 32], [1.0, 2.0])


def test_the_pictures_are_drawn(tmp_path: Path) -> None:
    saved = {f"time_saved.{kind}.{n}": 0.5 for kind in ("async", "early_stopping") for n in (8, 32)}
    draw_time_saved(saved, tmp_path / "saved.png")
    keys = ("dispatch_p99_ms", "dispatch_median_ms", "driver_load")
    draw_scale({f"{key}.{n}": 0.5 for key in keys for n in (100, 1000)}, tmp_path / "scale.png")
    runs = [run(name, f"t{table}", 0, *[0.5] * 100) for name in ("bayesian", "random") for table in range(2)]
    draw_regret(Field.of(runs, "sf", ["t0", "t1"], [0]), tmp_path / "regret.png")
    assert [path.read_bytes()[:4] for path in sorted(tmp_path.iterdir())] == [b"\x89PNG"] * 3
