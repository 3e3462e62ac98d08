"""How a training function failed, for the driver: the kind of failure, and texts that can be sent."""

from __future__ import annotations

import itertools
import os
import re
import sys
import traceback

from maggy_like.processes.installation import is_installed_file
from maggy_like.protocol.failure_kinds import FailureKind
from maggy_like.protocol.messages import MAX_PLACE, MAX_TYPES
from maggy_like.protocol.report_error import ReportError
from maggy_like.protocol.texts import encodable
from maggy_like.storage.faults import StoreFault

MAX_TEXT = 100_000
"""Characters of a message or traceback that are sent; an exception may quote a whole data set."""

_CALLERS = ("maggy_like.worker.", "maggy_like.train_function.")
"""The modules through which a user's function or script is called."""

_OUR_ERROR = re.compile(r"^(?:maggy_like|optimizers)(?:\.\w+)*\.([A-Z]\w*)(?=: |$)", re.MULTILINE)
"""An error of this project as Python writes it where a line of a traceback names it."""

_BACKENDS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
"""What the messages of failed collective operations speak of, where they are plain RuntimeErrors."""


def kind_of(error: BaseException) -> FailureKind:
    """The kind of failure that an exception is."""
    if isinstance(error, ReportError):
        return FailureKind.REPORT
    if isinstance(error, StoreFault):
        return FailureKind.STORE
    distributed = sys.modules.get("torch.distributed")
    is_collective = (distributed is not None and isinstance(error, distributed.DistError)) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _BACKENDS)
    )
    return FailureKind.COLLECTIVE if is_collective else FailureKind.EXCEPTION


def format_message(error: BaseException) -> str:
    """The exception's type and message."""
    return _with_short_names("".join(traceback.format_exception_only(error)).strip())


def format_traceback(error: BaseException) -> str:
    """The traceback from the user's function on, without our own frames above it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith(_CALLERS):
        frames = frames.tb_next
    return _with_short_names("".join(traceback.format_exception(type(error), error, frames or error.__traceback__)))


def _with_short_names(text: str) -> str:
    """A text with the errors of this project named without their modules, which are no public ones."""
    return _OUR_ERROR.sub(r"\1", text)


def types_of(error: BaseException) -> list[str]:
    """The names of an exception's class and of those that it is derived from."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__[:-1])
    return [sendable(name[:MAX_PLACE])[:MAX_PLACE] for name in itertools.islice(names, MAX_TYPES)]


def place_of(error: BaseException) -> str:
    """Where an exception came from: the innermost frame of the user's code, or of all if there is none.

    Hosts may keep the same file in different folders, so the place has none.
    """
    users, innermost = "", ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        innermost = f"{os.path.basename(code.co_filename)}:{code.co_qualname}:{line}"
        if not _is_installed(code.co_filename, frame.f_globals.get("__name__", "")):
            users = innermost
    return sendable((users or innermost)[-MAX_PLACE:])[-MAX_PLACE:]


def _is_installed(filename: str, module: str) -> bool:
    """Whether code belongs to us, to Python or to an installed package."""
    if module.partition(".")[0] in ("maggy_like", "optimizers") or filename.startswith("<frozen"):
        return True
    return is_installed_file(filename)


def sendable(text: str) -> str:
    r"""A text that can be sent: its middle left out if it is long, and lone surrogates written as escapes.

    Example:
        >>> sendable("no file caf\udce9.csv")
        'no file caf\\udce9.csv'
    """
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return encodable(text)
