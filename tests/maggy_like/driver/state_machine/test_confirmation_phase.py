"""The confirmation after a search: whom it repeats, on whom, and how a resumed run takes it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hand import Hand

from maggy_like.driver.settings import Confirmation, TrainingSettings
from maggy_like.driver.state_machine.interface import StopRequested
from maggy_like.protocol.endings import Ending
from maggy_like.protocol.messages import Shutdown
from maggy_like.protocol.task import WorkerId
from optimizers.core.events import Event, TrialCreated
from optimizers.core.trial import FailureKind, Repeat, TrialState

PLAN = Confirmation(top=2, repeats=3)


class Confirmed(Hand):
    """A search whose best two trials are repeated."""

    def __init__(self, n_trials: int = 3, **options: Any) -> None:
        super().__init__(None, n_trials, **{"confirmation": PLAN, **options})

    @property
    def repeats(self) -> list[Repeat]:
        return [e.repeat for e in self.events if isinstance(e, TrialCreated) and e.repeat is not None]

    def run_all(self, value: Callable[[int, Repeat | None], float]) -> None:
        """Finish whatever runs until the end, with values by trial."""
        while busy := [worker for worker in self.machine.workers.values() if worker.trial is not None]:
            trial = self.study.trials[busy[0].trial or 0]
            self.finish(busy[0].id, value(trial.id, trial.repeat))


def begun(n_trials: int = 3, workers: int = 2, **options: Any) -> Confirmed:
    run = Confirmed(n_trials, workers=workers, **options)
    run.start()
    for index in range(workers):
        run.join(index)
    return run


def searched(**options: Any) -> Confirmed:
    """A search of three trials that is over; trials 2 and 1 are the best."""
    run = begun(**options)
    while (busy := [w for w in run.machine.workers.values() if w.trial is not None]) and not run.repeats:
        run.finish(busy[0].id, float(busy[0].trial or 0))
    return run


def worth(number: int, repeat: Repeat | None) -> float:
    """Trial 1 is truly the best; trial 2 was lucky."""
    return float(number) if repeat is None else {1: 1.0, 2: 0.5}[repeat.of] + 0.01 * repeat.number


def test_the_best_are_repeated_with_the_same_seeds_on_the_workers_of_the_search() -> None:
    run = begun()
    run.run_all(worth)
    assert run.machine.ending == "completed"
    created = [e for e in run.events if isinstance(e, TrialCreated) and e.repeat is not None]
    assert [(e.repeat.of, e.repeat.number) for e in created if e.repeat] == [(2, 0), (1, 0), (2, 1), (1, 1), (1, 2)]
    assert [e.config["seed"] for e in created] == [1000, 1000, 1001, 1001, 1002]
    assert [e.config["x"] for e in created[:2]] == [run.study.trials[2].config["x"], run.study.trials[1].config["x"]]
    assert {run.study.trials[e.trial].budget for e in created} == {9}
    assert [m for _, m in run.sent[-2:]] == [Shutdown()] * 2


def test_repeats_are_no_part_of_the_search() -> None:
    run = begun()
    run.run_all(lambda number, repeat: float(number) if repeat is None else 100.0)
    best = run.study.best
    assert best is not None
    assert (best.id, best.value) == (2, 2.0)
    assert run.study.size == sum(run.study.counts.values()) == 3
    assert len(run.study.history.observations) <= 3


def test_the_phases_follow_each_other_and_the_training_takes_the_recommended() -> None:
    run = searched(training=TrainingSettings(5))
    assert run.machine.is_confirming
    assert not run.machine.is_training
    while run.machine.is_confirming:
        worker = next(w for w in run.machine.workers.values() if w.trial is not None)
        run.finish(worker.id, worth(0, run.study.trials[worker.trial or 0].repeat))
    assert run.machine.is_training
    training = run.study.trials[-1]
    assert training.is_final_training
    assert training.config == run.study.trials[1].config
    assert training.world_size == 2
    for index in range(2):
        run.finish(WorkerId(index, 0), 0.9)
    assert run.machine.ending == "completed"


def test_repeats_begin_when_the_last_trial_has_ended() -> None:
    run = begun()
    run.finish(WorkerId(0, 0), 0.0)
    run.finish(WorkerId(0, 0), 2.0)
    assert run.repeats == []  # trial 1 still runs
    run.finish(WorkerId(1, 0), 5.0)
    assert [(it.of, it.number) for it in run.repeats] == [(1, 0), (2, 0)]


def test_a_repeat_runs_on_as_many_workers_as_a_trial() -> None:
    run = begun(2, workers=4, workers_per_trial=2)
    for index in (0, 1, 2, 3):
        run.finish(WorkerId(index, 0), float(index))
    assert [run.study.trials[number].world_size for number in (2, 3)] == [2, 2]


def test_a_failed_repeat_is_retried_and_then_ends_its_trials_race() -> None:
    run = searched(max_attempts=2)
    while run.machine.ending is None:
        worker = next(w for w in run.machine.workers.values() if w.trial is not None)
        repeat = run.study.trials[worker.trial or 0].repeat
        if repeat is not None and repeat.of == 2:
            run.finish(worker.id, outcome="raised", kind=FailureKind.EXCEPTION, message="ValueError: x")
        else:
            run.finish(worker.id, 0.1)
    failed = [t for t in run.study.repeats if t.state is TrialState.FAILED]
    assert failed
    assert {t.attempt for t in failed} == {2}
    assert [t.repeat.number for t in run.study.repeats if t.repeat and t.repeat.of == 1] == [0, 1, 2]
    assert run.machine.ending == "completed"


def test_a_repeat_without_a_value_fails() -> None:
    run = searched()
    run.finish(WorkerId(0, 0))
    assert run.study.repeats[0].state is TrialState.FAILED


def test_a_timeout_ends_the_search_and_not_the_confirmation() -> None:
    run = begun(10)
    run.report(WorkerId(0, 0), 3, 0.6)
    run.tell(StopRequested(Ending.TIMEOUT))
    run.finish(WorkerId(0, 0), outcome="stopped")
    run.finish(WorkerId(1, 0), 0.9)
    assert [it.of for it in run.repeats] == [1, 0]
    assert run.tell(StopRequested(Ending.TIMEOUT)) == []
    run.run_all(lambda number, repeat: 0.5)
    assert run.machine.ending == "timeout"


def test_ctrl_c_ends_the_search_without_a_confirmation() -> None:
    run = begun(10)
    run.finish(WorkerId(0, 0), 0.9)
    run.tell(StopRequested(Ending.INTERRUPTED))
    assert run.repeats == []
    assert run.machine.ending == "interrupted"


def test_nothing_is_confirmed_where_no_trial_has_a_value() -> None:
    run = begun(2, max_attempts=1)
    for index in range(2):
        run.finish(WorkerId(index, 0), outcome="raised", kind=FailureKind.EXCEPTION, message="ValueError: x")
    assert run.repeats == []
    assert run.machine.ending == "completed"


def test_a_failed_trial_is_no_candidate_whatever_it_had_reported() -> None:
    run = begun(3, max_attempts=1)
    run.report(WorkerId(0, 0), 1, 0.9)
    run.finish(WorkerId(0, 0), outcome="raised", kind=FailureKind.EXCEPTION, message="ValueError: x")
    run.finish(WorkerId(1, 0), 0.1)
    run.finish(WorkerId(0, 0), 0.2)
    assert {it.of for it in run.repeats} == {1, 2}


def test_equal_configurations_are_one_candidate() -> None:
    run = begun(3, points=[{"x": 0.5}, {"x": 0.5}])
    run.finish(WorkerId(0, 0), 0.9)
    run.finish(WorkerId(1, 0), 0.8)
    run.finish(WorkerId(0, 0), 0.1)
    assert {it.of for it in run.repeats} == {0, 2}


def resumed(events: list[Event], **options: Any) -> Confirmed:
    run = Confirmed(**options)
    run.machine.replay(events)
    run.start()
    run.join(0)
    return run


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_resumed_run_takes_up_where_it_ended(cut: int) -> None:
    whole = begun(workers=1)
    whole.run_all(worth)
    ends = [place for place, event in enumerate(whole.events) if not isinstance(event, TrialCreated)]
    run = resumed(whole.events[: ends[min(cut, len(ends) - 1)] + 1])
    run.run_all(worth)
    assert run.machine.ending == "completed"
    ended = [(t.repeat.of, t.repeat.number, t.last_value) for t in run.study.repeats if t.repeat is not None]
    assert ended == [(t.repeat.of, t.repeat.number, t.last_value) for t in whole.study.repeats if t.repeat is not None]


@pytest.mark.parametrize(("timeout", "size"), [(None, 5), (3600.0, 3)])
def test_an_interrupted_confirmation_waits_for_trials_that_are_added_unless_the_search_has_a_time_limit(
    timeout: float | None, size: int
) -> None:
    first = searched()
    first.tell(StopRequested(Ending.INTERRUPTED))
    for index in range(2):
        first.finish(WorkerId(index, 0), outcome="stopped")
    run = resumed(first.events, n_trials=5, timeout=timeout)
    run.run_all(lambda number, repeat: 9.0 if repeat is None else 0.7)
    assert run.study.size == size
    assert all(trial.state is TrialState.COMPLETED for trial in run.study.trials)
    best = {5, 6} if timeout is None else set()
    assert {trial.repeat.of for trial in run.study.repeats if trial.repeat is not None} == {1, 2} | best
    assert run.machine.ending == "completed"
    assert len(run.shown) == (timeout is not None)


def test_more_trials_after_a_confirmation_may_bring_other_candidates() -> None:
    first = begun()
    first.run_all(worth)
    run = resumed(first.events, n_trials=4)
    run.run_all(lambda number, repeat: 9.0 if repeat is None else 0.7)
    assert {t.repeat.of for t in run.study.repeats if t.repeat is not None} == {1, 2, 8}
    assert run.machine.ending == "completed"
