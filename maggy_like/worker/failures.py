"""What is told of a training function that failed: the kind, and texts that can be sent."""

from __future__ import annotations

import sys
import traceback

from maggy_like.worker.metrics import ReportError
from maggy_like.worker.store_retry import StoreFault

MAX_TEXT = 100_000
"""Characters of a message or traceback that are told; an exception may quote a whole data set."""

_BACKENDS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
"""What the messages of failed collective operations speak of, where they are plain RuntimeErrors."""


def kind_of(error: BaseException) -> str:
    """The kind of failure that an exception is."""
    if isinstance(error, ReportError):
        return "report"
    if isinstance(error, StoreFault):
        return "store"
    distributed = sys.modules.get("torch.distributed")
    is_collective = (distributed is not None and isinstance(error, distributed.DistError)) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _BACKENDS)
    )
    return "collective" if is_collective else "exception"


def format_message(error: BaseException) -> str:
    """The exception's type and message."""
    return "".join(traceback.format_exception_only(error)).strip()


def format_traceback(error: BaseException) -> str:
    """The traceback from the user's function on, without our own frames above it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith("maggy_like.worker."):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def as_told(text: str) -> str:
    r"""A text that can be sent: its middle left out if it is long, and lone surrogates written as escapes.

    Example:
        >>> as_told("no file caf\udce9.csv")
        'no file caf\\udce9.csv'
    """
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()
