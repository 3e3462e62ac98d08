"""Failures that end the whole search, since every further trial would fail in the same way."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hand import Hand

from maggy_like import FailurePolicy, Float, lagom
from maggy_like.driver.state_machine.interface import WorkerLost
from maggy_like.errors import ConfigError, TrialsFailedError
from maggy_like.protocol.task import WorkerId
from maggy_like.worker.child.failures import place_of, types_of
from optimizers.core.base import Optimizer
from optimizers.core.study import Study
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.stopping import MedianRule

SPACE = {"lr": Float(0.1, 1.0)}


def raised(name: str = "KeyError", place: str = "train.py:train:3", message: str = "") -> dict[str, Any]:
    """What a worker tells of an attempt that raised an exception."""
    bases = {"KeyError": ["builtins.KeyError", "builtins.LookupError"]}.get(name, [f"builtins.{name}"])
    fields = {"kind": "exception", "message": f"{name}: {message}", "traceback": f"Traceback of {message}"}
    return {"outcome": "raised", **fields, "types": (*bases, "builtins.Exception"), "place": place}


def search(
    optimizer: Optimizer | None = None, *, max_identical_failures: int = 3, n_trials: int = 20, **options: Any
) -> Hand:
    hand = Hand(
        optimizer, n_trials=n_trials, max_identical_failures=max_identical_failures, max_attempts=1, **options
    ).start()
    hand.join(0)
    return hand


def only(hand: Hand) -> WorkerId:
    """The hand's only worker."""
    (worker,) = (worker.id for worker in hand.machine.workers.values())
    return worker


def fail(hand: Hand, *ends: dict[str, Any]) -> str | None:
    """Let one attempt after the other end so; why the search ended, if it has."""
    for end in ends:
        assert hand.machine.ending is None
        hand.finish(only(hand), **end)
    return hand.machine.ending


def test_trials_that_fail_alike_end_the_search_whatever_their_messages_say() -> None:
    hand = search()
    messages = ("<Net object at 0x7f01>", "<Net object at 0x7f02>", "/tmp/a1b2/17")
    assert fail(hand, *(raised(message=message) for message in messages)) == "error"
    assert len(hand.study.trials) == 3
    error = hand.machine.error
    assert isinstance(error, TrialsFailedError)
    assert "3 trials failed identically and none has succeeded" in str(error)
    assert "KeyError: /tmp/a1b2/17" in str(error)
    assert "Traceback of /tmp/a1b2/17" in str(error)
    assert "FailurePolicy(max_identical_failures=0), or catch=(KeyError,)" in str(error)
    assert hand.machine.ending == "error"


def test_the_traceback_of_failures_that_are_alike_is_shown_once() -> None:
    hand = search(max_identical_failures=0)
    fail(hand, *(raised(message=message) for message in "abc"), raised("ValueError", message="d"))
    assert [text for text in hand.shown if "Traceback" in text] == [
        "failed: KeyError: a\nTraceback of a",
        "failed: ValueError: d\nTraceback of d",
    ]


def test_the_message_of_one_mistake_is_shown_once() -> None:
    hand = search(max_identical_failures=0)
    mistake = {**raised(message="a"), "traceback": "Traceback\n  line 3\nKeyError: a\n"}
    fail(hand, mistake, mistake, raised(message="b"), mistake)
    assert hand.shown == [
        "failed:\nTraceback\n  line 3\nKeyError: a",
        "failed like trial 0",
        "failed: KeyError: b",
        "failed like trial 0",
    ]


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param([raised(place=f"train.py:train:{line}") for line in range(6)], id="other places"),
        pytest.param([raised(name) for name in ("KeyError", "ValueError", "TypeError")], id="other types"),
        pytest.param([{"value": 1.0}, *[raised()] * 6], id="the first has returned"),
        pytest.param([*[raised()] * 2, {"value": 1.0}, *[raised()] * 6], id="the third has returned"),
    ],
)
def test_other_failures_or_a_success_leave_the_search_alone(ends: list[dict[str, Any]]) -> None:
    assert fail(search(), *ends) is None


