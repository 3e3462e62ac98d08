"""The hand-off: after a search the whole gang trains the best configuration, with real processes."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import multi_worker_functions as fns
import psutil
import pytest
from family import family

from maggy_like import FailurePolicy, Float, Result, lagom
from maggy_like.driver.loop import Driver
from maggy_like.errors import ConfigError, TrainingError, UserError
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, TrialCreated
from optimizers.core.trial import TrialState
from optimizers.schedulers.asha import ASHA

pytestmark = pytest.mark.e2e


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Any]:
    """lagom and then the training, on two local workers; nothing may be left behind."""
    (tmp_path / "seen").mkdir()

    def run(train_fn: Any = fns.climb_together, **options: Any) -> Result:
        defaults = {"engine": "local", "workers": 2, "directory": tmp_path / "runs", "progress": False,
                    "max_budget": 4, "n_trials": 3, "optimizer": "random", "train_best": True}  # fmt: skip
        return lagom(train_fn, {"directory": str(tmp_path / "seen"), "x": Float(0, 1)}, **{**defaults, **options})

    before = {process.pid for process in family()}
    yield run
    assert not [p for p in family() if p.pid not in before]


def test_the_best_configuration_is_trained_on_the_gang_of_the_search(search: Any) -> None:
    events: list[Event] = []
    result = search(train_best=7, callbacks=[events.append])
    assert result.counts == {TrialState.COMPLETED: 3}
    assert [trial.id for trial in result.trials] == [0, 1, 2]
    assert result.best_config is not None
    training = result.training
    assert training is not None
    assert training.trial.id == 3
    assert training.trial.config == result.best_config
    assert (training.world_size, training.trial.state, training.trial.step) == (2, TrialState.COMPLETED, 7)
    assert training.value == pytest.approx(7 * result.best_config["x"])
    assert result.best_value == pytest.approx(4 * result.best_config["x"])
    assert training.load() == {"step": 7}
    assert training.load(best=True) == {"step": 7}
    assert training.checkpoint == training.best_checkpoint
    assert training.seconds_per_step is not None
    assert training.seconds_per_step > 0
    assert "hello of rank 1\n" in result.log(3, rank=1)
    assert "hello of rank 0\n" in result.log(3)
    assert "trained on 2 workers, 7 steps" in repr(result)
    created = [event for event in events if isinstance(event, TrialCreated)]
    assert [event.training for event in created] == [0, 0, 0, 7]
    assert list(result.to_pandas()["trial"]) == [0, 1, 2]


def test_a_time_limit_ends_the_search_and_not_the_training(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[Event] = []
    monkeypatch.setattr(Driver, "elapsed", lambda _: 1e6 if ended else 0.0)

    def note(event: Event) -> None:
        if isinstance(event, AttemptEnded):
            ended.append(event)

    result = search(n_trials=None, timeout=1e5, callbacks=[note])
    assert result.ending == "timeout"
    assert result.training is not None
    assert result.training.trial.state is TrialState.COMPLETED
    assert result.training.trial.config == result.best_config


def test_a_result_can_be_trained_later(search: Any, tmp_path: Path) -> None:
    result = search(train_best=False, name="search")
    assert result.training is None
    training = result.train(workers=2, budget=5, progress=False)
    assert (training.world_size, training.trial.step) == (2, 5)
    assert training.trial.config == result.best_config
    assert training.load() == {"step": 5}
    assert training.directory.parent == result.directory.parent
    assert training.directory.name.startswith("search-train-")
    again = result.train(workers=2, budget=5, name=training.directory.name, resume=True, progress=False)
    assert again.trial == training.trial  # it was over
    with pytest.raises(UserError, match=r"run 'search-train-.*' was started with 5 steps of .*, not 6 of"):
        result.train(workers=2, budget=6, name=training.directory.name, resume=True, progress=False)
    with pytest.raises(UserError, match=r"use name=training\.name"):
        result.train(resume=True, progress=False)
    with pytest.raises(UserError, match="there is a run named 'search' in"):
        result.train(name="search", progress=False)
    with pytest.raises(UserError, match="min_workers=3 is more than workers=2"):
        result.train(failures=FailurePolicy(min_workers=3), progress=False)


@pytest.mark.long
def test_runs_that_share_a_store_do_not_meet_in_it(
    search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = search(store="states", n_trials=1, name="first")  # relative to here, not to where the workers are
    second = search(store=(tmp_path / "states").as_uri(), n_trials=1, name="second", max_budget=2)
    later = second.train(workers=2, budget=5, name="later", progress=False)
    assert [training.load() for training in (first.training, second.training, later)] == [
        {"step": 4}, {"step": 2}, {"step": 5},
    ]  # fmt: skip
    assert sorted(directory.name for directory in (tmp_path / "states").iterdir()) == ["first", "later", "second"]


@pytest.mark.long
def test_runs_of_one_name_do_not_meet_in_a_store_they_share(search: Any, tmp_path: Path) -> None:
    first = search(store=tmp_path / "states", n_trials=1, name="same")
    with pytest.raises(ConfigError, match=r"checkpoints of a run named 'same' in .*states/same already"):
        search(store=tmp_path / "states", n_trials=1, name="same", directory=tmp_path / "elsewhere")
    assert first.training.load() == {"step": 4}


def test_a_result_that_travelled_has_all_but_its_function(search: Any) -> None:
    result = search()
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert again.training.load() == {"step": 4}
    with pytest.raises(UserError, match="do not have the training function; use"):
        again.train()


def fail_when_wide(directory: str, x: float, reporter: Any) -> float:
    if reporter.world_size > 1:
        raise ValueError("too wide")
    return x


def test_a_training_that_fails_raises_its_error_which_has_the_search_s_result(search: Any) -> None:
    with pytest.raises(TrainingError, match=r"ValueError: too wide \(attempt 2, just as the one before\)") as caught:
        search(fail_when_wide)
    assert [note.partition(" in /")[0] for note in caught.value.__notes__] == [
        "logs of all ranks are",
        "error.result is the result of the search; use resume=True to continue the training",
    ]
    result = caught.value.result
    assert result is not None
    assert result.counts == {TrialState.COMPLETED: 3}
    training = result.training
    assert training.trial.state is TrialState.FAILED
    assert training.checkpoint is None
    with pytest.raises(UserError, match="the training has no checkpoint"):
        training.load()
    assert "the training failed: rank " in repr(result)
    with pytest.raises(TrainingError, match="too wide"):
        result.train(workers=2, progress=False)


def test_a_training_that_failed_is_resumed_from_its_last_state(search: Any, tmp_path: Path) -> None:
    def climb_to_the_hole(directory: str, x: float, reporter: Any) -> float:
        start = reporter.restore() or 0
        for step in range(start + 1, reporter.budget + 1):
            if step == 3 and reporter.world_size > 1 and not Path(directory, "mended").exists():
                raise OSError(28, "No space left on device")
            reporter.checkpoint(step)
            reporter.report(score=x * step, step=step)
        return start

    options: dict[str, Any] = {"name": "run", "metric": "score"}
    with pytest.raises(TrainingError, match="No space left") as caught:
        search(climb_to_the_hole, **options)
    assert caught.value.result is not None
    assert caught.value.result.training.load() == 2
    (tmp_path / "seen" / "mended").touch()
    result = search(climb_to_the_hole, **options, resume=True)
    assert len(result.trials) == 3
    assert (result.training.trial.state, result.training.trial.start) == (TrialState.COMPLETED, 2)
    assert (result.training.trial.step, result.training.load()) == (4, 4)


SCRIPT = """
import sys, threading
from maggy_like import Float, lagom
from maggy_like.driver import supervisor as watch
from optimizers.core.events import CheckpointSaved

