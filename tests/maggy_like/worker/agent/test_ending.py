"""Why an attempt must end, and when its process is killed for it."""

from __future__ import annotations

import pytest
from module_time import patch_time

from maggy_like.protocol.messages import Abort, Decided, FailureKind, Halt, Stop
from maggy_like.worker.agent import attempt as module
from maggy_like.worker.agent.attempt import Ending


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Ending:
    """Of an attempt with a grace of 5 seconds, at the time 100."""
    patch_time(monkeypatch, module, monotonic=lambda: 100.0)
    return Ending(5.0)


def test_an_attempt_may_run_until_something_ends_it(ending: Ending) -> None:
    ending.obey(Decided(0, 1, stop=True))  # the trial itself stops for it
    assert ending.kill_at is None
    assert not ending.is_stop_requested


@pytest.mark.parametrize(("message", "kill_at"), [(Halt(0, 1), 105.0), (Stop(0, 1), 105.0)])
def test_the_driver_s_stop(ending: Ending, message: Halt | Stop, kill_at: float) -> None:
    ending.obey(message)
    assert ending.is_stop_requested
    assert ending.kill_at == kill_at


def test_an_attempt_that_another_rank_has_ended_may_end_by_itself_for_a_moment(ending: Ending) -> None:
    ending.obey(Abort(0, 1))
    assert (ending.is_aborted, ending.is_stop_requested) == (True, False)
    assert ending.kill_at == 100.0 + module.ABORT_PATIENCE


def test_the_earliest_kill_and_the_first_fault_stand(ending: Ending) -> None:
    ending.fail(FailureKind.TIMEOUT, "was silent", kill_in=2.0)
    ending.fail(FailureKind.TOO_LARGE, "said too much", kill_in=3.0)
    ending.request_stop(9.0)
    assert ending.fault == (FailureKind.TIMEOUT, "was silent")
    assert ending.kill_at == 102.0


def test_an_abort_comes_too_late_for_a_child_that_has_hung_up(ending: Ending) -> None:
    ending.hang_up()
    ending.obey(Abort(0, 1))
    assert not ending.is_aborted
    assert ending.kill_at == 100.0 + module.HANGUP_PATIENCE


def test_a_process_that_survives_a_kill_is_killed_again(ending: Ending) -> None:
    ending.request_stop(0.0)
    ending.kill_again()
    assert ending.kill_at == 105.0
