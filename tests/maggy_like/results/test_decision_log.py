"""The decision log of a run: one line per decision."""

from __future__ import annotations

from typing import Any

import pytest
from hand import Hand

from maggy_like.driver.state_machine.interface import StopRequested, WorkerLost
from maggy_like.protocol.endings import Ending
from maggy_like.results.record import decision_log
from maggy_like.results.result import Result
from optimizers.core.events import AttemptStarted
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.stopping import Threshold
from optimizers.space.domains import Float
from optimizers.space.search_space import SearchSpace


def test_why_trials_are_created_lost_tried_again_and_cut_off() -> None:
    hand = Hand(n_trials=2, points=[{"x": 0.5}], workers=1).start()
    worker = hand.join(0)
    hand.report(worker, 1, 0.5)
    hand.now = 2.0
    hand.tell(WorkerLost(worker, "killed"))
    second = hand.join(0, 1)
    hand.now = 3.0
    hand.finish(second, 0.7)
    hand.tell(StopRequested(Ending.CANCELLED, by="job 3 was cancelled"))
    hand.finish(second, outcome="stopped")
    assert decision_log(hand.events) == [
        "      0.00 s  trial 0 is created: given in points_to_evaluate",
        "      0.00 s  trial 0 attempt 1 starts on worker 0, up to step 9",
        "      2.00 s  trial 0 attempt 1 ends, to be retried: worker_lost: worker 0 on host was lost: killed (step 1, "
        "value 0.5)",
        "      2.00 s  trial 0 attempt 2 starts on worker 0, up to step 9: retried after worker_lost",
        "      3.00 s  trial 0 attempt 2 ends, completed (step 9, value 0.7)",
        "      3.00 s  trial 1 is created: proposal 0 of the optimizer",
        "      3.00 s  trial 1 attempt 1 starts on worker 0, up to step 9",
        "      3.00 s  trial 1 attempt 1 ends, interrupted: the run ended: cancelled (job 3 was cancelled)",
    ]
    resumed = AttemptStarted(trial=1, attempt=2, worker=0, budget=9, time=4.0)
    assert decision_log([*hand.events, resumed])[-1].endswith(
        "trial 1 attempt 2 starts on worker 0, up to step 9: continued after the interruption"
    )


def test_why_a_trial_is_stopped() -> None:
    hand = Hand(Threshold(step=1, worse_than=0.5, direction="max"), n_trials=1, workers=1).start()
    worker = hand.join(0)
    hand.report(worker, 1, 0.1, awaiting=True)
    hand.finish(worker, outcome="stopped")
    assert decision_log(hand.events)[-1] == (
        "      0.00 s  trial 0 attempt 1 ends, stopped: worse than the threshold (step 1, value 0.1)"
    )


def test_why_a_trial_is_stopped_at_a_rung() -> None:
    hand = Hand(
        ASHA(sampler="random", eta=2, mode="stopping"), n_trials=4, workers=1, study={"direction": "max"}
    ).start()
    worker = hand.join(0)
    for value in (0.9, 0.8, 0.7):
        hand.report(worker, 1, value, awaiting=True)
        hand.finish(worker, outcome="returned" if value == 0.9 else "stopped")
    ends = [line.partition("ends, ")[2] for line in decision_log(hand.events) if "stopped" in line]
    assert ends == [
        "stopped: not among the best of 2 trials at the rung of step 1 (step 1, value 0.8)",
        "stopped: not among the best of 3 trials at the rung of step 1 (step 1, value 0.7)",
    ]


def test_why_a_trial_is_promoted() -> None:
    hand = Hand(ASHA(eta=3, min_budget=3, mode="promotion"), n_trials=1, workers=1).start()
    worker = hand.join(0)
    hand.report(worker, 3, 0.5, awaiting=True)
    hand.finish(worker)
    lines = decision_log(hand.events)
    assert lines[-2].endswith("attempt 1 ends, paused (step 3, value 0.5)")
    assert lines[-1].endswith("attempt 2 starts on worker 0, up to step 9: promoted, since nothing else is left to run")


def test_of_nothing() -> None:
    assert decision_log([]) == []


def test_the_old_name_is_an_error_that_names_the_new_one() -> None:
    space = SearchSpace({"x": Float(0, 1)})
    result = Result([], None, "value", "max", Ending.COMPLETED, 0.0, "run", space)
    with pytest.raises(AttributeError, match=r"has no attribute 'story'; use decision_log\(\)"):
        result.story()
    with pytest.raises(AttributeError, match=r"'Result' object has no attribute 'nothing'$"):
        _ = result.nothing


@pytest.mark.parametrize(
    ("key", "use"),
    [("best_config", "best_config"), ("best_hp", "best_config"), (0, "trials"), ("_x", "trials"), ("x", "trials")],
)
def test_an_item_is_an_error_that_names_the_attribute(key: Any, use: str) -> None:
    result = Result([], None, "value", "max", Ending.COMPLETED, 0.0, "run", SearchSpace({"x": Float(0, 1)}))
    with pytest.raises(TypeError, match=f"a result has attributes, not items; use result.{use}$"):
        result[key]  # type: ignore[index]
