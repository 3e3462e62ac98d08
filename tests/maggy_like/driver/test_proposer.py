"""An optimizer in a process of its own: what it is told, how it ends, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest
import train_functions as fns
from family import runs
from gate import Gate
from odd_optimizers import Climber, Sealed, Told

from maggy_like import Float, LocalEngine, lagom
from maggy_like.driver.proposer_process import ProcessProposer
from maggy_like.driver.proposers import DirectProposer, Proposer
from maggy_like.errors import OptimizerError
from maggy_like.processes.imports import module_path
from maggy_like.processes.system import is_supported
from maggy_like.processes.zygote import client
from maggy_like.processes.zygote.client import begin_imports, own_zygote
from optimizers.core.base import History, Observation, Optimizer, Pending
from optimizers.core.events import AttemptStarted, Event
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.schedulers.stopping import MedianRule
from optimizers.space.domains import Integer

pytestmark = pytest.mark.e2e

SPACE = {name: Integer(0, 2**40) for name in ("observed", "pending", "pid", "threads")}
CONFIG = dict.fromkeys(SPACE, 0)
UPDATES = (Pending(0, CONFIG), Pending(1, CONFIG), Observation(0, CONFIG, 1, 0.5))

PATIENCE = 300.0

has_zygotes = pytest.mark.skipif(not is_supported(), reason="this system has no way to fork for another process")

Start = Callable[..., ProcessProposer]


def proposers() -> list[psutil.Process]:
    """The optimizers' processes below this one."""
    return [p for p in psutil.Process().children(recursive=True) if is_proposer(p)]


def is_proposer(process: psutil.Process) -> bool:
    return runs(process, "maggy_like.driver.proposer_process")


@pytest.fixture
def lines() -> SimpleQueue[str]:
    """What optimizers printed."""
    return SimpleQueue()


@pytest.fixture(params=[pytest.param(True, marks=has_zygotes, id="zygote"), pytest.param(False, id="interpreter")])
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, lines: SimpleQueue[str]) -> Iterator[Start]:
    """Start an optimizer's process, as a fork of the workers' zygote or anew; it and its thread must end."""
    monkeypatch.setattr(client, "_owned", None)
    if request.param:
        begin_imports(())
    started: list[Proposer] = []
    before = set(threading.enumerate())

    def make(optimizer: Optimizer, n_trials: int | None = None) -> ProcessProposer:
        proposer = ProcessProposer(Study(SPACE, optimizer, n_trials=n_trials))
        proposer.start(lines.put)
        started.append(proposer)
        return proposer

    yield make
    for proposer in started:
        proposer.close()
    assert not proposers()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)  # one that reads may see the end of it somewhat later
        assert not thread.is_alive()
    client._close()


def asked(proposer: Proposer, index: int, updates: Any = ()) -> dict[str, Any]:
    config = proposer.ask(index, updates)
    assert config is not None
    return config


def test_it_answers_what_a_thread_would_from_another_process_with_one_thread(start: Start) -> None:
    proposer, direct = start(Told()), DirectProposer(Study(SPACE, Told()))
    for index, updates in enumerate([(), UPDATES[:2], UPDATES[2:]]):
        answer, other = asked(proposer, index, updates), asked(direct, index, updates)
        assert (answer["observed"], answer["pending"]) == (other["observed"], other["pending"])
        assert (answer["threads"], other["pid"]) == (1, os.getpid())
        assert answer["pid"] == proposers()[0].pid
    assert os.getsid(answer["pid"]) != os.getsid(0)  # Ctrl-C in a terminal does not reach it


def test_what_it_prints_is_shown_and_is_no_answer(start: Start, lines: SimpleQueue[str]) -> None:
    assert asked(start(Told({0: "print"})), 0)["observed"] == 0
    assert {lines.get(timeout=PATIENCE) for _ in range(3)} == {"from print", "from the descriptor", "from stderr"}


@pytest.mark.parametrize(("deed", "kind"), [("raise", KeyError), ("end", EOFError), ("exit", OptimizerError)])
def test_an_exception_comes_back_with_its_traceback_and_ends_nothing(
    start: Start, deed: str, kind: type[Exception]
) -> None:
    proposer = start(Told({1: deed}))
    pid = asked(proposer, 0)["pid"]
    with pytest.raises(kind) as caught:
        proposer.ask(1, ())
    (note,) = caught.value.__notes__
    assert note.startswith("raised in the optimizer's process:\nTraceback")
    assert "in do\n" in note
    assert "proposer_process.py" not in note
    assert asked(proposer, 2)["pid"] == pid


