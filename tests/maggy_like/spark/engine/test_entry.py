"""The function that Spark carries to a task says itself what its machine lacks."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from maggy_like.errors import EngineError
from maggy_like.protocol.messages import own_versions
from maggy_like.spark.engine.job import unfit_worker
from maggy_like.spark.engine.task import Sent, check_gpus, entry

RUN = """
import pickle, sys
{first}
function = pickle.load(sys.stdin.buffer)
try:
    print(list(function(iter([1, 2]))))
except ImportError as error:
    print(error)
"""


def run_elsewhere(first: str) -> str:
    """What comes of the function in another process, where something was done first."""

    def member(batches: Iterator[Any]) -> Iterator[Any]:
        import maggy_like.worker.agent.agent  # noqa: F401

        yield from batches

    code = RUN.format(first=first)
    sent = cloudpickle.dumps(entry(member))
    ran = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True)
    return (ran.stdout + ran.stderr).decode()


def test_it_runs_where_all_is_there() -> None:
    assert run_elsewhere("") == "[1, 2]\n"


def test_what_a_machine_lacks_is_named_with_the_machine_and_its_python() -> None:
    said = run_elsewhere("sys.modules['maggy_like'] = None")
    assert said.startswith(f"{sys.executable} on {socket.gethostname()} cannot serve this search: ModuleNotFoundError")
    assert "it looks for modules in " in said
    assert "--py-files" in said
    assert unfit_worker(f"ImportError: {said}") == ""  # another launch would end so too, and all is said


def test_another_maggy_like_there_is_told_with_both_versions_before_it_reads_the_task(tmp_path: Path) -> None:
    (tmp_path / "maggy_like").mkdir()
    (tmp_path / "maggy_like" / "__init__.py").write_text("__version__ = '0.0.9'\n")
    said = run_elsewhere(f"sys.path.insert(0, {str(tmp_path)!r})")
    own = own_versions()
    assert f"the driver has maggy_like {own.package} ({own.home}) and the worker 0.0.9 ({tmp_path}" in said


def test_a_library_that_does_not_fit_there_is_told_with_the_setting() -> None:
    cause = "ImportError: /a.so: failed to map segment from shared object"
    assert "raise spark.executor.pyspark.memory" in (unfit_worker(cause) or "")
    assert unfit_worker("OSError: [Errno 12] Cannot allocate memory") is None  # of a fork, say: it may pass


def test_a_function_that_is_sent_arrives_as_itself_or_says_what_the_machine_lacks() -> None:
    def doubled(batches: Iterator[int]) -> list[int]:
        import maggy_like.worker.agent.agent  # noqa: F401

        return [2 * number for number in batches]

    sent = Sent(doubled, "cannot compute predictions")
    assert sent(iter([1])) == [2]
    assert type(cloudpickle.loads(cloudpickle.dumps(sent))) is type(doubled)

    code = "import pickle, sys\nsys.modules['maggy_like'] = None\npickle.load(sys.stdin.buffer)"
    ran = subprocess.run([sys.executable, "-c", code], input=cloudpickle.dumps(sent), capture_output=True)
    last = ran.stderr.decode().splitlines()[-1]
    assert f"{sys.executable} on {socket.gethostname()} cannot compute predictions: ModuleNotFoundError" in last
    assert f"set PYSPARK_PYTHON to a Python that has it (the driver runs {sys.executable})" in last


LISTED = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5a1e0c0e-0000)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-77b2ac11-0000)
  MIG 1g.10gb     Device  0: (UUID: MIG-9f00-1)
"""


@pytest.mark.parametrize("given", [("0",), ("0", "1"), ("GPU-77b2ac11-0000",), ("GPU-77b2",), ("MIG-9f00-1",), ()])
def test_gpus_of_this_machine_pass(given: tuple[str, ...]) -> None:
    check_gpus(given, LISTED)


def test_a_machine_that_lists_none_may_have_made_up_ones() -> None:
    check_gpus(("7",), "")


@pytest.mark.parametrize("wrong", ["2", "10", "GPU-6", "MIG-9f00-2"])
def test_a_gpu_that_the_trial_would_not_see_ends_the_search_with_the_script_to_correct(wrong: str) -> None:
    with pytest.raises(EngineError, match=rf"gave a task GPU {wrong}, and nvidia-smi lists 0, 1, .*script") as error:
        check_gpus(("0", wrong), LISTED)
    assert unfit_worker(str(error.value)) == ""  # another launch would end in the same way
