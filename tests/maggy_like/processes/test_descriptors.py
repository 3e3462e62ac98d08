"""Which descriptors a process has, and that others can be closed where the system tells nothing of them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, os, resource, sys

from maggy_like.processes import resources

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
low, high = os.pipe()
kept = [os.dup2(low, 200), 1, 2]
if {hidden}:
    def refuse(path):
        raise FileNotFoundError
    os.listdir, listdir = refuse, os.listdir
resources.close_all_but(kept)

def is_open(fd):
    try:
        return bool(os.fstat(fd))
    except OSError:
        return False

print(json.dumps([[fd for fd in range(256) if is_open(fd)], len(resources.open_descriptors())]))
"""


@pytest.mark.parametrize("hidden", [False, True])
def test_all_but_some_are_closed(hidden: bool) -> None:
    code = SCRIPT.format(hidden=hidden)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    left, known = json.loads(done.stdout)
    assert left == [1, 2, 200]
    assert known == (0 if hidden else 4)  # that of the listing among them
