"""The fork server leaves, and leaves nothing behind, whenever it is told to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import msgspec
import psutil
import pytest
from wire import wait_for

from maggy_like.processes.channel import Channel
from maggy_like.protocol.task import WorkerTask
from maggy_like.worker.agent import template as memory
from maggy_like.worker.agent.fork_server import Forked, NotForked
from maggy_like.worker.agent.template import FORK, KILL, LOAD, Load, encode, send_request
from maggy_like.worker.launch import encode_task

pytestmark = pytest.mark.slow

SCRIPT = """
import os, signal
from maggy_like.worker.agent import fork_server as forkserver

reap = os.waitpid

def reap_and_be_told_to_leave(pid, options):
    reaped = reap(pid, options)
    if reaped[0]:
        os.waitpid = reap
        signal.raise_signal(signal.SIGTERM)
    return reaped

os.waitpid = reap_and_be_told_to_leave
forkserver.main({control}, {parent}, 2, 0)
"""


FORK_FAILS_ONCE = """
from maggy_like.worker.agent import fork_server as forkserver, template

fork = template.fork_sibling

def fail():
    template.fork_sibling = fork
    raise BlockingIOError(11, "Resource temporarily unavailable")

template.fork_sibling = fail
forkserver.main({control}, {parent}, 2, 0)
"""

GIVES_UP_A_STOPPED_TEMPLATE = """
from maggy_like.worker.agent import fork_server as forkserver

ask = forkserver.ForkServer._ask

def ask_but_not_for_long(server, template, *request):
    with open("/proc/%d/stat" % template.pid) as stat:
        is_stopped = stat.read().rpartition(")")[2].split()[0] == "T"
    forkserver.TEMPLATE_PATIENCE = 0.01 if is_stopped else 300.0
    return ask(server, template, *request)

forkserver.ForkServer._ask = ask_but_not_for_long
forkserver.main({control}, {parent}, 2, 0)
"""

KILLS_ONLY_ITS_OWN = """
import os
from maggy_like.worker.agent import fork_server as forkserver

kill = forkserver.kill_tree

def kill_what_has_its_number(pid):
    os.kill(pid, 0)
    kill(pid)

forkserver.kill_tree = kill_what_has_its_number
forkserver.main({control}, {parent}, 2, 0)
"""

MANY_DESCRIPTORS = """
import os, resource
from maggy_like.worker.agent import fork_server as forkserver

resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
while os.dup(2) < 1024:
    pass
forkserver.main({control}, {parent}, 2, 0)
"""

NO_DESCRIPTORS = """
import os, resource
from maggy_like.worker.agent import fork_server as forkserver

answer = forkserver.ForkServer._answer

def answer_without(server):
    forkserver.ForkServer._answer = answer
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        return answer(server)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

forkserver.ForkServer._answer = answer_without
forkserver.main({control}, {parent}, 2, 0)
"""


class Server:
    """A fork server whose agent is the test."""

    def __init__(self, script: str = SCRIPT) -> None:
        self._control, theirs = socket.socketpair()
        self._replies = Channel(self._control)
        self._channels: list[Channel] = []
        script = script.format(control=theirs.fileno(), parent=os.getpid())
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", script], stdin=subprocess.PIPE, pass_fds=[theirs.fileno()]
            )
        task = WorkerTask("tcp://x:1", b"", "run", cloudpickle.dumps(abs), (), tuple(sys.path), (), "", "")
        assert self.process.stdin is not None
        with self.process.stdin as stdin:
            stdin.write(encode_task(task))

    def fork(self) -> psutil.Process:
        """Have a child made."""
        reply = self.ask_for_fork()
        assert isinstance(reply, Forked)
        return psutil.Process(reply.pid)

    def ask_for_fork(self) -> Forked | NotForked:
        """What comes of asking for a child."""
        channel, theirs = Channel.pair()
        self._channels.append(channel)
        with theirs, open(os.devnull, "wb") as output:
            send_request(self._control, FORK, descriptors=[theirs.fileno(), output.fileno()])
            reply = self._replies.receive()
        assert reply is not None
        return msgspec.msgpack.decode(reply, type=Forked | NotForked)

    def import_ahead(self, module: str) -> None:
        """Have later children begin with a module."""
        send_request(self._control, LOAD, payload=encode(Load((module,))))

    def kill(self, child: psutil.Process) -> None:
        """Have a child killed."""
        send_request(self._control, KILL, child.pid)

    def hang_up(self) -> None:
        """As at the end of an agent."""
        self._control.close()

    def close(self) -> None:
        """Nothing of it is left, if need be by force."""
        self.hang_up()
        for channel in self._channels:
            channel.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(getattr(request, "param", SCRIPT))
    yield server
    server.close()


def test_it_leaves_when_its_agent_hangs_up(server: Server) -> None:
    check_end(server, lambda _: server.hang_up())


def test_it_leaves_when_told_to(server: Server) -> None:
    check_end(server, lambda _: server.process.terminate())


def test_it_leaves_when_told_to_while_it_reaps_a_child(server: Server) -> None:
    """As at the death of an agent: its children end, and the kernel's signal comes, at the same moment."""
    check_end(server, server.kill)


