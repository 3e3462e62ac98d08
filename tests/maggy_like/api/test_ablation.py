"""Ablation studies through ``ablate``: what workers get, what is found, what survives."""

from __future__ import annotations

import json
import pickle
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ablation_functions as fns
import psutil
import pytest
from background import Background
from family import family

import maggy_like
from maggy_like import AblationStudy, FailurePolicy, Float, Integer, LocalEngine, Tuning
from maggy_like.ablation import Ablation
from maggy_like.errors import ConfigError
from maggy_like.storage.journal.journal import LocalBackend
from optimizers.core.events import Event
from optimizers.core.trial import TrialState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LOCAL: dict[str, Any] = {"engine": LocalEngine(isolation="worker"), "workers": 2}


@pytest.fixture
def ablate(tmp_path: Path) -> Any:
    """ablate in this process, or in LOCAL ones, quietly, in a temporary directory; nothing may be left behind."""

    def run(train_fn: Any, study: AblationStudy | None = None, **options: Any) -> Ablation:
        defaults = {"engine": "inline", "directory": tmp_path, "progress": False, "repeats": 4}
        return maggy_like.ablate(train_fn, study or fns.table_study(), **{**defaults, **options})

    before = set(family())
    yield run
    left = set(family()) - before
    assert not psutil.wait_procs(left, 300)[1]  # what was killed may wait for a core to die on


def verdicts(answer: Ablation) -> dict[str, str]:
    return {row.component: row.verdict for row in answer.rows}


def lines(answer: Ablation) -> list[tuple[Any, ...]]:
    """All but how long trials took."""
    return [
        (r.component, r.with_it, r.without_it, r.difference, r.low, r.high, r.p, r.verdict, r.repeats, r.dropped)
        for r in answer.rows
    ]


# -- what a worker gets -----------------------------------------------------------------------------


@pytest.mark.e2e
def test_each_worker_gets_its_variant_and_repeats_of_a_seed_are_paired(ablate: Any) -> None:
    answer = ablate(fns.tell, fns.network_study(), repeats=2, engine="local", workers=2, max_budget=3)
    told = {(t.config["variant"], t.config["seed"]): json.loads(answer.result.log(t.id)) for t in answer.result.trials}
    assert {variant for variant, _ in told} == {
        "base", "without pair", "without norm", "without residual", "without dropout", "without augment",
        "without bias",
    }  # fmt: skip
    assert len(told) == 14
    whole = ["A", "B", "C", "D"]
    modules = {"norm": "BatchNorm1d", "entry": "Linear", "inner": "Sequential", "spare": "Linear"}
    base = {"dropout": 0.2, "modules": modules, "bias": True, "width": [4, 2, 4], "dropout_used": [0.2],
            "features": whole, "augment": True, "budget": 3}  # fmt: skip
    changes: dict[str, dict[str, Any]] = {
        "base": {},
        "without pair": {"features": ["A", "B"], "width": [2, 2, 4]},
        "without norm": {"modules": {**modules, "norm": "Identity"}},
        "without residual": {"modules": {**modules, "inner": "Zero"}, "dropout_used": []},
        "without dropout": {"dropout": 0.0, "dropout_used": [0.0]},
        "without augment": {"augment": False},
        "without bias": {"bias": False},
    }
    weights: dict[int, set[float]] = {0: set(), 1: set()}
    for (variant, seed), seen in told.items():
        weight, config = seen.pop("weight"), seen.pop("config")
        if variant != "without pair":  # which has other shapes
            weights[seed].add(weight)
        assert seen == {**base, **changes[variant], "variant": variant, "seed": seed}
        assert config == {"seed": seed, "augment": seen["augment"], "dropout": seen["dropout"]}
    assert [len(same) for same in weights.values()] == [1, 1]  # in whichever process
    assert weights[0] != weights[1]
    assert answer.rows[0].parameters_saved == 2 * 4 + 2 * 2  # of the entry and of the normalization


