"""The backends of a journal: a local folder, to whose file records are appended, and one in an object store."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from maggy_like.errors import JournalError, JournalLostError
from maggy_like.storage.file_systems import is_local, open_url
from maggy_like.storage.journal.records import Part


class Mark(NamedTuple):
    """How far a journal was read: one of its files (its name or number), and the bytes read of it."""

    file: int | str = 0
    size: int = 0


class JournalBackend(Protocol):
    """A folder with one run's journal. Call :meth:`hold` before any method that writes.

    Two kinds serve: :class:`~maggy_like.storage.journal.backends.LocalBackend` and
    :class:`~maggy_like.storage.journal.backends.ObjectStoreBackend`. Errors of the file system
    come through as they are.
    """

    name: str
    """The folder, for messages."""

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
        """Make the folder, and keep other drivers away until :meth:`release`.

        Args:
            run: Identifies the call of ``lagom``. Without locks, a driver that replaces a dead one of the same call
                takes over at once.

        Raises:
            JournalError: Another driver, which the message describes, holds it.
        """
        ...

    def written(self) -> float:
        """Return the Unix time of the last write before this driver held it; 0 if it is not known."""
        ...

    def renew(self) -> None:
        """Keep holding it; call every few seconds.

        Raises:
            JournalError: Another driver has taken it over.
        """
        ...

    def append(self, data: bytes) -> None:
        """Add complete lines; when this returns, they outlive the driver."""
        ...

    def replace(self, data: bytes) -> str:
        """Replace the journal by ``data``, and keep a copy of the former one.

        Whenever the driver dies, one of the two is complete.

        Returns:
            The place of the former journal.
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


