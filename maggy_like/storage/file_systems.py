"""File systems by URL: opened, written, marked by a run's driver, and which of their errors are refusals."""

from __future__ import annotations

import errno
import os
import resource
from typing import Any

from maggy_like.processes.resources import working_folder

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss"})
"""Protocols of stores without folders, in which a put takes effect whole or not at all."""


def open_url(url: str | os.PathLike[str]) -> tuple[Any, str]:
    """The file system of a path or URL, and the path in it.

    Raises:
        ConfigError: It is a relative path, and the working folder was deleted.
        ValueError: The URL's file system is not known.
        ImportError: Its package is not installed.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    scheme, separator, _ = os.fspath(url).partition("://")
    if not separator or scheme in ("file", "local"):  # a folder of this machine may be called "a::b": no chain of URLs
        local = LocalFileSystem()
        try:
            return local, str(local._strip_protocol(url))
        except FileNotFoundError:  # a relative path was given, and there is nothing that it is relative to
            working_folder()
            raise
    fs, path = url_to_fs(url)
    return fs, path


def is_local(fs: Any) -> bool:
    """Whether a file system is that of this machine."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def puts_whole(fs: Any) -> bool:
    """Whether a file that is written to a file system appears there whole or not at all."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return not OBJECT_STORES.isdisjoint(protocols)


def try_local_path(folder: str) -> str | None:
    """The path on this machine of a folder given by its path or URL; None where it is another file system's."""
    if "://" not in folder:
        return folder
    try:
        fs, path = open_url(folder)
    except Exception:  # of whatever file system it is; its package may be missing
        return None
    return path if is_local(fs) else None


def put(url: str, data: bytes) -> None:
    """Write a file and make its folder."""
    fs, path = open_url(url)
    write_file(fs, path, data)


def remove_folder(url: str) -> None:
    """Remove a folder with all that is in it, if it is there."""
    fs, path = open_url(url)
    if fs.exists(path):
        fs.rm(path, recursive=True)


def write_file(fs: Any, path: str, data: bytes) -> None:
    """Write a file and make its folder; on this machine's disks, for the user alone."""
    if is_local(fs):
        os.makedirs(fs._parent(path), 0o700, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    else:
        fs.makedirs(fs._parent(path), exist_ok=True)
    fs.pipe_file(path, data)


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


MAX_MARK_REASON = 300
"""Characters of what a file system says that a worker passes on."""


def is_visible(store: str, run_id: str) -> bool:
    """Whether ``store`` holds the mark that the driver left there (see :func:`mark_store`)."""
    return look_for_mark(store, run_id) is None


def look_for_mark(store: str, run_id: str) -> str | None:
    """Why the driver's mark (see :func:`mark_store`) is not seen in ``store``; None where it is.

    Returns:
        Empty where nothing refuses: another place has that name here, such as a folder of this machine's own.
    """
    try:
        fs, path = _mark_of(store)
        return None if fs.cat_file(path) == run_id.encode() else ""
    except FileNotFoundError:
        return ""
    except Exception as error:  # of whatever file system it is: no credentials, no package, no way to it
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_MARK_REASON]


def is_marked(store: str) -> bool:
    """Whether ``store`` holds the mark of any run."""
    fs, path = _mark_of(store)
    return bool(fs.exists(path))


def mark_store(store: str, run_id: str) -> None:
    """Leave a mark in the store by which workers see that it is the same place."""
    fs, path = _mark_of(store)
    write_file(fs, path, run_id.encode())


def unmark_store(store: str) -> None:
    """Take the mark away again."""
    fs, path = _mark_of(store)
    fs.rm_file(path)


def _mark_of(store: str) -> tuple[Any, str]:
    return open_url(f"{store.rstrip('/')}/.run")
