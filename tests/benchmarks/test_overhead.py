"""The CPU time of a command is that of all processes that it has started, waited for or not."""

from __future__ import annotations

import sys

import pytest

BURN = "import time\nwhile time.process_time() < 0.4: pass\n"

WAITED_FOR = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}])"

LEFT_BEHIND = f"""
import subprocess, sys
burning = subprocess.Popen([sys.executable, "-c", {BURN + "print(flush=True); input()"!r}], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, start_new_session=True)
burning.stdout.readline()
"""


@pytest.mark.parametrize("code", [WAITED_FOR, LEFT_BEHIND])
def test_all_processes_of_a_command_count(code: str) -> None:
    from benchmarks.overhead import accounted

    assert accounted([sys.executable, "-c", code]) >= 0.4


def test_a_command_that_fails_is_told() -> None:
    from benchmarks.overhead import accounted

    with pytest.raises(RuntimeError, match="no such thing"):
        accounted([sys.executable, "-c", "raise SystemExit('no such thing')"])
