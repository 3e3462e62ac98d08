"""The process of an optimizer: ``python -m maggy_like.driver.proposer_process FD PARENT``."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from queue import SimpleQueue

from maggy_like.driver.proposers import ProposerLaunch, Question, Raised, pack, unpack
from maggy_like.processes.system import die_with_parent
from optimizers.core.base import History, Optimizer


def main(fd: int, parent: int) -> None:
    """Answer the driver at the other end of ``fd`` until it exits."""
    # Not at a lower priority: if trials keep all cores busy it would starve, and free workers would wait for it.
    die_with_parent(parent)
    connection: Connection[bytes, bytes] = Connection(fd)
    frames: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, frames), daemon=True).start()
    launch: ProposerLaunch = unpack(frames.get())
    sys.path[:] = launch.path
    answerer = _Answerer(launch)
    answerer.load()
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
