"""The example of plain distributed code, with each library: started by torchrun, and by ``maggy_like.run``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from torchrun import under_torchrun

EXAMPLE = Path(__file__).parents[2] / "examples" / "data_parallel.py"
LIBRARIES = ["ddp", "fsdp", "accelerate", "fabric"]

EACH = """
import os, runpy, sys
from torch.distributed import TCPStore

is_first = os.environ["RANK"] == "0"
address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
of_torchrun = TCPStore(address, port, is_master=False)
_, path, *libraries = sys.argv
for library in libraries:
    if is_first:
        print("RUNS", library, flush=True)
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        of_torchrun.set(library, str(store.port))
    os.environ["MASTER_PORT"] = of_torchrun.get(library).decode()
    sys.argv[:] = [path, library]
    runpy.run_path(path, run_name="__main__")
"""
"""What each rank of torchrun runs: the example with all libraries, so that each rank imports torch once. Each time
there is a new store, as torchrun makes one for each start."""

COMPLAINT = re.compile(r"warning|^.*\bW\d{4} \d\d:\d\d:", re.IGNORECASE | re.MULTILINE)  # Python's, or torch's log

pytestmark = pytest.mark.example


@pytest.mark.long
def test_the_example_is_plain_code_that_torchrun_starts(tmp_path: Path) -> None:
    each = tmp_path / "each.py"
    each.write_text(EACH)
    done = under_torchrun(each, EXAMPLE, *LIBRARIES)
    assert not COMPLAINT.search(done.stdout + done.stderr)
    _, *shown = re.split(r"^RUNS (.*)$", done.stdout, flags=re.MULTILINE)
    assert shown[::2] == LIBRARIES
    for output in shown[1::2]:
        assert last_accuracy(output) > 0.9


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_example_gives_its_accuracy_when_run_by_maggy_like(library: str, run_program: Any) -> None:
    stdout, stderr = run_program(EXAMPLE, library)
    held_out = re.search(r"^held-out accuracy ([0-9.]+)$", stdout, re.MULTILINE)
    assert held_out is not None, stdout
    assert float(held_out[1]) == last_accuracy(stdout + stderr) > 0.9
    assert not COMPLAINT.search(stdout + stderr)


def last_accuracy(output: str) -> float:
    """What rank 0, and no other, said after each epoch."""
    said = re.findall(r"epoch (\d+): accuracy ([0-9.]+)", output)
    assert [int(epoch) for epoch, _ in said] == list(range(1, len(said) + 1))
    return float(said[-1][1])
