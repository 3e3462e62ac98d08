"""A run's journal, what it needs of the place that holds it, and that place in a local directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

from maggy_like.errors import JournalError, JournalLostError, StoreError
from maggy_like.storage.journal.records import (
    FORMAT_VERSION,
    Contents,
    Part,
    Record,
    RunHeader,
    RunStatus,
    decode,
    decode_each,
    encode,
    open_line,
)
from optimizers.core.events import Event


class Journal:
    """A journal that is open for appending; only one driver at a time may hold it."""

    def __init__(self, backend: JournalBackend, run: str = "") -> None:
        self._backend = backend
        self.last = 0  # the number of the last record
        self.created = 0.0  # when the run began, in Unix time; 0 until it was begun or read
        # of earlier drivers, once it was read: their seconds, whether they had it for longer, and the last one's begin
        self.earlier_seconds, self.is_longer = 0.0, False
        self.begun: RunStatus | None = None
        with self._writing("then try again"):
            backend.hold(run)

    def begin(self, header: RunHeader) -> None:
        """Write the header of a new journal."""
        with self._writing("then try again"):  # nothing can be resumed yet
            self._append([header])
        self.created = header.created

    def read(self) -> Contents:
        """Return its contents; later records are appended after them."""
        contents = read_journal(self._backend)
        self.last = contents.last
        return contents

    def read_each(self) -> Iterator[Contents]:
        """Yield its contents part by part (see :func:`decode_each`); read all parts before appending records."""
        for contents in decode_each(_parts(self._backend)):
            self.last, self.created = contents.last, contents.header.created
            self.earlier_seconds = sum(end - begin for begin, end in contents.sessions)
            self.is_longer = bool(contents.unended) or contents.ended is None
            self.begun = contents.begun
            yield contents

    def note(self, status: RunStatus) -> None:
        """Write that the run was begun, resumed or ended."""
        if self._backend.is_away:
            raise JournalError(f"the journal in {self._backend.name} cannot be written; continue with resume=True")
        with self._writing():
            self._backend.renew()
            self._append([status])
            self._backend.renew()  # a driver that was frozen meanwhile must not assume that its record counts

    def append(self, events: Sequence[Event]) -> None:
        """Write events, all or none; they are safe when this returns."""
        if not events:
            return
        try:
            self._append(events)
        except Exception as error:
            self._not_served(error)

    def replace(self, header: RunHeader, events: Sequence[Event]) -> str:
        """Replace a damaged journal by a repaired one; return the place of the damaged one."""
        records = [header, *events]
        with self._writing():
            kept = self._backend.replace(encode(records, self.last + 1))
        self.last += len(records)
        return kept

    def clear(self) -> None:
        """Remove its contents; call :meth:`begin` afterwards."""
        with self._writing("then try again"):
            self._backend.clear()
        self.last = 0

    @property
    def directory(self) -> str:
        """Path or URL of its directory."""
        return self._backend.name

    def written(self) -> float:
        """Return the Unix time of the last write before this driver held it; 0 if it is not known."""
        return self._backend.written()

    @property
    def is_away(self) -> bool:
        """Whether the last call failed in a store in which each further call may take seconds to fail."""
        return self._backend.is_away

    def renew(self) -> None:
        """Keep holding it; call every few seconds, also when there is nothing to append."""
        try:
            self._backend.renew()
        except Exception as error:
            self._not_served(error)

    def close(self) -> None:
        """Let other drivers in."""
        self._backend.release()

    def _append(self, records: Sequence[Record]) -> None:
        self._backend.append(encode(records, self.last + 1))
        self.last += len(records)

    def _not_served(self, error: Exception) -> NoReturn:
        """Turn an error of any file system into one that allows a retry."""
        if isinstance(error, JournalError):
            raise error
        raise StoreError(f"the journal in {self._backend.name} cannot be written: {_said(error)}") from error

    @contextmanager
    def _writing(self, remedy: str = "then continue with resume=True") -> Iterator[None]:
        try:
            yield
        except JournalError:
            raise
        except Exception as error:  # each file system raises its own
            raise JournalError(
                f"the journal in {self._backend.name} cannot be written: {_said(error)}; free space or fix the access, "
                f"{remedy}"
            ) from error


def read_journal(backend: JournalBackend) -> Contents:
    """Read the undamaged records of a journal; ``damage`` of the result describes the others."""
    return decode(_parts(backend))


def read_header(backend: JournalBackend) -> RunHeader:
    """Read only a journal's header."""
    return next(decode_each(_parts(backend))).header


class Ends(NamedTuple):
    """The first record of a journal, and what its last one tells."""

    header: RunHeader | None  # None if the first record is damaged, too long, or of another version
    ended: RunStatus | None  # None if the run has not ended, or the last record is damaged or too long
    last: int  # number of the last record; 0 if that is damaged or too long


