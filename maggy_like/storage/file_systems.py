"""File systems and directories by path or URL: opened, written, marked by a run's driver, checked and probed.

fsspec is imported at the first URL of another file system (see :mod:`maggy_like.storage.local_files`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib
import os
import re
import resource
import threading
import uuid
from collections.abc import Callable, Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from maggy_like.errors import ConfigError
from maggy_like.storage.local_files import LocalFiles, absolute_path

MOUNT = "mount"
"""Protocol of directories that are mounts of object stores (see :mod:`maggy_like.storage.mounts`)."""

OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci", "oss", MOUNT})
"""Protocols of stores whose directories need not be made, and in which a new file appears completely or not at all."""


def open_url(url: str | os.PathLike[str]) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it."""
    scheme, separator, rest = os.fspath(url).partition("://")
    if not separator or scheme in LocalFiles.protocol:  # a local directory may be called "a::b", which is not a chain
        return LocalFiles(), absolute_path(rest if separator else scheme)
    from fsspec.core import url_to_fs

    if scheme == MOUNT:
        importlib.import_module("maggy_like.storage.mounts")  # which registers it
    fs, path = url_to_fs(url)
    return fs, path


def is_local(fs: Any) -> bool:
    """Return whether a file system is this machine's."""
    return isinstance(fs, LocalFiles)


def is_mount(fs: Any) -> bool:
    """Return whether a file system is that of a mount."""
    return bool(fs.protocol == MOUNT)


def puts_whole(fs: Any) -> bool:
    """Return whether a file that is written to a file system appears completely or not at all."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return not OBJECT_STORES.isdisjoint(protocols)


def try_local_path(directory: str) -> str | None:
    """Return the path on this machine of a directory given by path or URL; None if it is on another file system."""
    if "://" not in directory:
        return directory
    try:
        fs, path = open_url(directory)
    except Exception:  # each file system raises its own; its package may be missing
        return None
    return path if is_local(fs) else None


def leads_out(directory: str, file: str) -> bool:
    """Return whether a link leads from a directory on this machine to a file elsewhere; it may be a link itself."""
    root, path = try_local_path(directory), try_local_path(file)
    if root is None or path is None:
        return False
    return os.path.commonpath([os.path.realpath(root), os.path.realpath(path)]) != os.path.realpath(root)


def put(url: str, data: bytes) -> None:
    """Write a file and make its directory."""
    fs, path = open_url(url)
    write_file(fs, path, data)


def remove_directory(url: str) -> None:
    """Remove a directory and its contents, if it exists."""
    fs, path = open_url(url)
    if fs.exists(path):
        fs.rm(path, recursive=True)


def write_file(fs: Any, path: str, data: bytes) -> None:
    """Write a file and make its directory; on this machine, only the user may read them."""
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
    errno.ENAMETOOLONG: "use shorter names for the run and its directory",
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
        'use shorter names for the run and its directory'
    """
    if not isinstance(error, OSError) or (error.errno == errno.EFBIG and _has_soft_limit()):
        return ""
    return _LASTING.get(error.errno or 0, "")


def _has_soft_limit() -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    return soft != hard


def refusal(store: str, verb: str, error: BaseException) -> str:
    """Return the message about a store's refusal; ``verb`` is ``written`` or ``read``."""
    said = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return f"the store {store} cannot be {verb} ({said[:MAX_REASON]})"


MAX_MARK_REASON = 300
"""Maximum characters of a file system's error that a worker sends to the driver."""


def is_visible(store: str, run_id: str) -> bool:
    """Return whether the driver's mark (see :func:`mark_store`) is visible in ``store``."""
    return look_for_mark(store, run_id) is None


def look_for_mark(store: str, run_id: str) -> str | None:
    """Return why the driver's mark (see :func:`mark_store`) is not visible in ``store``; None if it is visible.

    The reason is empty without an error: the same name means another place here, such as a directory of this machine.
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


Directory = Path | str
"""A directory: a path on this machine, or a URL as text."""

PROBE_PATIENCE = 60.0
"""Seconds that a file system gets for the probe before a run begins."""

REMEDY = "check its address and your credentials, or pass another"

_LONGEST = 300
"""Maximum characters of an error in a message."""

_WITH_BUCKETS = OBJECT_STORES | {"adl"}
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")


def within(directory: Directory, name: str) -> Directory:
    """Return the path or URL of a name in a directory."""
    return directory / name if isinstance(directory, Path) else f"{directory}/{name}"


def sibling_of(directory: Directory, name: str) -> Directory:
    """Return the directory of another name in the same parent."""
    return within(parent_of(directory), name)


def parent_of(directory: Directory) -> Directory:
    """Return the directory that contains ``directory``."""
    return directory.parent if isinstance(directory, Path) else directory.rpartition("/")[0]


def name_of_directory(directory: Directory) -> str:
    """Return the last part of a directory's path or URL."""
    return directory.name if isinstance(directory, Path) else directory.rpartition("/")[2]


