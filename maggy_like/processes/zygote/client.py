"""Starting modules: as forks of this process's zygote or of this process, or else as new interpreters."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

import msgspec

from maggy_like.errors import ConfigError
from maggy_like.processes.cores import OPENMP, PASSIVE, WAIT_POLICY
from maggy_like.processes.imports import command, module_path, remembered
from maggy_like.processes.system import current_directory, is_supported
from maggy_like.processes.zygote.become import BEGUN, NO_FORK, STARTED, Request, become, is_fork, send_request

CLOSE_PATIENCE = 0.5
"""Seconds that a zygote gets to end; its current import is no longer needed."""

START_PATIENCE = 20.0
"""Seconds that a zygote gets to start, and to accept a request."""

FORK_PATIENCE = 5.0
"""Seconds within which a fork that has begun must be known, if it is no longer needed."""

PATIENCE = 60.0
"""Seconds after which a request that is no longer needed shows that its import hangs."""

FROZEN_PATIENCE = 20.0
"""Maximum seconds for which a zygote with a request may be completely idle; imports are activity."""

_PADDING = "." * 80
"""An argument that forks overwrite with their own, longer command line for ``ps``."""

BEFORE_IMPORTS = {OPENMP: "1", WAIT_POLICY: PASSIVE, "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Variables that must be set before imports, unless the user sets them. Numeric libraries then start no thread."""

_READ_BY_LIBRARIES = (
    *("CUDA", "GOMP", "HIP", "JE_ARROW", "KMP", "LD_", "MALLOC", "MKL", "NCCL", "NVIDIA", "OMP", "OPENBLAS", "PYTHON"),
    *("PYTORCH", "ROCR", "TF_", "TORCH", "XLA"),
)
"""Prefixes of variables that a library reads at its import or earlier."""

_NOT_READ_BY_IMPORTS = ("PYTHONPATH", "PYTHONUNBUFFERED", "TORCHINDUCTOR_CACHE_DIR")
"""The exceptions. torch sets the last one when it creates its first optimizer."""

_SET_BY_IMPORTS = {
    "KMP_DUPLICATE_LIB_OK": "True",  # scikit-learn, XGBoost
    "KMP_INIT_AT_FORK": "FALSE",  # joblib
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # Lightning
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # Keras
}
"""Variables that a library sets at its import. A zygote that imports the library sets them in the same way."""


def start_module(
    module: str,
    environment: Mapping[str, str],
    path: Sequence[str],
    *,
    arguments: Sequence[str] = (),
    output: int | None = None,
    pass_fds: Sequence[int] = (),
    preload: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    late: bool = False,
) -> Process:
    """Start ``python -m module arguments`` as the leader of a session, with a pipe as its standard input.

    A process that is a zygote's fork forks itself, so call this before it has threads. Others use their zygote, which
    starts with the first call and imports ``preload`` before it forks (see :func:`keep_no_zygote`). A ``late`` call
    may come from a process with threads; it uses a zygote only if there is one. ``output`` is the descriptor of its
    stdout and stderr, by default this process's. ``pass_fds`` keep their numbers. ``variables`` come in addition to
    ``environment``, which must be the same for all forks of a zygote.
    """
    streams = [1, 2] if output is None else [output, output]
    request = Request(
        module,
        tuple(arguments),
        {**environment, **(variables or {})},
        current_directory(),
        (0, 1, 2, *pass_fds),
        tuple(path),
        tuple(preload),
    )
    if is_fork() and not late:
        return _fork_here(request, [*streams, *pass_fds])
    if _keeps_one and is_supported() and (own_zygote() or not late):
        with contextlib.suppress(OSError):  # the zygote died, or the system does not allow its forks
            return _zygote(environment, path).start(request, [*streams, *pass_fds])
    return subprocess.Popen(
        command(module, path, arguments),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
        env=request.environment,
        start_new_session=True,
    )


def warm_up(*modules: str) -> None:
    """Start importing modules for the workers of the first search, and return at once.

    Call it at the top of a script, before its own imports, or in a notebook's first cell. A background process then
    imports the modules while the script does, and the workers are forked from it. Later searches do not need the call,
    since what earlier trials imported stays imported. The background process ends with this one. On systems without
    such forks (macOS, Windows), the call does nothing.

    Args:
        modules: Names of installed packages or their modules, such as ``"torch"``.

    Raises:
        ConfigError: A name is not valid, or its package is not installed.

    Example:
        >>> warm_up("torch", "sklearn.model_selection")
    """
    for module in modules:
        if not isinstance(module, str) or not module.partition(".")[0].isidentifier():
            raise ConfigError(f"modules must be names of modules, got {module!r}; use warm_up('torch', 'pandas')")
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise ConfigError(f"warm_up() cannot import {module!r}: no such package is installed; check the name")
    begin_imports(modules)


def begin_imports(
    modules: Sequence[str], environment: Mapping[str, str] | None = None, path: Sequence[str] | None = None
) -> None:
    """Have this process's zygote import modules, and return at once. Those that cannot be imported are skipped.

    The environment and the path are those of the processes that it forks, by default this process's own.
    """
    if _keeps_one and is_supported() and not is_fork():
        with contextlib.suppress(OSError):
            _zygote(environment or os.environ, path or module_path()).load(modules)