watch.LEAVE_PATIENCE = 60.0  # the machine may be busy: what is cut off shall be told as such

def train(x, reporter):
    if reporter.world_size == 1:
        return x
    start = reporter.restore() or 0
    for step in range(start + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)
        if step == 3 and {hang}:
            print("rank", reporter.rank, "is half done", flush=True)
            threading.Event().wait()
    print("went on from", start, flush=True)

def tell(event):
    if isinstance(event, CheckpointSaved) and event.step == 3:
        print("the journal has it", flush=True)

result = lagom(train, {{"x": Float(0, 1)}}, metric="score", optimizer="random", n_trials=3, workers=2, engine="local",
               max_budget=6, train_best=True, name="run", directory=sys.argv[1], progress="plain",
               resume=len(sys.argv) > 2, callbacks=[tell])
trial = result.training.trial
print("ending", result.ending, "trials", len(result.trials), "training", trial.state.value, trial.step, trial.losses)
"""


def half_done(directory: Path) -> subprocess.Popen[str]:
    """The script, once both ranks stand in the midst of the training, and what they saved stands in the journal."""
    (directory / "script.py").write_text(SCRIPT.format(hang=True))
    process = subprocess.Popen([sys.executable, str(directory / "script.py"), str(directory)],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True)  # fmt: skip
    assert process.stdout is not None
    reached, seen = 0, []
    while reached < 3:
        seen.append(process.stdout.readline())
        assert seen[-1], "".join(seen)
        reached += "is half done" in seen[-1] or "the journal has it" in seen[-1]
    return process


def test_ctrl_c_during_the_training_gives_the_result_so_far_and_leaves_nothing(tmp_path: Path) -> None:
    process = half_done(tmp_path)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 6  # two agents, two fork servers, two ranks
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=100)
    assert "ending interrupted trials 3 training pending 3 0" in out
    assert "Traceback" not in out
    assert not psutil.wait_procs(family, timeout=300)[1]


def test_a_driver_killed_during_the_training_takes_its_workers_along_and_resume_goes_on(tmp_path: Path) -> None:
    process = half_done(tmp_path)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=300)
    assert not psutil.wait_procs(family, timeout=300)[1]
    (tmp_path / "again.py").write_text(SCRIPT.format(hang=False))
    again = subprocess.run([sys.executable, str(tmp_path / "again.py"), str(tmp_path), "resume"],
                           capture_output=True, text=True, timeout=60, check=True)  # fmt: skip
    assert "ending completed trials 3 training completed 6 0" in again.stdout
    assert again.stdout.count("went on from 3") == 2
    assert "went on from 0" not in again.stdout


def test_no_event_is_doubled_by_the_hand_off(search: Any) -> None:
    events: list[Event] = []
    search(callbacks=[events.append], optimizer=ASHA(min_budget=1), n_trials=4)
    started = [(event.trial, event.attempt) for event in events if isinstance(event, AttemptStarted)]
    ended = [(event.trial, event.attempt) for event in events if isinstance(event, AttemptEnded)]
    assert len(started) == len(set(started))
    assert sorted(started) == sorted(ended)


WITHOUT_TORCH = """
from maggy_like import Float, lagom, run

def train(x):
    return x

search = {"optimizer": "random", "metric": "score", "direction": "max", "n_trials": 1, "workers": 1}
result = lagom(train, {"x": Float(0.5, 1.5)}, train_best=True, **search)
print(result.training.value == result.train(workers=1).value == run(train, result.best_config, workers=1))
"""


def test_one_worker_trains_without_torch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['torch'] = None")  # in each process
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.stdout.split()[-1:] == ["True"], done.stderr
