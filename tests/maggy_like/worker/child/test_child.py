"""The child's two threads: one or the other hears what comes, whatever the trial reports, and every end is told."""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import train_functions as fns
from wire import wait_for

from maggy_like import FailurePolicy, Float, lagom
from maggy_like.errors import TrialsFailedError
from maggy_like.processes.channel import Channel, Disconnected
from maggy_like.protocol.messages import (
    Assign,
    Broken,
    Checkpointed,
    Decided,
    FailureKind,
    Finished,
    Kept,
    Ready,
    Reported,
    Shutdown,
    Stop,
    ToWorker,
    decode_to_driver,
    encode,
)
from maggy_like.protocol.task import WorkerTask
from maggy_like.storage.checkpoints import CheckpointStore, load_state, returned_url
from maggy_like.worker.child import exits, saves
from maggy_like.worker.child import process as child
from maggy_like.worker.child.attempt import run_attempt
from maggy_like.worker.child.directories import working_in
from maggy_like.worker.child.exits import SHARED_MEMORY
from maggy_like.worker.child.failures import MAX_TEXT
from maggy_like.worker.child.process import rehearse
from maggy_like.worker.child.reporter import Reporter
from maggy_like.worker.child.sender import Sender

ASSIGN, STOP = Assign(0, 1, {}, 9), Stop(0, 1)
UNSENT = "MemoryError: no room to encode"
SURROGATE = "caf\udce9"


def task_of(train_fn: bytes = b"", **fields: Any) -> WorkerTask:
    return WorkerTask("tcp://x:1", b"", "run", train_fn, (), (), (), **{"store": "", "logs": "", **fields})


class Agent:
    """The agent's end of a child that serves in a thread of this process."""

    def __init__(self, mine: Channel, theirs: socket.socket, store: str) -> None:
        self._store = store
        self._channel = mine
        self._theirs = Channel(theirs)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def tell(self, *messages: ToWorker) -> None:
        """Say all in one piece."""
        frames = map(encode, messages)
        self._channel._sock.sendall(b"".join(struct.pack("!I", len(frame)) + frame for frame in frames))

    def hear(self) -> Any:
        frame = self._channel.receive()
        assert frame is not None
        return decode_to_driver(frame)

    def leave(self) -> None:
        self._channel.close()
        self._thread.join(300)
        assert not self._thread.is_alive()
        self._theirs.close()

    def _serve(self) -> None:
        task = task_of(interval=0.01, store=self._store)
        with contextlib.suppress(Disconnected):  # as inline, where nothing ends the process of an orphan
            child.serve(self._theirs, task, trials=None, before_end=lambda _: None, on_orphaned=lambda: None)


Serve = Callable[..., Agent]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Serve]:
    """``serve(train_fn)`` gives the agent's end of a child that is ready."""
    agents = []

    def start(train_fn: Any, wrap: Callable[[socket.socket], socket.socket] = lambda it: it) -> Agent:
        monkeypatch.setattr(child, "load_train_fn", lambda task: train_fn)
        mine, theirs = Channel.pair()
        mine._sock.settimeout(300)
        agents.append(Agent(mine, wrap(theirs), str(tmp_path)))
        assert agents[-1].hear() == Ready()
        return agents[-1]

    yield start
    for agent in agents:
        agent.leave()


def await_stop(reporter: Reporter) -> None:
    """Wait until the service thread has heard a ``Stop``."""
    reporter._sender.stop.wait_for_verdict()


def test_reports_of_one_batch_may_hold_more_than_the_first(serve: Serve) -> None:
    def train(reporter: Reporter) -> None:
        with reporter._sender._lock:  # both go in one batch
            reporter.report(loss=1.0)
            reporter.report(loss=0.5, accuracy=1.0)
        await_stop(reporter)
        reporter.report(loss=0.25)

    agent = serve(train)
    agent.tell(ASSIGN)
    columns = {"loss": ([1, 2], [1.0, 0.5]), "accuracy": ([2], [1.0])}
    assert agent.hear() == Reported(0, 1, "loss", columns)
    agent.tell(STOP)
    assert agent.hear() == Finished(0, 1, "stopped")


def test_what_comes_together_with_an_assignment_is_heard(serve: Serve) -> None:
    """The main thread takes the assignment, the other one what stands behind it."""

    def train(reporter: Reporter) -> None:
        await_stop(reporter)
        reporter.report(1.0)

    agent = serve(train)
    for messages in ([ASSIGN, STOP], [ASSIGN, Kept(0, 1), STOP], [Decided(0, 1, stop=False), ASSIGN, STOP]):
        agent.tell(*messages)
        assert agent.hear() == Finished(0, 1, "stopped")


