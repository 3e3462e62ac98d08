"""lagom on real processes: what it finds, what it says, what it survives."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import train_functions as fns
from family import family

from maggy_like import Choice, Float, Integer, LocalEngine, Result, lagom
from maggy_like.driver import supervisor as watch
from maggy_like.driver.loop import Driver
from maggy_like.errors import ConfigError, OptimizerError
from maggy_like.protocol.task import WorkerTask
from optimizers.core.events import AttemptEnded, AttemptStarted, Event
from optimizers.core.trial import TrialState
from optimizers.schedulers.asha import ASHA

pytestmark = pytest.mark.e2e

INLINE: dict[str, Any] = {"engine": "inline", "workers": 1}
"""For what is the same in this process as in those of workers."""


@pytest.fixture
def search(tmp_path: Path) -> Any:
    """lagom on two local workers, quietly, in a temporary directory; nothing may be left behind."""

    def run(train_fn: Any, space: Any = None, **options: Any) -> Result:
        defaults = {
            "engine": "local",
            "workers": 2,
            "directory": tmp_path,
            "progress": False,
            "max_budget": 9,
        }
        return lagom(train_fn, space or {"x": Float(0, 1)}, **{**defaults, **options})

    before = {process.pid for process in family()}
    threads = threading.enumerate()
    yield run
    for thread in threading.enumerate():
        if thread not in threads:
            thread.join(300)  # that of the optimizer is not waited for for long
    left = [p for p in family() if p.pid not in before]
    assert not left
    assert threading.active_count() <= len(threads)


def test_random_search_finds_the_best_of_what_it_tried(search: Any) -> None:
    result = search(fns.climb, optimizer="random", n_trials=6)
    assert result.ending == "completed"
    assert result.counts == {TrialState.COMPLETED: 6}
    best = max(result.trials, key=lambda trial: trial.config["x"])
    assert result.best_config == best.config
    assert result.best_value == pytest.approx(9 * best.config["x"])
    assert result.objective == "score"
    assert all(list(trial.curve.steps) == list(range(1, 10)) for trial in result.trials)
    table = result.to_pandas()
    assert list(table["trial"]) == [0, 1, 2, 3, 4, 5]
    assert len(result.curves()) == 54


def test_direction_min_turns_the_search(search: Any) -> None:
    result = search(fns.climb, optimizer="random", n_trials=6, direction="min", **INLINE)
    assert result.best_value == min(trial.value for trial in result.trials)


def test_asha_promotes_from_saved_states(search: Any) -> None:
    result = search(fns.climb_on, optimizer=ASHA(min_budget=1, mode="promotion"), n_trials=9)
    assert result.counts == {TrialState.PAUSED: 7, TrialState.COMPLETED: 2}
    top = next(trial for trial in result.trials if trial.state is TrialState.COMPLETED)
    assert top.attempt == 3
    assert list(top.curve.steps) == list(range(1, 10))


def test_a_function_that_trials_pause_sees_one_budget_and_cleans_up_once_per_process(
    search: Any, tmp_path: Path
) -> None:
    (left := tmp_path / "left").mkdir()
    asha = ASHA(min_budget=1, mode="promotion")
    result = search(partial(fns.climb_with_schedule, str(left)), optimizer=asha, metric="score")
    assert TrialState.PAUSED in result.counts
    for trial in result.trials:
        assert set(trial.curves["budget"].values) == {9}
        pids = {str(int(pid)) for pid in trial.curves["pid"].values}
        assert pids <= {path.name for path in left.iterdir()}


@pytest.mark.parametrize("train_fn", [fns.square, fns.square_of_reporter])
def test_a_function_without_reports_is_not_promoted_because_it_trains_in_full(search: Any, train_fn: Any) -> None:
    result = search(train_fn, optimizer=ASHA(min_budget=1, mode="promotion"), n_trials=6, direction="min", **INLINE)
    assert result.counts == {TrialState.COMPLETED: 6}
    assert {(trial.attempt, trial.step) for trial in result.trials} == {(1, 9)}


def test_a_function_without_a_reporter_gets_the_steps_of_an_attempt_as_budget(search: Any) -> None:
    options = {"n_trials": 6, "metric": "score", "direction": "min", **INLINE}
    result = search(fns.square_of_budget, optimizer=ASHA(min_budget=1, mode="promotion"), **options)
    assert TrialState.PAUSED in result.counts
    assert all(trial.metrics["trained"] == trial.step for trial in result.trials)


def test_asha_stops_where_nothing_is_saved(search: Any) -> None:
    result = search(fns.climb, optimizer=ASHA(min_budget=1, mode="stopping"), n_trials=12, **INLINE)
    assert result.counts[TrialState.STOPPED] >= 4
    assert result.counts[TrialState.COMPLETED] >= 1
    assert all(len(trial.curve) in (1, 3, 9) for trial in result.trials)


def test_the_same_seed_tries_the_same(search: Any) -> None:
    configs = [
        [trial.config for trial in search(fns.climb, optimizer="random", n_trials=5, seed=seed, **INLINE).trials]
        for seed in (7, 7, 8)
    ]
    assert configs[0] == configs[1] != configs[2]


def test_one_process_per_worker_can_be_reused(search: Any) -> None:
    result = search(fns.climb_on, optimizer="random", n_trials=8, engine=LocalEngine(isolation="worker"))
    assert len({trial.metrics["pid"] for trial in result.trials}) <= 2


def test_all_that_a_trial_prints_stands_in_its_log(search: Any) -> None:
    result = search(fns.talk, optimizer="random", n_trials=1)
    assert set(result.log(0).splitlines()) == {"from print", "from stderr", "from C", "from a grandchild"}


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told to end is killed after 0.3 seconds, not 5."""
    monkeypatch.setattr("maggy_like.driver.runner.WorkerTask", partial(WorkerTask, grace=0.3))


