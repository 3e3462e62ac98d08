"""``maggy_like.run``: any function on a gang, with real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import multi_worker_functions as fns
import numpy as np
import psutil
import pytest
from family import family

import maggy_like
from maggy_like import FailurePolicy, Reporter
from maggy_like.errors import ConfigError, TrainingError
from maggy_like.storage.checkpoints import load_state, returned_url
from optimizers.core.events import AttemptEnded, AttemptStarted, Event
from optimizers.core.trial import TrialState

pytestmark = pytest.mark.e2e

WORKERS = 2
BUDGET = 10

FAULTS = {  # what happens to rank 1: how the attempt's end is called
    "raise": ("exception", "rank 1: ValueError: the reason"),
    "exit": ("exit", "rank 1: train_together called sys.exit(3)"),
    "kill": ("signal", "rank 1: the trial's process was killed by SIGKILL"),
    "kill the agent": ("worker_lost", "rank 1: worker 1 on "),
}


class Point:
    """What no plain data are."""

    def __init__(self, x: int) -> None:
        self.x = x


class Unreadable:
    """What can be saved, and not read back."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise ValueError("no more")


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Any]:
    """``run`` on two local workers, quietly; nothing may be left behind."""

    def run(train_fn: Callable[..., Any], config: Any = None, **options: Any) -> Any:
        defaults = {"workers": WORKERS, "engine": "local", "directory": tmp_path / "runs", "progress": False}
        return maggy_like.run(train_fn, config, **{**defaults, **options})

    before = {process.pid for process in family()}
    yield run
    assert not [p for p in family() if p.pid not in before]


# -- what each rank finds --------------------------------------------------------------------------------


def test_each_rank_has_the_environment_of_torchrun(go: Any) -> None:
    answer = go(fns.meet)
    assert answer["sum"] == 3.0
    ports = set()
    for rank, seen in enumerate(answer["environment"]):
        ports.add((seen.pop("MASTER_ADDR"), seen.pop("MASTER_PORT")))
        mine, ours = str(rank), str(WORKERS)
        assert seen == {
            "RANK": mine, "LOCAL_RANK": mine, "ROLE_RANK": mine, "GROUP_RANK": "0",
            "WORLD_SIZE": ours, "LOCAL_WORLD_SIZE": ours, "ROLE_WORLD_SIZE": ours, "GROUP_WORLD_SIZE": "1",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }  # fmt: skip
    ((host, port),) = ports
    assert host == "127.0.0.1"
    assert 1024 <= int(port) < 65536


def test_one_worker_has_it_too(go: Any) -> None:
    answer = go(fns.meet, workers=1)
    assert answer["sum"] == 1.0
    (seen,) = answer["environment"]
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["LOCAL_RANK"]) == ("0", "1", "0")


def train_unevenly(reporter: Reporter) -> dict[str, float]:
    """Rank 0 has one more batch than rank 1."""
    import torch

    model = torch.nn.Linear(3, 1)
    model, optimizer = reporter.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(3 - reporter.rank):
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
    return reporter.average(loss=1.0)


@pytest.mark.long
def test_ranks_that_take_different_numbers_of_steps_are_told_so(go: Any) -> None:
    with pytest.raises(TrainingError, match=r"^rank \d: .*different collective .*did not take the same steps.*loaders"):
        go(train_unevenly)


# -- what comes back ------------------------------------------------------------------------------------


def test_plain_data_come_back_on_the_wire(go: Any, tmp_path: Path) -> None:
    answer = [None, 1.5, [1, "two", {"three": [True]}], b"bytes"]
    assert go(lambda: answer, workers=1, name="plain") == answer


def test_what_came_back_is_safe_before_the_journal_says_that_it_did(go: Any, tmp_path: Path) -> None:
    """A driver that dies right after has lost nothing."""
    found = []

    def look(event: Event) -> None:
        if isinstance(event, AttemptEnded):
            found.append(load_state(returned_url(store)))

    store = (tmp_path / "runs" / "safe" / "checkpoints").as_uri()
    assert go(lambda: [1], workers=1, name="safe", callbacks=[look]) == [1]
    assert found == [[1]]


@pytest.mark.parametrize("answer", [(1, 2), {1: 2}, 1 << 70, {"x": {3}}], ids=repr)
def test_what_would_not_come_back_as_it_was_goes_through_the_store(go: Any, answer: Any) -> None:
    assert go(lambda: answer, workers=1) == answer


