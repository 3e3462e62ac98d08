"""A journal in one local file, to which records are appended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from maggy_like.errors import JournalError, JournalLostError
from maggy_like.storage.journal.backend import Mark
from maggy_like.storage.journal.records import Part

BLOCK = 4 << 20
"""Bytes that are read at a time."""

BEAT = 10.0
"""Seconds between two signs of life in the lock's file."""

LAPSE = 60.0
"""Seconds after the last of them from which on a reader that cannot ask the lock takes the driver for dead."""

LOCK_TRIES = 20
LOCK_PAUSE = 0.01
"""How often, and after how many seconds each, a lock is tried: a reader that asks for it has it for a moment."""

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class LocalBackend:
    """A folder of this machine (or one that it mounts).

    A record is handed to the operating system before :meth:`append` returns, so it survives the driver's
    death; not the machine's, since nothing is synced to the disk for each record. An append that is cut off
    leaves a torn last line, which the next driver leaves out. The lock is one of the kernel's, on a file of
    its own so that the journal can be replaced; it ends with the process. Whether the run is held, the lock says
    itself: what the file says of a host and a process is for people, since both mean nothing elsewhere.

    Args:
        folder: Made, for the user alone, if it is not there.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._path = self._folder / "journal.jsonl"
        self._lock = self._file = -1
        self._size, self._written, self._beat = 0, 0.0, 0.0
        self._is_torn = False  # behind that size lies a part of an append that failed
        self.name = str(folder)

    @property
    def is_away(self) -> bool:
        return False

    def exists(self) -> bool:
        return self._path.exists() and self._path.stat().st_size > 0  # an empty one was never begun

    def read(self) -> Iterator[Part]:
        line = 1
        pending: list[bytes] = []  # of a line whose end was not read yet
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

    def added(self, mark: Mark) -> tuple[bytes, Mark] | None:
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if mark.size and (status.st_ino != mark.file or status.st_size < mark.size):
                    return None
                file.seek(mark.size)
                data = file.read()
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
        except OSError:  # the folder is mounted here without locks
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
        """See that the journal is still there, since a file can be removed, and give a sign of life.

        Raises:
            JournalLostError: It is not.
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
            f"{where} was {how} while the run went on, and its journal with it, so the search was ended; "
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
            with contextlib.suppress(OSError):  # the next append does it, or the next driver leaves the torn line out
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
            with contextlib.suppress(OSError):  # there may be no locks
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # a process forked meanwhile has the descriptor too
        for fd in (self._file, self._lock):
            if fd >= 0:
                os.close(fd)
        self._file = self._lock = -1

    def _cut(self) -> None:
        os.ftruncate(self._file, self._size)
        self._is_torn = False
