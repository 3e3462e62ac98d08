"""Which errors are refusals of a store, and which are mistakes of the caller."""

from __future__ import annotations

import errno
import resource

MAX_REASON = 500
"""Characters of a store's refusal that a message quotes."""

_NO_STORES = ("builtins", "pickle", "_pickle", "torch", "maggy_like")
"""Modules whose errors, unless they are an ``OSError``, mean a wrong call and not a store that refuses."""


_LASTING = {
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or use a file system that takes larger ones",
    errno.ENAMETOOLONG: "use shorter names for the run and its folder",
    errno.ENOSYS: "use another file system",
    errno.EOPNOTSUPP: "use another file system",
}
"""Refusals that no later try changes, and what to do."""


class StoreFault(Exception):
    """A store refused what cannot be tried again where it failed: the attempt ends, uncounted, and runs again."""


def is_store_fault(error: BaseException) -> bool:
    """Whether what a file system raised says that the store is away, full or forbidden, and not that it was misused.

    A refusal that would be the same the next time is none of these (see :func:`lasting_remedy`).

    Each file system has its own errors (botocore's and aiohttp's are no ``OSError``).
    """
    if lasting_remedy(error):
        return False
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or (isinstance(error, Exception) and package not in _NO_STORES)


def lasting_remedy(error: BaseException | None) -> str:
    """What to do about a refusal that lasts; empty for one that may pass.

    A soft limit on the size of files may pass, since it can be raised while the process runs.

    Example:
        >>> lasting_remedy(OSError(36, "File name too long"))
        'use shorter names for the run and its folder'
    """
    if not isinstance(error, OSError) or (error.errno == errno.EFBIG and _has_soft_limit()):
        return ""
    return _LASTING.get(error.errno or 0, "")


def _has_soft_limit() -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    return soft != hard


def refusal(store: str, verb: str, error: BaseException) -> str:
    """The message about a store's refusal.

    Example:
        >>> refusal("file:///states", "written", OSError(28, "No space left on device"))
        'the store file:///states cannot be written (No space left on device)'
    """
    said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return f"the store {store} cannot be {verb} ({said[:MAX_REASON]})"
