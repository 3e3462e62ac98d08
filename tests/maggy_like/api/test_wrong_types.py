"""What the public functions are wrongly given is an error that names the argument, before anything starts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from maggy_like import ASHA, Float, LocalEngine, RandomSearch, lagom, run, simulate
from maggy_like.errors import UserError
from optimizers import Study

SPACE = {"x": Float(0, 1)}


def train(x: float) -> float:
    return x


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resume": "yes", "name": "august"}, "resume must be True or False, got 'yes'; use resume=True to continue"),
        ({"resume": None}, "resume must be True or False, got None"),
        ({"resume": 1, "name": "august"}, "resume must be True or False, got 1"),
        ({"progress": []}, r"progress must be True, False or one of 'notebook', .*, got \[\]; use True"),
        ({"progress": None}, "progress must be True, False or one of .*, got None"),
        ({"n_trials": 10**400}, r"n_trials must be a whole number below 2\*\*63, got 1000"),
        ({"max_budget": 2**64}, r"max_budget must be a whole number below 2\*\*63, got 18446"),
        ({"workers": 10**5000}, r"workers must be a whole number below 2\*\*63, got a value of type int"),
        ({"timeout": 10**400}, "timeout must be a positive number of seconds, got 1000"),
        ({"target": 10**400}, "target must be a finite number, got 1000"),
        ({"direction": "x" * 10_000}, r"direction must be one of .*, got 'x{70,80}\.\.\."),
    ],
)
def test_nothing_starts_with_nonsense(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        lagom(train, SPACE, engine="inline", directory=tmp_path, **{"progress": False, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_seed_may_be_as_large_as_those_of_numpy(tmp_path: Path) -> None:
    seed = 2**100
    lagom(train, SPACE, optimizer="random", n_trials=1, seed=seed, engine="inline", directory=tmp_path, progress=False)
    assert Study(SPACE, RandomSearch(), seed=seed).ask() is not None


def test_run_is_resumed_or_not(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="resume must be True or False, got 'no'"):
        run(train, {"x": 0.5}, name="august", resume="no", engine="local", directory=tmp_path)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        (2, r"gpus must be a list of addresses, got 2; use gpus=\['0', '1'\]"),
        ("01", "gpus must be a list of addresses, got '01'"),
        ([0, 1], "gpus must contain addresses as text, got 0"),
    ],
)
def test_addresses_of_gpus_are_texts(gpus: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        LocalEngine(gpus)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"study": 3}, "study must be a Study, got 3"),
        ({"objective": 3}, "objective must be a function of a configuration and a step, got 3"),
        ({"workers": 0}, "workers must be a whole number of at least 1, got 0"),
        ({"horizon": "long"}, "horizon must be a positive number of seconds, got 'long'"),
        ({"on_event": 3}, "on_event must be a function of the time and a number, got 3"),
    ],
)
def test_a_simulation_takes_no_nonsense(wrong: dict[str, Any], message: str) -> None:
    given = {
        "study": Study(SPACE, ASHA(), n_trials=2),
        "objective": lambda config, step: (config["x"], 1.0),
        "workers": 1,
        **wrong,
    }
    with pytest.raises(UserError, match=message):
        simulate(given.pop("study"), given.pop("objective"), **given)


def test_a_handle_and_a_result_take_no_nonsense(tmp_path: Path) -> None:
    handle = lagom(
        train, SPACE, optimizer="random", n_trials=1, engine="local", workers=1, directory=tmp_path, progress=False,
        block=False,
    )  # fmt: skip
    result = handle.result()
    for wrong in (
        lambda: handle.tail("first"),  # type: ignore[arg-type]
        lambda: handle.tail(lines="all"),  # type: ignore[arg-type]
        lambda: handle.tail(lines=0),
        lambda: handle.result("long"),  # type: ignore[arg-type]
        lambda: result.log("first"),
        lambda: result.log(0, rank=-1),
    ):
        with pytest.raises(UserError, match=r"(trial|lines|timeout|rank) must be a"):
            wrong()


@pytest.mark.parametrize("direction", ["max", "min"])
def test_what_is_not_finite_comes_last_in_the_cell(direction: str, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    values = iter([math.inf, 0.25, -math.inf, 0.75, math.nan])
    result = lagom(
        lambda x: next(values), SPACE, optimizer="random", n_trials=5, direction=direction, engine="inline",
        directory=tmp_path, progress=False,
    )  # fmt: skip
    table = result._repr_html_().partition("<table")[2]
    finite = [table.index("0.75"), table.index("0.25")]
    assert finite == sorted(finite, reverse=direction == "min")
    assert max(finite) < min(table.index(">inf<"), table.index(">-inf<"))