def keep_no_zygote() -> None:
    """Start new interpreters from now on, since this process ends before a zygote could help."""
    global _keeps_one
    _keeps_one = False


class Zygote:
    """The process that imports modules and forks, as its owner sees it."""

    def __init__(self, environment: Mapping[str, str], path: Sequence[str]) -> None:
        self.key = key_of(environment)
        self._lock = threading.Lock()
        self._is_given_up = self._has_forked = False
        self._asked: set[str] = set()
        self._ticks, self._worked = -1, 0.0
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(START_PATIENCE)
        own = {**BEFORE_IMPORTS, **environment}
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(self._socket.close)
            self._process = subprocess.Popen(
                command("maggy_like.processes.zygote", path, [str(theirs.fileno()), str(os.getpid()), _PADDING]),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=own,
                start_new_session=True,
            )
            undo.pop_all()

    def start(self, request: Request, descriptors: Sequence[int]) -> ForkedProcess:
        """Request a process, and return before it has started."""
        request = msgspec.structs.replace(request, preload=self._safe(request.preload))
        with contextlib.ExitStack() as in_any_case, contextlib.ExitStack() as undo:
            theirs, stdin = os.pipe()
            in_any_case.callback(os.close, theirs)
            undo.callback(os.close, stdin)
            answer, answer_end = socket.socketpair(type=socket.SOCK_SEQPACKET)
            in_any_case.callback(answer_end.close)
            undo.callback(answer.close)
            with self._lock:
                self._see_first_fork()
                send_request(self._socket, request, [answer_end.fileno(), theirs, *descriptors])
            undo.pop_all()
        return ForkedProcess(open(stdin, "wb", 0), answer, on_given_up=self.give_up, hangs=self.hangs)

    def load(self, modules: Sequence[str]) -> None:
        """Have it import modules, without waiting for them."""
        answer, answer_write = os.pipe()
        os.close(answer)
        try:
            with self._lock:
                send_request(self._socket, Request("", (), {}, "", (), (), self._safe(modules)), [answer_write])
        finally:
            os.close(answer_write)

    def _safe(self, modules: Sequence[str]) -> tuple[str, ...]:
        """Leave out modules that may have ended a zygote before; the workers import those themselves."""
        self._asked.update(modules)
        return tuple(module for module in modules if module not in _deadly)

    @property
    def suspects(self) -> set[str]:
        """The modules of which one may have ended it at its import; empty if it ended in another way."""
        died = self._process.poll() not in (None, 0) and not self._is_given_up
        return self._asked.difference(remembered()) if died else set()

    def give_up(self, waited: float) -> None:
        """Kill it if a request that is no longer needed has waited so long that it must hang."""
        if waited > PATIENCE:
            self._is_given_up = True
            self._process.kill()

    def hangs(self, since: float) -> bool:
        """Return whether it has been idle for too long since a request, for example because it is stopped."""
        now = time.monotonic()
        state, ticks = _activity(self._process.pid)
        if state not in ("S", "T", "t") or ticks != self._ticks:
            self._ticks, self._worked = ticks, now
        return now - max(since, self._worked) > FROZEN_PATIENCE

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it accepts requests."""
        return not self._is_given_up and self._process.poll() is None

    def close(self) -> None:
        """End it; its forks continue."""
        with contextlib.suppress(OSError):  # it has ended
            self._socket.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(CLOSE_PATIENCE)
        except subprocess.TimeoutExpired:  # it is importing
            self._process.kill()
            self._process.wait()
        with self._lock, contextlib.suppress(OSError):  # even without a request it has made its first fork
            self._see_first_fork()
        self._socket.close()

    def _see_first_fork(self) -> None:
        """Wait for its first fork, which it makes before it imports anything."""
        if self._has_forked:
            return
        try:
            data = self._socket.recv(STARTED.size, socket.MSG_WAITALL)
            pid = STARTED.unpack(data)[0] if len(data) == STARTED.size else NO_FORK
            if pid == NO_FORK:
                raise OSError("this system cannot fork for another process")
        except OSError:
            self.give_up(math.inf)
            raise
        with contextlib.suppress(ChildProcessError):  # if SIGCHLD is ignored
            os.waitpid(pid, 0)
        self._has_forked = True


LOOK = 1.0
"""Seconds between two checks whether the zygote hangs."""


class Process(Protocol):
    """The common methods of ``subprocess.Popen`` and :class:`ForkedProcess`."""

    stdin: IO[bytes] | None
    returncode: int | None

    @property
    def pid(self) -> int | None:
        """The process id. None if a process that forks has not started it yet, or after its end."""

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it has ended; raise ``subprocess.TimeoutExpired`` if it is still running."""

    def kill(self) -> None:
        """Kill it, if it has not ended."""


