"""Which errors are refusals of a store, and which are mistakes of the caller."""

from __future__ import annotations

MAX_REASON = 500
"""Characters of a store's refusal that a message quotes."""

_NO_STORES = ("builtins", "pickle", "_pickle", "torch", "maggy_like")
"""Modules whose errors, unless they are an ``OSError``, mean a wrong call and not a store that refuses."""


class StoreFault(Exception):
    """A store refused what cannot be tried again where it failed: the attempt ends, uncounted, and runs again."""


def is_store_fault(error: BaseException) -> bool:
    """Whether what a file system raised says that the store is away, full or forbidden, and not that it was misused.

    Each file system has its own errors (botocore's and aiohttp's are no ``OSError``).
    """
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or (isinstance(error, Exception) and package not in _NO_STORES)


def refusal(store: str, verb: str, error: BaseException) -> str:
    """The message about a store's refusal.

    Example:
        >>> refusal("file:///states", "written", OSError(28, "No space left on device"))
        'the store file:///states cannot be written (No space left on device)'
    """
    said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return f"the store {store} cannot be {verb} ({said[:MAX_REASON]})"