def test_two_mistakes_that_take_turns_are_counted_each() -> None:
    assert fail(search(), *[raised(), raised("ValueError")] * 2) is None
    assert fail(search(), *[raised(), raised("ValueError")] * 2, raised()) == "error"


def test_crashes_are_alike_by_their_kind() -> None:
    died = [
        {"outcome": "died", "kind": "exit", "message": f"the trial's process exited with {code}"} for code in (1, 2, 3)
    ]
    assert fail(search(), *died) == "error"


def test_a_report_and_a_stop_in_it_are_no_success_but_a_pause_is() -> None:
    hand = search()
    for _ in range(3):
        hand.report(only(hand), 1, 0.5)
        hand.finish(only(hand), **raised())
    assert hand.machine.ending == "error"
    assert fail(search(ASHA(sampler="random")), {"value": 0.5}, *[raised()] * 6) is None
    assert fail(search(ASHA(sampler="random", mode="stopping")), {"outcome": "stopped"}, *[raised()] * 3) == "error"


def test_expected_exceptions_never_count_nor_do_those_derived_from_them() -> None:
    hand = search(catch=(LookupError,))
    assert fail(hand, *[raised()] * 6) is None
    assert fail(hand, *[raised("ValueError")] * 3) == "error"


def test_what_machines_do_never_counts() -> None:
    hand = search(workers=1)
    for incarnation in range(1, 7):
        hand.tell(WorkerLost(only(hand), "kill -9", with_others=incarnation % 2 == 0))
        hand.join(0, incarnation)
    assert hand.machine.ending is None


def test_it_counts_trials_and_not_their_attempts() -> None:
    hand = Hand(n_trials=20, max_identical_failures=3, max_attempts=3).start()
    hand.join(0)
    assert fail(hand, *[raised()] * 4) is None  # two trials, two attempts each
    assert fail(hand, raised()) == "error"


RESUMED = {
    "random": RandomSearch,
    "promotion": lambda: ASHA(sampler="random", mode="promotion"),
    "stopping": lambda: ASHA(sampler="random", mode="stopping"),
    "hyperband": lambda: ASHA(sampler="random", mode="stopping", brackets=None),
    "rule": lambda: MedianRule(RandomSearch()),
}


def resumed(hand: Hand, optimizer: Optimizer | None = None, **options: Any) -> Hand:
    again = Hand(optimizer, **{"n_trials": 6, "max_identical_failures": 3, "max_attempts": 1, **options})
    again.machine.replay(hand.events)
    again.start()
    again.join(0)
    return again


@pytest.mark.parametrize("optimizer", RESUMED)
@pytest.mark.parametrize("reports", [False, True])
def test_a_resume_tries_those_again_for_which_the_search_had_ended(optimizer: str, reports: bool) -> None:
    points = [{"x": x} for x in (0.1, 0.2, 0.3)]
    hand = search(RESUMED[optimizer](), n_trials=6, points=points)
    for _ in points:
        if reports:
            hand.report(WorkerId(0, 0), 1, 0.5)
        fail(hand, raised())
    assert hand.states() == ["failed"] * 3
    again = resumed(hand, RESUMED[optimizer](), points=points)
    assert again.shown[0] == "trials that had failed identically are retried: 0, 1, 2"
    worker = WorkerId(0, 0)
    tried = []
    while again.machine.ending is None:
        trial = again.assigned(worker).trial
        tried.append(trial)
        again.finish(worker, value=again.study.trials[trial].config["x"])
    assert tried[:3] == [0, 1, 2]
    assert "failed" not in again.states()
    assert len(again.states()) == 6
    assert again.study.best is max(again.study.trials, key=lambda trial: trial.config["x"])
    assert all(math.isfinite(seen.loss) for seen in again.study.history.observations)
    reader = Study({"x": Float(0, 1)}, RESUMED[optimizer](), max_budget=9, n_trials=6)
    for event in (*hand.events, *again.events):
        reader.apply(event)
    assert [trial.state for trial in reader.trials] == [trial.state for trial in again.study.trials]
    assert reader.counts == again.study.counts


