"""The driver's loop: what it asks the optimizer, what displays get, and what happens when a part of it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hand import settings_of
from wire import hello, wait_for

from maggy_like.display.base import Snapshot
from maggy_like.driver import loop
from maggy_like.driver.loop import Driver, answers
from maggy_like.driver.proposers import DirectProposer
from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.interface import AskOptimizer, StopRequested, SuggestionReady
from maggy_like.driver.state_machine.proposals import MOST, Proposals
from maggy_like.driver.stream import Cursor
from maggy_like.driver.write_ahead import WriteAhead
from maggy_like.errors import OptimizerError, StoreError, WorkerError
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.protocol.messages import PYTHON, Logged, Ready, Versions
from maggy_like.protocol.task import WorkerId
from maggy_like.rpc.client import Client
from maggy_like.rpc.server import Server
from maggy_like.storage.journal import Journal, backend_of
from optimizers import Float, RandomSearch
from optimizers.core.base import History, Optimizer
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import TrialState

PATIENCE = 300.0


TARGET = 0.9
"""Seconds that stand for "not for ever"."""


class Broken(Exception):
    """What the fakes raise."""


def fail(*_: object, **__: object) -> Any:
    raise Broken("it fails")


@pytest.fixture
def machine() -> StateMachine:
    study = Study({"x": Float(0, 1)}, RandomSearch(), n_trials=4)
    return StateMachine(study, settings_of(study, target=TARGET))


@pytest.fixture
def proposer(machine: StateMachine) -> DirectProposer:
    return DirectProposer(machine.study)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server("127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(backend_of(str(tmp_path)))
    yield made
    made.close()


@pytest.fixture
def driver(
    tmp_path: Path, machine: StateMachine, proposer: DirectProposer, server: Server, journal: Journal
) -> Iterator[Driver]:
    """A driver that would wait for its only worker."""
    base = Snapshot("run", str(tmp_path), "random", "max", "starting", 0.0)
    made = Driver(machine, proposer, server, journal, base, 1, keep=None, timeout=None, began=time.monotonic())
    yield made
    made.release()
    made.join()


def waits_for_the_journal(driver: Driver) -> bool:
    return any("the search waits and tries again" in line.text for line in driver.lines)


def test_the_first_thing_shown_has_what_the_journal_of_a_resumed_run_had(tmp_path: Path) -> None:
    study = Study({"x": Float(0, 1)}, RandomSearch(), n_trials=4)
    study.apply(TrialCreated(0, {"x": 0.5}, 1.0))
    study.apply(AttemptStarted(0, 1, 0, 1, 1.0))
    study.apply(AttemptEnded(0, 1, TrialState.COMPLETED, 2.0, value=0.5))
    server, journal = Server("127.0.0.1"), Journal(backend_of(str(tmp_path)))
    base = Snapshot("run", str(tmp_path), "random", "max", "starting", 0.0)
    machine = StateMachine(study)
    made = Driver(
        machine, DirectProposer(study), server, journal, base, 1, keep=None, timeout=None, began=time.monotonic()
    )
    server.close()
    journal.close()
    assert made.snapshot.counts[TrialState.COMPLETED] == 1  # else the time left counts them to the new driver's pace
    assert made.snapshot.phase == Phase.STARTING


def test_the_time_limit_counts_from_the_call(
    tmp_path: Path, machine: StateMachine, proposer: DirectProposer, server: Server, journal: Journal
) -> None:
    base = Snapshot("run", str(tmp_path), "random", "max", "starting", 0.0)
    began = time.monotonic() - 1e4  # a call that has read, loaded and waited for a long time
    made = Driver(machine, proposer, server, journal, base, 0, keep=None, timeout=9e3, began=began)
    assert made.snapshot.elapsed >= 1e4
    made.start()
    assert made.done.wait(60)
    made.join()
    assert machine.ending is Ending.TIMEOUT


@pytest.mark.parametrize(
    ("part", "name"),
    [(Server, "poll"), (WriteAhead, "carry"), (StateMachine, "handle")],
    ids=["poll", "carry", "handle"],
)
def test_what_fails_in_the_loop_ends_the_driver_with_that_error(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, part: type, name: str
) -> None:
    monkeypatch.setattr(part, name, fail)
    driver.start()
    assert driver.done.wait(PATIENCE)
    assert isinstance(driver.error, Broken)
    assert driver.has_ended
    driver.join()
    assert driver.snapshot.phase == Ending.ERROR  # the last thing that the display shows


@pytest.mark.parametrize("released", [False, True], ids=["while it runs", "as it ends"])
def test_a_drawing_that_fails_keeps_nobody_waiting(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, released: bool
) -> None:
    monkeypatch.setattr("maggy_like.driver.drawing.draw", fail)
    if released:
        driver.release()
    driver.start()
    assert driver.done.wait(PATIENCE)
    driver.join()
    assert isinstance(driver.error, Broken)


def test_a_proposer_that_cannot_start_ends_the_search_with_its_error(
    driver: Driver, machine: StateMachine, proposer: DirectProposer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposer, "start", fail)
    driver.start()
    wait_for(lambda: machine.ending is not None, PATIENCE)
    assert isinstance(machine.error, Broken)
    assert machine.ending == "error"


class Refusing:
    """A journal's ``append`` that refuses while it is told to, and knows when it was tried."""

    def __init__(self, journal: Journal, act: Callable[[], None]) -> None:
        self.tried = threading.Event()
        self._append = journal.append
        self._act: Callable[[], None] | None = act

    def serve(self) -> None:
        self._act = None

    def __call__(self, events: list[Event]) -> None:
        if events and self._act is not None:
            self.tried.set()
            self._act()
        self._append(events)