def test_objects_come_back_through_the_store(go: Any, tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    answer = go(
        lambda reporter: {"array": np.arange(3) + reporter.rank, "point": Point(4)}, store=store, name="objects"
    )
    assert answer["array"].tolist() == [0, 1, 2]  # rank 0's
    assert answer["point"].x == 4
    assert (tmp_path / "store" / "objects" / "returned.pkl").exists()


def test_what_cannot_be_read_back_is_told(go: Any) -> None:
    with pytest.raises(TrainingError, match=r"the returned value cannot be read from .* \(ValueError: no more\)"):
        go(lambda: Unreadable(), workers=1)


def test_a_store_that_cannot_be_written_is_told_and_the_name_stays_free(go: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = r"the store '.*file/below/first' cannot be written \(NotADirectoryError.*pass another store=URL"
    with pytest.raises(ConfigError, match=message):
        go(lambda: 3, workers=1, name="first", store=tmp_path / "file" / "below")
    assert go(lambda: 3, workers=1, name="first", store=tmp_path / "store") == 3


def test_what_cannot_be_pickled_is_told(go: Any) -> None:
    def returns_a_lock() -> Any:
        import threading

        return threading.Lock()

    events: list[Event] = []
    with pytest.raises(TrainingError, match=r"what the function returned cannot be saved .*pickle '_thread.lock'"):
        go(returns_a_lock, workers=1, callbacks=[events.append])
    assert sum(isinstance(event, AttemptStarted) for event in events) == 1  # it would fail in the same way again


def test_states_and_answers_may_be_of_a_script_s_own_classes(go: Any) -> None:
    @dataclass
    class State:
        step: int

    def count(reporter: Reporter) -> State:
        reporter.checkpoint(State(reporter.attempt))
        restored = reporter.restore()  # on rank 1, perhaps before rank 0 has written it
        assert isinstance(restored, State)
        return restored

    assert go(count) == State(1)


def test_a_run_that_is_over_gives_its_answer_again(go: Any) -> None:
    for answer in ([1, "two"], Point(3)):
        name = type(answer).__name__
        go(lambda answer=answer: answer, workers=1, name=name)
        again = go(lambda: 1 / 0, workers=1, name=name, resume=True)
        assert getattr(again, "x", again) == getattr(answer, "x", answer)


# -- what goes in --------------------------------------------------------------------------------------------


def test_numbers_of_numpy_are_plain_ones(go: Any) -> None:
    given = {"n": np.int64(3), "x": np.float32(0.5), "on": np.bool_(True)}
    assert go(lambda n, x, on: repr((n, x, on)), given, workers=1) == "(3, 0.5, True)"


def test_parameters_are_filled_by_name(go: Any) -> None:
    def show(lr: float, kind: str, on: bool, nothing: None, config: dict[str, Any], budget: int, reporter: Reporter,
             more: Any = 1) -> list[Any]:  # fmt: skip
        return [lr, kind, on, nothing, config, budget, reporter.budget, reporter.world_size, more]

    config = {"lr": 0.5, "kind": "x", "on": True, "nothing": None}
    assert go(show, config, budget=7) == [0.5, "x", True, None, config, 7, 7, 2, 1]


def test_other_objects_go_in_by_partial(go: Any) -> None:
    def total(data: Any, reporter: Reporter) -> float:
        return float(data.sum())

    assert go(partial(total, np.arange(4)), workers=1) == 6.0


# -- one process -----------------------------------------------------------------------------------------


def test_one_worker_may_run_in_this_process(go: Any) -> None:
    before = dict(os.environ)
    here: list[int] = []

    def note(reporter: Reporter) -> dict[str, int]:
        here.append(reporter.world_size)
        return {"pid": os.getpid()}

    assert go(note, workers=1, engine="inline") == {"pid": os.getpid()}
    assert dict(os.environ) == before


def test_a_run_without_a_budget_shows_no_number_of_steps(go: Any, tmp_path: Path) -> None:
    go(lambda reporter: 1, workers=1, engine="inline", directory=tmp_path, name="run")
    result = maggy_like.load_run(tmp_path / "run")
    log = "\n".join(result.decision_log())
    assert "trial 0 is created: the training\n" in log
    assert "attempt 1 starts on worker 0\n" in log
    result.report(tmp_path / "report.html")
    assert "steps of a full training" not in (tmp_path / "report.html").read_text()


# -- faults ----------------------------------------------------------------------------------------------


def train(go: Any, directory: Path, fault: str, rank: int = 1, **options: Any) -> tuple[list[float], list[Event]]:
    directory.mkdir()
    events: list[Event] = []
    config = {"directory": str(directory), "fault": fault, "rank": rank}
    return go(fns.train_together, config, budget=BUDGET, callbacks=[events.append], **options), events


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The weights of a training that nothing happened to."""
    directory = tmp_path_factory.mktemp("undisturbed")
    config = {"directory": str(directory), "fault": "", "rank": 0}
    answer = maggy_like.run(fns.train_together, config, workers=WORKERS, budget=BUDGET, engine="local",
                            directory=directory, progress=False)  # fmt: skip
    assert isinstance(answer, list)
    return answer


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=pytest.mark.long if fault in ("exit", "kill") else []) for fault in FAULTS]
)
def test_a_rank_that_fails_ends_the_attempt_for_all_and_the_next_goes_on_as_if_nothing_had_been(
    go: Any, tmp_path: Path, undisturbed: list[float], fault: str
) -> None:
    weights, events = train(go, tmp_path / "marks", fault, name="run")
    assert weights == undisturbed  # bit for bit
    lost, final = (event for event in events if isinstance(event, AttemptEnded))
    assert lost.failure is not None
    assert (lost.state, final.state) == (TrialState.PENDING, TrialState.COMPLETED)
    kind, message = FAULTS[fault]
    assert lost.failure.kind == kind
    assert lost.failure.message.startswith(message)
    assert [event.world_size for event in events if isinstance(event, AttemptStarted)] == [WORKERS, WORKERS]
    for rank in range(WORKERS):
        log = (tmp_path / "runs" / "run" / "logs" / ("00000.log" if rank == 0 else f"00000-{rank}.log")).read_text()
        *first, again = re.findall(r"from step (\d+) on 2", log)
        if fault != "kill the agent" or rank == 0:  # who is killed may not have read what was printed just before
            assert first == ["0"]
        assert int(again) in (BUDGET // 2 - 1, BUDGET // 2)  # rank 0 may have been killed as it saved


def test_a_fault_of_rank_0_is_told_as_its_own(go: Any, tmp_path: Path, undisturbed: list[float]) -> None:
    weights, events = train(go, tmp_path / "marks", "raise", rank=0)
    assert weights == undisturbed
    assert [e.failure.message for e in events if isinstance(e, AttemptEnded) and e.failure] == [
        "rank 0: ValueError: the reason"
    ]


def test_a_function_that_fails_for_good_raises_with_the_traceback_of_the_first_rank(go: Any) -> None:
    def fail(reporter: Reporter) -> None:
        import torch
        from torch import distributed as dist

        dist.init_process_group("gloo")
        if reporter.rank == 1:
            raise ValueError("the reason")
        dist.all_reduce(torch.ones(1))

    with pytest.raises(TrainingError, match=r"(?s)rank 1: ValueError: the reason.*in fail\n.*raise ValueError") as told:
        go(fail, name="run")
    assert "attempt 2, just as the one before" in str(told.value)
    assert any("logs of all ranks" in note for note in told.value.__notes__)


def test_the_traceback_of_a_function_that_fails_is_shown_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ValueError("the reason")

    with pytest.raises(TrainingError) as told:
        maggy_like.run(fail, engine="inline", directory=tmp_path, progress="plain")
    shown = capsys.readouterr()
    assert "failed: ValueError: the reason" in shown.out
    assert f"{shown}{told.value}".count("Traceback (most recent call last)") == 1


def test_a_rank_that_returns_before_the_others_is_named(go: Any) -> None:
    def leave_early(reporter: Reporter) -> None:
        reporter.average(x=0.0)
        if reporter.rank == 0:
            reporter.average(x=1.0)

    with pytest.raises(TrainingError, match=r"rank 0: .*rank 1 returned after fewer calls than the 2 of rank 0"):
        go(leave_early, failures=FailurePolicy(1))


# -- Ctrl-C ----------------------------------------------------------------------------------------------

INTERRUPTED = """
import sys, threading
import maggy_like

def wait(reporter):
    print("rank", reporter.rank, "waits", flush=True)
    threading.Event().wait()

try:
    maggy_like.run(wait, workers=2, engine="local", directory=sys.argv[1], progress="plain")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_is_raised_once_all_workers_have_left(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(INTERRUPTED)
    process = subprocess.Popen([sys.executable, str(tmp_path / "script.py"), str(tmp_path / "runs")],
                               stdout=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    assert process.stdout is not None
    waiting = 0
    while waiting < WORKERS:
        line = process.stdout.readline()
        assert line, "it ended early"
        waiting += " waits" in line
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=300)
    assert out.endswith("interrupted\n")
    assert process.returncode == 0
    assert not psutil.wait_procs(family, timeout=300)[1]
