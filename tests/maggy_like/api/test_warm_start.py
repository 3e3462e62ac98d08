"""What a run takes from earlier ones, and keeps of it."""

from __future__ import annotations

import math
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from maggy_like import Choice, Constant, Float, Integer, Result, SearchSpace, lagom
from maggy_like.api.warm_start import gather
from maggy_like.errors import ConfigError, JournalError
from maggy_like.storage.journal import Earlier, backend_of, from_records, read_journal, to_records
from optimizers.core.base import History, Observation, Optimizer, Problem
from optimizers.core.events import Event, TrialCreated
from optimizers.schedulers.asha import ASHA
from optimizers.space import Config

pytestmark = pytest.mark.e2e

SPACE = {"x": Float(0, 1), "n": Integer(1, 9)}


def climb(x: float, n: int, reporter: Any) -> None:
    if n == 9:
        raise ValueError("nine")
    for step in range(1, reporter.budget + 1):
        reporter.report(score=x * n * step, step=step)


def climb_on(x: float, n: int, reporter: Any) -> None:
    for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x * n * step, step=step)


def take_anything(**config: Any) -> float:
    return 1.0


def take_x(x: float) -> dict[str, float]:
    return {"score": x}


class Remembering(Optimizer):
    """Tells what it knows of earlier searches by what it proposes."""

    def ask(self, index: int, history: History) -> Config:
        losses = [seen.loss for run in history.problem.earlier for seen in run if math.isfinite(seen.loss)]
        return {"x": abs(hash(tuple(losses))) % 1000 / 1000, "n": 1 + len(history.problem.earlier)}