@pytest.mark.usefixtures("short_grace")
def test_exit_hooks_run_and_one_that_hangs_costs_no_value(search: Any) -> None:
    result = search(fns.leave_exit_hooks, {"how": ["end", "hang"], "x": [1.0]}, optimizer="grid")
    assert result.counts == {TrialState.COMPLETED: 2}
    (ends,) = [trial.id for trial in result.trials if trial.config["how"] == "end"]
    assert result.log(ends) == "from an exit hook\n"


def test_a_gpu_s_next_trial_starts_only_when_the_last_process_is_gone(search: Any, tmp_path: Path) -> None:
    engine = LocalEngine(gpus=["3", "7"])
    space = {"directory": str(tmp_path), "x": Float(0, 1)}
    result = search(fns.look_for_predecessor, space, optimizer="random", metric="score", n_trials=10, engine=engine)
    assert {trial.metrics["alive"] for trial in result.trials} == {0.0}
    assert {trial.metrics["gpu"] for trial in result.trials} <= {3.0, 7.0}


def test_a_trial_that_swallows_exceptions_is_stopped_all_the_same(search: Any) -> None:
    result = search(fns.swallow_everything, n_trials=1, optimizer="random", max_budget=50)
    assert result.counts == {TrialState.COMPLETED: 1}  # the end of the budget is no Exception


def test_the_time_limit_gives_the_result_so_far(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Event] = []

    def note(event: Event) -> None:
        if isinstance(event, AttemptStarted):
            started.append(event)

    monkeypatch.setattr(Driver, "elapsed", lambda _: 2e5 if len(started) == 2 else 0.0)
    monkeypatch.setattr(watch, "LEAVE_PATIENCE", 60.0)
    result = search(fns.hang, optimizer="random", timeout=1e5, callbacks=[note])
    assert result.ending == "timeout"
    assert result.counts == {TrialState.PENDING: 2}
    assert result.best_config is None


WRONG_RETURNS: dict[str, tuple[object, str]] = {
    "nothing": (None, "returned no number and reported nothing"),
    "text": ("high", "train_fn's value must be a number, got 'high' of type str; return a number, a dict"),
    "another metric": ({"acc": 1.0}, "the metric 'score' must be given, got acc"),
}


def test_a_wrong_return_is_told_in_the_result(search: Any) -> None:
    space = {"what": list(WRONG_RETURNS)}
    result = search(lambda what: WRONG_RETURNS[what][0], space, optimizer="grid", metric="score")
    assert len(result.failures) == 3
    for trial in result.failures:
        assert WRONG_RETURNS[trial.config["what"]][1] in trial.failure.message