def test_a_process_that_is_killed_is_started_again_and_told_all(start: Start) -> None:
    proposer = start(Told())
    first = asked(proposer, 0, UPDATES[:1])
    (process,) = proposers()
    process.kill()
    process.wait(PATIENCE)
    again = asked(proposer, 1, UPDATES[1:])
    assert again["pid"] != first["pid"]
    assert (again["observed"], again["pending"]) == (1, 0b10)


def test_a_process_that_dies_while_it_is_asked_is_asked_again(start: Start, tmp_path: Path) -> None:
    proposer = start(Told({1: "kill twice"}, str(tmp_path)))
    asked(proposer, 0, UPDATES[:2])
    answer = asked(proposer, 1, UPDATES[2:])
    assert (answer["observed"], answer["pending"]) == (1, 0b10)
    assert len(list(tmp_path.iterdir())) == 2


def test_one_that_always_dies_is_an_error_that_says_how(start: Start) -> None:
    proposer = start(Told({5: "kill"}))
    with pytest.raises(OptimizerError, match=r"process of Told ended 3 times \(killed by SIGKILL, .* proposal 5; use"):
        proposer.ask(5, ())


def test_one_that_dies_is_not_waited_for_since_its_child_lives(start: Start) -> None:
    """The child has the same end of the connection."""
    with pytest.raises(OptimizerError, match=r"process of Told ended 3 times \(killed by SIGKILL"):
        start(Told({0: "leave a child"})).ask(0, ())


def test_an_ask_that_hangs_is_cut_off(start: Start, lines: SimpleQueue[str]) -> None:
    proposer = start(Told({0: "hang"}))

    def interrupt() -> None:
        assert lines.get(timeout=PATIENCE) == "it hangs"
        proposer.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(OptimizerError, match="killed by SIGKILL"):
        proposer.ask(0, ())
    thread.join()


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have a zygote that imports until something is written to this file."""
    installed, gate = tmp_path / "site-packages", tmp_path / "gate"
    installed.mkdir()
    os.mkfifo(gate)
    (installed / "waits_at_gate.py").write_text(f"open({str(gate)!r}).read()")
    monkeypatch.setattr(client, "_owned", None)
    monkeypatch.setattr(client, "_deadly", set())
    begin_imports(["waits_at_gate"], path=[*module_path(), str(installed)])
    yield gate
    client._close()


@has_zygotes
@pytest.mark.parametrize("end", ["imported", "killed"])
def test_a_question_waits_for_a_zygote_that_imports(importing: Path, end: str) -> None:
    proposer = ProcessProposer(Study(SPACE, Told()))
    proposer.start(print)
    assert not proposers()
    if end == "killed":
        os.kill(*own_zygote(), signal.SIGKILL)
    else:
        importing.write_text("go on")
    assert asked(proposer, 0)["observed"] == 0
    proposer.close()
    assert not proposers()


@has_zygotes
def test_a_process_that_has_not_started_is_cancelled(importing: Path) -> None:
    proposer = ProcessProposer(Study(SPACE, Told()))
    proposer.start(print)
    proposer.close()
    importing.write_text("go on")
    other = ProcessProposer(Study(SPACE, Told()))
    other.start(print)
    assert asked(other, 0)["pid"] == proposers()[0].pid
    other.close()
    assert not proposers()


def test_the_process_starts_light() -> None:
    code = "import sys, maggy_like.driver.proposer_process; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "optimizers.core.base" in loaded
    assert not {"zmq", "pyspark", "torch", "scipy", "pandas", "rich"} & set(loaded)


# -- in a search ------------------------------------------------------------------------------------


def test_what_cannot_be_sent_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(OptimizerError, match=r"Sealed cannot be sent to its process \(its attribute 'guard'\)"):
        lagom(lambda x: x, {"x": Float(0, 1)}, optimizer=Sealed(), engine="local", directory=tmp_path)
    assert not list(tmp_path.iterdir())


def test_inline_asks_in_this_process(tmp_path: Path) -> None:
    space = {"x": Float(0, 1)}
    result = lagom(lambda x: x, space, optimizer=Sealed(), engine="inline", n_trials=2, directory=tmp_path)
    assert result.counts == {TrialState.COMPLETED: 2}


def test_an_optimizer_that_exits_in_this_process_ends_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(OptimizerError, match=r"the optimizer raised SystemExit\(3\)"):
        lagom(lambda **config: 0.0, SPACE, optimizer=Told({1: "exit"}), engine="inline", directory=tmp_path)


def test_a_search_survives_its_optimizer_s_death(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    killed: list[int] = []

    def kill_once(event: Event) -> None:
        if isinstance(event, AttemptStarted) and not killed:
            (process,) = proposers()
            killed.append(process.pid)
            process.kill()
            gate.open()

    result = lagom(
        fns.wait_at_gate, {"gate": gate.path, "x": Float(0, 1)}, optimizer=Climber(), n_trials=8, workers=2,
        engine=LocalEngine(isolation="worker"), callbacks=[kill_once], directory=tmp_path, progress=False,
    )  # fmt: skip
    assert killed
    assert result.counts == {TrialState.COMPLETED: 8}
    assert not psutil.wait_procs(proposers(), PATIENCE)[1]  # what was killed may wait for a core to die on


SCRIPT = """
import sys, threading
from maggy_like import Float, LocalEngine, lagom
from optimizers import Optimizer