def local_url(directory: Path) -> str:
    """Return fsspec's URL of a path on this machine, without escapes, which fsspec does not decode."""
    return f"file://{directory}"


def url_of(directory: Directory) -> str:
    """Return fsspec's URL of a directory."""
    return local_url(directory) if isinstance(directory, Path) else directory


def local_path(directory: Directory) -> Path | None:
    """Return the path of a directory on this machine (or mounted there); None if it is on another file system."""
    if isinstance(directory, Path):
        return directory
    fs, path = open_url(directory)
    return Path(path) if is_local(fs) else None


def modules_for(directory: Directory) -> tuple[str, ...]:
    """Return the modules that each process imports to use a directory."""
    return () if isinstance(directory, Path) else (type(open_url(directory)[0]).__module__,)


def is_in_memory(directory: Directory) -> bool:
    """Return whether a directory is in fsspec's memory, which other processes cannot read."""
    if isinstance(directory, Path):
        return False
    from fsspec.implementations.memory import MemoryFileSystem

    return isinstance(open_url(directory)[0], MemoryFileSystem)


def check_directory(argument: str, given: str | PathLike[str]) -> str:
    """Return the path or URL of a directory as text, without a slash at its end.

    Messages begin with the argument's name, if it is not obvious.
    """
    if not isinstance(given, str | PathLike) or not fspath(given).strip():
        raise ConfigError(f"{argument} must be the path or URL of a directory, got {given!r}")
    where = fspath(given)
    if "\0" in where:
        raise ConfigError(
            f"{argument} must be the path or URL of a directory, got {given!r}; leave out the null character"
        )
    named = f"{argument}={given!r}" if argument else repr(given)
    if "$" in where and os.path.expandvars(where) != where:
        raise ConfigError(f"{named} has a variable, which only a shell replaces; use os.path.expandvars({given!r})")
    if (found := _ONE_SLASH.match(where)) and found[1].lower() in _known_schemes():
        rest = where[found.end() :]
        meant = f"/dbfs/{rest}" if found[1] == "dbfs" else f"{found[1]}://{'/' * (found[1] == 'file')}{rest}"
        raise ConfigError(f"{named} is neither a path nor a URL; pass the text {meant!r}")
    if "://" not in where:
        return where.rstrip("/") or where
    _check_url(named, where)
    where = where.rstrip("/")
    try:
        open_url(where)
    except ImportError as error:
        raise ConfigError(_package_is_missing(named, _said(error))) from error
    except Exception as error:  # each file system raises its own; some connect here
        is_unknown = isinstance(error, ValueError) and "rotocol not known" in str(error)
        remedy = "use a path, or a protocol that fsspec supports" if is_unknown else REMEDY
        raise ConfigError(f"{named} cannot be opened: {_said(error)}; {remedy}") from error
    return where


def _known_schemes() -> list[str]:
    import fsspec

    return [*fsspec.available_protocols(), MOUNT]


def _package_is_missing(named: str, said: str) -> str:
    return f"{named} cannot be opened: a package is missing here ({said}); install it here and where the workers run"


def _said(error: Exception) -> str:
    """Return an error's message on one line, shortened."""
    said = " ".join(str(error).split()) or type(error).__name__
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."


def _check_url(named: str, url: str) -> None:
    """Check that a URL names a plain directory."""
    scheme, _, path = url.rpartition("://")
    if "::" in scheme or "://" in scheme:
        raise ConfigError(
            f"{named} is a chain of file systems, and a cache or an archive does not show at once what "
            f"other processes have written; pass {url.rpartition('::')[2]!r}"
        )
    known = _known_schemes()
    if scheme == "abfss" and scheme not in known:  # fsspec lists this protocol only if its package is installed
        raise ConfigError(_package_is_missing(named, "Install adlfs to access Azure storage"))
    if scheme not in known and scheme.lower() in known:
        raise ConfigError(
            f"{named} cannot be opened: fsspec does not support {scheme!r}; pass "
            f"{url.replace(scheme, scheme.lower(), 1)!r}"
        )
    if url != url.strip():
        raise ConfigError(f"{named} begins or ends with white space; remove it")
    if not path.strip("/"):
        raise ConfigError(f"{named} does not name a directory; pass {scheme}://{'/' * (scheme == 'file')}NAME")
    if found := re.search(r"[?*\[]", path):
        raise ConfigError(
            f"{named} has a {found[0]!r}, which begins a query or a pattern; pass a plain directory, and set "
            "credentials and options by the environment or by fsspec's configuration files"
        )
    if (plain := unquote(path)) != path:
        raise ConfigError(f"{named} has percent signs, which fsspec does not decode; pass {f'{scheme}://{plain}'!r}")
    if ".." in path.split("/"):
        raise ConfigError(f"{named} has '..', which is an ordinary name in an object store; remove it")
    if scheme in ("file", "local") and not path.startswith("/"):
        raise ConfigError(f"{named} is relative to the working directory; pass {f'{scheme}:///{path}'!r}")