def test_weights_are_those_of_the_seed(ablate: Any) -> None:
    def train(model: Any, seed: int) -> float:
        return float(fns.weights_are_of_the_seed(model, seed))

    study = AblationStudy(model=fns.Network, data=fns.COLUMNS, label="y").modules("norm")
    answer = ablate(train, study, repeats=2)
    assert [trial.value for trial in answer.result.trials] == [1.0] * 4
    assert "no best trial: an ablation compares groups of trials" in repr(answer.result)


@pytest.mark.e2e
def test_several_workers_train_a_variant_together(ablate: Any) -> None:
    study = AblationStudy(model=fns.Network, data=fns.COLUMNS, label="y").modules("norm")
    answer = ablate(fns.together, study, repeats=2, workers_per_trial=2, engine="local", workers=2)
    assert sorted(trial.value for trial in answer.result.trials) == [1.0, 1.0, 2.0, 2.0]
    assert answer.rows[0].difference == 0.0


# -- what is found ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "direction"), [(fns.worth, "max"), (fns.cost, "min")])
def test_a_seed_s_noise_does_not_hide_what_is_found(ablate: Any, function: Any, direction: str) -> None:
    answer = ablate(function, metric="score", direction=direction)
    assert verdicts(answer) == {"A": "worse without it"} | dict.fromkeys("BCD", "no difference seen")
    assert abs(answer.rows[0].difference) == pytest.approx(1.0, abs=0.2)
    assert len(answer.result.trials) == 20


def test_pairs_find_what_either_of_two_will_do(ablate: Any) -> None:
    said = verdicts(ablate(fns.worth, design="pairs", repeats=6))
    assert said.pop("A") == "worse without it"
    assert said.pop("C and D") == "worse without it"
    assert said.pop("C x D") == "both: worse than the sum"
    assert all(said.pop(f"A and {other}") == "worse without it" for other in "BCD")
    assert set(said.values()) == {"no difference seen", "no interaction seen"}


@pytest.mark.parametrize("seed", [0, 100])
def test_adaptive_repeats_end_once_all_is_decided(ablate: Any, seed: int) -> None:
    study = AblationStudy(data=fns.COLUMNS, label="y").features("A", "B")
    answer = ablate(fns.worth, study, repeats="auto", seed=seed)
    assert min(run.seed for run in answer.runs) == seed
    assert verdicts(answer)["A"] == "worse without it"
    assert verdicts(answer)["B"].startswith("given up after ")
    assert len(answer.result.trials) < 40  # of 60 at most
    assert answer.result.ending == "completed"
    assert "at most 20 seeds" in answer.method


def test_each_variant_is_tuned_before_its_best_is_compared(ablate: Any) -> None:
    study = AblationStudy(data=fns.COLUMNS, label="y").features("A")
    answer = ablate(fns.tuned, study, tune=Tuning({"x": Float(0, 1)}, n_trials=6), repeats=3, seed=50)
    assert answer.result.counts == {TrialState.COMPLETED: 2 * 3 * (6 + 1)}
    for variant in ("base", "without A"):
        mine = [trial for trial in answer.result.trials if trial.config["variant"] == variant]
        for repeat in range(3):
            searched = [trial for trial in mine if trial.config["seed"] == 53 + repeat]
            best = max(searched, key=lambda trial: trial.value or 0.0)
            assert len({trial.config["x"] for trial in searched}) == 6
            assert [t.config["x"] for t in mine if t.config["seed"] == 50 + repeat] == [best.config["x"]]
    assert {run.seed for run in answer.runs} == set(range(50, 53))
    assert "every variant was tuned again: the best of 6 configurations" in answer.method


