"""How reports are sent, and what becomes of those that cannot be sent."""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples

from maggy_like.processes.channel import Disconnected
from maggy_like.protocol.messages import Assign, RankInfo, Reported, decode_to_driver
from maggy_like.protocol.values import ReportError
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.worker.child import reporter as reporter_module
from maggy_like.worker.child import sender as module
from maggy_like.worker.child.reporter import Reporter
from maggy_like.worker.child.reporter_hooks import reporter_for
from maggy_like.worker.child.returned import read_value
from maggy_like.worker.child.sender import Sender, pick_objective, to_columns
from maggy_like.worker.child.stop_state import StopState


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
    reporter = reporter_for(order, CheckpointStore(None), sender)

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


def test_a_report_in_a_process_that_the_trial_forked_is_an_error_there_alone() -> None:
    sender = Sender(assign(), [].append)
    reporter = reporter_for(assign(), CheckpointStore(None), sender)
    if not (child := os.fork()):
        status = 0
        try:
            reporter.report(loss=0.5, step=1)
        except ReportError as error:
            status = 7 * ("a forked process cannot report" in str(error))
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    reporter.report(loss=0.5, step=1)
    assert sender.buffer == [(1, {"loss": 0.5})]


@pytest.mark.parametrize("value", [1 + 2j, np.complex128(1 + 2j), np.complex64(3)])
def test_complex_numbers_are_no_metrics(value: complex) -> None:
    with pytest.raises(ReportError, match=r"report\(loss=\.\.\.\) must be a number, got .* of type complex"):
        Reporter().report(loss=value, step=1)


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


# -- the stop of an attempt: wherever the ranks are when they are halted, all stop in the same report


def multi_worker() -> StopState:
    return StopState(is_multi_worker=True)


def test_reports_pass_while_nothing_was_said() -> None:
    state = multi_worker()
    assert [state.passes() for _ in range(3)] == [True] * 3
    assert state.halt() == 3


def test_a_stop_lets_those_behind_catch_up_and_no_further() -> None:
    state = multi_worker()
    state.passes()
    state.halt()
    state.stop_at(4)
    assert [state.passes() for _ in range(4)] == [True, True, False, False]


def test_a_halted_report_waits_until_it_is_known_where_to_stop() -> None:
    state, passed = multi_worker(), SimpleQueue[bool]()
    assert state.halt() == 0
    trial = threading.Thread(target=lambda: passed.put(state.passes()))
    trial.start()
    assert passed.empty()  # it cannot pass before the next line, however the threads run
    state.stop_at(2)
    trial.join()
    assert passed.get() is True


@settings(max_examples=examples(150))
@given(st.lists(st.integers(0, 6), min_size=2, max_size=4), st.permutations(range(4)))
def test_all_ranks_stop_in_the_same_report(passed: list[int], order: list[int]) -> None:
    """Whoever was how far when halted, and whoever hears first where to stop."""
    states = [multi_worker() for _ in passed]
    for state, reports in zip(states, passed, strict=True):
        assert all(state.passes() for _ in range(reports))
    stop = max(state.halt() for state in states) + 1
    made = {}
    for rank in (rank for rank in order if rank < len(states)):
        states[rank].stop_at(stop)
        made[rank] = passed[rank] + next(n for n in range(100) if not states[rank].passes()) + 1
    assert set(made.values()) == {max(passed) + 1}


@settings(max_examples=examples(40))
@given(ranks=st.integers(2, 4), when=st.lists(st.integers(0, 12), min_size=4, max_size=4))
def test_threads_that_meet_in_each_step_stop_in_the_same_report(ranks: int, when: list[int]) -> None:
    """Ranks as threads that wait for each other in each step; each is halted when one of them has come to a report."""
    states = [multi_worker() for _ in range(ranks)]
    meeting = threading.Barrier(ranks)
    held: SimpleQueue[tuple[int, int]] = SimpleQueue()
    stopped: dict[int, int] = {}

    def train(rank: int) -> None:
        for report in range(1, 100):
            meeting.wait(300)
            if report == when[rank] + 1:  # this one is halted from without, all others by the thread below
                held.put((rank, states[rank].halt()))
            if not states[rank].passes():
                stopped[rank] = report
                return

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    first, reports = held.get()
    known = {first: reports} | {rank: states[rank].halt() for rank in range(ranks) if rank != first}
    for state in states:
        state.stop_at(max(known.values()) + 1)
    for thread in threads:
        thread.join(300)
    assert set(stopped) == set(range(ranks))
    assert set(stopped.values()) == {max(known.values()) + 1}


def test_a_requested_stop_ends_every_wait() -> None:
    state, passed = multi_worker(), SimpleQueue[bool]()
    state.halt()
    trial = threading.Thread(target=lambda: passed.put(state.passes()))
    trial.start()
    state.request()
    trial.join()
    assert passed.get() is False
    assert state.wait_for_verdict() is True


def test_a_requested_stop_is_not_taken_back() -> None:
    state = multi_worker()
    state.request()
    state.stop_at(9)
    state.halt()
    assert state.is_requested
    assert not state.passes()


@pytest.mark.parametrize(
    ("reported", "recommended"),
    [
        (["train_auc", "valid_auc"], "valid_auc"),  # LightGBM and XGBoost with names
        (["training_auc", "training_binary_logloss", "valid_1_auc", "valid_1_binary_logloss"], "valid_1_auc"),
        (["validation_0_logloss", "validation_1_logloss"], "validation_1_logloss"),  # XGBClassifier
        (["train-mean", "test-mean"], "test-mean"),  # xgboost.cv
        (["accuracy", "loss", "val_accuracy", "val_loss"], "val_accuracy"),  # Keras
        (["eval_loss", "eval_runtime", "epoch", "loss"], "eval_loss"),  # transformers
        (["test_f1", "train/f1", "val/f1"], "val/f1"),
        (["acc", "dev_acc", "test_acc"], "dev_acc"),
        (["loss", "test_loss"], "test_loss"),
        (["accuracy", "epoch", "loss"], "accuracy"),
        (["training_time", "retrained"], "retrained"),
        (["eval_time", "loss"], "loss"),  # Hyperopt
        (["elapsed", "train_loss"], "train_loss"),
        (["train_auc", "train_loss"], "train_auc"),
    ],
)
def test_of_several_metrics_one_of_the_validation_rows_is_recommended(reported: list[str], recommended: str) -> None:
    with pytest.raises(ReportError) as raised:
        pick_objective(dict.fromkeys(reported, 0.5), None)
    assert f"got None for {', '.join(sorted(reported))}; pass metric='{recommended}'" in str(raised.value)


def test_an_array_is_not_recommended_as_the_metric() -> None:
    with pytest.raises(ReportError, match="got None for folds, loss; pass metric='loss'"):
        read_value({"folds": np.ones(3), "loss": 0.5}, None)