class Slow(Optimizer):
    def ask(self, index, history):
        if index == 1:
            print("it thinks", flush=True)
            threading.Event().wait()
        return {"x": 0.5}

result = lagom(lambda x: x, {"x": Float(0, 1)}, optimizer=Slow(), n_trials=3, workers=2,
               engine=LocalEngine(isolation="worker"), directory=sys.argv[1], progress="plain")
print("ending", result.ending)
"""


@pytest.mark.parametrize("how", ["ctrl-c", "kill -9"])
def test_a_search_that_ends_while_the_optimizer_thinks_leaves_nothing(tmp_path: Path, how: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert any("it thinks" in line for line in process.stdout)
    children = psutil.Process(process.pid).children(recursive=True)
    assert sum(map(is_proposer, children)) == 1
    if how == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.kill()
    out, _ = process.communicate(timeout=PATIENCE)
    assert not psutil.wait_procs(children, PATIENCE)[1]
    if how == "ctrl-c":
        assert process.returncode == 0
        assert "ending interrupted" in out
        assert "Traceback" not in out


class Blind(Climber):
    """Is blind until there is a result; says of how much it knows, and where."""

    def is_blind(self, history: History) -> bool:
        return not history.observations

    def ask(self, index: int, history: History) -> Any:
        known = {"observed": len(history.observations), "pending": len(history.pending), "pid": os.getpid()}
        return {**(super().ask(index, history) or {}), **known}


def test_what_depends_on_no_result_waits_for_no_process(start: Start) -> None:
    proposer = start(Blind())
    assert proposer._process is None
    told: Any = proposer.ask(0, UPDATES[:1])
    assert told["pid"] == os.getpid()
    process = proposer._process  # it starts once the first trial has its configuration
    told = proposer.ask(1, UPDATES[1:2])
    assert (told["observed"], told["pending"], told["pid"]) == (0, 2, os.getpid())
    assert process is not None
    await_ready(proposer)
    told = proposer.ask(2, UPDATES[2:])
    assert (told["observed"], told["pending"], told["pid"]) == (1, 1, process.pid)  # it is told what came meanwhile
    told = proposer.ask(3, UPDATES[2:])
    assert (told["observed"], told["pending"], told["pid"]) == (2, 1, process.pid)
    process.kill()
    told = proposer.ask(4, ())
    assert (told["observed"], told["pending"]) == (2, 1)  # the next one gets the whole history
    assert told["pid"] not in (os.getpid(), process.pid)


def await_ready(proposer: ProcessProposer) -> None:
    """Wait until the process has loaded its optimizer."""
    assert proposer._connection is not None
    assert proposer._connection.poll(PATIENCE)


class Loading(Blind):
    """Takes long to load its libraries."""

    def __init__(self, gate: str) -> None:
        self.gate = gate

    def load_libraries(self) -> None:
        with open(self.gate):  # once it is open
            pass


def test_workers_get_what_depends_on_no_result_until_the_process_is_ready(start: Start, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    proposer = start(Loading(gate.path))
    proposer.ask(0, UPDATES[:2])
    told: Any = proposer.ask(1, UPDATES[2:])  # there is a result, and nobody who can use it
    assert (told["observed"], told["pending"], told["pid"]) == (0, 2, os.getpid())
    gate.open()
    await_ready(proposer)
    assert proposer._process is not None
    told = proposer.ask(2, ())
    assert (told["observed"], told["pending"], told["pid"]) == (1, 1, proposer._process.pid)


def test_a_tenth_of_a_fixed_number_of_trials_does_not_wait_for_the_process(start: Start, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    proposer = start(Loading(gate.path), n_trials=10)
    proposer.ask(0, UPDATES[:2])
    told: Any = proposer.ask(1, UPDATES[2:])
    assert told["pid"] == os.getpid()
    gate.open()
    told = proposer.ask(2, ())  # it waits, however long that takes
    assert proposer._process is not None
    assert (told["observed"], told["pid"]) == (1, proposer._process.pid)


class Noting(RandomSearch):
    """Notes what is asked of it in this process."""

    noted: list[str] = []  # noqa: RUF012

    def load_libraries(self) -> None:
        self.noted.append("load")
        raise ImportError("no such library")  # which only an answer needs

    def ask(self, index: int, history: History) -> Any:
        self.noted.append("ask")
        return super().ask(index, history)


def test_libraries_are_loaded_while_the_workers_start(tmp_path: Path) -> None:
    lagom(
        fns.square, {"x": Float(0, 1)}, optimizer=Noting(), direction="min", n_trials=1, workers=1, directory=tmp_path
    )
    assert Noting.noted == ["load", "ask"]


def test_a_process_that_dies_before_it_is_ready_is_replaced(start: Start, tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    proposer = start(Loading(gate.path))
    proposer.ask(0, UPDATES[:2])
    process = proposer._process
    assert process is not None
    process.kill()
    process.wait()
    gate.open()
    told: Any = proposer.ask(1, UPDATES[2:])
    assert (told["observed"], told["pending"]) == (1, 1)
    assert told["pid"] not in (os.getpid(), process.pid)


class Counting(Optimizer):
    """Keeps what it has seen, as a model does, and proposes it."""

    def __init__(self, cannot_be_copied: bool = False) -> None:
        self.cannot_be_copied = cannot_be_copied
        self.seen = 0

    def ask(self, index: int, history: History) -> dict[str, Any]:
        self.seen += 1
        return dict.fromkeys(SPACE, self.seen)

    def __deepcopy__(self, memo: dict[int, Any]) -> Counting:
        if self.cannot_be_copied:
            raise TypeError("a lock")
        made = Counting()
        made.seen = self.seen
        return made


@pytest.mark.parametrize("wrap", [lambda it: it, lambda it: ASHA(sampler=it), MedianRule])
def test_one_optimizer_in_two_searches_at_once_is_two(wrap: Callable[[Optimizer], Optimizer]) -> None:
    shared = Counting()
    first = DirectProposer(Study(SPACE, wrap(shared)))
    assert [first.ask(index, ())["pid"] for index in range(3)] == [1, 2, 3]  # type: ignore[index, call-overload]
    second, third = (DirectProposer(Study(SPACE, wrap(shared))) for _ in range(2))
    for proposer in (second, third):
        assert proposer.ask(0, ())["pid"] == 1  # type: ignore[index, call-overload]
    assert first.ask(3, ())["pid"] == 4  # type: ignore[index, call-overload]
    for proposer in (first, second, third):
        proposer.close()


def test_one_optimizer_in_two_searches_one_after_the_other_stays_itself() -> None:
    shared = Counting()
    for count in (1, 2):
        proposer = DirectProposer(Study(SPACE, shared))
        proposer.ask(0, ())
        proposer.close()
        assert shared.seen == count


def test_one_that_cannot_be_copied_is_refused_while_another_search_has_it() -> None:
    shared = Counting(cannot_be_copied=True)
    first = DirectProposer(Study(SPACE, shared))
    with pytest.raises(OptimizerError, match=r"two searches at once, and this Counting cannot be copied .*a lock"):
        DirectProposer(Study(SPACE, shared))
    other = DirectProposer(Study(SPACE, RandomSearch()))
    first.close()
    other.close()
    DirectProposer(Study(SPACE, shared)).close()