class ForkedProcess:
    """A child of this process that another process has forked or will fork."""

    def __init__(
        self,
        stdin: IO[bytes],
        answer: socket.socket | None = None,
        pid: int | None = None,
        on_given_up: Callable[[float], None] | None = None,
        hangs: Callable[[float], bool] | None = None,
    ) -> None:
        self.why = ""  # why it was not started, if the other process hung
        self.stdin: IO[bytes] | None = stdin
        self.returncode: int | None = None
        self._answer = answer  # brings its process id; if it ends without one, the process was not started
        self._has_begun = False  # whether the other process forks now
        self._pid = pid  # its process id, if it is known already
        self._on_given_up = on_given_up  # called with the seconds since the request if it is killed before it has begun
        self._hangs = hangs  # returns whether the other process has done nothing for too long since a given time
        self._asked = time.monotonic()
        self._lock = threading.RLock()

    @property
    def pid(self) -> int | None:
        with self._lock:
            self._read_answer(0.0)
            return self._pid if self.returncode is None else None

    def poll(self) -> int | None:
        with self._lock:
            if self._pid is None:
                self._read_answer(0.0)
                if self._answer is not None and self._hangs is not None and self._hangs(self._asked):
                    self.why = "the process that forks workers did nothing for too long, and was killed"
                    self._give_up(math.inf)
            elif self.returncode is None:  # not in the call that learns its id: the caller can first kill its group
                try:
                    pid, status = os.waitpid(self._pid, os.WNOHANG)
                except ChildProcessError:  # other code waited for our children: the status is lost
                    pid, status = self._pid, 0
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            if self._pid is None:
                with self._lock:
                    self._read_answer(LOOK if left is None else min(LOOK, left))
            else:
                with contextlib.suppress(ProcessLookupError):
                    _poll_end(self._pid, left)
        return status

    def kill(self) -> None:
        with self._lock:
            if self.poll() is not None:
                return
            if self._pid is not None:
                os.kill(self._pid, signal.SIGKILL)  # it was not reaped, so no other process has its id
            else:
                self._give_up(time.monotonic() - self._asked)

    def _give_up(self, waited: float) -> None:
        """Cancel the request before the fork; if that has begun, kill its process."""
        if self._answer is None:
            return
        with contextlib.suppress(OSError):  # the other process has ended
            self._answer.shutdown(socket.SHUT_WR)
        self._read_answer(0.0)
        if self._has_begun:
            self._read_answer(FORK_PATIENCE)
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            return
        if self._answer is not None:
            self._answer.close()
        self._answer, self.returncode = None, -signal.SIGKILL
        if self._on_given_up is not None:
            self._on_given_up(waited)

    def _read_answer(self, timeout: float | None) -> None:
        """Wait for the next reply of the process that forks, if there is still one to come."""
        if self._answer is None or not _poll(self._answer.fileno(), timeout):
            return
        data = self._answer.recv(STARTED.size)
        if data == BEGUN:
            self._has_begun = True
            return
        self._answer.close()
        self._answer = None
        if data:
            (self._pid,) = STARTED.unpack(data)
        else:
            self.returncode = -signal.SIGKILL  # the zygote has ended


def _poll_end(pid: int, timeout: float | None) -> None:
    end = os.pidfd_open(pid)
    try:
        _poll(end, timeout)
    finally:
        os.close(end)


def _poll(fd: int, timeout: float | None) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(None if timeout is None else max(0.0, 1e3 * timeout)))


def _activity(pid: int) -> tuple[str, int]:
    """Return a process's state, as the kernel's letter, and its CPU time in ticks; empty and 0 if not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return "", 0
    return fields[0].decode(), int(fields[11]) + int(fields[12])


def key_of(environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the Python and the variables that influence imports: a zygote serves only requests with the same key."""
    return sys.executable, {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_BY_LIBRARIES)
        and name not in _NOT_READ_BY_IMPORTS
        and _SET_BY_IMPORTS.get(name) != value
    }


_lock = threading.Lock()
_keeps_one = True
_deadly: set[str] = set()
_owned: tuple[int, Zygote] | None = None  # with the id of the process that started it: its forks have none


def _zygote(environment: Mapping[str, str], path: Sequence[str]) -> Zygote:
    """Return this process's zygote for an environment; end one for another environment."""
    global _owned
    with _lock:
        if _owned is not None and _owned[0] == os.getpid():
            if _owned[1].is_alive and _owned[1].key == key_of(environment):
                return _owned[1]
            _deadly.update(_owned[1].suspects)
            _owned[1].close()
        _owned = (os.getpid(), Zygote(environment, path))
        return _owned[1]


def own_zygote() -> list[int]:
    """Return the process id of this process's zygote, if any: a child that outlives the runs that started it."""
    return [_owned[1].pid] if _owned is not None and _owned[0] == os.getpid() else []


@atexit.register
def _close() -> None:
    if _owned is not None and _owned[0] == os.getpid():
        _owned[1].close()


def _fork_here(request: Request, descriptors: Sequence[int]) -> ForkedProcess:
    theirs, stdin = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            become(request, [theirs, *descriptors])
    except OSError:
        os.close(stdin)
        raise
    finally:
        os.close(theirs)
    ours: IO[bytes] = open(stdin, "wb", 0)  # noqa: SIM115
    return ForkedProcess(ours, pid=pid)