@pytest.mark.parametrize("server", [KILLS_ONLY_ITS_OWN], indirect=True, ids=["own"])
def test_a_child_has_its_number_until_its_group_is_killed(server: Server) -> None:
    """Otherwise another process may get the number meanwhile, and would be killed."""
    child = server.fork()
    child.kill()
    child.wait(300)
    server.hang_up()
    assert server.process.wait(300) == 0


@pytest.mark.parametrize("server", [MANY_DESCRIPTORS], indirect=True, ids=["many"])
def test_it_serves_with_more_descriptors_than_select_can_tell(server: Server) -> None:
    check_end(server, lambda _: server.hang_up())


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (FORK_FAILS_ONCE, "[Errno 11] Resource temporarily unavailable"),
        (NO_DESCRIPTORS, "can open no more files; raise the limit (ulimit -n)"),
    ],
    indirect=["server"],
    ids=["no process", "no descriptor"],
)
def test_a_fork_that_fails_is_told_and_costs_no_other_child_its_life(server: Server, reason: str) -> None:
    refused = server.ask_for_fork()
    assert isinstance(refused, NotForked)
    assert reason in refused.reason
    check_end(server, lambda _: server.hang_up())


@pytest.mark.parametrize("server", [GIVES_UP_A_STOPPED_TEMPLATE], indirect=True, ids=["stopped"])
@pytest.mark.parametrize("imports", [False, True])
def test_a_template_that_hangs_answers_no_later_request(server: Server, imports: bool) -> None:
    first = server.fork()
    (template,) = set(psutil.Process(server.process.pid).children()) - {first}
    template.suspend()
    wait_for(lambda: template.status() == psutil.STATUS_STOPPED)
    if imports:
        server.import_ahead("colorsys")
    second = server.fork()
    template.wait(300)
    assert set(psutil.Process(server.process.pid).children()) == {first, second}
    check_end(server, lambda _: server.hang_up())


def check_end(server: Server, cause: Callable[[psutil.Process], None]) -> None:
    """What ends the server ends its children."""
    children = [server.fork(), server.fork()]
    cause(children[0])
    assert server.process.wait(300) == 0
    assert not psutil.wait_procs(children, timeout=300)[1]


# -- which of the kernel's counters of killed processes is believed -------------------------------


V2 = "0::/jobs/7\n"
V1 = "9:cpu,cpuacct:/jobs/7\n4:memory:/jobs/7\n0::/\n"
FILES = {
    "jobs/7/memory.events": "oom 1\noom_kill 2\n",
    "memory/jobs/7/memory.oom_control": "under_oom 0\noom_kill 3\n",
    "memory.events": "oom_kill 4\n",
    "memory/memory.oom_control": "oom_kill 5\n",
    "vmstat": "pgfault 1\noom_kill 6\n",
}


@pytest.mark.parametrize(
    ("groups", "files", "kills"),
    [
        (V2, ["jobs/7/memory.events", "vmstat"], 2),
        (V2, ["memory.events", "vmstat"], 4),  # in a container that sees its group as the root, by the host's name
        (V1, ["memory/jobs/7/memory.oom_control", "memory/memory.oom_control", "vmstat"], 3),
        (V1, ["memory/memory.oom_control", "vmstat"], 5),
        (V2, ["vmstat"], 6),
        (None, ["vmstat"], 6),
        (V2, [], 0),
    ],
)
def test_the_own_group_counts_before_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str | None, files: list[str], kills: int
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(FILES[name])
    if groups is not None:
        (tmp_path / "own").write_text(groups)
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN", tmp_path / "own")
    monkeypatch.setattr(memory, "_MACHINE", tmp_path / "vmstat")
    assert memory.oom_kills() == kills