def test_a_resume_tries_those_again_too_that_had_used_all_attempts_when_another_had_not() -> None:
    hand = Hand(n_trials=6, max_identical_failures=3, max_attempts=3).start()
    hand.join(0)
    assert fail(hand, *[raised()] * 5) == "error"
    assert hand.states() == ["failed", "failed", "pending"]
    again = resumed(hand, max_attempts=3)
    assert again.shown[0] == "trials that had failed identically are retried: 0, 1"
    while again.machine.ending is None:
        again.finish(WorkerId(0, 0), value=1.0)
    assert again.states() == ["completed"] * 6


def test_a_failed_trial_that_a_resume_tries_again_was_not_promoted() -> None:
    hand = search(n_trials=3)
    for _ in range(3):
        hand.report(WorkerId(0, 0), 1, 0.5)
        fail(hand, raised())
    again = resumed(hand, n_trials=3)
    again.report(WorkerId(0, 0), 1, 0.5)
    again.finish(WorkerId(0, 0))
    assert again.states()[0] == "completed"
    assert not any("promoted" in line for line in again.shown)


def test_of_many_trials_that_are_retried_ten_are_named() -> None:
    hand = search(n_trials=12, max_identical_failures=12)
    fail(hand, *[raised()] * 12)
    again = resumed(hand, n_trials=12, max_identical_failures=12)
    assert again.shown[0] == "trials that had failed identically are retried: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."


def test_a_function_that_was_not_fixed_ends_the_resumed_search_as_soon() -> None:
    hand = search(n_trials=6)
    fail(hand, *[raised()] * 3)
    again = resumed(hand)
    assert fail(again, *[raised()] * 3) == "error"
    assert again.states() == ["failed"] * 3


@pytest.mark.parametrize(
    ("ends", "options"),
    [
        ([raised()] * 3, {"max_identical_failures": 0}),
        ([raised()] * 3, {"catch": (KeyError,)}),
        ([raised(), raised("ValueError"), raised()], {}),
        ([raised(), {"value": 0.5}, raised(), raised()], {}),
    ],
    ids=["never", "expected", "too few", "one succeeded"],
)
def test_other_failures_stay(ends: list[dict[str, Any]], options: dict[str, Any]) -> None:
    hand = search(n_trials=6, **{"max_identical_failures": 0, **options})
    fail(hand, *ends)
    again = resumed(hand, **options)
    assert again.states().count("failed") == sum("value" not in end for end in ends)
    assert not any("retried" in line for line in again.shown)


def go_on(hand: Hand, then: dict[str, Any]) -> None:
    """Let first attempts return, and those of promoted trials end as they should, until nothing is left to do."""
    while hand.machine.ending is None:
        hand.finish(only(hand), **({"value": 1.0} if hand.assigned(only(hand)).attempt == 1 else then))


def test_trials_that_all_fail_when_they_are_promoted_end_the_search_too() -> None:
    hand = search(ASHA(sampler="random"), n_trials=40)
    go_on(hand, raised(message="no key 'model' in the state"))
    assert hand.machine.ending == "error"
    assert "3 trials failed identically when they continued after a pause and none has succeeded" in str(
        hand.machine.error
    )
    assert hand.states().count("failed") == 3
    again = resumed(hand, ASHA(sampler="random"), n_trials=40)
    go_on(again, {"value": 1.0})
    assert again.machine.ending == "completed"
    assert "failed" not in again.states()


def test_a_promoted_trial_that_succeeds_vouches_for_the_others() -> None:
    hand = search(ASHA(sampler="random"), n_trials=40)
    while hand.assigned(only(hand)).attempt == 1:
        hand.finish(only(hand), value=1.0)
    hand.finish(only(hand), value=1.0)
    go_on(hand, raised())
    assert hand.machine.ending == "completed"


@pytest.mark.parametrize(("n_trials", "ending"), [(2, "error"), (1, "completed")])
def test_a_short_search_whose_trials_all_fail_alike_ends_with_the_error_too(n_trials: int, ending: str) -> None:
    assert fail(search(n_trials=n_trials), *[raised()] * n_trials) == ending


def test_a_resumed_search_counts_anew_for_the_function_may_be_mended() -> None:
    hand = search()
    assert fail(hand, *[raised()] * 3) == "error"
    again = resumed(hand, n_trials=20)
    assert fail(again, *[raised()] * 2) is None
    assert fail(again, {"value": 1.0}, *[raised()] * 6) is None


