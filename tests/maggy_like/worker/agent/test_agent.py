"""An agent, between a driver and children that the test plays: nothing that a child does or leaves undone stops it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

import msgspec
import pytest

from maggy_like.processes.channel import Channel
from maggy_like.protocol.endings import StopReason
from maggy_like.protocol.messages import (
    Abort,
    Assign,
    Beat,
    Broken,
    Checkpointed,
    Finished,
    Goodbye,
    Halt,
    Imported,
    Kept,
    Noted,
    RankInfo,
    Ready,
    Refused,
    Reported,
    Shutdown,
    Stop,
    ToDriver,
    ToWorker,
    decode_to_worker,
    encode,
)
from maggy_like.protocol.task import WorkerContext, WorkerId, WorkerTask
from maggy_like.rpc import client
from maggy_like.rpc.server import Server
from maggy_like.rpc.sockets import MAX_FRAME
from maggy_like.worker.agent import agent, attempt, fork_server
from maggy_like.worker.agent.agent import Agent, described
from maggy_like.worker.agent.children import Child

PATIENCE = 300.0
GRACE = 0.05
POLL = 0.005

Message = TypeVar("Message", bound=ToDriver)


class Played:
    """A child whose process is the test."""

    def __init__(self, child: Child, channel: Channel) -> None:
        self.child = child
        self.channel = channel

    def say(self, message: ToDriver) -> None:
        self.channel.send(encode(message))

    def hear(self) -> ToWorker:
        """Return the next message; an assignment is without the directories that the agent fills in."""
        frame = self.channel.receive()
        assert frame is not None
        message = decode_to_worker(frame)
        if isinstance(message, Assign):
            message = msgspec.structs.replace(message, directory=b"", working_directory=b"")
        return message


class PlayedLauncher:
    """Makes children that the test plays, and ends when it says so."""

    def __init__(self, *, inline: bool = False) -> None:
        self.born: SimpleQueue[Played] = SimpleQueue()
        self.killed: SimpleQueue[Child] = SimpleQueue()
        self.wanted: SimpleQueue[list[str]] = SimpleQueue()
        self._said: list[fork_server.ImportedAhead | fork_server.NotShared] = []
        self._news: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._read, self._write = os.pipe()
        self.descriptor = None if inline else self._read

    def spawn(self) -> Child:
        channel, theirs = Channel.pair()
        child = Child(channel, None)
        self.born.put(Played(child, Channel(theirs)))
        return child

    def attend(self) -> bool:
        os.read(self._read, 1)
        self._news.get_nowait()()
        return True

    def import_ahead(self, modules: Sequence[str]) -> None:
        self.wanted.put(list(modules))

    def news(self) -> list[fork_server.ImportedAhead | fork_server.NotShared]:
        said, self._said = self._said, []
        return said

    def kill(self, child: Child) -> None:
        self.killed.put(child)

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)

    def tell(self, child: Child, **news: Any) -> None:
        """What becomes of a child, by its attributes."""
        self._news.put(lambda: child.__dict__.update(news))
        os.write(self._write, b"!")

    def announce(self, news: fork_server.ImportedAhead | fork_server.NotShared) -> None:
        """What the fork server says of later children."""
        self._news.put(lambda: self._said.append(news))
        os.write(self._write, b"!")


class Stage:
    """A driver, and the agent that serves it."""

    def __init__(self, launcher: PlayedLauncher, context: WorkerContext, task: WorkerTask, server: Server) -> None:
        self.launcher = launcher
        self.heard: list[ToDriver] = []
        self._server = server
        self._worker = WorkerId(context.index, context.incarnation)
        self._played: list[Played] = []
        self._thread = threading.Thread(target=Agent(task, context, launcher=launcher).run)
        self._thread.start()

    def next_child(self, *, ready: bool = True) -> Played:
        """The child that was begun next."""
        played = self.launcher.born.get(timeout=PATIENCE)
        self._played.append(played)
        if ready:
            played.say(Ready())
        return played

    def say(self, *messages: ToWorker) -> None:
        for message in messages:
            self._server.send(self._worker, message)

    def until(self, is_it: Callable[[ToDriver], bool]) -> ToDriver:
        """The next such message of the worker."""
        deadline = monotonic() + PATIENCE
        while monotonic() < deadline:
            for received in self._server.poll(POLL):
                if isinstance(received.message, Beat):
                    self.say(Beat())
                self.heard.append(received.message)
            self._server.acknowledge()
            while self.heard:
                if is_it(message := self.heard.pop(0)):
                    return message
        raise AssertionError("the worker says nothing of the kind")

    def next(self, kind: type[Message]) -> Message:
        message = self.until(lambda message: isinstance(message, kind))
        assert isinstance(message, kind)
        return message

    def close(self) -> None:
        self.say(Refused("over"))
        while self._thread.is_alive():
            list(self._server.poll(POLL))
            self._server.acknowledge()
        for played in self._played:
            played.channel.close()
        while not self.launcher.born.empty():
            self.launcher.born.get().channel.close()


Begin = Callable[..., Stage]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Raises a stage; gives options to the task and to the context."""
    monkeypatch.setattr(attempt, "ABORT_PATIENCE", GRACE)
    monkeypatch.setattr(attempt, "HANGUP_PATIENCE", GRACE)
    server = Server("127.0.0.1")
    keys = server.admit(WorkerId(0, 0))
    stages: list[Stage] = []

    def begin(*, gpus: tuple[str, ...] = (), cores: int = 0, inline: bool = False, **options: Any) -> Stage:
        task = WorkerTask(
            server.address, server.public_key, "run", b"", (), (), (), str(tmp_path), str(tmp_path / "logs")
        )
        isolation = "none" if inline else "process"
        task = msgspec.structs.replace(
            task, **{"grace": GRACE, "isolation": isolation, "working_directory": "shared", **options}
        )
        context = replace(WorkerContext(0, 0, "host", keys), accelerators=gpus, cores=cores)
        stages.append(Stage(PlayedLauncher(inline=inline), context, task, server))
        return stages[-1]

    yield begin
    for stage in stages:
        stage.close()
    server.close()


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that wait for signs of life."""
    monkeypatch.setattr(client, "Heartbeat", partial(client.Heartbeat, interval=0.02))


def assign(trial: int, *, rank_info: RankInfo | None = None) -> Assign:
    return Assign(trial, 1, {}, 10, rank_info=rank_info)


PROMOTED = Assign(0, 2, {}, 10, checkpoint="00000/1-1.pkl")
"""Continues trial 0 from the state that its first attempt has saved."""


def pause_one(stage: Stage) -> tuple[Played, Played]:
    """Have the first child run trial 0 up to a pause; it, and the next one."""
    first = stage.next_child()
    stage.next(Ready)
    stage.say(assign(0))
    assert first.hear() == assign(0)
    second = stage.next_child()
    first.say(Checkpointed(0, 1, 3, "00000/1-1.pkl"))
    first.say(Finished(0, 1, "returned", paused=True))
    assert stage.next(Finished).paused
    return first, second


def test_a_paused_trial_that_is_promoted_at_once_continues_in_its_process(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "PAUSE_PATIENCE", PATIENCE)
    stage = begin()
    first, second = pause_one(stage)
    stage.say(PROMOTED)
    assert first.hear() == PROMOTED
    first.say(Finished(0, 2, "returned", 1.0))
    assert stage.next(Finished) == Finished(0, 2, "returned", 1.0)
    stage.say(assign(1))
    assert second.hear() == assign(1)
    assert first.hear() == Shutdown()


@pytest.mark.parametrize(
    "other",
    [
        assign(1),
        msgspec.structs.replace(PROMOTED, checkpoint="00000/1-0.pkl"),
        msgspec.structs.replace(PROMOTED, checkpoint=None),
        msgspec.structs.replace(PROMOTED, config={"x": 1}),
        msgspec.structs.replace(PROMOTED, rank_info=RankInfo(0, 1, 0, 1, 0, 1)),
    ],
    ids=["another trial", "an older state", "no state", "another configuration", "a rank"],
)
def test_a_paused_function_ends_as_anything_else_is_assigned(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, other: Assign
) -> None:
    monkeypatch.setattr(agent, "PAUSE_PATIENCE", PATIENCE)
    stage = begin()
    first, second = pause_one(stage)
    stage.say(other)
    assert second.hear() == other
    assert first.hear() == Shutdown()


def test_a_paused_function_ends_if_nothing_is_assigned(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "PAUSE_PATIENCE", 0.0)
    stage = begin()
    first, second = pause_one(stage)
    assert first.hear() == Shutdown()
    stage.say(PROMOTED)
    assert second.hear() == PROMOTED


def test_a_process_that_ends_while_its_trial_is_paused_is_not_missed(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "PAUSE_PATIENCE", PATIENCE)
    stage = begin()
    first, second = pause_one(stage)
    stage.launcher.tell(first.child, status=-9)
    assert first.channel.receive() is None
    stage.say(PROMOTED)
    assert second.hear() == PROMOTED


@pytest.mark.usefixtures("quick_beats")
def test_a_worker_that_is_dismissed_lets_a_paused_function_clean_up(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "PAUSE_PATIENCE", PATIENCE)
    stage = begin(grace=PATIENCE)
    first, _ = pause_one(stage)
    stage.say(Shutdown())
    assert first.hear() == Shutdown()
    stage.next(Beat)  # the worker has not left
    stage.launcher.tell(first.child, status=0)
    stage.next(Goodbye)


def run_one(stage: Stage) -> tuple[Played, Played]:
    """Have the first child run trial 0 to its end; it, and the next one, of which nothing was heard."""
    first = stage.next_child()
    stage.next(Ready)
    stage.say(assign(0))
    assert first.hear() == assign(0)
    second = stage.next_child(ready=False)
    first.say(Finished(0, 1, "returned", 1.0))
    assert stage.next(Finished).outcome == "returned"
    return first, second


@pytest.mark.parametrize("word", [Stop(1, 1), Halt(1, 1), Abort(1, 1)], ids=["stop", "halt", "abort"])
def test_an_assignment_whose_child_does_not_get_ready_can_be_stopped(begin: Begin, word: ToWorker) -> None:
    stage = begin()
    first, hung = run_one(stage)
    stage.say(assign(1, rank_info=RankInfo(1, 2, 1, 2, 0, 1)), word)
    assert stage.next(Finished) == Finished(1, 1, "stopped")
    check_goes_on(stage, first, hung)


def test_an_assignment_whose_child_does_not_get_ready_is_a_timeout_of_the_trial(begin: Begin) -> None:
    stage = begin(report_timeout=0.1)
    first, hung = run_one(stage)
    stage.say(assign(1))
    end = stage.next(Finished)
    assert (end.trial, end.attempt, end.outcome, end.kind) == (1, 1, "died", "timeout")
    assert end.message == "the worker's process could not load train_fn within 0.1 s (see report_timeout)"
    check_goes_on(stage, first, hung)


def test_a_worker_that_leaves_takes_no_further_trial(begin: Begin) -> None:
    stage = begin()
    child = stage.next_child()
    stage.next(Ready)
    stage.say(Shutdown(), assign(0))
    stage.next(Goodbye)
    assert child.channel.receive() is None


def test_what_a_trial_imports_is_there_for_the_next_one(begin: Begin) -> None:
    stage = begin()
    first, stale = run_one(stage)
    stale.say(Ready())
    first.say(Imported(["torch._dynamo", "sympy"]))
    assert stage.launcher.wanted.get(timeout=PATIENCE) == ["torch._dynamo", "sympy"]
    stage.launcher.announce(fork_server.ImportedAhead(["torch._dynamo"], 1.4, 120, {"sympy": "starts a thread"}))
    assert stage.next(Imported) == Imported(["torch._dynamo"])
    heir = stage.next_child()
    stage.say(assign(1))
    assert heir.hear() == assign(1)
    assert stale.hear() == Shutdown()


@pytest.mark.parametrize(("seconds", "is_noted"), [(3.4, True), (0.1, False)])
def test_a_function_that_each_trial_loads_is_worth_a_line_if_that_takes_long(
    begin: Begin, seconds: float, is_noted: bool
) -> None:
    stage = begin()
    run_one(stage)
    stage.launcher.announce(fork_server.NotShared("opens a file or a connection", seconds))
    stage.launcher.announce(fork_server.ImportedAhead([], 0.0, 0, {}))
    said = stage.until(lambda message: isinstance(message, Noted | Imported))
    assert isinstance(said, Noted) is is_noted
    if isinstance(said, Noted):
        assert said.message == (
            "each trial loads train_fn again, which takes about 3 s, because loading it opens a file or a connection; "
            "do that inside train_fn so that it is loaded once per worker"
        )


def check_goes_on(stage: Stage, first: Played, hung: Played) -> None:
    """The child that hung was killed, others that do are no reason to leave, and the next trial runs."""
    while stage.launcher.killed.get(timeout=PATIENCE) is not hung.child:
        pass  # the first child does not exit either
    for gone in (first, hung):
        stage.launcher.tell(gone.child, status=-9)
    heir = stage.next_child()
    stage.say(assign(2))
    assert heir.hear() == assign(2)


def test_children_that_were_killed_as_they_hung_are_not_those_that_never_got_ready(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = begin(grace=0.01)
    _, hung = run_one(stage)
    for trial in range(1, agent.MAX_NEVER_READY + 2):
        stage.say(assign(trial), Abort(trial, 1))
        assert stage.next(Finished) == Finished(trial, 1, "stopped")
        stage.launcher.tell(hung.child, status=-9)
        hung = stage.next_child(ready=False)
    hung.say(Ready())
    stage.say(assign(9))
    assert hung.hear() == assign(9)


def test_a_gpu_that_is_not_let_go_of_is_not_waited_for_without_a_limit(begin: Begin) -> None:
    stage = begin(gpus=("0",), report_timeout=0.1)
    first, second = run_one(stage)
    second.say(Ready())
    stage.say(assign(1))
    end = stage.next(Finished)
    assert (end.kind, end.message) == (
        "timeout",
        "the previous trial's process still used the GPU after 0.1 s (see report_timeout)",
    )
    stage.say(assign(2))
    stage.launcher.tell(first.child, status=-9)
    assert second.hear() == assign(2)


@pytest.mark.usefixtures("quick_beats")
def test_a_child_that_does_not_listen_stops_nothing(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for the agent to read; so may the agent not wait for it."""
    stage = begin()
    child = stage.next_child()
    stage.next(Ready)
    answers = [Kept(0, 1, (f"{number}" * 200_000,)) for number in range(8)]
    stage.say(assign(0), *answers)
    report = Reported(0, 1, "loss", {"loss": ([1], [1.0])})
    for _ in range(3):  # with a sign of life between: the agent has long had all
        stage.next(Beat)
        child.say(report)
        assert stage.next(Reported) == report
    assert [child.hear() for _ in range(9)] == [assign(0), *answers]
    child.channel.close()
    stage.say(*answers)  # nor does one that is gone
    stage.say(Abort(0, 1))
    assert stage.launcher.killed.get(timeout=PATIENCE) is child.child