class Run:
    """lagom on an inline engine, in a directory of the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, train_fn: Any = climb, space: Any = None, **options: Any) -> Result:
        defaults = {
            "engine": "inline",
            "directory": self.directory,
            "progress": False,
            "optimizer": "random",
            "max_budget": 9,
            "n_trials": 6,
        }
        return lagom(train_fn, space or SPACE, **{**defaults, **options})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def gathered(*runs: Result | Path, space: Any = None) -> Earlier:
    return gather(runs, SearchSpace(space or SPACE), (), ("max",))[0]


# -- what is taken ----------------------------------------------------------------------------------


def test_each_trial_is_observed_once_at_each_rung_and_at_its_end(run: Run) -> None:
    points = [{"x": 0.5, "n": 2}, {"x": 0.5, "n": 9}]
    old = run(points_to_evaluate=points, n_trials=2, name="old", max_budget=10)
    (observations,) = gathered(old.directory)
    config = {"x": 0.5, "n": 2}
    # rungs of a full training of 10 steps: 1, 3, 10
    expected = [Observation(0, config, step, -1.0 * step) for step in (1, 3, 10)]
    assert observations == (*expected, Observation(1, {"x": 0.5, "n": 9}, 0, math.inf))


@pytest.mark.parametrize(("train_fn", "mode"), [(climb, "stopping"), (climb_on, "promotion")])
def test_halving_runs_give_one_observation_for_each_rung_reached(run: Run, train_fn: Any, mode: Any) -> None:
    space = {"x": Float(0, 1), "n": 1}
    old = run(train_fn, space, optimizer=ASHA(mode=mode), n_trials=9)
    (observations,) = gathered(old, space=space)
    found = {(seen.trial, seen.step): seen.loss for seen in observations}
    assert len(found) == len(observations)
    assert all(seen.ended and not seen.paused for seen in observations)
    expected = {
        (trial.id, step): -trial.config["x"] * step for trial in old.trials for step in (1, 3, 9) if step <= trial.step
    }
    assert found == pytest.approx(expected)
    assert {step for _, step in found} == {1, 3, 9}


def test_the_direction_is_turned(run: Run) -> None:
    old = run(direction="min", n_trials=2)
    observations, *_ = gather([old], SearchSpace(SPACE), (), ("min",))
    assert [seen.loss for seen in observations[0] if seen.step == 9] == [trial.value for trial in old.trials]


def test_several_objectives_are_taken_with_all_their_losses(run: Run) -> None:
    def two(x: float, n: int) -> dict[str, float]:
        return {"good": x, "dear": float(n)}

    options: dict[str, Any] = {"metric": ["good", "dear"], "direction": ["max", "min"]}
    old = run(two, n_trials=3, **options)
    (observations,), *_ = gather([old], SearchSpace(SPACE), ("good", "dear"), ("max", "min"))
    assert [seen.losses for seen in observations] == [(-t.config["x"], t.config["n"]) for t in old.trials]
    assert len(run(two, n_trials=4, warm_start=[old], **options).trials) == 4


@pytest.mark.parametrize(
    ("space", "old", "new"),
    [
        ({"x": Float(0, 1)}, {"x": 0.5, "n": 2}, {"x": 0.5}),  # dropped
        ({"x": Float(0, 0.4), "n": Integer(1, 9)}, {"x": 0.5, "n": 2}, None),  # outside
        ({"x": Float(0, 1), "n": 2}, {"x": 0.5, "n": 2}, {"x": 0.5, "n": 2}),  # a constant that it had
        ({"x": Float(0, 1), "n": 3}, {"x": 0.5, "n": 2}, None),  # one that it had not
        ({"x": Float(0, 1), "data": "new"}, {"x": 0.5, "n": 2}, {"x": 0.5, "data": "new"}),  # what is trained
        ({"x": Float(0, 1), "m": Integer(1, 2)}, {"x": 0.5, "n": 2}, None),  # lacking
        ({"n": Choice([2, 4]), "x": Float(0, 1, when={"n": 4})}, {"x": 0.5, "n": 2}, {"n": 2}),  # not active
        ({"n": Choice([2, 4]), "x": Float(0, 1, when={"n": 2})}, {"x": 0.5, "n": 2}, {"n": 2, "x": 0.5}),
    ],
)
def test_configurations_are_those_of_the_new_space(run: Run, space: Any, old: Config, new: Config | None) -> None:
    fits = {"x": 0.25, "n": 4, "m": 1}
    before = {"x": Float(0, 1), "n": Integer(1, 9), "data": Constant("old")}
    if "m" in space:
        before["m"] = Choice([1, 7])
        old = {**old, "m": 7}
    names = {name: value for name, value in fits.items() if name in before}
    if isinstance(space.get("n"), int):
        names["n"] = space["n"]
    points = [{**config, "data": "old"} for config in (old, names)]
    result = run(take_anything, before, points_to_evaluate=points, n_trials=2)
    (observations,) = gathered(result, space=space)
    configs = {seen.trial: seen.config for seen in observations}
    assert configs.get(0) == new
    assert 1 in configs


def test_constraints_of_the_new_space_count(run: Run) -> None:
    points = [{"x": 0.2, "n": 2}, {"x": 0.8, "n": 3}]
    old = run(points_to_evaluate=points, n_trials=2)
    space = SearchSpace(SPACE).where(lambda config: config["x"] > 0.5)
    (observations,), line, _ = gather([old], space, (), ("max",))
    assert {seen.trial for seen in observations} == {1}
    assert line.startswith(f"warm start: 1 of 2 trials of {old.directory.name!r} can be used (the first that is not: ")


# -- what is done with it ---------------------------------------------------------------------------


def test_the_best_of_each_earlier_run_is_tried_first_and_once(run: Run) -> None:
    first = run(points_to_evaluate=[{"x": 0.9, "n": 8}], n_trials=3)
    second = run(points_to_evaluate=[{"x": 1.0, "n": 8}, {"x": 1.0, "n": 9}], n_trials=3, seed=1)
    given, best = {"x": 0.1, "n": 1}, {"x": 0.9, "n": 8}
    new = run(warm_start=[first, second.directory, str(first.directory)], points_to_evaluate=[given], n_trials=4)
    assert [trial.config for trial in new.trials[:3]] == [given, best, {"x": 1.0, "n": 8}]
    again = run(warm_start=[first], points_to_evaluate=[best], n_trials=2)
    assert again.trials[0].config == best
    for trial in (new.trials[3], again.trials[1]):
        assert trial.config not in [given, best, {"x": 1.0, "n": 8}]


@pytest.mark.parametrize("optimizer", ["random", "sobol", "hyperband", "tpe"])
def test_a_search_with_the_same_seed_does_not_repeat_the_earlier_ones(run: Run, optimizer: str) -> None:
    tried: list[Config] = []
    earlier: list[Result] = []
    for _ in range(3):
        new = run(space={"x": Float(0, 1)}, train_fn=take_x, optimizer=optimizer, warm_start=earlier[-1:], n_trials=5)
        assert not [trial for trial in new.trials[len(earlier[-1:]) :] if trial.config in tried]
        tried += [trial.config for trial in new.trials]
        earlier.append(new)
    again = run(space={"x": Float(0, 1)}, train_fn=take_x, optimizer=optimizer, warm_start=earlier[:1], n_trials=5)
    assert [trial.config for trial in again.trials] == [trial.config for trial in earlier[1].trials]


def test_priors_come_before_the_best_of_earlier_runs(run: Run) -> None:
    old = run(points_to_evaluate=[{"x": 0.9, "n": 8}], n_trials=1)
    new = run(space={"x": Float(0, 1, prior=0.25), "n": Integer(1, 9)}, warm_start=[old], n_trials=3)
    assert [trial.config for trial in new.trials[:2]] == [{"x": 0.25, "n": 5}, {"x": 0.9, "n": 8}]


def test_a_grid_is_tried_whole_beside_the_points(run: Run) -> None:
    space = {"x": Float(0, 1, prior=0.3), "n": [1, 2]}
    result = run(space=space, optimizer="grid", n_trials=None, points_to_evaluate=[{"x": 0.1, "n": 1}])
    assert len(result.trials) == 2 + 5 * 2


def test_an_optimizer_knows_it_in_its_process(run: Run) -> None:
    old = run(n_trials=3)
    straight = Remembering().ask(0, History(Problem(SearchSpace(SPACE), earlier=gathered(old))))
    new = run(warm_start=[old], n_trials=2, optimizer=Remembering(), engine="local", workers=1)
    assert new.trials[1].config == straight


def test_how_much_is_of_use_is_told(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    points = [{"x": 0.2, "n": 2}, {"x": 0.8, "n": 3}]
    old = run(points_to_evaluate=points, n_trials=2, name="old")
    space = {"x": Float(0, 0.5), "n": Integer(1, 9)}
    run(space=space, warm_start=[old], n_trials=1, engine="local", workers=1, progress="plain")
    told = "warm start: 1 of 2 trials of 'old' can be used (the first that is not: parameter 'x': 0.8 is not in"
    assert told in capsys.readouterr().out


# -- resume -----------------------------------------------------------------------------------------


def test_a_resumed_run_knows_what_it_began_with_and_needs_no_old_directory(run: Run) -> None:
    old = run(points_to_evaluate=[{"x": 1.0, "n": 9}], n_trials=4)  # a failure among them
    kept = gathered(old)
    whole = run(warm_start=[old], optimizer=Remembering(), n_trials=5)
    run(warm_start=[old], optimizer=Remembering(), n_trials=1, name="new")
    shutil.rmtree(old.directory)
    assert from_records(read_journal(backend_of(str(run.directory / "new"))).header.earlier) == kept
    seen: list[Event] = []
    again = run(optimizer=Remembering(), n_trials=5, name="new", resume=True, callbacks=[seen.append])
    assert [trial.config for trial in again.trials] == [trial.config for trial in whole.trials]
    assert [event.trial for event in seen if isinstance(event, TrialCreated)] == [1, 2, 3, 4]
    same = run(warm_start=[old], optimizer=Remembering(), n_trials=6, name="new", resume=True)
    assert same.trials[5].config == whole.trials[4].config


def test_records_keep_every_loss_exactly() -> None:
    earlier = (
        (Observation(3, {"x": 0.1 + 0.2, "n": 1, "act": None, "on": True}, 9, -1e300),),
        (Observation(0, {}, 0, math.inf, losses=(math.inf, 2.5)), Observation(1, {}, 1, 0.5, losses=(0.5, 1.0))),
    )
    assert from_records(to_records(earlier)) == earlier


def test_a_resume_must_not_begin_to_know(run: Run) -> None:
    old = run(n_trials=1)
    run(n_trials=1, name="new")
    with pytest.raises(ConfigError, match=r"the run 'new' was started without warm_start; leave it out$"):
        run(n_trials=2, name="new", resume=True, warm_start=[old])


def test_a_resume_learns_from_the_runs_that_it_began_with_or_says_so(run: Run) -> None:
    first, second = run(n_trials=2, seed=1), run(n_trials=2, seed=2)
    options: dict[str, Any] = {"optimizer": Remembering(), "name": "new"}
    run(n_trials=1, warm_start=[first, second], **options)
    for given in ([second], [first, first], [first, second, second]):
        message = r"warm_start must have the runs that 'new' was started with, got \['/.*; leave it out$"
        with pytest.raises(ConfigError, match=message):
            run(n_trials=2, warm_start=given, resume=True, **options)
    with pytest.raises(ConfigError, match="warm_start must contain results or directories of runs, got 3"):
        run(n_trials=2, warm_start=[3], resume=True, **options)
    run(n_trials=4, name=first.name, seed=1, resume=True)  # it has gone on since
    assert len(run(n_trials=2, warm_start=[second, first.directory], resume=True, **options).trials) == 2


X = [{"x": x, "n": 1} for x in (0.1, 0.2, 0.3, 0.4)]


@pytest.mark.parametrize(
    ("points", "tried"),
    [
        ([], []),
        (X[:2], []),
        (X[2:], X[2:]),
        (X[1:3], X[2:3]),
        ([X[0], X[0]], X[:1]),
        ([X[3], *X[:2]], X[3:]),
    ],
    ids=["none", "the same", "others", "one of them", "twice", "before them"],
)
def test_a_resume_tries_the_points_that_it_has_not_tried(run: Run, points: list[Config], tried: list[Config]) -> None:
    run(name="run", points_to_evaluate=X[:2], n_trials=3)
    again = run(name="run", points_to_evaluate=points, n_trials=6, resume=True)
    configs = [trial.config for trial in again.trials]
    assert configs[3 : 3 + len(tried)] == tried
    assert [trial.ask for trial in again.trials if trial.ask is not None] == list(range(4 - len(tried)))


def test_points_that_a_resume_has_no_room_for_are_an_error(run: Run) -> None:
    run(name="run", points_to_evaluate=X[:2], n_trials=3)
    with pytest.raises(ConfigError, match=r"n_trials must be at least 5 to try the 2 new .* after 3 trials, got 4;"):
        run(name="run", points_to_evaluate=X[2:], n_trials=4, resume=True)
    assert len(run(name="run", points_to_evaluate=X[:2], n_trials=3, resume=True).trials) == 3


def test_a_constraint_is_given_again_on_resume(run: Run) -> None:
    space = SearchSpace(SPACE).where(lambda config: config["x"] > 0.5)
    options: dict[str, Any] = {"space": space, "name": "run"}
    assert all(trial.config["x"] > 0.5 for trial in run(n_trials=2, **options).trials)
    again = run(n_trials=6, resume=True, **options)
    assert [trial.config for trial in again.trials] == [trial.config for trial in run(space=space).trials]
    with pytest.raises(ConfigError, match="started with constrained=True, not False"):
        run(name="run", resume=True)


# -- mistakes ---------------------------------------------------------------------------------------


def test_another_direction_or_metric(run: Run) -> None:
    old = run(n_trials=1, name="old")
    with pytest.raises(
        ConfigError, match=r"the run 'old' has direction='max', and this one has 'min'; leave warm_start out$"
    ):
        run(warm_start=[old], direction="min")
    with pytest.raises(ConfigError, match=r"the run 'old' has metric='score', and this one has 'accuracy'"):
        run(warm_start=[old], metric="accuracy")
    assert len(run(warm_start=[old], metric="score").trials) == 6


def test_a_run_with_nothing_of_use(run: Run) -> None:
    old = run(n_trials=3, name="old")
    with pytest.raises(
        ConfigError,
        match=r"none of the 3 trials of 'old' can be used: they have x, n, and no m; leave warm_start out$",
    ):
        run(take_anything, {"x": Float(0, 1), "m": Integer(1, 2)}, warm_start=[old])
    with pytest.raises(
        ConfigError,
        match=r"none of the 3 trials of 'old' can be used: parameter 'x': [^;]*; let the spaces overlap$",
    ):
        run(take_anything, {"x": Float(2, 3)}, warm_start=[old])


def test_a_single_result_is_to_be_put_into_a_list(run: Run) -> None:
    old = run(n_trials=1, name="old")
    with pytest.raises(
        ConfigError, match=r"^warm_start takes a list of runs, got a Result; use warm_start=\[result\]$"
    ):
        run(warm_start=old)
    with pytest.raises(ConfigError, match=r"got \{'old'\}; use warm_start=list\(\.\.\.\)$"):
        run(warm_start={"old"})


def test_a_run_without_results(run: Run) -> None:
    journal = run(n_trials=1, name="old").directory / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(ConfigError, match="the run 'old' has no results; leave it out"):
        run(warm_start=[run.directory / "old"])


@pytest.mark.parametrize(
    ("warm_start", "message"),
    [
        ("old", r"takes a list of runs, got 'old'; use warm_start="),
        ([3], "warm_start must contain results or directories of runs, got 3"),
        (["nowhere"], "there is no run in 'nowhere'; use the directory of one"),
    ],
)
def test_what_is_no_run(run: Run, warm_start: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(warm_start=warm_start)
    assert list(run.directory.iterdir()) == []


def test_a_damaged_journal(run: Run) -> None:
    (run.directory / "old").mkdir()
    (run.directory / "old" / "journal.jsonl").write_text("{}\n")
    with pytest.raises(JournalError, match="line 1 must be the header"):
        run(warm_start=[run.directory / "old"])


def test_a_constraint_that_cannot_be_sent(run: Run) -> None:
    lock = threading.Lock()
    space = SearchSpace(SPACE).where(lambda config: not lock.locked())
    with pytest.raises(ConfigError, match=r"a constraint of the search space cannot be sent .*only the configuration"):
        run(space=space)
