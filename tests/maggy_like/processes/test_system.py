"""Processes and their descriptors: orphans are ended, forks share what they can, messages arrive whole."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.processes import system
from maggy_like.processes.channel import Channel
from maggy_like.processes.system import children, end_orphans


def test_a_machine_that_stands_still_before_the_first_kill_leaves_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    others = set(children())
    words = [sys.executable, "-c", "import signal; signal.pause()"]
    orphan = psutil.Process(os.posix_spawn(sys.executable, words, os.environ))
    hours = itertools.count(step=3600.0)
    monkeypatch.setattr(system, "time", SimpleNamespace(monotonic=lambda: next(hours), sleep=time.sleep))
    end_orphans(others, patience=300.0)
    assert not orphan.is_running()


# -- which descriptors a process has, and that others can be closed where the system tells nothing of them
SCRIPT = """
import json, os, resource, sys

from maggy_like.processes import system as resources

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


# -- which code can be run once before a fork, in place of once in each fork ----------------------
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
    "import tempfile; directory = tempfile.TemporaryDirectory()": "registers a function to be called at exit",
    "import random; random.seed(0)": "seeds the random numbers",
    "import numpy; numpy.random.seed(0)": "seeds the random numbers",
    "import torch; torch.manual_seed(0)": "seeds the random numbers",
    "import random; rng = random.Random()": "creates a random number generator",
    "import numpy; rng = numpy.random.default_rng()": "creates a random number generator",
    "import torch; rng = torch.Generator()": "creates a random number generator",
}


FORK_SAFETY_SCRIPT = """
import os, sys
from maggy_like.processes.fork_safety import SharingCheck
check = SharingCheck()
with check:
    import own_module
print(check.reason)
sys.stdout.flush()
os._exit(0)
"""


SLOW = re.compile(r"torch|sklearn")
"""What takes seconds to import in a process of its own."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        pytest.param(code, reason, marks=[pytest.mark.e2e, pytest.mark.cold] if SLOW.search(code) else [])
        for code, reason in [*((code, "") for code in SHARED), *NOT_SHARED.items()]
    ],
)
def test_what_a_module_does_as_it_is_imported_says_whether_forks_can_share_it(
    tmp_path: object, code: str, reason: str
) -> None:
    (tmp_path / "own_module.py").write_text(code)  # type: ignore[operator]
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path]), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    environment |= {"JE_ARROW_MALLOC_CONF": "background_thread:false", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FORK_SAFETY_SCRIPT],
        capture_output=True,
        text=True,
        cwd=str(tmp_path),
        env=environment,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (reason, "")


# -- messages between two processes -----------------------------------------------------------------


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_messages_arrive_whole_and_in_order(messages: list[bytes]) -> None:
    mine, raw = Channel.pair()
    theirs = Channel(raw)
    for message in messages:
        mine.send(message)
    assert [theirs.receive() for _ in messages] == messages
    mine.close()
    assert theirs.receive() is None
    theirs.close()


def test_drain_takes_whole_messages_and_tells_the_end() -> None:
    mine, raw = Channel.pair()
    assert mine.drain() == ([], True)
    raw.sendall(b"\0\0\0\3abc\0\0\0\2d")
    assert mine.drain() == ([b"abc"], True)
    raw.sendall(b"e")
    raw.close()
    assert mine.drain() == ([b"de"], True)
    assert mine.drain() == ([], False)
    mine.close()


def test_several_threads_may_send() -> None:
    mine, raw = Channel.pair()
    theirs = Channel(raw)
    threads = [threading.Thread(target=mine.send, args=(bytes([n]) * 50_000,)) for n in range(8)]
    for thread in threads:
        thread.start()
    received = {theirs.receive() for _ in threads}
    for thread in threads:
        thread.join()
    assert received == {bytes([n]) * 50_000 for n in range(8)}
    for end in (mine, theirs):
        end.close()
    assert isinstance(raw, socket.socket)


def test_what_is_posted_waits_for_nobody_and_arrives_whole_and_in_order() -> None:
    mine, raw = Channel.pair()
    theirs = Channel(raw)
    messages = [bytes([n]) * 300_000 for n in range(8)]
    for message in messages:
        mine.post(message)
    assert mine.has_unsent
    received: list[bytes] = []
    while len(received) < len(messages):
        received += theirs.drain()[0]
        mine.flush()
    assert received == messages
    assert not mine.has_unsent
    for end in (mine, theirs):
        end.close()


def test_what_is_posted_to_one_that_is_gone_is_dropped() -> None:
    mine, raw = Channel.pair()
    mine.post(bytes(1 << 20))
    raw.close()
    mine.flush()
    assert not mine.has_unsent
    mine.post(b"late")
    assert not mine.has_unsent
    assert mine.drain() == ([], False)
    mine.close()
