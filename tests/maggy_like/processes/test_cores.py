"""A process's cores: its share is where libraries look for it, a user's setting counts, and excess is noticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.processes.cores import OPENMP, VARIABLES, Overload, share_of, times_of

CORES = st.integers(1, 512)


@given(CORES, st.sets(st.sampled_from(VARIABLES)))
def test_variables_that_the_user_has_set_are_left_out(cores: int, own: set[str]) -> None:
    share = share_of(cores, dict.fromkeys(own, "3"))
    expected = dict.fromkeys(set(VARIABLES) - own, str(cores)) | dict.fromkeys(own & {OPENMP}, "3")
    assert share == expected


def test_threads_that_differ_by_level_are_left_to_the_runtime() -> None:
    assert OPENMP not in share_of(2, {OPENMP: "4,2"})


SEEN = """
import json, os, sys
from maggy_like.processes.cores import show_share, use_share
from maggy_like.processes.zygote.client import BEFORE_IMPORTS
share = json.loads(sys.argv[1])
os.environ |= BEFORE_IMPORTS
show_share(share)
import joblib, lightgbm, multiprocessing, numpy, pyarrow, scipy.linalg, sklearn.ensemble, torch
from threadpoolctl import threadpool_info
if "set_by_user" in sys.argv:
    torch.set_num_threads(3)
at_import = len(os.listdir("/proc/self/task"))
use_share(share)
print(json.dumps({
    "at import": at_import,
    "os": os.cpu_count(),
    "multiprocessing": multiprocessing.cpu_count(),
    "joblib": joblib.cpu_count(),
    "physical cores of joblib": joblib.cpu_count(only_physical_cores=True),
    "lightgbm": lightgbm.LGBMClassifier()._process_n_jobs(None),
    "torch": torch.get_num_threads(),
    "arrow": pyarrow.cpu_count(),
    "pools": sorted({each["num_threads"] for each in threadpool_info()}),
    "polars": os.environ.get("POLARS_MAX_THREADS"),
}))
"""


def seen(share: Mapping[str, str], *words: str) -> dict[str, object]:
    """What libraries see in a fresh process with a share."""
    own = (*VARIABLES, "BLIS_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", SEEN, json.dumps(share), *words], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.e2e
def test_libraries_see_a_share_of_one_core() -> None:
    found = seen(share_of(1, {}))
    assert found == dict.fromkeys(found, 1) | {"pools": [1], "polars": "1"}


@pytest.mark.long
@pytest.mark.e2e
def test_libraries_that_were_imported_with_one_thread_get_the_others() -> None:
    found = seen(share_of(2, {}))
    of_joblib = {found.pop(name) for name in ("joblib", "physical cores of joblib", "lightgbm")}
    assert of_joblib == {min(2, len(os.sched_getaffinity(0)))}  # it does not take more than there are
    assert found == dict.fromkeys(found, 2) | {"at import": 1, "pools": [2], "polars": "2"}


@pytest.mark.long
@pytest.mark.e2e
def test_a_number_of_threads_that_the_user_set_stays() -> None:
    assert seen(share_of(2, {}), "set_by_user")["torch"] == 3
    assert seen(share_of(2, {OPENMP: "1"}))["pools"] == [1]


# -- threads beyond the share -------------------------------------------------------------------


def numbers(cores: int, threads: int, *, waiting: float, checks: int = 6) -> list[float | None]:
    """What checks find if so many threads are always running or waiting, for such a share of the time."""
    each = (int(1e9 * (1 - waiting)), int(1e9 * waiting))
    now = 0  # in seconds

    def times(process: int) -> dict[str, tuple[int, int]]:
        return {str(thread): (now * each[0], now * each[1]) for thread in range(threads)}

    overload = Overload(cores, times)
    return [overload.check(1, float(now := second)) for second in range(1, checks + 1)]


def test_too_many_threads_are_found_after_some_checks() -> None:
    assert numbers(1, 4, waiting=0.5) == [None, None, None, pytest.approx(4), pytest.approx(4), pytest.approx(4)]


@pytest.mark.parametrize(
    ("cores", "threads", "waiting"),
    [
        (1, 1, 0.9),  # other processes hold it up
        (4, 4, 0.5),
        (1, 4, 0.0),  # the other cores are idle
        (4, 5, 0.5),  # one that loads data
    ],
)
def test_other_threads_are_not(cores: int, threads: int, waiting: float) -> None:
    assert numbers(cores, threads, waiting=waiting) == [None] * 6


@pytest.mark.slow
def test_the_kernel_counts_the_time_of_threads_and_of_child_processes() -> None:
    script = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = times_of(os.getpid())
        child.communicate(b"\n")
    assert found[str(child.pid)][0] >= 0.15e9
    assert str(os.getpid()) in found
    before, began = found[str(os.getpid())][0], time.process_time()
    while time.process_time() - began < 0.1:
        pass
    assert times_of(os.getpid())[str(os.getpid())][0] > before