def test_an_assignment_that_comes_while_a_trial_runs_is_the_next(serve: Serve) -> None:
    """So it is inline, where an attempt that cannot be killed may have been given up."""
    agent = serve(lambda reporter: reporter.trial)
    agent.tell(Assign(0, 1, {}, 9), Assign(1, 1, {}, 9), Shutdown())
    assert [agent.hear() for _ in range(2)] == [Finished(trial, 1, "returned", float(trial)) for trial in range(2)]


def test_a_trial_that_waits_for_a_verdict_ends_once_its_agent_is_gone(serve: Serve) -> None:
    agent = serve(lambda reporter: reporter.report(1.0))
    agent.tell(Assign(0, 1, {}, 9, milestones=(1,)))
    assert agent.hear() == Reported(0, 1, "value", {"value": ([1], [1.0])}, awaiting=True)
    agent.leave()


@pytest.fixture
def unsent(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No report can be sent; set when that was tried."""
    tried = threading.Event()

    def send_some(self: Sender, *, awaiting: bool) -> bool:
        tried.set()
        raise MemoryError("no room to encode")

    monkeypatch.setattr(Sender, "_send_some", send_some)
    return tried


def test_the_service_goes_on_where_it_cannot_send_and_the_next_report_raises_why(
    serve: Serve, unsent: threading.Event
) -> None:
    def train(reporter: Reporter) -> None:
        reporter.report(1.0)
        await_stop(reporter)
        reporter.report(2.0)

    agent = serve(train)
    for _ in range(2):
        unsent.clear()
        agent.tell(ASSIGN)
        assert unsent.wait(300)
        agent.tell(STOP)  # the thread that was not able to send hears it
        finished = agent.hear()
        assert (finished.outcome, finished.kind, finished.message) == ("raised", "exception", UNSENT)


def test_an_attempt_that_ends_with_reports_that_cannot_be_sent_has_failed(
    serve: Serve, unsent: threading.Event
) -> None:
    agent = serve(lambda reporter: reporter.report(1.0))
    agent.tell(ASSIGN)
    finished = agent.hear()
    assert (finished.outcome, finished.message) == ("raised", UNSENT)
    assert finished.at > 0


def test_a_process_may_have_more_than_1024_open_files(serve: Serve) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"this process may open no more than {hard} files")

    def far_away(theirs: socket.socket) -> socket.socket:
        with theirs:
            return socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 1100))

    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    try:
        agent = serve(lambda reporter: 0.5, far_away)
        agent.tell(ASSIGN)
        assert agent.hear() == Finished(0, 1, "returned", 0.5)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def swallow(reporter: Reporter) -> float:
    try:
        for step in range(1, 20):
            reporter.report(1.0, step=step)
    except:  # noqa: E722
        return 0.0
    return 1.0


def swallow_each_time(reporter: Reporter) -> float:
    for step in range(1, 20):
        with contextlib.suppress(BaseException):
            reporter.report(1.0, step=step)
    return 0.0


def wrap(reporter: Reporter) -> None:
    try:
        for step in range(1, 20):
            reporter.report(1.0, step=step)
    except BaseException as error:
        raise RuntimeError("the callback failed") from error


def exit_instead(reporter: Reporter) -> None:
    with contextlib.suppress(BaseException):
        for step in range(1, 20):
            reporter.report(1.0, step=step)
    sys.exit(1)


def train_in_a_thread(reporter: Reporter) -> float:
    thread = threading.Thread(target=swallow, args=(reporter,))
    thread.start()
    thread.join()
    return 0.0


def save_and_report(reporter: Reporter) -> float:
    """Save and report each step, and return the last."""
    for step in range(1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(float(step), step=step)
    return float(reporter.budget)


def until_finished(agent: Agent) -> list[Any]:
    """Return what the child says up to the end of an attempt."""
    messages = [agent.hear()]
    while not isinstance(messages[-1], Finished):
        messages.append(agent.hear())
    return messages


def test_a_paused_function_continues_with_the_next_assignment_of_its_trial(serve: Serve) -> None:
    agent = serve(save_and_report)
    agent.tell(Assign(0, 1, {}, 2, max_budget=4))
    agent.tell(Kept(0, 1), Kept(0, 1))
    first = until_finished(agent)
    assert first[-1] == Finished(0, 1, "returned", paused=True)
    agent.tell(Assign(0, 2, {}, 4, max_budget=4))
    agent.tell(Kept(0, 2), Kept(0, 2))
    second = until_finished(agent)
    assert second[-1] == Finished(0, 2, "returned", 4.0)
    steps = [
        step for message in first + second if isinstance(message, Reported) for step in message.columns["value"][0]
    ]
    assert steps == [1, 2, 3, 4]


def test_a_paused_function_that_is_not_to_continue_cleans_up_and_has_one_end(serve: Serve) -> None:
    cleaned = threading.Event()

    def train(reporter: Reporter) -> float:
        try:
            return save_and_report(reporter)
        finally:
            cleaned.set()

    agent = serve(train)
    agent.tell(Assign(0, 1, {}, 2, max_budget=4))
    agent.tell(Kept(0, 1), Kept(0, 1))
    assert until_finished(agent)[-1].paused
    assert not cleaned.is_set()
    agent.tell(Shutdown())
    assert cleaned.wait(300)
    agent._thread.join(300)
    agent._theirs._sock.shutdown(socket.SHUT_RDWR)
    assert agent._channel.receive() is None


SWALLOWS = [swallow, swallow_each_time, wrap, exit_instead, train_in_a_thread]


@pytest.mark.parametrize("train", SWALLOWS)
@pytest.mark.parametrize("budget", [9, 1], ids=["stopped", "budget used"])
def test_a_function_that_swallows_its_end_has_ended_there(serve: Serve, train: Any, budget: int) -> None:
    agent = serve(train)
    agent.tell(Assign(0, 1, {}, budget, (1,)))
    messages = [agent.hear()]
    agent.tell(Decided(0, 1, stop=budget > 1))
    while not isinstance(messages[-1], Finished):
        messages.append(agent.hear())
    assert messages[:-1] == [Reported(0, 1, "value", {"value": ([1], [1.0])}, awaiting=True)]
    stopped = Finished(0, 1, "stopped")
    assert messages[-1] == (stopped if budget > 1 else Finished(0, 1, "returned", cut_at=2))


def test_what_was_raised_instead_of_an_end_is_in_the_log(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    agent = serve(wrap)
    agent.tell(Assign(0, 1, {}, 9, (1,)))
    agent.hear()
    agent.tell(Decided(0, 1, stop=True))
    agent.hear()
    assert "raised after a report had ended it:" in (said := capfd.readouterr().err)
    assert "RuntimeError: the callback failed" in said


def end_of(train_fn: Callable[[], Any], **fields: Any) -> Finished:
    """How a run of a function ends, as the driver hears it."""
    parameters = inspect.signature(train_fn).parameters.values()
    task = task_of(**fields)
    reporter = Reporter(store=CheckpointStore(task.store or None))
    finished = run_attempt(train_fn, parameters, reporter, ASSIGN, task, lambda: None, {})
    frame = encode(finished)
    assert len(frame) < 10 * MAX_TEXT
    return decode_to_driver(frame)  # type: ignore[return-value]


def test_a_failure_of_any_length_is_told() -> None:
    def train() -> None:
        raise ValueError("bad rows: " + "x" * (17 << 20) + " end")

    finished = end_of(train)
    for text in (finished.message, finished.traceback.strip()):
        assert len(text) < MAX_TEXT + 100
        assert "ValueError: bad rows: xxx" in text
        assert " characters left out ...\nxxx" in text
        assert text.endswith("x end")


def test_a_wrong_report_has_the_lines_of_the_function_and_no_others() -> None:
    def unsaved(reporter: Reporter) -> None:
        reporter.checkpoint({"lock": threading.Lock()})

    def returned() -> tuple[float, float]:
        return 0.5, 0.1

    lines = end_of(unsaved).traceback.splitlines()
    first, place, line, last = (line for line in lines if line.strip("~^ "))  # Python 3.13 marks the whole line
    assert first == "Traceback (most recent call last):"
    assert "in unsaved" in place
    assert line.strip() == 'reporter.checkpoint({"lock": threading.Lock()})'
    assert last.startswith("ReportError: the state given to checkpoint() cannot be saved (TypeError: cannot pickle")
    assert end_of(returned).traceback == ""


@pytest.mark.parametrize("begins", [True, False])
def test_a_state_that_is_not_there_is_said_to_be_missing(begins: bool) -> None:
    def resumes(reporter: Reporter) -> None:
        state = reporter.restore()
        if begins:
            reporter.report(loss=1.0, step=1)
        reporter.report(loss=1.0, step=state["epoch"])

    said = "; restore() returned None, since the trial had saved no state; begin at the first step then"
    assert end_of(resumes).message == f"TypeError: 'NoneType' object is not subscriptable{'' if begins else said}"


class Refuses:
    def __reduce__(self) -> str:
        raise ValueError("not now")


def test_a_wrong_report_has_the_error_of_the_function_that_caused_it() -> None:
    def unsaved(reporter: Reporter) -> None:
        reporter.checkpoint(Refuses())

    assert 'raise ValueError("not now")' in end_of(unsaved).traceback


def test_a_failure_with_text_that_is_no_unicode_is_told() -> None:
    def train() -> None:
        raise ValueError(f"cannot read {SURROGATE}")

    finished = end_of(train)
    assert finished.message == r"ValueError: cannot read caf\udce9"
    assert finished.traceback.endswith("ValueError: cannot read caf\\udce9\n")
    assert len(end_of(lambda: sys.exit("x" * (17 << 20))).message) < MAX_TEXT + 100


class Unprintable(RuntimeError):
    def __init__(self, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return self.message  # type: ignore[attr-defined, no-any-return]  # which nothing has set


class UnprintableType(Unprintable, TypeError):
    """Of a kind whose message may have advice."""


@pytest.mark.parametrize("kind", [Unprintable, UnprintableType])
def test_an_exception_that_cannot_be_printed_is_a_failure_like_others(kind: type[Unprintable]) -> None:
    def train(reporter: Reporter) -> None:
        reporter.restore()
        raise kind(3)

    finished = end_of(train)
    assert finished.kind is FailureKind.EXCEPTION
    assert finished.message.endswith(f"{kind.__name__}: <exception str() failed>")
    assert "raise kind(3)" in finished.traceback
    assert "train" in finished.place


def test_a_function_that_cannot_be_loaded_is_told_whatever_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(task: WorkerTask) -> None:
        raise ImportError(SURROGATE)

    monkeypatch.setattr(child, "load_train_fn", load)
    mine, theirs = Channel.pair()
    with theirs:
        child.serve(Channel(theirs), task_of(), trials=1, before_end=lambda _: None, on_orphaned=lambda: None)
        frame = mine.receive()
    mine.close()
    assert frame is not None
    assert decode_to_driver(frame) == Broken(r"train_fn cannot be loaded on the worker: ImportError: caf\udce9")


def test_states_are_removed_before_exit_hooks_end_the_threads_of_their_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def train(reporter: Reporter) -> None:
        for step in (1, 2):
            reporter.checkpoint(step)
            reporter.report(loss=1.0, step=step)
        reported.set()

    def before_end(tell: Callable[[], None]) -> None:
        left.extend(path.name for path in (tmp_path / "00000").iterdir())

    left: list[str] = []
    reported = threading.Event()
    monkeypatch.setattr(child, "load_train_fn", lambda task: train)
    monkeypatch.setattr(saves, "ANSWER_PATIENCE", 60.0)
    mine, theirs = Channel.pair()
    task = task_of(interval=0.01, store=tmp_path.as_uri())
    serving = partial(child.serve, trials=1, before_end=before_end, on_orphaned=lambda: None)
    thread = threading.Thread(target=serving, args=(Channel(theirs), task))
    thread.start()
    mine.send(encode(ASSIGN))
    discards = iter([(), ("00000/1-1.pkl",)])
    while (frame := mine.receive()) is not None and not isinstance(message := decode_to_driver(frame), Finished):
        if isinstance(message, Checkpointed):
            assert message.step == 1 or reported.wait(300)  # the function is through when it is heard
            mine.send(encode(Kept(0, 1, next(discards))))
    mine.close()
    thread.join(300)
    theirs.close()
    assert left == ["1-2.pkl"]


@pytest.mark.parametrize("returned", [SURROGATE, [SURROGATE], {SURROGATE: 1}])
def test_text_that_is_no_unicode_is_returned_by_way_of_the_store(tmp_path: Path, returned: Any) -> None:
    finished = end_of(lambda: returned, returns_anything=True, store=tmp_path.as_uri())
    assert finished.stored
    assert load_state(returned_url(tmp_path.as_uri())) == returned


def test_a_returned_metric_s_name_must_be_text() -> None:
    finished = end_of(lambda: {SURROGATE: 1.0})
    assert (finished.outcome, finished.kind) == ("raised", "report")
    assert r"a metric's name must be valid Unicode text, got 'caf\udce9'" in finished.message


def test_what_a_trial_out_of_memory_holds_is_gone_before_its_end_is_described(serve: Serve) -> None:
    class Large:
        pass

    class Full(MemoryError):
        def __str__(self) -> str:
            return "no room" if self.args[0]() is not None else "there is room"

    def train(reporter: Reporter) -> None:
        large = Large()
        raise Full(weakref.ref(large))

    agent = serve(train)
    agent.tell(ASSIGN)
    finished = agent.hear()
    assert finished.message.endswith("there is room")
    assert "raise Full" in finished.traceback


# -- what a trial has started and not ended: its pools are closed, and nothing of them stays in shared memory
SCRIPT = """
import os, pathlib, signal, time
from concurrent.futures import ThreadPoolExecutor

from joblib import Parallel, delayed

from maggy_like import FailurePolicy, Float, lagom

def wait_for(file, text):
    while not file.exists():
        time.sleep(0.01)
    print(text, flush=True)

def train(x):
    print(os.getpid())
    Parallel(n_jobs=2)(delayed(abs)(number) for number in range(4))
    if x > 0.5:
        os.kill(os.getpid(), signal.SIGKILL)
    ThreadPoolExecutor().submit(wait_for, pathlib.Path("returned"), "written behind the trial's back")
    pathlib.Path("returned").touch()
    return x

if __name__ == "__main__":
    result = lagom(train, {"x": Float(0, 1)}, optimizer="random", points_to_evaluate=[{"x": 0.1}, {"x": 0.9}],
                   n_trials=2, workers=1, engine="local", failures=FailurePolicy(1), progress=False)
    print(result.log(0) + result.log(1))
"""


@pytest.mark.e2e
@pytest.mark.skipif(not exits.SHARED_MEMORY.exists(), reason="needs /dev/shm")
def test_joblib_leaves_nothing_in_shared_memory_whether_its_trial_returns_or_is_killed(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    first, *rest, second = done.stdout.splitlines()[:-1]
    assert sorted(rest) == [exits.POOL_HINT, "written behind the trial's back"]  # the hint once, in the first trial
    left = {path.name for path in exits.SHARED_MEMORY.iterdir()}
    assert first.isdigit()
    assert second.isdigit()
    assert not [name for name in left if f"-{first}-" in name or f"-{second}-" in name or f"_{second}_" in name]


def test_what_a_killed_process_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exits, "SHARED_MEMORY", tmp_path)
    for name in ("sem.loky-12-a", "sem.loky-123-a", "sem.mp-12", "torch_12"):
        (tmp_path / name).touch()
    (tmp_path / "joblib_memmapping_folder_12_x").mkdir()
    (tmp_path / "joblib_memmapping_folder_12_x" / "data").touch()
    listed = [f"sem.loky-12-{n}" for n in range(5)] + os.listdir(tmp_path)  # others are just removing theirs too
    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", lambda directory: listed)
        exits.remove_leftovers(12)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sem.loky-123-a", "sem.mp-12", "torch_12"]


# -- rehearsal ------------------------------------------------------------------------------------
@pytest.mark.parametrize("returns_anything", [False, True])
def test_a_rehearsal_prints_nothing_saves_nothing_and_leaves_no_thread(
    returns_anything: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path.as_uri()
    task = WorkerTask("tcp://x:1", b"", "run", b"", (), (), (), store, store, returns_anything=returns_anything)
    threads = threading.active_count()
    rehearse(task)
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


# -- what a trial has left in shared memory is removed by its own resource tracker ------------------


@pytest.mark.e2e
@pytest.mark.skipif(not SHARED_MEMORY.exists(), reason="needs /dev/shm")
@pytest.mark.parametrize("how", ["returns", "is killed", "is cut off"])
def test_nothing_stays_in_shared_memory(how: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    space = {"mark": str(mark), "how": how, "x": Float(0, 1)}
    handle = lagom(fns.keep_shared_memory, space, optimizer="random", n_trials=1, workers=1, engine="local",
                   failures=FailurePolicy(1), directory=tmp_path, progress=False, block=False)  # fmt: skip
    if how == "is cut off":
        wait_for(lambda: mark.exists() and bool(mark.read_text()))
        handle.stop()
    with contextlib.suppress(TrialsFailedError):
        handle.result()
    assert not (SHARED_MEMORY / mark.read_text()).exists()


def test_a_trial_s_own_working_directory_is_known_by_the_one_whose_names_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own := tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path)
    with working_in(str(own)) as mirrored:
        assert mirrored == {str(own): str(tmp_path)}
