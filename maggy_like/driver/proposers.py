"""The proposers: one asks in the calling thread, one in a process, so that a slow optimizer never holds the driver."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import signal
import subprocess
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, Any

from maggy_like.errors import OptimizerError
from maggy_like.processes.imports import command, module_path
from maggy_like.processes.pickles import dumps
from maggy_like.processes.system import kill_tree
from optimizers.core.base import Answer, Optimizer, Update
from optimizers.core.study import Study


@dataclass(frozen=True, slots=True)
class ProposerLaunch:
    """The driver's first message to the process."""

    path: tuple[str, ...]  # module search path, in the order in which custom optimizers find their modules
    optimizer: bytes  # the optimizer, pickled
    history: bytes  # the history of the study, pickled


@dataclass(frozen=True, slots=True)
class Question:
    """The driver's question to the process: the ``index``-th answer after ``updates``."""

    index: int
    updates: tuple[Update, ...]


@dataclass(frozen=True, slots=True)
class Raised:
    """The process's message to the driver if the optimizer raised an exception."""

    error: bytes  # the exception, pickled. Empty if it cannot be pickled
    summary: str  # its type and message
    traceback: str


def pack(value: object) -> bytes:
    """Pickle a value, with classes and functions of notebooks and scripts by value."""
    return dumps(value)


def unpack(data: bytes) -> Any:
    """Unpickle what :func:`pack` returned. It never comes from the network, since both ends are on one machine."""
    return pickle.loads(data)  # noqa: S301


_proposers: weakref.WeakSet[Proposer] = weakref.WeakSet()  # the proposers of this process that are not closed
_claiming = threading.Lock()


class Proposer(ABC):
    """Keeps the history of a study for its optimizer, and asks the optimizer.

    An optimizer keeps a model between two questions. So if another search of this process uses the optimizer, or an
    optimizer within it, that one is copied.

    Only :meth:`interrupt` may be called from any thread. All other methods are for the optimizer's thread.

    Raises:
        OptimizerError: Another search uses the optimizer, and it cannot be copied.

    Attributes:
        patience: Seconds that an interrupted proposer may take to end.
    """

    patience = 1.0

    def __init__(self, study: Study) -> None:
        with _claiming:
            self._optimizer = _copied_if_asked(study.optimizer)
            self._claimed = _with_spares(self._optimizer)
            _proposers.add(self)
        self._history = study.history

    def start(self, show: Callable[[str], None]) -> None:
        """Start. Returns at once.

        Args:
            show: Takes each line that the optimizer prints, from any thread.
        """

    @abstractmethod
    def ask(self, index: int, updates: Sequence[Update]) -> Answer:
        """Add ``updates`` to the history, and return the optimizer's ``index``-th answer.

        Raises:
            Exception: The optimizer raised it.
        """

    def interrupt(self) -> None:
        """Cut off a running question if possible. No other one follows."""

    def close(self) -> None:
        """End the process, if there is one, and release the optimizer for other searches."""
        _proposers.discard(self)


class DirectProposer(Proposer):
    """Asks in the calling thread, for optimizers that answer in microseconds, and for a debugger."""

    def ask(self, index: int, updates: Sequence[Update]) -> Answer:
        for update in updates:
            self._history.apply(update)
        return self._optimizer.ask(index, self._history)