def read_ends(backend: JournalBackend) -> Ends | None:
    """Read only both ends of a journal; None if there is none."""
    with reading(backend):
        first, last = backend.ends()
    if not first:
        return None
    _, header = open_line(first.partition(b"\n")[0]) or (0, None)
    number, ended = open_line(last[:-1].rpartition(b"\n")[2]) or (0, None)
    return Ends(
        header if isinstance(header, RunHeader) and header.version == FORMAT_VERSION else None,
        ended if isinstance(ended, RunStatus) and ended.status.is_over and last.endswith(b"\n") else None,
        number,
    )


def _parts(backend: JournalBackend) -> Iterator[Part]:
    part = None
    with reading(backend):  # errors of the caller, which handles each part, stay as they are
        for part in backend.read():
            yield part
    if part is None:
        raise JournalError(f"there is no journal in {backend.name}; use the directory of a run")


@contextmanager
def reading(backend: JournalBackend) -> Iterator[None]:
    """Turn any error of a file system into a :class:`JournalError`."""
    try:
        yield
    except Exception as error:
        raise JournalError(f"the journal in {backend.name} cannot be read: {_said(error)}; fix the access") from error


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


class Mark(NamedTuple):
    """How far a journal was read: one of its files (its name or number), and the bytes read of it."""

    file: int | str = 0
    size: int = 0


class JournalBackend(Protocol):
    """A directory with one run's journal. Call :meth:`hold` before any method that writes.

    Two kinds serve: :class:`LocalBackend` and :class:`~maggy_like.storage.journal.object_store.ObjectStoreBackend`.
    Errors of the file system come through as they are.
    """

    name: str
    """The directory, for messages."""

    @property
    def is_away(self) -> bool:
        """Whether the last call failed in a store in which each further call may take seconds to fail."""
        ...

    def exists(self) -> bool:
        """Return whether there is a journal."""
        ...

    def read(self) -> Iterator[Part]:
        """Yield the journal in order, in parts of some MiB; nothing without a journal.

        Read it to the end before :meth:`append`.
        """
        ...

    def ends(self) -> tuple[bytes, bytes]:
        """Return the first and the last :data:`END` bytes of the journal at most. Both are empty without a journal."""
        ...

    def added(self, mark: Mark) -> tuple[bytes, Mark] | None:
        """Return the next complete lines after ``mark``, some MiB at most, and their end.

        They are empty at the end of the journal. None if the journal was replaced since ``mark``.
        """
        ...

    def is_held(self) -> bool:
        """Return whether a driver on any machine holds it, without writing anything."""
        ...

    def hold(self, run: str = "") -> None:
        """Make the directory, and keep other drivers away until :meth:`release`.

        ``run`` identifies the call of ``lagom``. Without locks, a driver that replaces a dead one of the same call
        takes over at once. Raise JournalError if another driver, which the message describes, holds it.
        """
        ...

    def written(self) -> float:
        """Return the Unix time of the last write before this driver held it; 0 if it is not known."""
        ...

    def renew(self) -> None:
        """Keep holding it; call every few seconds. Raise JournalError if another driver has taken it over."""
        ...

    def append(self, data: bytes) -> None:
        """Add complete lines; when this returns, they outlive the driver."""
        ...

    def replace(self, data: bytes) -> str:
        """Replace the journal by ``data``, and keep a copy of the former one, whose place is returned.

        Whenever the driver dies, one of the two is complete.
        """
        ...

    def clear(self) -> None:
        """Remove the journal and the damaged ones that were kept; call :meth:`hold` before."""
        ...

    def release(self) -> None:
        """Let other drivers in."""
        ...


BLOCK = 4 << 20
"""Bytes to read at a time."""

END = 64 << 10
"""Bytes to read where only the first or the last record is of interest."""

BEAT = 10.0
"""Seconds between two heartbeats, which set the time of the lock's file."""

LAPSE = 60.0
"""Seconds after the last heartbeat from which a reader without locks considers the driver dead."""

LOCK_TRIES = 20
LOCK_PAUSE = 0.01
"""Number of attempts for a lock, and seconds between them: a reader that tests the lock has it for a moment."""

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


def process_name(pid: int, host: str) -> str:
    """Return how errors call a process that holds a run."""
    return f"process {pid} on {host}"


def remedy_of_use(holder: str) -> str:
    """Return what to do about a run that a process holds, which may be this one, as in a notebook."""
    if holder == process_name(os.getpid(), socket.gethostname()):
        return "wait until it ends, call stop() of its handle, or restart this process, in which it runs"
    return "wait until it ends, or end it"