@pytest.mark.parametrize(
    ("is_aborted", "end", "outcome", "kind"),
    [
        (False, {"status": 3}, "died", "exit"),
        (False, {"status": -9}, "died", "signal"),
        (False, {"status": -9, "killed": True}, "died", "disconnected"),
        (True, {"status": -9}, "died", "signal"),
        (True, {"status": -9, "killed": True}, "stopped", None),
    ],
    ids=["exit", "somebody's kill", "our kill", "abort after somebody's kill", "abort"],
)
def test_an_exit_that_is_told_late_is_still_the_trial_s_own(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, is_aborted: bool, end: dict[str, Any], outcome: str, kind: str | None
) -> None:
    """Its connection ends first, or those to other ranks, who abort; its fork server may wait for a core to say how."""
    stage = begin()
    child = stage.next_child()
    stage.next(Ready)
    stage.say(assign(0))
    assert child.hear() == assign(0)
    if is_aborted:
        stage.say(Abort(0, 1))
    else:
        child.channel.close()
    assert stage.launcher.killed.get(timeout=PATIENCE) is child.child
    stage.launcher.tell(child.child, **end)
    told = stage.next(Finished)
    assert (told.outcome, told.kind) == (outcome, kind)


def test_a_spare_child_that_cannot_be_forked_costs_the_running_trial_nothing(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "FORK_DELAY", 0.02)
    stage = begin()
    runs = stage.next_child()
    stage.next(Ready)
    stage.say(assign(0))
    assert runs.hear() == assign(0)
    for _ in range(agent.MAX_NEVER_READY + 2):
        since = monotonic()
        stage.launcher.tell(stage.next_child(ready=False).child, status=0, not_forked="no more processes")
        heir = stage.next_child(ready=False)
        assert monotonic() - since >= 0.02
        stage.launcher.born.put(heir)
    stage.next_child()
    runs.say(Finished(0, 1, "returned", 1.0))
    assert stage.next(Finished).outcome == "returned"


