"""What the agent knows of an attempt, why it must end, and when its process is killed for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from module_time import patch_time

from maggy_like.processes.channel import Channel
from maggy_like.protocol.endings import StopReason
from maggy_like.protocol.messages import Abort, Assign, Decided, FailureKind, Halt, Stop, Waiting, decode_to_worker
from maggy_like.protocol.task import WorkerTask
from maggy_like.worker.agent import attempt as module
from maggy_like.worker.agent.attempt import AgentAttempt
from maggy_like.worker.agent.children import Child
from maggy_like.worker.agent.log_copies import LogLocation

TASK = WorkerTask("tcp://x:1", b"", "run", b"", (), (), (), "", "", grace=5.0, report_timeout=60.0)


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    """Both ends of the channel between the agent and the child."""
    mine, theirs = Channel.pair()
    ends = mine, Channel(theirs)
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch, channels: tuple[Channel, Channel]) -> AgentAttempt:
    """One that a child runs, with a grace of 5 seconds, at the time 100."""
    patch_time(monkeypatch, module, monotonic=lambda: 100.0)
    attempt = AgentAttempt(Assign(0, 1, {}, 9), TASK)
    attempt.start(Child(channels[0], None), LogLocation(TASK))
    return attempt


@pytest.mark.parametrize("wait", [Waiting(0, 1, "the store is full"), Waiting(0, 1, calls=True)])
def test_silence_does_not_count_while_the_trial_waits_for_the_store(attempt: AgentAttempt, wait: Waiting) -> None:
    assert attempt.due is not None
    attempt.heard(wait)
    assert attempt.due is None
    attempt.heard(Waiting(0, 1))
    assert attempt.due is not None


def test_an_attempt_may_run_until_something_ends_it(attempt: AgentAttempt) -> None:
    attempt.pass_on(Decided(0, 1, stop=True))  # the trial itself stops for it
    assert attempt.kill_at is None
    assert not attempt.is_stop_requested


@pytest.mark.parametrize(
    "message", [Halt(0, 1, StopReason.FAULT), Stop(0, 1, reason=StopReason.RULE)], ids=["halt", "stop"]
)
def test_the_reason_of_a_stop_is_the_driver_s_down_to_the_child(
    attempt: AgentAttempt, channels: tuple[Channel, Channel], message: Halt | Stop
) -> None:
    attempt.pass_on(message)
    assert attempt.is_stop_requested
    assert attempt.stop_reason is message.reason
    assert attempt.kill_at == 105.0
    frame = channels[1].receive()
    assert frame is not None
    assert decode_to_worker(frame) == message


def test_an_attempt_that_another_rank_has_ended_may_end_by_itself_for_a_moment(attempt: AgentAttempt) -> None:
    attempt.pass_on(Abort(0, 1))
    assert (attempt.stop_reason, attempt.is_stop_requested) == (StopReason.RANK_FAILED, False)
    assert attempt.kill_at == 100.0 + module.ABORT_PATIENCE


def test_the_earliest_kill_and_the_first_fault_stand(attempt: AgentAttempt) -> None:
    attempt.fail(FailureKind.TIMEOUT, "was silent", kill_in=2.0)
    attempt.fail(FailureKind.TOO_LARGE, "said too much", kill_in=3.0)
    attempt.stop(StopReason.RUN_ENDED, 9.0)
    assert attempt.fault == (FailureKind.TIMEOUT, "was silent")
    assert attempt.kill_at == 102.0


def test_an_abort_comes_too_late_for_a_child_that_has_hung_up(attempt: AgentAttempt) -> None:
    attempt.hang_up()
    attempt.pass_on(Abort(0, 1))
    assert attempt.stop_reason is StopReason.NONE
    assert attempt.kill_at == 100.0 + module.HANGUP_PATIENCE


def test_a_process_that_survives_a_kill_is_killed_again(attempt: AgentAttempt) -> None:
    attempt.stop(StopReason.RUN_ENDED, 0.0)
    attempt.kill_again()
    assert attempt.kill_at == 105.0


def test_what_comes_before_the_child_is_passed_on_with_its_whole_grace(
    monkeypatch: pytest.MonkeyPatch, channels: tuple[Channel, Channel]
) -> None:
    attempt = AgentAttempt(Assign(0, 1, {}, 9), TASK)
    attempt.pass_on(message := Stop(0, 1, reason=StopReason.RULE))
    patch_time(monkeypatch, module, monotonic=lambda: 1e9)
    attempt.start(Child(channels[0], None), LogLocation(TASK))
    assert attempt.kill_at == 1e9 + 5.0
    frame: Any = channels[1].receive()
    assert decode_to_worker(frame) == message
