"""One driver at a time, where there are no locks: a lease that lapses, and an epoch for each driver."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from maggy_like.errors import JournalError, JournalLostError

SETTLE = 1.0
"""Seconds after which a store without conditional writes is asked whose write stands."""


class ClaimLostError(Exception):
    """Another driver has created the object."""


def claim(fs: Any, path: str, data: bytes) -> None:
    """Create an object.

    S3 refuses all creations but one. Elsewhere the object is read back after a while: two drivers that write within
    that while find out, and one that stands still between its look and its write for longer overwrites the other's.

    Raises:
        ClaimLostError: Another driver has created it.
    """
    if "s3" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)) and hasattr(fs, "call_s3"):
        _create_in_s3(fs, path, data)
        return
    try:
        fs.pipe_file(path, data, mode="create")
    except FileExistsError as error:
        raise ClaimLostError(path) from error
    time.sleep(SETTLE)
    if fs.cat_file(path) != data:
        raise ClaimLostError(path)


def _create_in_s3(fs: Any, path: str, data: bytes) -> None:
    bucket, key, _ = fs.split_path(path)
    try:
        fs.call_s3("put_object", Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
    except OSError as error:
        response = getattr(error.__cause__, "response", None) or {}
        code = str(response.get("Error", {}).get("Code"))
        refusals = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
        if isinstance(error, FileExistsError) or code in refusals:
            raise ClaimLostError(path) from error
        raise
    fs.invalidate_cache(path)


RENEWAL = 10.0
"""Seconds between two renewals."""

LAPSE = 60.0
"""Seconds after the last renewal from which on another driver may take over."""

SUCCESSION = 2.0
"""Seconds beyond that which a driver that is cut off gets to end the write that it has begun."""

_held: set[str] = set()  # owners of this process

_EPOCH = re.compile(r"lease(?:-(\d+))?\.json|journal-\d{6,}(?:-(\d+)\.\d+)?\.jsonl")


class _Holder(msgspec.Struct):
    owner: str
    host: str
    machine: str  # beside the host's name, which need not be its own
    pid: int
    time: float
    run: str = ""


class _Latest(NamedTuple):
    """The newest epoch of anything in the folder, 0 if there is none, and who has its lease, if that can be read."""

    epoch: int
    holder: _Holder | None


class Lease:
    """An object that says who drives a run. Each driver has one of its own, whose number is the driver's epoch.

    The object is created by a conditional write where the store has them (:mod:`.claims`), and nobody else writes to
    it: a driver that was frozen, or whose write arrives late, takes nothing from its successor. What it writes to the
    journal carries its epoch, and readers leave out what an overtaken driver has written late. The times in it are the
    holders' own: the clocks of hosts that may drive the same run must agree to some seconds.

    Attributes:
        epoch: That of this driver, once it was taken: one more than that of the driver before it.

    Args:
        fs: The file system.
        path: The first driver's object; its name is ``lease.json``, and the next driver's ``lease-2.json``.
        name: The run's folder, for people.
    """

    def __init__(self, fs: Any, path: str, name: str) -> None:
        self.epoch = 0
        self._fs = fs
        self._folder = path.rpartition("/")[0]
        self._name = name
        self._owner = uuid.uuid4().hex
        self._run = ""
        self._renewed = 0.0

    def take(self, run: str = "") -> None:
        """Become the holder.

        Args:
            run: The call of ``lagom`` for which it is taken. From a driver of the same call it is taken over at once:
                whoever started this one knows that the other is dead, or cut off. It returns only when one that is
                cut off must have noticed, which looks at the lease every :data:`RENEWAL` seconds.

        Raises:
            JournalError: Another driver is.
        """
        self._run = run
        latest = self._look()
        holder = latest.holder
        is_successor = holder is not None and bool(run) and holder.run == run and _is_alive(holder)
        if holder is not None and _is_alive(holder) and not is_successor:
            raise self._refusal(holder)
        epoch, now = latest.epoch + 1, time.time()
        try:
            claim(self._fs, self._path(epoch), self._signed(now))
        except ClaimLostError:
            holder = self._look().holder
            if holder is None or holder.owner != self._owner:  # else the answer alone was lost, and it was sent again
                raise self._refusal(holder) from None
        self.epoch, self._renewed = epoch, now
        _held.add(self._owner)
        if is_successor:
            time.sleep(RENEWAL + SUCCESSION)
        if latest.holder is not None:
            with contextlib.suppress(Exception):  # it has no meaning any more
                self._fs.rm_file(self._path(latest.epoch))

    def is_held(self) -> bool:
        """Whether a driver holds it."""
        holder = self._look().holder
        return holder is not None and _is_alive(holder)

    def renew(self) -> None:
        """Put the present time into the lease, if the last renewal is some seconds old.

        Raises:
            JournalError: Another driver has taken over.
        """
        for _ in range(2):  # again, if this driver stood still meanwhile
            now = time.time()
            if 0.0 <= now - self._renewed < RENEWAL:  # the clock may have been set back
                return
            latest = self._look()
            if latest.holder is None or latest.holder.owner != self._owner:
                raise self._taken_over(latest)
            self._fs.pipe_file(self._path(self.epoch), self._signed(now))
            self._renewed = now

    def give_back(self, *, is_clean: bool = True, is_away: bool = False) -> None:
        """Let other drivers in.

        Args:
            is_clean: Whether no write of this driver can still arrive. Otherwise the object stays, so that its epoch is
                not given to another driver.
            is_away: Whether the store refuses just now. Then the lease is left to lapse.
        """
        _held.discard(self._owner)
        if not self.epoch or is_away:
            return
        with contextlib.suppress(Exception):  # it lapses by itself
            if is_clean:
                self._fs.rm_file(self._path(self.epoch))
            else:
                self._fs.pipe_file(self._path(self.epoch), self._signed(0.0))

    def _path(self, epoch: int) -> str:
        return f"{self._folder}/lease{f'-{epoch}' if epoch > 1 else ''}.json"

    def _signed(self, now: float) -> bytes:
        return msgspec.json.encode(_Holder(self._owner, socket.gethostname(), _machine(), os.getpid(), now, self._run))

    def _look(self) -> _Latest:
        """The newest driver, as the folder has it."""
        self._fs.invalidate_cache()
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = [path.rpartition("/")[2] for path in self._fs.ls(self._folder, detail=False)]
        matches = (_EPOCH.fullmatch(name) for name in names)
        epoch = max((int(match[1] or match[2] or 1) for match in matches if match is not None), default=0)
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            return _Latest(epoch, msgspec.json.decode(self._fs.cat_file(self._path(epoch)), type=_Holder))
        return _Latest(epoch, None)

    def _taken_over(self, latest: _Latest) -> JournalError:
        if latest.holder is not None:
            by, advice = f"process {latest.holder.pid} on {latest.holder.host} drives it now", "let that process go on"
        elif latest.epoch > self.epoch:
            by, advice = "another driver has driven it since, and has left it", "read it with load_run(...)"
        else:
            return JournalLostError(
                f"the lease of the run in {self._name} was deleted while the run went on, most likely with all of "
                "the run, so the search was ended; the result so far is this error's attribute result"
            )
        return JournalError(
            f"the run in {self._name} was taken over: {by} (a lease lapses when it is not renewed for {LAPSE:g} s); "
            f"{advice}"
        )

    def _refusal(self, holder: _Holder | None) -> JournalError:
        if holder is None:
            return JournalError(f"another driver took the run in {self._name} just now, and is gone again; try again")
        left = max(0.0, holder.time + LAPSE - time.time())
        return JournalError(
            f"the run in {self._name} is in use by process {holder.pid} on {holder.host}; wait until it ends, or end "
            f"it (its lease lapses in {left:.0f} s if it is dead)"
        )


def _is_alive(holder: _Holder) -> bool:
    """Whether the lease still counts: it lapses with time, or at once where its process is seen to be gone."""
    if time.time() - holder.time > LAPSE:
        return False
    if (holder.host, holder.machine) != (socket.gethostname(), _machine()):
        return True
    if holder.pid == os.getpid():  # its number came round again
        return holder.owner in _held
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _machine() -> str:
    """Identifies the table of processes: containers may share a host's name and address, but not its process ids."""
    machine = f"{uuid.getnode():012x}"
    with contextlib.suppress(OSError):  # Linux alone has them
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{machine}-{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    return machine