def test_a_worker_that_can_fork_no_child_at_all_says_so(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "FORK_DELAY", 0.02)
    monkeypatch.setattr("maggy_like.rpc.client.CLOSE_PATIENCE", PATIENCE)  # until the stage listens
    stage = begin()
    for _ in range(agent.MAX_NEVER_READY):
        stage.launcher.tell(stage.next_child(ready=False).child, status=0, not_forked="no more processes")
    assert stage.next(Broken).message == "its child processes cannot be made: no more processes"


@pytest.mark.parametrize(
    ("frame", "kind"), [(bytes(MAX_FRAME + 1), "too_large"), (b"junk", "disconnected")], ids=["too large", "junk"]
)
def test_inline_what_cannot_be_read_ends_its_attempt_alone(begin: Begin, frame: bytes, kind: str) -> None:
    stage = begin(inline=True)
    child = stage.next_child()
    stage.next(Ready)
    stage.say(assign(0))
    assert child.hear() == assign(0)
    child.channel.send(frame)
    end = stage.next(Finished)
    assert (end.trial, end.outcome, end.kind) == (0, "died", kind)
    assert child.hear() == Stop(0, 1, reason=StopReason.FAULT)
    stage.say(assign(1))
    assert child.hear() == assign(1)
    child.say(Finished(0, 1, "stopped"))  # the old one, late
    child.say(Finished(1, 1, "returned", 1.0))
    assert stage.next(Finished) == Finished(1, 1, "returned", 1.0)