def refuse() -> None:
    raise StoreError("the disk is full")


@pytest.fixture
def at_target(machine: StateMachine) -> None:
    """Have the search end as it begins: its target was reached by a trial that was cut off."""
    config = {"x": 0.5}
    machine.replay(
        [
            TrialCreated(0, config, 0),
            AttemptStarted(0, 1, 0, 1, 0.0, config, 0, None, 0, 1),
            Measured(0, 1, "accuracy", {"accuracy": ([1], [TARGET])}, direction="max"),
        ]
    )


@pytest.mark.usefixtures("at_target")
def test_a_search_that_has_reached_its_target_waits_for_a_journal_that_refuses(
    driver: Driver, machine: StateMachine, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Cursor(driver.backlog)
    refusing = Refusing(journal, refuse)
    monkeypatch.setattr(journal, "append", refusing)
    driver.start()
    assert refusing.tried.wait(PATIENCE)
    wait_for(lambda: waits_for_the_journal(driver) or driver.done.is_set(), PATIENCE)
    assert not events.left
    assert machine.ending == "target"
    assert not driver.done.is_set()
    refusing.serve()
    wait_for(lambda: driver.has_ended, PATIENCE)
    assert driver.error is None
    assert events.left


@pytest.mark.usefixtures("at_target")
def test_a_search_has_not_ended_before_the_journal_has_its_last_events(
    driver: Driver, machine: StateMachine, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    serves = threading.Event()
    refusing = Refusing(journal, lambda: assert_wait(serves))
    monkeypatch.setattr(journal, "append", refusing)
    driver.start()
    assert refusing.tried.wait(PATIENCE)
    assert machine.ending == "target"
    assert not driver.has_ended  # else the workers, and the patience with the store, would be cut short
    serves.set()
    wait_for(lambda: driver.has_ended, PATIENCE)


def assert_wait(event: threading.Event) -> None:
    assert event.wait(PATIENCE)


@pytest.mark.usefixtures("at_target")
def test_who_stops_a_search_that_has_ended_does_not_wait_for_its_journal(
    driver: Driver, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(journal, refuse)
    monkeypatch.setattr(journal, "append", refusing)
    driver.start()
    wait_for(lambda: waits_for_the_journal(driver), PATIENCE)
    driver.post(StopRequested(Ending.INTERRUPTED))
    assert driver.done.wait(PATIENCE)
    assert isinstance(driver.error, StoreError)


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A worker that has introduced itself."""
    made = Client(server.address, server.public_key, server.admit(WorkerId(0, 0)))
    made.introduce(hello(0))
    yield made
    made.close()


def test_what_the_journal_does_not_have_is_not_acknowledged(
    driver: Driver, journal: Journal, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = Refusing(journal, refuse)
    monkeypatch.setattr(journal, "append", refusing)
    driver.start()
    client.send(Ready())  # a trial would begin, if the journal could say so

    def answered() -> bool:
        before = client.heard
        client.beat()
        wait_for(lambda: client.receive() is not None and client.heard > before, PATIENCE)
        return True

    wait_for(lambda: client.receive() is not None and waits_for_the_journal(driver), PATIENCE)
    client.send(Logged(0, 1, ["a line"]))
    for _ in range(5):
        answered()
    assert not client._link.is_empty
    refusing.serve()
    wait_for(lambda: answered() and client._link.is_empty, PATIENCE)


def test_a_driver_that_stood_still_holds_that_against_no_worker(
    driver: Driver, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood_still = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(stood_still), time=time.time)
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(loop, "TICK", 0.05)
    driver.start()
    wait_for(lambda: client.receive() is not None and bool(driver.snapshot.workers), PATIENCE)
    carry = WriteAhead.carry

    def carry_slowly(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(WriteAhead, "carry", carry)
        stood_still.append(100.0)  # as over a store that answers late, or a process that was stopped
        return carry(*args, **options)

    monkeypatch.setattr(WriteAhead, "carry", carry_slowly)
    wait_for(lambda: len(stood_still) == 2, PATIENCE)
    since = driver.elapsed()
    wait_for(lambda: driver.snapshot.elapsed > since + 3 * loop.TICK, PATIENCE)
    assert [worker.state for worker in driver.snapshot.workers] == ["joining"]


@pytest.fixture
def stranger(server: Server) -> Iterator[Client]:
    """A worker with another maggy_like."""
    made = Client(server.address, server.public_key, server.admit(WorkerId(0, 0)))
    made.introduce(msgspec.structs.replace(hello(0), versions=Versions("0.0.9", "/opt/old", PYTHON, "/w/python")))
    yield made
    made.close()


def test_a_search_whose_first_worker_has_another_version_ends_with_both(
    driver: Driver, machine: StateMachine, stranger: Client
) -> None:
    driver.start()
    wait_for(lambda: stranger.receive() is not None and machine.ending is not None, PATIENCE)
    assert machine.ending == "error"
    assert isinstance(machine.error, WorkerError)
    assert "worker 0 on host cannot serve this search: the driver has maggy_like" in str(machine.error)
    assert "the worker 0.0.9 (/opt/old)" in str(machine.error)


def test_a_search_that_has_begun_goes_on_without_a_worker_of_another_version(
    driver: Driver, machine: StateMachine, stranger: Client
) -> None:
    driver.ready.add(WorkerId(1, 0))
    driver.start()
    wait_for(lambda: stranger.receive() is not None and bool(driver.lines), PATIENCE)
    [line] = driver.lines
    assert line.text.endswith("; the search continues without it")
    assert machine.ending is None


# -- one request asks for all proposals that the workers may need -------------------------------------


@dataclass
class Listed(Optimizer):
    """Proposes given values, and notes what was pending at each ask."""

    values: list[Any]
    adaptive = False
    pending: list[dict[int, Any]] = field(default_factory=list)

    def ask(self, index: int, history: History) -> Any:
        self.pending.append(dict(history.pending))
        value = self.values[index]
        if isinstance(value, BaseException):
            raise value
        return None if value is None else {"x": value}


def study_of(*values: Any) -> tuple[Study, Listed]:
    optimizer = Listed(list(values))
    return Study({"x": Float(0, 1)}, optimizer), optimizer


def all_answers(study: Study, most: int, *, over_after: int = 10**9) -> list[SuggestionReady]:
    given: list[SuggestionReady] = []
    asked = answers(DirectProposer(study), study, AskOptimizer(0, (), 7, most), lambda: len(given) >= over_after)
    for answer in asked:
        given.append(answer)  # noqa: PERF402  # the generator looks at it meanwhile
    return given


def test_each_ask_knows_the_proposals_before_it_by_the_numbers_they_will_have() -> None:
    study, optimizer = study_of(0.1, 0.2, 0.3)
    given = all_answers(study, 3)
    assert [(answer.index, answer.more) for answer in given] == [(0, True), (1, True), (2, False)]
    assert optimizer.pending == [{}, {7: {"x": 0.1}}, {7: {"x": 0.1}, 8: {"x": 0.2}}]


@pytest.mark.parametrize("last", [None, ValueError("no"), SystemExit(3)], ids=["none left", "raises", "exits"])
def test_an_answer_that_is_no_proposal_is_the_last(last: Any) -> None:
    study, _ = study_of(0.1, last, 0.3)
    given = all_answers(study, 3)
    assert [answer.more for answer in given] == [True, False]
    assert given[1].answer is None
    if isinstance(last, BaseException):
        assert isinstance(given[1].error, ValueError | OptimizerError)


def test_once_the_search_is_over_nothing_more_is_asked() -> None:
    study, optimizer = study_of(0.1, 0.2, 0.3, 0.4)
    assert [answer.more for answer in all_answers(study, 4, over_after=1)] == [True, False]
    assert len(optimizer.pending) == 2


def test_a_large_gang_is_filled_with_few_questions_and_the_proposals_are_those_of_many() -> None:
    """Each request passes between two threads. With one proposal each, thousands of workers would wait."""
    study = Study({"x": Float(0, 1)}, RandomSearch(), n_trials=2 * MOST + 10)
    proposals = Proposals(study, workers=10 * MOST)
    proposals.go_on()
    proposer = DirectProposer(study)
    questions = []
    while (question := proposals.ask(0.0)) is not None:
        questions.append(question.most)
        for answer in answers(proposer, study, question, lambda: False):
            proposals.answer(answer, 0.0)
    assert questions == [MOST, MOST, 10]
    plain = Study({"x": Float(0, 1)}, RandomSearch(), n_trials=2 * MOST + 10)
    expected = [plain.optimizer.ask(index, plain.history) for index in range(2 * MOST + 10)]
    taken = []
    while (created := proposals.take(0.0)) is not None:
        study.apply(created)
        taken.append(created)
    assert [event.config for event in taken] == expected
    assert [event.trial for event in taken] == list(range(len(expected)))
    assert sorted(study.history.pending) == list(range(len(expected) - 1))  # the last goes with the next question


def test_an_optimizer_that_needs_results_is_asked_for_one_proposal_at_a_time() -> None:
    class Adaptive(Listed):
        adaptive = True

    study = Study({"x": Float(0, 1)}, Adaptive([0.5] * 10))
    proposals = Proposals(study, workers=100)
    proposals.go_on()
    question = proposals.ask(0.0)
    assert question.most == 1


# -- the garbage collector, while many workers run -------------------------------------------------
