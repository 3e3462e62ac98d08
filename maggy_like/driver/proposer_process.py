"""The process of an optimizer, so that a slow one never holds the driver: the driver's end, and the process itself.

The process is ``python -m maggy_like.driver.proposer_process FD PARENT``.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from queue import SimpleQueue

from maggy_like.driver.proposers import Proposer, ProposerLaunch, Question, Raised, pack, unpack
from maggy_like.errors import OptimizerError
from maggy_like.processes.imports import module_path
from maggy_like.processes.system import die_with_parent, kill_tree
from maggy_like.processes.zygote.become import is_fork
from maggy_like.processes.zygote.client import LOOK, Process, start_module
from optimizers.core.base import Answer, History, Optimizer, Pending, Update
from optimizers.core.study import Study

MAX_CRASHES = 3
"""Processes that may crash in one question."""

_EARLY_SHARE = 0.1
"""Share of a fixed number of trials that may do without the model, since each of them is of more use with it."""

# The cores are for trials, and an optimizer's matrices are small.
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


class ProcessProposer(Proposer):
    """Asks in a child process. If that dies, another one starts with the whole history.

    Answers that do not depend on results are computed here, so that the first trials do not wait for the start of the
    process. If trials are so short that enough results for a model come before the process has loaded it, the optimizer
    gets no results until then, and answers as at first; in a search with a number of trials, for a tenth of them at
    most. Lines that the optimizer prints are shown, and its exceptions have their traceback.
    """

    patience = 10.0  # a busy machine may take long to end a process
    _show: Callable[[str], None]

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        self._pickled = pickle_optimizer(self._optimizer)
        self._lock = threading.Lock()  # guards the start and the end of the process
        self._interrupted = False
        self._is_blind = True
        self._is_ready = False  # whether the process has loaded the optimizer
        # All configurations and no results, for answers until the process is ready. None from then on.
        self._early: History | None = None
        n_trials = self._history.problem.n_trials
        self._early_left = math.inf if n_trials is None else _EARLY_SHARE * n_trials
        self._unsent: list[Update] = []  # updates that the process has not received
        self._process: Process | None = None
        self._connection: Connection[bytes, bytes] | None = None
        self._reader: threading.Thread | None = None

    def start(self, show: Callable[[str], None]) -> None:
        self._show = show
        if not self._optimizer.is_blind(self._history):
            self._launch_ahead()
            return
        seen = {each.trial: each.config for each in self._history.observations}
        self._early = History(self._history.problem, pending=seen | self._history.pending)

    def ask(self, index: int, updates: Sequence[Update]) -> Answer:
        for update in updates:
            self._history.apply(update)
            if self._early is not None and isinstance(update, Pending):
                self._early.apply(update)
        self._unsent += updates
        self._is_blind = self._is_blind and self._optimizer.is_blind(self._history)
        if not self._is_blind:
            if self._early is not None and self._takes_early() and self._optimizer.is_blind(self._early):
                self._early_left -= 1
                return self._optimizer.ask(index, self._early)
            self._early = None
            return self._asked(index)
        answer = self._optimizer.ask(index, self._history)
        if self._process is None:
            self._launch_ahead()
        return answer

    def _takes_early(self) -> bool:
        return self._early_left >= 1 and not self._can_answer()

    def _can_answer(self) -> bool:
        """Return whether the process is ready, or has failed, which the next question finds out."""
        if self._connection is None or self._is_ready:
            return True
        if self._process is None or self._process.poll() is not None:  # its children may keep the connection open
            return True
        try:
            if self._connection.poll():
                self._receive_ready(self._connection)
        except (EOFError, OSError):
            return True
        return self._is_ready

    def _receive_ready(self, connection: Connection[bytes, bytes]) -> None:
        connection.recv_bytes()
        self._is_ready = True

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
                _kill(self._process)

    def close(self) -> None:
        super().close()
        self._end()

    def _converse(self, index: int) -> Answer | Raised:
        if self._connection is None:
            self._launch()
        assert self._connection is not None
        self._connection.send_bytes(pack(Question(index, tuple(self._unsent))))
        self._unsent.clear()
        if not self._is_ready:
            self._await_answer(self._connection)
            self._receive_ready(self._connection)
        self._await_answer(self._connection)
        answer: Answer | Raised = unpack(self._connection.recv_bytes())
        return answer

    def _await_answer(self, connection: Connection[bytes, bytes]) -> None:
        """Wait for an answer or the process's end, since its children may keep the connection open."""
        process = self._process
        if not hasattr(os, "pidfd_open") or process is None:  # then the end of the connection must suffice
            return
        while (pid := process.pid) is None:  # the zygote is importing
            if connection.poll(LOOK):
                return
            if process.poll() is not None:
                raise EOFError
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:  # it was reaped already
            raise EOFError from None
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
        with self._lock:
            if self._interrupted:
                raise EOFError
            ours, theirs = Pipe()
            output, its_output = os.pipe()
            # The zygote of the workers has often imported numpy and scipy. A new interpreter would need a core for a
            # second, while the first trials run.
            try:
                self._process = start_module(
                    "maggy_like.driver.proposer_process",
                    os.environ,
                    path,
                    arguments=[str(theirs.fileno()), str(os.getpid())],
                    output=its_output,
                    pass_fds=[theirs.fileno()],  # separate from its stdout, so that a print is not an answer
                    variables={**_ONE_THREAD, "PYTHONUNBUFFERED": "1"},
                    late=True,
                )
            except BaseException:
                os.close(output)
                raise
            finally:
                theirs.close()
                os.close(its_output)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._connection = ours
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()
        ours.send_bytes(pack(launch))
        self._unsent.clear()  # sent with the history

    def _read(self, output: int) -> None:
        with open(output, errors="backslashreplace") as lines:
            for line in lines:
                self._show(line.rstrip("\n"))

    def _end(self) -> str:
        """Kill the process with its children, and return how it ended. Empty if there is no process."""
        with self._lock:
            process, self._process = self._process, None
        if process is None:
            return ""
        _kill(process)
        status = process.wait()
        if self._connection is not None and self._reader is not None:
            self._connection.close()
            self._reader.join(1.0)  # a child in another session may keep its stdout open
        self._connection = self._reader = None
        self._is_ready = False
        return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _kill(process: Process) -> None:
    """Kill a process with its group, or cancel it if it has not started."""
    if (pid := process.pid) is not None:
        kill_tree(pid)
    else:
        process.kill()