def test_nan_and_infinity_rank_worst_and_a_search_without_anything_finite_says_so(search: Any) -> None:
    assert search(float_of, {"x": ["nan", "inf", "1"]}, optimizer="grid", **INLINE).best_config == {"x": "1"}
    result = search(float_of, {"x": ["nan", "-inf"]}, optimizer="grid", **INLINE)
    assert result.best_config is None
    assert "no trial has a finite value" in repr(result)


def float_of(x: str) -> float:
    return float(x)


def test_an_optimizer_that_fails_is_raised_with_the_run_s_place_and_the_result_so_far(search: Any) -> None:
    from optimizers.core.base import WAIT, Answer, History, Optimizer

    class Broken(Optimizer):
        def ask(self, index: int, history: History) -> Answer:
            if not index:
                return {"x": 0.5}
            return {"x": 5.0} if history.observations else WAIT

    with pytest.raises(OptimizerError, match=r"Broken proposed \{'x': 5.0\}") as caught:
        search(fns.climb, optimizer=Broken(), n_trials=2)
    assert "resume=True" in caught.value.__notes__[0]
    assert caught.value.result.ending == "error"
    assert caught.value.result.best_config == {"x": 0.5}


def test_callbacks_see_every_event_and_one_that_raises_is_left_out(search: Any) -> None:
    seen: list[Event] = []

    def fail(event: Event) -> None:
        raise RuntimeError("not again")

    search(fns.climb, optimizer="random", n_trials=2, callbacks=[fail, seen.append])
    assert sum(isinstance(event, AttemptStarted) for event in seen) == 2
    assert sum(isinstance(event, AttemptEnded) for event in seen) == 2


def test_resume_runs_no_finished_trial_again(search: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = search(fns.climb_on, optimizer="random", n_trials=3, name="run", **INLINE)
    journal = tmp_path / "run" / "journal.jsonl"
    *records, _how_it_ended = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(records)[:-7])  # as if the driver had died in mid-record
    seen: list[Event] = []
    again = search(fns.climb_on, optimizer="random", n_trials=6, name="run", resume=True, callbacks=[seen.append])
    assert [trial.config for trial in again.trials[:3]] == [trial.config for trial in first.trials]
    started = [event.trial for event in seen if isinstance(event, AttemptStarted)]
    assert len(started) == 4
    assert set(started) >= {3, 4, 5}
    straight = search(fns.climb_on, optimizer="random", n_trials=6, **INLINE)
    assert [t.config for t in again.trials] == [t.config for t in straight.trials]
    fewer = search(fns.climb_on, optimizer="random", n_trials=2, name="run", resume=True, progress="plain", **INLINE)
    assert len(fewer.trials) == 6
    assert "there are 6 trials already, and n_trials=2: no more are tried; " in capsys.readouterr().out


def test_a_grid_is_tried_in_full_next_to_a_point(search: Any) -> None:
    result = search(fns.climb_on, {"x": Integer(1, 6)}, optimizer="grid", points_to_evaluate=[{"x": 3}], **INLINE)
    assert [trial.config["x"] for trial in result.trials] == [3, 1, 2, 4, 5, 6]


@pytest.mark.parametrize("n_trials", [5, None])
def test_a_grid_that_is_resumed_with_more_trials_tries_the_other_values(search: Any, n_trials: int | None) -> None:
    options = {"optimizer": "grid", "name": "run", **INLINE}
    first = search(fns.climb_on, {"x": Integer(1, 10)}, n_trials=n_trials, **options)
    assert len(first.trials) == 5
    again = search(fns.climb_on, {"x": Integer(1, 10)}, n_trials=10, resume=True, **options)
    assert sorted(trial.config["x"] for trial in again.trials) == list(range(1, 11))


