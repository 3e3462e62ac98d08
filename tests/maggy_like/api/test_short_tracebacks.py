"""The traceback of a mistake ends at the caller's line, with one frame of this project at most."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sklearn.svm import SVC

import maggy_like
from maggy_like import (
    ASHA,
    AblationStudy,
    FailurePolicy,
    Float,
    LocalEngine,
    SearchSpace,
    Store,
    ablate,
    lagom,
    run,
    run_script,
)
from maggy_like.errors import EngineError, MaggyError, TrialsFailedError
from maggy_like.sklearn import SearchCV
from optimizers.checks import explains_arguments


def train(x: float) -> float:
    return x


def locked() -> Callable[[float], float]:
    lock = threading.Lock()
    return lambda x: x if lock else 0.0


def fail(x: float) -> float:
    raise ValueError(x)


SPACE = {"x": Float(0, 1)}
MISTAKES: dict[str, Callable[..., Any]] = {
    "a number": lambda: lagom(train, SPACE, n_trials=0),
    "an unknown argument": lambda: lagom(train, SPACE, n_trial=3),  # type: ignore[call-arg]
    "a missing argument": lambda: lagom(train),  # type: ignore[call-arg]
    "an optimizer": lambda: lagom(train, SPACE, optimizer="ashaa"),
    "what cannot be sent": lambda: lagom(locked(), SPACE, engine="local"),
    "workers": lambda: lagom(train, SPACE, workers=5000, engine="local", directory="memory://short"),
    "a function": lambda: run(3),  # type: ignore[arg-type]
    "a study": lambda: ablate(train, 3),  # type: ignore[arg-type]
    "a variant": lambda: AblationStudy(components=3),  # type: ignore[call-arg]
    "a domain": lambda: Float(1, 0),
    "a space": lambda: SearchSpace({"x": object()}),
    "a constraint": lambda: SearchSpace(SPACE, where=3),
    "a script": lambda: run_script("nowhere.py"),
    "an estimator": lambda: SearchCV(SVC(), {"c": [1, 2]}).fit([[0.0], [1.0]], [0, 1]),
    "an option": lambda: ASHA(eta=0),
    "a policy": lambda: FailurePolicy(max_attempts=0),
    "an engine": lambda: LocalEngine(gpu_fraction=3),
    "a store": lambda: Store(keep_checkpoints=0),
    "a run": lambda: maggy_like.load_run("/nowhere"),
    "a directory": lambda: maggy_like.list_runs(3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_one_frame_of_this_project(mistake: str) -> None:
    with pytest.raises((MaggyError, TypeError)) as raised:
        MISTAKES[mistake]()
    below = [frame for frame in traceback.extract_tb(raised.value.__traceback__) if frame.filename != __file__]
    assert len(below) == 1
    cause = raised.value.__cause__
    assert cause is None or not any("maggy_like" in it.filename for it in traceback.extract_tb(cause.__traceback__))


def test_an_error_of_the_caller_s_own_code_keeps_its_traceback() -> None:
    class Own(ASHA):
        def __init__(self) -> None:
            raise maggy_like.errors.ConfigError("mine")

    with pytest.raises(maggy_like.errors.ConfigError, match="mine") as raised:
        lagom(train, SPACE, optimizer=Own)
    assert 'raise maggy_like.errors.ConfigError("mine")' in traceback.extract_tb(raised.value.__traceback__)[-1].line  # type: ignore[operator]


OF_FAILURES: dict[str, Callable[..., Any]] = {
    "the call": lambda **options: lagom(fail, SPACE, **options),
    "the result": lambda **options: lagom(fail, SPACE, block=False, **options).result(),
}


@pytest.mark.parametrize("way", OF_FAILURES)
def test_failed_trials_have_one_frame_of_this_project(tmp_path: Path, way: str) -> None:
    """The text has the traceback of the function."""
    with pytest.raises(TrialsFailedError, match="in fail") as raised:
        OF_FAILURES[way](optimizer="random", n_trials=3, engine="inline", directory=tmp_path, progress=False)
    below = [frame for frame in traceback.extract_tb(raised.value.__traceback__) if frame.filename != __file__]
    assert len(below) == 1


def test_an_error_that_ends_a_search_and_is_no_mistake_keeps_its_traceback() -> None:
    ours: dict[str, Any] = {"__name__": "maggy_like.engines", "EngineError": EngineError}
    exec("def launch():\n    error = EngineError('gone')\n    error.result = None\n    raise error", ours)
    with pytest.raises(EngineError) as raised:
        explains_arguments({})(ours["launch"])()
    assert traceback.extract_tb(raised.value.__traceback__)[-1].name == "launch"