def test_adaptive_repeats_of_tuned_variants_end_once_decided(ablate: Any) -> None:
    study = AblationStudy(data=fns.COLUMNS, label="y").features("A")
    answer = ablate(fns.tuned, study, tune=Tuning({"x": [0.2, 0.8]}, 2, "grid"), repeats="auto")
    assert verdicts(answer) == {"A": "worse without it"}
    repeats = answer.rows[0].repeats
    assert 3 <= repeats < 20
    assert len(answer.result.trials) == 2 * repeats * (2 + 1)
    assert answer.result.ending == "completed"
    assert "at most 20 seeds" in answer.method
    assert "every variant was tuned again" in answer.method


@pytest.mark.parametrize("n_trials", [2, None])
def test_what_is_tuned_reaches_the_factory(ablate: Any, n_trials: int | None) -> None:
    study = AblationStudy(model=fns.Network, data=fns.COLUMNS, label="y").modules("norm")
    space = {"units": Integer(1, 9)}
    tune = Tuning(space) if n_trials is None else Tuning(space, n_trials)
    answer = ablate(fns.tuned_model, study, tune=tune, repeats=1)
    assert len(answer.result.trials) == 2 * ((n_trials or 8) + 1)
    assert {trial.value for trial in answer.result.trials} == {1.0}


def test_other_optimizers_tune_too(ablate: Any) -> None:
    study = AblationStudy(data=fns.COLUMNS, label="y").features("A")
    answer = ablate(fns.tuned, study, tune=Tuning({"x": Float(0, 1)}, 10, "bayesian"), repeats=1)
    best = {trial.config["variant"]: trial.config["x"] for trial in answer.result.trials if trial.config["seed"] == 0}
    assert best == pytest.approx({"base": 0.2, "without A": 0.8}, abs=0.05)


@pytest.mark.parametrize(
    ("every_seed", "note"),
    [
        (False, "note: seeds left out, because a trial failed: B (1)"),
        (True, "note: no seed has all results: B"),
    ],
)
def test_a_variant_that_fails_is_told_of(ablate: Any, every_seed: bool, note: str) -> None:
    study = AblationStudy(data=fns.COLUMNS, label="y", config={"every_seed": every_seed}).features("A", "B")
    answer = ablate(fns.fail_without_b, study, failures=FailurePolicy(1))
    assert note in repr(answer)
    assert answer.rows[0].verdict == "worse without it"
    assert answer.rows[1].dropped == (4 if every_seed else 1)
    assert "B is missed" in repr(answer.result)


# -- what survives ----------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"repeats": 6}, marks=pytest.mark.long),
        {"repeats": "auto"},
        pytest.param({"tune": Tuning({"x": Float(0, 1)}, 1)}, marks=pytest.mark.long),
    ],
    ids=["fixed", "auto", "tuned"],
)
def test_a_study_that_was_stopped_goes_on_and_answers_the_same(
    ablate: Any, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = fns.tuned if "tune" in options else fns.worth
    background, stopped, ended = Background(), threading.Event(), list[int]()
    append = LocalBackend.append

    def append_five_ends(place: LocalBackend, data: bytes) -> None:
        """What follows the fifth end waits until the stop is asked for."""
        if sum(ended) >= 5:
            assert stopped.wait(300)
        ended.append(data.count(b'"type":"ended"'))
        append(place, data)

    def stop_at_the_fifth(event: Event) -> None:
        if sum(ended) >= 5 and not stopped.is_set():
            background.stop()
            stopped.set()

    cut = {"name": "cut", **options}
    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "append", append_five_ends)
        part = background.run(ablate, function, callbacks=[stop_at_the_fifth], **LOCAL, **cut)
    assert part.result.ending == "stopped"
    resumed = ablate(function, resume=True, **LOCAL, **cut)
    assert resumed.result.ending == "completed"
    over = {trial.id: trial.value for trial in part.result.trials if trial.is_over}
    assert 5 <= len(over) < len(resumed.result.trials)
    assert over.items() <= {trial.id: trial.value for trial in resumed.result.trials}.items()
    if "tune" in options:  # what is tried depends on what has ended by then
        assert len(resumed.result.trials) == 5 * 4 * (1 + 1)
    else:
        assert lines(resumed) == lines(ablate(function, **options))


