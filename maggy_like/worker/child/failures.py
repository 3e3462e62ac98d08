"""How an exception of the training function is described: its kind, message, traceback, types and place."""

from __future__ import annotations

import itertools
import os
import re
import sys
import traceback
from types import TracebackType

from maggy_like.processes.imports import is_installed_file
from maggy_like.protocol.messages import MAX_PLACE, MAX_TYPES, FailureKind
from maggy_like.protocol.values import ReportError, encodable, text_of
from maggy_like.storage.file_systems import StoreFault

MAX_TEXT = 100_000
"""Characters of a message or traceback that are sent; an exception may quote a whole data set."""

_CALLERS = ("maggy_like.worker.", "maggy_like.train_function.")
"""The modules through which a user's function or script is called."""

_OUR_ERROR = re.compile(r"^(?:maggy_like|optimizers)(?:\.\w+)*\.([A-Z]\w*)(?=: |$)", re.MULTILINE)
"""An error of this project as Python writes it where a line of a traceback names it."""

_BACKENDS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
"""What the messages of failed collective operations speak of, where they are plain RuntimeErrors."""


def kind_of(error: BaseException) -> FailureKind:
    """Classify an exception as a kind of failure."""
    if isinstance(error, ReportError):
        return FailureKind.REPORT
    if isinstance(error, StoreFault):
        return FailureKind.STORE
    distributed = sys.modules.get("torch.distributed")
    is_collective = (distributed is not None and isinstance(error, distributed.DistError)) or (
        isinstance(error, RuntimeError) and any(word in text_of(error).lower() for word in _BACKENDS)
    )
    return FailureKind.COLLECTIVE if is_collective else FailureKind.EXCEPTION


def format_message(error: BaseException) -> str:
    """Return the exception's type and message."""
    return _with_short_names("".join(traceback.format_exception_only(error)).strip())


def format_traceback(error: BaseException) -> str:
    """Return the traceback from the user's function onwards, without the frames of this project above it.

    A wrong report has only the frames of the user's code, since the message says all about those of this project, and
    no traceback if the function has returned.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith(_CALLERS):
        frames = frames.tb_next
    cause = error.__cause__ or error.__context__
    if isinstance(error, ReportError) and (cause is None or not _users_frames(cause.__traceback__)):
        lines = traceback.format_list(_users_frames(frames))
        if lines:
            lines = ["Traceback (most recent call last):\n", *lines, *traceback.format_exception_only(error)]
    else:
        lines = traceback.format_exception(type(error), error, frames or error.__traceback__)
    return _with_short_names("".join(lines))


def _users_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback that are in the user's code."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(trace)]
    summaries = zip(traceback.extract_tb(trace), modules, strict=True)
    return [summary for summary, module in summaries if not _is_installed(summary.filename, module)]


def _with_short_names(text: str) -> str:
    """Remove the modules, which are not public, from the names of this project's errors."""
    return _OUR_ERROR.sub(r"\1", text)


def types_of(error: BaseException) -> list[str]:
    """Return the names of an exception's class and of its base classes."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__[:-1])
    return [sendable(name[:MAX_PLACE])[:MAX_PLACE] for name in itertools.islice(names, MAX_TYPES)]


def place_of(error: BaseException) -> str:
    """Return the place where an exception was raised: the innermost frame of the user's code, or of all frames.

    The directory is left out, because hosts may keep the same file in different directories.
    """
    users, innermost = "", ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        innermost = f"{os.path.basename(code.co_filename)}:{code.co_qualname}:{line}"
        if not _is_installed(code.co_filename, frame.f_globals.get("__name__", "")):
            users = innermost
    return sendable((users or innermost)[-MAX_PLACE:])[-MAX_PLACE:]


def _is_installed(filename: str, module: str) -> bool:
    """Whether code belongs to this project, to Python or to an installed package."""
    if module.partition(".")[0] in ("maggy_like", "optimizers") or filename.startswith("<frozen"):
        return True
    return is_installed_file(filename)


def sendable(text: str) -> str:
    r"""Make a text fit to send: cut the middle of a long one, and escape lone surrogates.

    Example:
        >>> sendable("no file caf\udce9.csv")
        'no file caf\\udce9.csv'
    """
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return encodable(text)
