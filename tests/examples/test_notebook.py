"""The quickstart notebook in a real kernel: live output, interrupt, result."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from family import family
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from jupyter_client.provisioning import LocalProvisioner

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOK = EXAMPLES / "quickstart.ipynb"
NOISY = EXAMPLES / "noisy_search.ipynb"

pytestmark = pytest.mark.notebook

LONG_SEARCH = """
def train(lr, reporter):
    import threading
    for step in range(1, reporter.budget + 1):
        print(f"line {step} of lr={lr:.3f}")
        reporter.report(score=lr * step, step=step)
        threading.Event().wait(0.05)

from maggy_like import Float, lagom
result = lagom(train, {"lr": Float(0, 1)}, optimizer="random", n_trials=1000, max_budget=10**6, workers=2,
               engine="local", name="interrupted")
print("ending:", result.ending, "best:", result.best_value)
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    directory = str(tmp_path_factory.mktemp("kernel"))
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=300, cwd=directory)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def output_of(message: dict[str, Any]) -> str:
    """The text that an iopub message puts into the cell."""
    content = message["content"]
    if message["msg_type"] in ("display_data", "update_display_data"):
        return str(content["data"].get("text/html", "")) + str(content["data"].get("text/plain", ""))
    return str(content.get("text", content.get("traceback", "")))


CELLS = (
    """
import logging
logging.basicConfig(level=logging.INFO, format="<%(message)s>")

def train(lr):
    logging.info("logged in a trial")
    if lr < 1:
        raise ValueError("too small")  # the line itself
    return lr
""",
    """
from maggy_like import FailurePolicy, Float, lagom
result = lagom(train, {"lr": Float(0, 2)}, optimizer="random", points_to_evaluate=[{"lr": 0.5}, {"lr": 1.5}],
               n_trials=2, workers=1, engine="local", failures=FailurePolicy(1), progress=False)
print(result.log(1), result.trials[0].failure.traceback)
""",
)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook, and :data:`CELLS` after it, as one kernel has executed them."""
    import nbformat  # which takes seconds, so that only the process does it that runs these tests
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells += [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    resources = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    NotebookClient(notebook, timeout=500, startup_timeout=300, resources=resources).execute()
    return notebook


def test_the_notebook_runs_and_its_logs_stand_in_the_cell(executed: Any) -> None:
    search = next(cell for cell in executed.cells if "lagom(train" in cell.source)
    shown = "".join(str(output.get("data", "")) for output in search.outputs)
    assert "step 1: accuracy" in shown
    assert "trial 17" in shown
    summary = next(cell for cell in executed.cells if cell.source == "result")
    assert "completed after" in str(summary.outputs)
    assert len([output for output in search.outputs if output.output_type == "display_data"]) == 1


def test_a_trial_logs_as_its_notebook_does_and_its_traceback_has_the_cell_s_lines(
    executed: Any,
) -> None:
    (output,) = (output for output in executed.cells[-1].outputs if output.get("name") != "stderr")
    assert "<logged in a trial>" in output.text
    assert 'raise ValueError("too small")  # the line itself' in output.text


def test_lines_are_live_and_an_interrupt_ends_the_run(
    kernel: tuple[KernelManager, BlockingKernelClient],
) -> None:
    manager, client = kernel
    request = client.execute(LONG_SEARCH)
    outputs: list[dict[str, Any]] = []
    interrupted: float | None = None
    while True:
        message = client.get_iopub_msg(timeout=300)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
        outputs.append(message)
        if interrupted is None and "line 5 of lr" in output_of(message):  # the run is live: a million steps a trial
            assert isinstance(manager.provisioner, LocalProvisioner)
            pid = manager.provisioner.pid
            assert pid is not None
            assert any(map(is_alive, family(pid)))
            interrupted = time.monotonic()
            manager.interrupt_kernel()
    assert interrupted is not None
    assert time.monotonic() - interrupted < 60  # seconds on an idle machine; a trial would take half a day
    printed = "".join(output_of(message) for message in outputs if message["msg_type"] == "stream")
    assert "ending: interrupted best: " in printed
    assert "best: None" not in printed
    assert not any(map(is_alive, family(pid)))
    assert {message["msg_type"] for message in outputs} <= {
        "execute_input", "display_data", "update_display_data", "stream", "status"
    }  # fmt: skip


IN_THE_BACKGROUND = """
def train(x, reporter):
    for step in (1, 2):
        print("step", step)
        reporter.report(score=x * step, step=step)

from maggy_like import Float, lagom
handle = lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=3, workers=1, engine="local",
               metric="score", direction="max", block=False)
"""


def test_a_run_in_the_background_is_drawn_in_the_cell_that_began_it(
    kernel: tuple[KernelManager, BlockingKernelClient],
) -> None:
    _, client = kernel
    cell, waits = client.execute(IN_THE_BACKGROUND), client.execute("handle.result(); print('over')")
    shown: list[tuple[str, str]] = []
    while ("stream", "over\n") not in shown:
        message = client.get_iopub_msg(timeout=300)
        kind, parent = message["msg_type"], message["parent_header"].get("msg_id")
        if kind in ("display_data", "update_display_data"):
            assert parent == cell
            shown.append((kind, message["content"]["data"]["text/plain"]))
        elif kind in ("stream", "error"):
            assert parent == waits
            shown.append((kind, output_of(message)))
    assert [kind for kind, _ in shown].count("display_data") == 1
    assert shown[0] == ("display_data", "")
    assert "completed after" in shown[-2][1]


@pytest.mark.long
def test_the_noisy_search_runs_and_its_stored_best_is_not_the_confirmed_one(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOISY, as_version=4)
    stored = said(notebook)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=500, startup_timeout=300, resources=resources).execute()
    for text in (stored, said(notebook)):
        assert "trial  accuracy  95 % interval" in text
        assert len(re.findall(r"^ +\d+ +0\.\d+ +0\.\d+ to ", text, re.MULTILINE)) == 5
        assert "with an estimated accuracy of" in text
    best, confirmed = (
        re.search(pattern, stored)
        for pattern in (r"the best of the search is trial (\d+)", r"accuracy \S+ of trial (\d+) with 5 seeds")
    )
    assert best is not None
    assert confirmed is not None
    assert best[1] != confirmed[1]


def said(notebook: Any) -> str:
    """The text of all outputs of a notebook."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text") or output["data"]["text/plain"] for output in outputs)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it was reaped just now
        return False