def test_another_study_does_not_go_on_with_a_run(ablate: Any) -> None:
    def study(*columns: str) -> AblationStudy:
        return AblationStudy(data=fns.COLUMNS, label="y").features(group=columns)

    ablate(fns.worth, study("A"), name="first", repeats=2)
    with pytest.raises(ConfigError, match=r"'without group: without column A', not '.*, without column B'; resume it"):
        ablate(fns.worth, study("A", "B"), name="first", repeats=2, resume=True)
    more = AblationStudy(data=[*fns.COLUMNS, "E"], label="y").features(group=["A"])
    with pytest.raises(ConfigError, match=r"started to compare 'base: .*column D', not 'base: .*column E'"):
        ablate(fns.worth, more, name="first", repeats=2, resume=True)
    with pytest.raises(ConfigError, match=r"started with optimizer=ablation\(leave_one_out, repeats=2\), not"):
        ablate(fns.worth, study("A"), name="first", repeats=3, resume=True)


def noisy(x: int, seed: int) -> float:
    return x + seed % 2


def test_a_study_with_another_config_is_not_told_to_begin_from_earlier_results(tmp_path: Path) -> None:
    options: Any = {"direction": "max", "repeats": 2, "engine": "inline", "directory": tmp_path, "progress": False}
    maggy_like.ablate(noisy, AblationStudy(config={"x": 1}).config(x=0), name="run", **options)
    with pytest.raises(ConfigError, match=r"with another search space: 'x' was .*; pass another name$"):
        maggy_like.ablate(noisy, AblationStudy(config={"x": 2}).config(x=0), name="run", resume=True, **options)


# -- what is shown ----------------------------------------------------------------------------------


def test_an_answer_travels_and_shows_itself(ablate: Any, capsys: pytest.CaptureFixture[str]) -> None:
    study = fns.network_study()  # with a lambda, which pickle does not take
    answer = ablate(fns.tell, study, repeats=2, progress="plain", metric="score")
    assert re.search(r"completed after .*14 trials \(14 completed\)", capsys.readouterr().out)
    arrived = pickle.loads(pickle.dumps(answer))
    assert lines(arrived) == lines(answer)
    assert repr(arrived) == repr(answer)
    assert repr(arrived.result) == repr(answer.result)
    assert arrived.design.variant("without pair").features == ["A", "B"]
    page = answer._repr_html_()
    assert page.count("<tr>") == 7
    assert "max-T" in page
    assert "component" in repr(answer)


# -- Spark and the example --------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.spark
def test_a_study_over_a_spark_dataframe(spark_local: SparkSession, tmp_path: Path) -> None:
    frame = spark_local.createDataFrame([(1.0, 2.0, 0.0)] * 10, ["A", "B", "y"])
    source = str(tmp_path / "table.parquet")
    frame.write.parquet(source)
    study = AblationStudy(data=frame, label="y", config={"source": source}).features("A", "B")
    answer = maggy_like.ablate(
        fns.from_parquet, study, repeats=3, engine="spark", workers=2, directory=tmp_path / "runs",
        progress=False,
    )  # fmt: skip
    rows = answer.rows
    assert [round(row.difference) for row in rows] == [-1, -2]
    assert {row.verdict for row in rows} == {"worse without it"}
    assert study.without("A").apply(frame).columns == ["B", "y"]


def test_an_answer_has_the_names_that_every_result_has(ablate: Any) -> None:
    answer = ablate(fns.worth, repeats=2)
    result = answer.result
    names = ("trials", "ending", "counts", "failures", "name", "directory")
    assert [getattr(answer, name) for name in names] == [getattr(result, name) for name in names]
    assert (answer.log(0), answer.decision_log()) == (result.log(0), result.decision_log())