@pytest.mark.parametrize(("tried", "verb"), [(1, "was"), (2, "were")])
def test_a_resume_says_how_many_were_tried(
    search: Any, capsys: pytest.CaptureFixture[str], tried: int, verb: str
) -> None:
    options = {"optimizer": "random", "name": "run", **INLINE}
    search(fns.climb_on, n_trials=tried, **options)
    search(fns.climb_on, n_trials=3, resume=True, progress="plain", **options)
    assert f"resumed: {tried} of 3 configurations {verb} tried before\n" in capsys.readouterr().out


def test_a_trial_cut_between_checkpoint_and_report_runs_that_step_again(search: Any, tmp_path: Path) -> None:
    space = {"marks": str(tmp_path), "x": Float(0, 1)}
    result = search(fns.die_once_before_the_last_report, space, optimizer="random", n_trials=1, max_budget=3)
    (trial,) = result.trials
    assert trial.state is TrialState.COMPLETED
    assert trial.losses == 1
    assert list(trial.curve.steps) == [1, 2, 3]


def test_a_display_that_fails_does_not_end_the_search(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None: ...

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stdout", Gone())
    result = search(fns.climb, optimizer="random", n_trials=3, progress="plain", **INLINE)
    assert result.counts == {TrialState.COMPLETED: 3}


def test_a_trial_sees_the_driver_s_command_line(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "--lr", "0.5"])
    result = search(fns.read_command_line, optimizer="random", n_trials=1)
    assert result.best_value == 0.5


def test_promotion_needs_a_store_that_the_workers_see(search: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot access the store of this run.*use directory=URL"):
        search(fns.climb_on, optimizer="asha", n_trials=9, store="memory://of-the-driver-alone")
    result = search(fns.climb_on, optimizer="asha", n_trials=9, store=(tmp_path / "shared").as_uri())
    assert result.ending == "completed"
    assert list((tmp_path / "shared" / result.directory.name).glob("*/*.pkl"))


def test_two_searches_at_once_in_one_process(search: Any) -> None:
    results: list[Result] = []
    threads = [
        threading.Thread(
            target=lambda seed=seed: results.append(
                search(fns.climb, optimizer="random", n_trials=4, workers=1, seed=seed)
            )
        )
        for seed in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.counts for result in results] == [{TrialState.COMPLETED: 4}] * 2


def test_inline_runs_in_this_process_for_a_debugger(search: Any) -> None:
    result = search(fns.climb_on, optimizer="random", n_trials=3, **INLINE)
    assert {trial.metrics["pid"] for trial in result.trials} == {float(psutil.Process().pid)}


def test_the_time_limit_holds_inline_too(search: Any) -> None:
    assert search(fns.climb_on, optimizer="random", timeout=1.0, **INLINE).ending == "timeout"


def test_a_finished_run_is_resumed_inline_without_a_word(search: Any) -> None:
    options = {"optimizer": "random", "n_trials": 2, "name": "run", **INLINE}
    first = search(fns.climb_on, **options)
    for _ in range(5):  # the search is over before the worker has said that it is ready, or just after
        again = search(fns.climb_on, resume=True, **options)
        assert [trial.value for trial in again.trials] == [trial.value for trial in first.trials]


def test_a_conditional_parameter_is_left_out_where_it_is_not_active(search: Any) -> None:
    def train(kind: str, momentum: float | None = None) -> float:
        return 0.0 if momentum is None else 1.0

    space = {"kind": Choice(["adam", "sgd"]), "momentum": Float(0.1, 0.9, when={"kind": "sgd"})}
    result = search(train, space, optimizer="random", n_trials=8, **INLINE)
    assert {trial.value for trial in result.trials if trial.config["kind"] == "sgd"} == {1.0}
    assert {trial.value for trial in result.trials if trial.config["kind"] == "adam"} == {0.0}


def test_a_resume_with_another_function_says_so_in_one_line(search: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def train(x: float) -> float:
        return x

    def changed(x: float) -> float:
        return 1000.0 - x

    options = {"optimizer": "random", "name": "run", "max_budget": 1, **INLINE}
    search(train, n_trials=2, **options)
    told = []
    for number, function in enumerate((train, changed, changed, train), 3):
        search(function, n_trials=number, resume=True, progress="plain", **options)
        told.append(" ".join(capsys.readouterr().out.split()).count("the training function, or one that it calls, has"))
    assert told == [0, 1, 0, 1]