# -- what a worker tells ----------------------------------------------------------------------------


class OwnError(json.JSONDecodeError):
    pass


def broken(text: str) -> Any:
    return json.loads(text)


def caught(text: str) -> Exception:
    try:
        broken(text)
    except json.JSONDecodeError as error:
        return error
    raise AssertionError


def test_the_place_is_the_innermost_line_of_the_user_s_own_code() -> None:
    line = broken.__code__.co_firstlineno + 1
    assert place_of(caught("{")) == place_of(caught("[1,")) == f"test_failure_policy.py:broken:{line}"
    assert place_of(ValueError("never raised")) == ""


def test_the_types_are_those_of_the_class_and_its_bases() -> None:
    names = types_of(OwnError("x", "y", 0))
    assert [name.rpartition(".")[2] for name in names] == [
        "OwnError",
        "JSONDecodeError",
        "ValueError",
        "Exception",
        "BaseException",
    ]
    assert types_of(KeyError())[0] == "builtins.KeyError"


# -- the policy, and whole searches -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_identical_failures": -1}, "max_identical_failures must be an integer.*got -1"),
        ({"max_identical_failures": 5.0}, "max_identical_failures must be an integer.*got 5.0; use 5"),
        ({"max_identical_failures": True}, "max_identical_failures must be an integer.*got True"),
        ({"catch": KeyError}, r"catch must be a tuple of exception types.*use \(KeyError,\)"),
        ({"catch": [KeyError, OSError]}, r"catch must be a tuple of exception types.*use \(KeyError, OSError\)"),
        ({"catch": ("ValueError",)}, "catch must contain exception types, got 'ValueError'"),
    ],
)
def test_a_policy_checks_itself(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FailurePolicy(**options)


@pytest.mark.parametrize(("old", "new"), [("alike", "max_identical_failures"), ("expected", "catch")])
def test_an_old_argument_of_a_policy_is_an_error_that_names_the_new_one(old: str, new: str) -> None:
    with pytest.raises(TypeError, match=rf"has no argument '{old}', got {old}=0 \(did you mean '{new}'\?\)"):
        FailurePolicy(**{old: 0})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=rf"use failures=FailurePolicy\({new}=0\)"):
        lagom(mended, SPACE, engine="local", **{old: 0})  # type: ignore[call-overload]


def test_enough_is_the_width_of_the_gang_and_at_least_three() -> None:
    assert [FailurePolicy().enough(width) for width in (1, 3, 8)] == [3, 3, 8]
    assert [FailurePolicy(max_identical_failures=n).enough(8) for n in (0, 5)] == [0, 5]


def typo(lr: float) -> float:
    return lr * undefined  # type: ignore[name-defined]  # noqa: F821


def mended(lr: float) -> float:
    return lr


@pytest.mark.e2e
def test_a_typo_ends_the_search_with_its_traceback_and_a_mended_function_goes_on(tmp_path: Path) -> None:
    options: dict[str, Any] = {"optimizer": "random", "n_trials": 30, "workers": 2, "engine": "local"}
    options |= {"directory": tmp_path, "progress": False, "name": "run"}
    with pytest.raises(TrialsFailedError, match="NameError: name 'undefined' is not defined") as caught:
        lagom(typo, SPACE, **options)
    assert "return lr * undefined" in str(caught.value)
    result = caught.value.result
    assert len(result.trials) < 8
    again = lagom(mended, SPACE, resume=True, **options)
    assert again.best_value is not None
    assert sum(trial.state == "failed" for trial in again.trials) < 5


def test_expected_failures_fail_their_trials_alone(tmp_path: Path) -> None:
    options: dict[str, Any] = {"optimizer": "random", "n_trials": 4, "engine": "inline", "progress": False}
    policy = FailurePolicy(catch=(NameError,))
    result = lagom(typo, SPACE, failures=policy, directory=tmp_path, **options)
    assert [trial.state for trial in result.trials] == ["failed"] * 4
    with pytest.raises(ConfigError, match="failures must be a FailurePolicy, got 3; use FailurePolicy"):
        lagom(typo, SPACE, failures=3, directory=tmp_path, **options)  # type: ignore[arg-type]