def test_a_trial_with_more_threads_than_its_share_is_reported_once(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: SimpleQueue[int] = SimpleQueue()

    class Found:
        def __init__(self, cores: int) -> None:
            assert cores == 2

        def check(self, process: int, now: float) -> float:
            asked.put(process)
            return 7.9

    monkeypatch.setattr(agent, "LOOK", 0.01)
    monkeypatch.setattr(agent, "Overload", Found)
    stage = begin(cores=2)
    first = stage.next_child()
    stage.next(Ready)
    stage.say(assign(5))
    assert first.hear() == assign(5)
    stage.launcher.tell(first.child, pid=4711)
    note = stage.next(Noted)
    assert (note.subject, note.trial) == ("threads", 5)
    assert note.message == (
        "8 threads are busy, but the trial's share is 2 cores, so trials slow each other down; pass n_jobs=2 or the "
        "like to the library that starts them, or use fewer workers"
    )
    first.say(Finished(5, 1, "returned", 1.0))
    assert stage.next(Finished) == Finished(5, 1, "returned", 1.0)
    assert asked.get() == 4711
    assert asked.empty()


@pytest.mark.parametrize(
    ("modules", "named"),
    [
        (["torch", "torch.nn", "_csv", "email", "numpy"], "torch, numpy (5 modules"),
        ([*"abcdefg", "a.b"], "a, b, c, d, e and 2 more (8 modules"),
        (["email", "email.message"], "the standard library (2 modules"),
    ],
)
def test_of_what_is_imported_once_the_first_packages_are_named(modules: list[str], named: str) -> None:
    news = fork_server.ImportedAhead(modules, 1.04, 90, {})
    assert described(news) == f"imported once for all later trials: {named}, 1.0 s, 90 MB)"