class LocalBackend:
    """A folder on this machine (or mounted there).

    A record is passed to the operating system before :meth:`append` returns, so it survives the driver's death. It may
    not survive the machine's, since records are not synced to the disk. An interrupted append leaves a torn last line,
    which the next driver ignores. The lock is a kernel lock, which ends with the process. It is on a separate file, so
    that the journal can be replaced. The host and process in that file are only for people, since both mean nothing
    on other machines.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)  # made with access only for the user, if it does not exist
        self._path = self._folder / "journal.jsonl"
        self._lock = self._file = -1
        self._size, self._written, self._beat = 0, 0.0, 0.0
        self._is_torn = False  # part of a failed append follows after that size
        self.name = str(folder)

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
            lock = os.open(self._folder / "journal.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        except OSError:  # the folder is mounted without locks
            status = os.fstat(lock)
            return status.st_size > 0 and time.time() - status.st_mtime < LAPSE
        finally:
            os.close(lock)

    def hold(self, run: str = "") -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(self._folder / "journal.lock", _FLAGS, 0o600)
        try:
            self._take_lock()
            os.ftruncate(self._lock, 0)
            os.write(self._lock, f"process {os.getpid()} on {socket.gethostname()}".encode())
            self._beat = time.monotonic()
            self._file = os.open(self._path, _FLAGS, 0o600)
            status = os.fstat(self._file)
            self._size, self._written = status.st_size, status.st_mtime
        except BlockingIOError:
            holder = os.pread(self._lock, 300, 0).decode(errors="replace") or "not known which"
            self.release()
            raise JournalError(
                f"the run in {self._folder} is in use by another driver ({holder}); wait until it ends, or end it"
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
        """Check that the journal's file still exists, and send a heartbeat.

        Raises:
            JournalLostError: It does not exist.
        """
        if time.monotonic() - self._beat >= BEAT:
            self._beat = time.monotonic()
            with contextlib.suppress(OSError):  # only readers without locks look at it
                os.utime(self._lock)
        file = os.fstat(self._file)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(self._path.stat(), file):
                return
        where, how = self._folder, "moved" if file.st_nlink else "deleted"
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
        while (kept := self._folder / f"journal.damaged-{count}.jsonl").exists():
            count += 1
        draft = self._folder / "journal.draft"
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
        for kept in self._folder.glob("journal.damaged-*.jsonl"):
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


SEGMENT = 256 << 10
"""Bytes from which a new segment begins: the maximum that one append writes again."""

_SEGMENT = re.compile(r"journal-(\d{6,})(?:-(\d+)\.(\d+))?\.jsonl")

_DAMAGED = re.compile(r"damaged-\d+")


class _Segment(NamedTuple):
    """A segment of the journal: its place, and the driver that wrote it."""

    number: int  # its place, from 1
    epoch: int  # the driver's epoch (see :class:`~maggy_like.storage.journal.lease.Lease`)
    turn: int  # how many puts of that driver had failed before: each of them may still take effect

    @property
    def name(self) -> str:
        later = "" if (self.epoch, self.turn) == (1, 0) else f"-{self.epoch}.{self.turn}"
        return f"journal-{self.number:06d}{later}.jsonl"


class ObjectStoreBackend:
    """A folder of any fsspec file system that replaces objects completely, as object stores do.

    Such stores cannot append. So each append puts the current segment again, with the new records at its end. A put
    takes effect completely or not at all, and the old object stays readable until then. So no record is ever torn, and
    earlier records are never at risk.

    A put may take effect late: its driver was frozen, or the network was slow, while another driver continued the run.
    So no driver writes to another's objects. The first put of a driver repeats the last segment under a new name with
    the driver's epoch. From that place on, readers ignore the segments of earlier epochs. For the same reason, a put
    that follows a failed one uses another name.
    """

    def __init__(self, fs: Any, path: str, url: str) -> None:
        from maggy_like.storage.journal.lease import Lease

        self._fs = fs
        self._path = path.rstrip("/")
        self._lease = Lease(fs, f"{self._path}/lease.json", url)
        self._number = 0
        self._segment = b""
        self._turn = 0
        self._is_first = True  # the next put is the first of its epoch and turn
        self.is_away = False
        self.name = url

    def exists(self) -> bool:
        return bool(self._segments())

    def read(self) -> Iterator[Part]:
        number, data = self._number, self._segment
        for segment in self._segments():
            number, data = segment.number, self._fs.cat_file(self._file(segment))
            yield Part(f"{self.name}/{segment.name}", data)
        self._number, self._segment = number, data  # only at the end: a reader of the header stops earlier

    def ends(self) -> tuple[bytes, bytes]:
        segments = list(self._segments().items())
        if not segments:
            return b"", b""
        (head, _), (tail, size) = segments[0], segments[-1]
        last = self._fs.cat_file(self._file(tail), start=max(0, size - END))
        is_whole = head == tail and size <= END
        return last if is_whole else self._fs.cat_file(self._file(head), start=0, end=END), last

    def added(self, mark: Mark) -> tuple[bytes, Mark] | None:
        data, sizes = b"", {segment.name: (segment, size) for segment, size in self._segments().items()}
        if mark.file and mark.file not in sizes:  # another driver or a repair has rewritten it
            return None
        is_known = bool(mark.file)
        for name, (segment, size) in sizes.items():
            if len(data) >= BLOCK:
                break
            if is_known and name != mark.file:
                continue
            known, is_known = mark.size if is_known else 0, False
            if size < known:
                return None
            if size > known:  # a store refuses a read that starts at the end
                new = self._fs.cat_file(self._file(segment), start=known)
                data, mark = data + new, Mark(name, known + len(new))
        return data, mark

    def is_held(self) -> bool:
        return self._lease.is_held()

    def hold(self, run: str = "") -> None:
        self._fs.makedirs(self._path, exist_ok=True)
        self._lease.take(run)

    def written(self) -> float:
        return 0.0

    def renew(self) -> None:
        with self._asking():
            self._lease.renew()

    def append(self, data: bytes) -> None:
        with self._asking():
            self._lease.renew()
            self._append(data)

    def _append(self, data: bytes) -> None:
        number, segment = max(1, self._number), self._segment
        if segment and not self._is_first and len(segment) + len(data) > SEGMENT:
            number, segment = number + 1, b""
        self._put(number, segment + data)

    def replace(self, data: bytes) -> str:
        count = 1
        while self._fs.exists(f"{self._path}/damaged-{count}"):
            count += 1
        damaged = list(self._segments())
        self._fs.makedirs(f"{self._path}/damaged-{count}", exist_ok=True)
        for segment in damaged:
            self._fs.pipe_file(f"{self._path}/damaged-{count}/{segment.name}", self._fs.cat_file(self._file(segment)))
        # One put makes the repaired journal valid: its epoch or turn is later than that of the segments after it.
        self._turn += 1
        self._put(damaged[0].number, data)
        for segment in damaged:
            self._fs.rm_file(self._file(segment))
        return f"{self.name}/damaged-{count}"

    def clear(self) -> None:
        self._fs.invalidate_cache()
        names = [path.rstrip("/").rpartition("/")[2] for path in self._fs.ls(self._path, detail=False)]
        for name in sorted(filter(_SEGMENT.fullmatch, names), reverse=True):  # the header comes last
            self._fs.rm_file(f"{self._path}/{name}")
        for name in filter(_DAMAGED.fullmatch, names):
            self._fs.rm(f"{self._path}/{name}", recursive=True)
        self._number, self._segment, self._is_first = 0, b"", True  # the next put must not repeat what was read

    def release(self) -> None:
        self._lease.give_back(is_clean=not self._turn, is_away=self.is_away)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Note whether the store is available."""
        self.is_away = True
        yield
        self.is_away = False

    def _put(self, number: int, content: bytes) -> None:
        """Put the segment; after a failure, the next put has another name and replaces this one."""
        try:
            self._fs.pipe_file(self._file(_Segment(number, self._lease.epoch, self._turn)), content)
        except BaseException:
            self._turn += 1
            self._is_first = True
            raise
        self._number, self._segment, self._is_first = number, content, False

    def _file(self, segment: _Segment) -> str:
        return f"{self._path}/{segment.name}"

    def _segments(self) -> dict[_Segment, int]:
        """Return the valid segments in order with their sizes: each epoch or turn invalidates earlier ones."""
        self._fs.invalidate_cache()
        found: list[dict[str, Any]] = []
        with contextlib.suppress(FileNotFoundError):
            found = self._fs.ls(self._path, detail=True)
        matches = ((_SEGMENT.fullmatch(entry["name"].rsplit("/", 1)[-1]), entry["size"]) for entry in found)
        sizes = {_Segment(int(it[1]), int(it[2] or 1), int(it[3] or 0)): int(size) for it, size in matches if it}
        valid: dict[int, _Segment] = {}
        newest = (0, 0)
        for segment in sorted(sizes):
            if segment[1:] >= newest:
                newest = segment[1:]
                valid[segment.number] = segment
        return {segment: sizes[segment] for segment in valid.values()}


def backend_of(url: str) -> JournalBackend:
    """Return the backend of the folder at a path or at any URL that fsspec supports.

    Raises:
        ValueError: fsspec does not support the URL's protocol.
        ImportError: Its package is not installed.
    """
    fs, path = open_url(url)
    return LocalBackend(path) if is_local(fs) else ObjectStoreBackend(fs, path, url)
