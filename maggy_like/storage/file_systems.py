"""File systems by URL: opened, written, marked by a run's driver, and which of their errors are refusals.

fsspec is imported at its first use: it takes a sixth of a second, and imports asyncio.
"""

from __future__ import annotations

import errno
import os
import resource
from typing import Any

from maggy_like.processes.resources import working_folder

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss"})
"""Protocols of stores without folders, in which a put takes effect completely or not at all."""


def open_url(url: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it.

    Raises:
        ConfigError: It is a relative path, and the working folder was deleted.
        ValueError: fsspec does not support the URL's protocol.
        ImportError: Its package is not installed.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    scheme, separator, _ = os.fspath(url).partition("://")
    if not separator or scheme in ("file", "local"):  # a local folder may be called "a::b", which is not a chain
        local = LocalFileSystem()
        try:
            return local, str(local._strip_protocol(url))
        except FileNotFoundError:  # a relative path, and the working folder was deleted
            working_folder()
            raise
    fs, path = url_to_fs(url)
    return fs, path


def is_local(fs: Any) -> bool:
    """Return whether a file system is this machine's."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def puts_whole(fs: Any) -> bool:
    """Return whether a file that is written to a file system appears completely or not at all."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return not OBJECT_STORES.isdisjoint(protocols)


def try_local_path(folder: str) -> str | None:
    """Return the path on this machine of a folder given by path or URL; None if it is on another file system."""
    if "://" not in folder:
        return folder
    try:
        fs, path = open_url(folder)
    except Exception:  # each file system raises its own; its package may be missing
        return None
    return path if is_local(fs) else None


def put(url: str, data: bytes) -> None:
    """Write a file and make its folder."""
    fs, path = open_url(url)
    write_file(fs, path, data)


def remove_folder(url: str) -> None:
    """Remove a folder and its contents, if it exists."""
    fs, path = open_url(url)
    if fs.exists(path):
        fs.rm(path, recursive=True)


def write_file(fs: Any, path: str, data: bytes) -> None:
    """Write a file and make its folder; on this machine, only the user may read them."""
    if is_local(fs):
        os.makedirs(fs._parent(path), 0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    else:
        fs.makedirs(fs._parent(path), exist_ok=True)
    fs.pipe_file(path, data)


MAX_REASON = 500
"""Maximum characters of a store's error in a message."""

_NO_STORES = ("builtins", "pickle", "_pickle", "torch", "maggy_like")
"""Modules whose errors, except an ``OSError``, mean a wrong call and not a refusal of the store."""


_LASTING = {
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or use a file system that takes larger ones",
    errno.ENAMETOOLONG: "use shorter names for the run and its folder",
    errno.ENOSYS: "use another file system",
    errno.EOPNOTSUPP: "use another file system",
}
"""Refusals that a retry cannot change, and what to do."""


class StoreFault(Exception):
    """A store refused an operation that cannot be repeated in place: the attempt is retried and does not count."""


def is_store_fault(error: BaseException) -> bool:
    """Return whether an error means that the store is unavailable, full or forbidden, and not a wrong call.

    Refusals that a retry cannot change do not count (see :func:`lasting_remedy`). Each file system has its own errors;
    those of botocore and aiohttp are not an ``OSError``.
    """
    if lasting_remedy(error):
        return False
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or (isinstance(error, Exception) and package not in _NO_STORES)


def lasting_remedy(error: BaseException | None) -> str:
    """Return what to do about a refusal that a retry cannot change; empty for other errors.

    A soft limit on the size of files can be raised while the process runs, so it does not count.

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
    """Return the message about a store's refusal.

    Example:
        >>> refusal("file:///states", "written", OSError(28, "No space left on device"))
        'the store file:///states cannot be written (No space left on device)'
    """
    said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return f"the store {store} cannot be {verb} ({said[:MAX_REASON]})"


MAX_MARK_REASON = 300
"""Maximum characters of a file system's error that a worker sends to the driver."""


def is_visible(store: str, run_id: str) -> bool:
    """Return whether the driver's mark (see :func:`mark_store`) is visible in ``store``."""
    return look_for_mark(store, run_id) is None


def look_for_mark(store: str, run_id: str) -> str | None:
    """Return why the driver's mark (see :func:`mark_store`) is not visible in ``store``; None if it is visible.

    Returns:
        Empty without an error: the same name means another place here, such as a folder of this machine.
    """
    try:
        fs, path = _mark_of(store)
        return None if fs.cat_file(path) == run_id.encode() else ""
    except FileNotFoundError:
        return ""
    except Exception as error:  # each file system raises its own: credentials, package, network
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_MARK_REASON]


def is_marked(store: str) -> bool:
    """Return whether ``store`` has the mark of any run."""
    fs, path = _mark_of(store)
    return bool(fs.exists(path))


def mark_store(store: str, run_id: str) -> None:
    """Write the mark by which workers check that they see the same store as the driver."""
    fs, path = _mark_of(store)
    write_file(fs, path, run_id.encode())


def unmark_store(store: str) -> None:
    """Remove the mark."""
    fs, path = _mark_of(store)
    fs.rm_file(path)


def _mark_of(store: str) -> tuple[Any, str]:
    return open_url(f"{store.rstrip('/')}/.run")