def _copied_if_asked(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer, or a copy in the state before another search used it or an optimizer within it."""
    claimed = {id(part): spare for proposer in _proposers for part, spare in proposer._claimed}
    shared = [part for part in _parts(optimizer) if id(part) in claimed]
    if not shared:
        return optimizer
    try:
        return copy.deepcopy(optimizer, {id(part): copy.deepcopy(claimed[id(part)]) for part in shared})
    except Exception as error:  # of any user's object
        raise OptimizerError(
            f"optimizer must not serve two searches at once, and this {type(optimizer).__name__} cannot be copied "
            f"({type(error).__name__}: {error}); use a separate object for each search"
        ) from error


class _NoCopy:
    """Replaces the copy of an object that cannot be copied."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __deepcopy__(self, memo: object) -> Optimizer:
        raise self._error


def _with_spares(optimizer: Optimizer) -> list[tuple[Optimizer, Optimizer | _NoCopy]]:
    """Return an optimizer and those within it, each with an unused copy, since the originals will change."""
    parts = list(_parts(optimizer))
    try:
        return list(zip(parts, _parts(copy.deepcopy(optimizer)), strict=True))
    except Exception as error:  # of any user's object
        return [(part, _NoCopy(error)) for part in parts]


def _parts(optimizer: Optimizer) -> Iterator[Optimizer]:
    yield optimizer
    for value in getattr(optimizer, "__dict__", {}).values():
        if isinstance(value, Optimizer):
            yield from _parts(value)


MAX_CRASHES = 3
"""Processes that may crash in one question."""

# The cores are for trials, and an optimizer's matrices are small.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


class ProcessProposer(Proposer):
    """Asks in a child process. If that dies, another one starts with the whole history.

    Answers that do not depend on results are computed here, so that the first trials do not wait for the start of the
    process. Lines that the optimizer prints are shown, and its exceptions have their traceback.

    Raises:
        OptimizerError: The optimizer cannot be sent to a process.
    """

    patience = 10.0  # a busy machine may take long to end a process
    _show: Callable[[str], None]

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        self._pickled = pickle_optimizer(self._optimizer)
        self._lock = threading.Lock()  # guards the start and the end of the process
        self._interrupted = False
        self._is_blind = True
        self._unsent: list[Update] = []  # updates that the process has not received
        self._process: subprocess.Popen[str] | None = None
        self._connection: Connection[bytes, bytes] | None = None
        self._reader: threading.Thread | None = None

    def start(self, show: Callable[[str], None]) -> None:
        self._show = show
        if not self._optimizer.is_blind(self._history):
            self._launch_ahead()

    def ask(self, index: int, updates: Sequence[Update]) -> Answer:
        for update in updates:
            self._history.apply(update)
        self._unsent += updates
        self._is_blind = self._is_blind and self._optimizer.is_blind(self._history)
        if not self._is_blind:
            return self._asked(index)
        answer = self._optimizer.ask(index, self._history)
        if self._process is None:
            self._launch_ahead()
        return answer

    def _asked(self, index: int) -> Answer:
        """Return the answer of the process."""
        ends: list[str] = []
        while len(ends) < MAX_CRASHES and not self._interrupted:
            try:
                answer = self._converse(index)
            except (EOFError, ConnectionError) as error:
                ends.append(self._end() or str(error))
            else:
                return self._take(answer)
        name = type(self._optimizer).__name__
        raise OptimizerError(
            f"the process of {name} ended {len(ends)} times ({', '.join(ends)}) while computing proposal {index}; "
            "use engine='inline' to run it under a debugger"
        )

    def interrupt(self) -> None:
        with self._lock:
            self._interrupted = True
            if self._process is not None:
                kill_tree(self._process.pid)

    def close(self) -> None:
        super().close()
        self._end()

    def _converse(self, index: int) -> Answer | Raised:
        if self._connection is None:
            self._launch()
        assert self._connection is not None
        self._connection.send_bytes(pack(Question(index, tuple(self._unsent))))
        self._unsent.clear()
        self._await_answer(self._connection)
        answer: Answer | Raised = unpack(self._connection.recv_bytes())
        return answer

    def _await_answer(self, connection: Connection[bytes, bytes]) -> None:
        """Wait for an answer or the process's end, since its children may keep the connection open.

        Raises:
            EOFError: The process has ended.
        """
        if not hasattr(os, "pidfd_open") or self._process is None:  # then the end of the connection must suffice
            return
        end = os.pidfd_open(self._process.pid)
        try:
            if connection not in wait([connection, end]):
                raise EOFError
        finally:
            os.close(end)

    def _take(self, answer: Answer | Raised) -> Answer:
        if not isinstance(answer, Raised):
            return answer
        try:
            error = unpack(answer.error)
        except Exception:  # of a class that only the process can unpickle
            error = OptimizerError(f"{type(self._optimizer).__name__} raised {answer.summary}")
        error.add_note(f"raised in the optimizer's process:\n{answer.traceback}")
        raise error

    def _launch_ahead(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # the first question retries, and raises
            self._launch()

    def _launch(self) -> None:
        """Start a process, and send it the optimizer and the whole history."""
        path = module_path()
        launch = ProposerLaunch(path, self._pickled, pack(self._history))
        ours, theirs = Pipe()
        with self._lock, theirs:
            if self._interrupted:
                raise EOFError
            ends = [str(theirs.fileno()), str(os.getpid())]
            self._process = subprocess.Popen(
                command("maggy_like.driver.proposer_process", path, ends),
                pass_fds=[theirs.fileno()],  # separate from its stdout, so that a print is not an answer
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="backslashreplace",
                env={**os.environ, **_ONE_THREAD, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C in a terminal is only for the driver
            )
        assert self._process.stdout is not None
        self._connection = ours
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        ours.send_bytes(pack(launch))
        self._unsent.clear()  # sent with the history

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._show(line.rstrip("\n"))

    def _end(self) -> str:
        """Kill the process with its children, and return how it ended. Empty if there is no process."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return ""
        kill_tree(process.pid)  # before it is reaped: until then no other process has its id
        status = process.wait()
        if self._connection is not None and self._reader is not None:
            self._connection.close()
            self._reader.join(1.0)  # a child in another session may keep its stdout open
        self._connection = self._reader = None
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def pickle_optimizer(optimizer: Optimizer) -> bytes:
    """Pickle an optimizer for its process.

    Raises:
        OptimizerError: An attribute of it cannot be sent.
    """
    try:
        return pack(optimizer)
    except Exception as error:
        culprits = [name for name, value in vars(optimizer).items() if not _can_be_sent(value)]
        what = f" (its attribute {culprits[0]!r})" if culprits else ""
        raise OptimizerError(
            f"{type(optimizer).__name__} cannot be sent to its process{what}: {error}; "
            "keep only options in an optimizer, and make the rest inside ask"
        ) from error


def _can_be_sent(value: object) -> bool:
    try:
        pack(value)
    except Exception:
        return False
    return True