class LocalBackend:
    """A directory on this machine (or mounted there).

    A record is passed to the operating system before :meth:`append` returns, so it survives the driver's death. It may
    not survive the machine's, since records are not synced to the disk. An interrupted append leaves a torn last line,
    which the next driver ignores. The lock is a kernel lock, which ends with the process. It is on a separate file, so
    that the journal can be replaced. The host and process in that file are only for people, since both mean nothing
    on other machines.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)  # made with access only for the user, if it does not exist
        self._path = self._directory / "journal.jsonl"
        self._lock = self._file = -1
        self._size, self._written, self._beat = 0, 0.0, 0.0
        self._is_torn = False  # part of a failed append follows after that size
        self.name = str(directory)

    @property
    def is_away(self) -> bool:
        return False

    def exists(self) -> bool:
        return self._path.exists() and self._path.stat().st_size > 0  # an empty one has no header

    def read(self) -> Iterator[Part]:
        line = 1
        pending: list[bytes] = []  # the parts of a line whose end was not read yet
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb", buffering=0) as file:
            while block := file.read(BLOCK):
                if end := block.rfind(b"\n") + 1:
                    part = Part(str(self._path), b"".join((*pending, block[:end])), line)
                    line += part.data.count(b"\n")
                    pending = [block[end:]]
                    del block
                    yield part
                else:
                    pending.append(block)
            if line == 1 or any(pending):
                yield Part(str(self._path), b"".join(pending), line)

    def ends(self) -> tuple[bytes, bytes]:
        try:
            with open(self._path, "rb", buffering=0) as file:
                first = file.read(END)
                file.seek(max(0, os.fstat(file.fileno()).st_size - END))
                return first, file.read(END)
        except (FileNotFoundError, NotADirectoryError):
            return b"", b""

    def added(self, mark: Mark) -> tuple[bytes, Mark] | None:
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if mark.size and (status.st_ino != mark.file or status.st_size < mark.size):
                    return None
                file.seek(mark.size)
                data = file.read(BLOCK)
                while b"\n" not in data and (more := file.read(BLOCK)):
                    data += more
        except FileNotFoundError:
            return b"", mark
        whole = data[: data.rfind(b"\n") + 1]
        return whole, Mark(status.st_ino, mark.size + len(whole))

    def is_held(self) -> bool:
        try:
            lock = os.open(self._directory / "journal.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        except OSError:  # the directory is mounted without locks
            status = os.fstat(lock)
            return status.st_size > 0 and time.time() - status.st_mtime < LAPSE
        finally:
            os.close(lock)

    def hold(self, run: str = "") -> None:
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(self._directory / "journal.lock", _FLAGS, 0o600)
        try:
            self._take_lock()
            os.ftruncate(self._lock, 0)
            os.write(self._lock, process_name(os.getpid(), socket.gethostname()).encode())
            self._beat = time.monotonic()
            self._file = os.open(self._path, _FLAGS, 0o600)
            status = os.fstat(self._file)
            self._size, self._written = status.st_size, status.st_mtime
        except BlockingIOError:
            holder = os.pread(self._lock, 300, 0).decode(errors="replace") or "not known which"
            self.release()
            raise JournalError(
                f"the run in {self._directory} is in use by another driver ({holder}); {remedy_of_use(holder)}"
            ) from None
        except OSError:
            self.release()
            raise

    def _take_lock(self) -> None:
        for _ in range(LOCK_TRIES - 1):
            with contextlib.suppress(BlockingIOError):
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(LOCK_PAUSE)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def written(self) -> float:
        return self._written

    def renew(self) -> None:
        """Check that the journal's file still exists, and send a heartbeat."""
        if time.monotonic() - self._beat >= BEAT:
            self._beat = time.monotonic()
            with contextlib.suppress(OSError):  # only readers without locks look at it
                os.utime(self._lock)
        file = os.fstat(self._file)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(self._path.stat(), file):
                return
        where, how = self._directory, "moved" if file.st_nlink else "deleted"
        raise JournalLostError(
            f"{where} was {how} with its journal while the run was active, so the search was ended; "
            + ("resume it in its new place" if file.st_nlink else "the result so far is this error's attribute result")
        )

    def append(self, data: bytes) -> None:
        if self._is_torn:
            self._cut()
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            self._is_torn = True
            with contextlib.suppress(OSError):  # the next append does it, or the next driver ignores the torn line
                self._cut()
            raise
        self._size += len(data)

    def replace(self, data: bytes) -> str:
        count = 1
        while (kept := self._directory / f"journal.damaged-{count}.jsonl").exists():
            count += 1
        draft = self._directory / "journal.draft"
        draft.unlink(missing_ok=True)
        file = os.open(draft, _FLAGS, 0o600)
        os.close(self._file)
        self._file, self._size = file, 0
        self.append(data)
        os.fsync(file)
        os.link(self._path, kept)
        draft.replace(self._path)
        return str(kept)

    def clear(self) -> None:
        for kept in self._directory.glob("journal.damaged-*.jsonl"):
            kept.unlink()
        os.ftruncate(self._file, 0)
        self._size, self._is_torn = 0, False

    def release(self) -> None:
        if self._lock >= 0:
            if self._file >= 0:  # it was held
                with contextlib.suppress(OSError):
                    os.ftruncate(self._lock, 0)
            with contextlib.suppress(OSError):  # the file system may have no locks
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # a process that was forked meanwhile has the descriptor too
        for fd in (self._file, self._lock):
            if fd >= 0:
                os.close(fd)
        self._file = self._lock = -1

    def _cut(self) -> None:
        os.ftruncate(self._file, self._size)
        self._is_torn = False