def probe(directory: str) -> None:
    """Write, read and remove a small file in a run's directory, so that errors appear before the run begins."""
    failed: list[Exception] = []

    def try_it() -> None:
        try:
            _write_and_read(directory)
        except Exception as error:  # each file system raises its own
            failed.append(error)

    trial = threading.Thread(target=try_it, name="maggy-probe", daemon=True)
    trial.start()
    trial.join(PROBE_PATIENCE)
    if trial.is_alive():
        raise ConfigError(
            f"directory={parent_of(directory)!r} does not respond: no file could be written in {PROBE_PATIENCE:g} s; "
            "check that it can be reached from here, or pass another"
        )
    if failed:
        error = failed[0]
        raise ConfigError(
            f"directory={parent_of(directory)!r} cannot be written and read ({type(error).__name__}: "
            f"{_said(error)}); {REMEDY}"
        ) from None


def probe_path(directory: Path) -> None:
    """Make a run's directory and try the operations that its journal needs; after an error, remove the directory."""
    exists = os.path.exists(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"directory={str(directory.parent)!r} cannot be written ({error}); pass another") from None
    try:
        lacks = missing_operations(directory)
        why = f"cannot {' or '.join(lacks)}; start another run there, which needs none of this" if lacks else ""
    except OSError as error:
        why = f"cannot be written ({error}); free space, fix the access, or pass another"
    if why:
        if not exists:
            with contextlib.suppress(OSError):  # another driver may have put files there
                directory.rmdir()
        raise ConfigError(f"directory={str(directory.parent)!r} {why}")


def missing_operations(directory: Path) -> list[str]:
    """Try the operations that a journal at a path needs in a directory, and return those that its file system refuses.

    Raise OSError if it refuses whole files, too, such as on a full disk.
    """
    whole = directory / f".probe-{uuid.uuid4().hex}"
    try:
        whole.write_bytes(b"probe")
    finally:
        _remove_probe(whole)
    file, missing = directory / f".probe-{uuid.uuid4().hex}-journal.jsonl", []
    try:
        for operation, attempt in _OPERATIONS:
            try:
                attempt(file)
            except OSError as error:
                if error.errno in _REFUSALS:
                    raise
                missing.append(operation)
    finally:
        _remove_probe(file)
    return missing


def creates_once(directory: str) -> bool:
    """Return whether the file system of a directory refuses to create a file that exists."""
    fs, path = open_url(directory)
    file = f"{path}/.probe-{uuid.uuid4().hex}"
    fs.pipe_file(file, b"first", mode="create")
    try:
        fs.pipe_file(file, b"second", mode="create")
    except FileExistsError:
        return True
    finally:
        fs.rm_file(file)
    return False


def _lock(file: Path) -> None:
    with _opened(file) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)


def _append(file: Path) -> None:
    """Append as drivers do to a journal: repeatedly, read by others meanwhile, and again by the next driver."""
    for number in range(2):
        with _opened(file) as fd:
            for count in range(2):
                os.write(fd, b"line\n")
                if file.read_bytes() != b"line\n" * (2 * number + count + 1):
                    raise OSError("a read returns something else than was appended")


def _rename(file: Path) -> None:
    moved = file.with_suffix(".moved")
    file.touch()  # where it could not be appended to
    file.rename(moved)
    moved.rename(file)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[int]:
    fd = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _remove_probe(file: Path) -> None:
    for left in (file, file.with_suffix(".moved")):
        with contextlib.suppress(OSError):
            left.unlink()


_OPERATIONS: tuple[tuple[str, Callable[[Path], None]], ...] = (
    ("append to files", _append),
    ("lock files (flock)", _lock),
    ("rename files", _rename),
)
_REFUSALS = (errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # from a file system that supports all operations


def _write_and_read(directory: str) -> None:
    fs, path = open_url(directory)
    file, content = f"{path}/.probe-{uuid.uuid4().hex}", uuid.uuid4().bytes
    _write(fs, path, file, content)
    try:
        if fs.cat_file(file) != content:
            raise OSError("a read returns something else than was written")
    finally:
        with contextlib.suppress(Exception):  # some users may write but not remove, which is enough for a run
            fs.rm_file(file)


def _write(fs: Any, directory: str, file: str, content: bytes) -> None:
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if not protocols & _WITH_BUCKETS:  # there, directories need not be made, and a bucket must not be
        fs.makedirs(directory, exist_ok=True)
    fs.pipe_file(file, content)
