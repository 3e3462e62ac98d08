"""The first load of a training function: in a process without the caller's script, before a run starts.

What the function refers to only by name is missing there, as it would be in each worker. That process is ``python -m
maggy_like.train_function.first_load``.
"""

from __future__ import annotations

import contextlib
import dis
import linecache
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from maggy_like.errors import TrainFunctionError
from maggy_like.processes.imports import is_library_file, module_path
from maggy_like.processes.zygote.client import Process, start_module
from maggy_like.protocol.values import encodable
from maggy_like.train_function.code import code_objects, name_of, own_functions, references
from maggy_like.train_function.load import NotFoundError, unpickle_train_fn, why_not_loaded

PATIENCE = 2.0
"""Seconds that a run waits for a load that has begun. The error of a longer one comes from the first worker."""

LOOK_MS = 500
"""Milliseconds between two checks whether the process has ended without a verdict."""


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of the first load."""

    why: str = ""  # why the function cannot be loaded; empty if it can
    module: str = ""  # the module that is not found or lacks a name; empty for any other reason
    name: str = ""  # the missing name
    trace: str = ""  # the traceback from the user's first line on; empty if no code of the user has run


def load_first(train_fn: Callable[..., Any], payload: bytes, meanwhile: Callable[[], object]) -> None:
    """Load a function in a process of its own, and call ``meanwhile`` here; raise TrainFunctionError if that fails.

    The process imports only what the load needs, and not what the function will import when it is called.
    """
    try:
        process, answer = _start(payload)
    except OSError:  # no file can be opened or written, or no process started: the engine says what to do
        return
    with contextlib.ExitStack() as undo:
        undo.callback(os.close, answer)
        undo.callback(_end, process)
        meanwhile()
        verdict = _verdict(process, answer)
    if verdict.why:
        error = TrainFunctionError(_message(train_fn, verdict))
        if verdict.trace:
            error.add_note(verdict.trace)
        raise error


def _start(payload: bytes) -> tuple[Process, int]:
    """Start the process, and return it with the descriptor from which its outcome is read."""
    answer, theirs = os.pipe()
    try:
        with open(theirs, "wb"), tempfile.TemporaryFile() as file, open(os.devnull, "wb") as null:
            pickle.dump((module_path(), sys.argv, payload), file)
            file.flush()
            process = start_module(
                "maggy_like.train_function.first_load",
                os.environ,
                module_path(),
                arguments=[str(file.fileno()), str(theirs)],
                output=null.fileno(),  # what the user's modules print, each worker prints, too
                pass_fds=[file.fileno(), theirs],
            )
    except BaseException:
        os.close(answer)
        raise
    return process, answer


def _end(process: Process) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _verdict(process: Process, answer: int) -> Verdict:
    """Return the outcome; an empty one if it is not known."""
    poller = select.poll()
    poller.register(answer, select.POLLIN)
    data, deadline = b"", float("inf")
    while time.monotonic() < deadline:
        if not poller.poll(LOOK_MS):
            if process.poll() is not None and not poller.poll(0):
                return Verdict()  # it was never started
        elif chunk := os.read(answer, 1 << 16):
            deadline = min(deadline, time.monotonic() + PATIENCE)
            data += chunk
        elif data == _BEGUN and not _took_too_long(process):
            return Verdict("loading it ends the process")
        elif data in (b"", _BEGUN):
            return Verdict()
        else:
            return msgspec.msgpack.decode(data.removeprefix(_BEGUN), type=Verdict)
    return Verdict()


def _took_too_long(process: Process) -> bool:
    """Return whether a process whose answer has ended was ended by its own alarm."""
    with contextlib.suppress(subprocess.TimeoutExpired):  # it has only closed its descriptors
        return process.wait(PATIENCE) == -signal.SIGALRM
    return False


_BEGUN = b"."
"""Sent when the load begins."""


def _message(train_fn: Callable[..., Any], verdict: Verdict) -> str:
    """Return what is wrong, where, and what to write instead."""
    if not verdict.module:
        return (
            f"{name_of(train_fn)} cannot be loaded by a worker, which is a new Python process: {verdict.why}; change "
            "the modules that it uses so that they can be imported there"
        )
    name, place = _use(train_fn, verdict) or (verdict.name or verdict.module, "")
    if verdict.name:
        remedy = "define it in a module that workers can import, or create it inside the function"
    else:
        remedy = "add its directory to PYTHONPATH, or define what it has in this script"
    return f"{name_of(train_fn)} uses {name!r}{place}, which a worker cannot load: {verdict.why}; {remedy}"


def _use(train_fn: Callable[..., Any], verdict: Verdict) -> tuple[str, str] | None:
    """Return the name that the function, or one that it calls, has for what is missing, and the line that uses it."""
    wanted = verdict.name.partition(".")[0]
    for function in own_functions(train_fn):
        names = {name for _, name, value in references(function) if wanted == name or _is_of(value, verdict)}
        for name, code, line in _loads(function):
            if name in names:
                text = linecache.getline(code.co_filename, line).strip()
                return name, f" ({os.path.basename(code.co_filename)}, line {line}: {text})"
    return None


def _is_of(value: Any, verdict: Verdict) -> bool:
    """Return whether a value is, or belongs to, what is missing."""
    if isinstance(value, types.ModuleType):
        return value.__name__ == verdict.module
    return any(
        verdict.module == getattr(it, "__module__", None) and verdict.name in ("", getattr(it, "__qualname__", None))
        for it in (value, type(value))
    )


def _loads(function: types.FunctionType) -> Iterator[tuple[str, types.CodeType, int]]:
    """Yield the names that a function reads: (name, code, line)."""
    for code in code_objects(function):
        line = code.co_firstlineno
        for instruction in dis.get_instructions(code):
            line = (instruction.positions and instruction.positions.lineno) or line
            if instruction.opname.startswith(("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME")):
                yield str(instruction.argval), code, line


def main(file: int, answer: int) -> None:
    """Load the function, and send the outcome."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(2 * PATIENCE) + 1)  # ends this process even if its parent is gone
    with open(file, "rb") as stream:
        stream.seek(0)
        path, argv, payload = pickle.load(stream)
    sys.path[:] = path  # in the user's order
    sys.argv[:] = argv
    os.write(answer, _BEGUN)
    os.write(answer, msgspec.msgpack.encode(_load(payload)))
    os._exit(0)  # the user's modules may have started threads


def _load(payload: bytes) -> Verdict:
    try:
        unpickle_train_fn(payload)
    except BaseException as error:
        missing = error if isinstance(error, NotFoundError) else None
        module, name = (missing.module, missing.member) if missing is not None else ("", "")
        return Verdict(encodable(why_not_loaded(error)), module, name, encodable(_users_trace(error)))
    return Verdict()


def _users_trace(error: BaseException) -> str:
    """Return the traceback of an error from the first line of the user's code on; empty if none of it has run."""
    frames = error.__traceback__
    while frames is not None and is_library_file(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)) if frames is not None else ""


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
