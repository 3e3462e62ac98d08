"""How reports are sent, and what becomes of those that cannot be sent."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.processes.channel import Disconnected
from maggy_like.protocol.messages import Assign, RankInfo, Reported, decode_to_driver
from maggy_like.protocol.values import ReportError
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.worker.child import reporter as reporter_module
from maggy_like.worker.child import sender as module
from maggy_like.worker.child.reporter import Reporter
from maggy_like.worker.child.sender import Sender, to_columns


def assign(**fields: object) -> Assign:
    return Assign(0, 1, {}, **{"budget": 9, **fields})  # type: ignore[arg-type]


def test_the_first_of_several_ranks_alone_reports() -> None:
    frames: list[bytes] = []
    senders = [Sender(assign(rank_info=RankInfo(rank, 2, rank, 2, 0, 1)), frames.append) for rank in range(2)]
    assert all(sender.stop.is_multi_worker and sender.stop.must_ask for sender in senders)
    assert [sender.is_main for sender in senders] == [True, False]
    senders[0].buffer.append((1, {"value": 0.5}))
    for sender in senders:
        sender.stop.decide(False)
        assert sender.wait_for_verdict() is False
    assert [decode_to_driver(frame) for frame in frames] == [Reported(0, 1, "value", {"value": ([1], [0.5])}, True)]


def test_a_report_of_a_worker_that_is_alone_need_not_ask() -> None:
    assert not Sender(assign(), lambda frame: None).stop.must_ask


TOO_LARGE = 2**64, {"loss": 1.0}
"""A report that cannot be sent."""


def test_the_first_report_says_what_is_optimised_though_it_is_sent_with_later_ones() -> None:
    frames: list[bytes] = []
    sender = Sender(assign(), frames.append)
    sender.buffer += [(1, {"loss": 0.5}), (2, {"accuracy": 1.0, "loss": 0.25})]
    sender.flush()
    columns = {"loss": ([1, 2], [0.5, 0.25]), "accuracy": ([2], [1.0])}
    assert [decode_to_driver(frame) for frame in frames] == [Reported(0, 1, "loss", columns)]
    assert sender.buffer == []


def test_what_cannot_be_sent_is_not_lost_and_the_trial_hears_why() -> None:
    frames: list[bytes] = []
    sender = Sender(assign(), frames.append)
    sender.buffer += [(1, {"loss": 0.5}), TOO_LARGE]
    sender.flush_behind()
    assert isinstance(sender.fault, OverflowError)
    assert [step for step, _ in sender.buffer] == [1, 2**64]
    sender.buffer.pop()
    sender.flush_behind()
    assert sender.buffer  # it is the trial's turn now
    sender.flush()
    assert [decode_to_driver(frame) for frame in frames] == [Reported(0, 1, "loss", {"loss": ([1], [0.5])})]


def test_nobody_tries_again_and_again_to_send_what_cannot_be_sent() -> None:
    sender = Sender(assign(), lambda frame: None)
    sender.buffer += [TOO_LARGE] * module.FRAME
    assert sender.is_behind
    sender.flush_behind()
    assert sender.fault is not None
    assert not sender.is_behind


def test_an_agent_that_is_gone_is_no_fault_of_the_reports() -> None:
    def send(frame: bytes) -> None:
        raise Disconnected

    sender = Sender(assign(), send)
    sender.buffer.append((1, {"loss": 0.5}))
    with pytest.raises(Disconnected):
        sender.flush_behind()
    assert sender.fault is None


def reports_of(frames: list[bytes]) -> list[Reported]:
    return [message for frame in frames if isinstance(message := decode_to_driver(frame), Reported)]


def test_a_trial_that_reports_more_than_is_sent_waits_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRAME", 20)
    monkeypatch.setattr(module, "ROOM", 100)
    monkeypatch.setattr(reporter_module, "ROOM", 100)
    monkeypatch.setattr(module, "SLOWED", 0.0)
    frames: list[bytes] = []
    order = Assign(0, 1, {}, 1000, objective="value")
    sender = Sender(order, frames.append)
    reporter = Reporter.for_trial(order, CheckpointStore(None), sender)

    def train() -> None:
        for step in range(1, 101):
            reporter.report(a=1.0, b=2.0, value=3.0, step=step)

    trial = threading.Thread(target=train)
    trial.start()
    longest = 0
    while trial.is_alive() or sender.buffer:
        longest = max(longest, len(sender.buffer))
        sender.flush_behind()
    trial.join()
    assert longest <= 100 // (3 + module.REPORT_COST) + 1
    sent = reports_of(frames)
    assert [step for message in sent for step in message.columns["value"][0]] == list(range(1, 101))
    assert sum(message.slowed for message in sent) == 1


@pytest.mark.parametrize("end", ["told to stop", "no worker any more"])
def test_a_trial_that_waits_for_room_hears_of_its_end(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(module, "ROOM", 3)
    sender = Sender(assign(), [].append)
    sender.buffer += [(1, {"loss": 0.5})]
    trial = threading.Thread(target=sender.wait_for_room)
    trial.start()
    if end == "told to stop":
        sender.stop.request()
    else:
        sender.fault = Disconnected()
    trial.join(300.0)
    assert not trial.is_alive()


def test_a_process_that_the_trial_forked_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = Sender(assign(), [].append)
    sender._process += 1
    with pytest.raises(ReportError, match="a forked process cannot report"):
        sender.wait_for_room()


@given(
    st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.floats(allow_nan=False), min_size=1), max_size=12).map(
        lambda metrics: list(enumerate(metrics))
    )
)
def test_columns_hold_what_was_reported(reports: list[tuple[int, dict[str, float]]]) -> None:
    columns = to_columns(reports)
    told = {(name, step): value for name, column in columns.items() for step, value in zip(*column, strict=True)}
    assert told == {(name, step): value for step, metrics in reports for name, value in metrics.items()}
    assert all(steps == sorted(steps) for steps, _ in columns.values())
