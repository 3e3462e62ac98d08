"""Which code can be run once before a fork, in place of once in each fork."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHARED = [
    "import numpy; table = numpy.ones((100, 100))",
    "import numpy; numpy.random.random()",
    "import torch; weights = torch.nn.Linear(3, 3)",
    "import sklearn.ensemble, pandas",
    "import tempfile, pathlib; pathlib.Path(tempfile.gettempdir()).exists()",
    "open(__file__).close()",
    "import threading; thread = threading.Thread(target=str); thread.start(); thread.join()",
]
NOT_SHARED = {
    "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()": "starts a thread",
    "import subprocess as s; it = s.Popen(['cat'], stdin=s.PIPE)": "starts a process",
    "log = open(__file__)": "opens a file or a connection",
    "import sqlite3; database = sqlite3.connect('here.db')": "opens a file or a connection",
    "import socket; server = socket.socket()": "opens a file or a connection",
    "import logging; logging.basicConfig(filename='here.log')": "opens a file or a connection",
    "import random; random.setstate(random.getstate())": "seeds the random numbers",
    "import atexit; atexit.register(print, 'bye')": "registers a function to be called at exit",
    "import tempfile; folder = tempfile.TemporaryDirectory()": "registers a function to be called at exit",
    "import random; random.seed(0)": "seeds the random numbers",
    "import numpy; numpy.random.seed(0)": "seeds the random numbers",
    "import torch; torch.manual_seed(0)": "seeds the random numbers",
    "import random; rng = random.Random()": "creates a random number generator",
    "import numpy; rng = numpy.random.default_rng()": "creates a random number generator",
    "import torch; rng = torch.Generator()": "creates a random number generator",
}

SCRIPT = """
import os, sys
from maggy_like.processes.fork_safety import SharingCheck
check = SharingCheck()
with check:
    import own_module
print(check.reason)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(("code", "reason"), [*((code, "") for code in SHARED), *NOT_SHARED.items()])
def test_what_a_module_does_as_it_is_imported_says_whether_forks_can_share_it(
    tmp_path: object, code: str, reason: str
) -> None:
    (tmp_path / "own_module.py").write_text(code)  # type: ignore[operator]
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path]), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=str(tmp_path), env=environment, check=False
    )
    assert (done.stdout.strip(), done.stderr) == (reason, "")