def pickle_optimizer(optimizer: Optimizer) -> bytes:
    """Pickle an optimizer for its process."""
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


def main(fd: int, parent: int) -> None:
    """Answer the driver at the other end of ``fd`` until it exits."""
    # Not at a lower priority: if trials keep all cores busy it would starve, and free workers would wait for it.
    if not is_fork():  # else the parent may be any thread of the driver's process, and end before it
        die_with_parent(parent)
    connection: Connection[bytes, bytes] = Connection(fd)
    frames: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, frames), daemon=True).start()
    launch: ProposerLaunch = unpack(frames.get())
    sys.path[:] = launch.path
    answerer = _Answerer(launch)
    answerer.load()
    connection.send_bytes(b"ready")
    while True:
        connection.send_bytes(answerer.answer(unpack(frames.get())))


def _receive(connection: Connection[bytes, bytes], frames: SimpleQueue[bytes]) -> None:
    """Receive questions. Exit as soon as the driver has exited, even while the optimizer computes."""
    while True:
        try:
            frames.put(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)


class _Answerer:
    """An optimizer and its history."""

    def __init__(self, launch: ProposerLaunch) -> None:
        self._launch = launch
        self._loaded: tuple[Optimizer, History] | None = None

    def load(self) -> None:
        """Load the optimizer before its first question, since workers would wait for its imports, such as scipy."""
        with contextlib.suppress(BaseException):  # of a custom optimizer: the first answer raises it again
            optimizer, _ = self._load()
            optimizer.load_libraries()

    def answer(self, question: Question) -> bytes:
        """Return the pickled answer."""
        try:
            optimizer, history = self._load()
            for update in question.updates:
                history.apply(update)
            return pack(optimizer.ask(question.index, history))
        except BaseException as error:  # sys.exit() in an optimizer is an error, too
            return pack(raised(error))

    def _load(self) -> tuple[Optimizer, History]:
        if self._loaded is None:
            self._loaded = unpack(self._launch.optimizer), unpack(self._launch.history)
        return self._loaded


def raised(error: BaseException) -> Raised:
    """Return an exception as a message to the driver."""
    summary = "".join(traceback.format_exception_only(error)).strip()
    try:
        pickled = pack(error) if isinstance(error, Exception) else b""
    except Exception:
        pickled = b""
    # The first frame is that of this module.
    frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return Raised(pickled, summary, "".join(traceback.format_exception(type(error), error, frames)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
