"""One driver at a time, where there are no locks: a lease that lapses."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec

from maggy_like.errors import JournalError, JournalLostError
from maggy_like.storage.journal.claims import ClaimLostError, claim_of

RENEWAL = 10.0
"""Seconds between two renewals."""

LAPSE = 60.0
"""Seconds after the last renewal from which on another driver may take over."""

SUCCESSION = 2.0
"""Seconds beyond that which a driver that is cut off gets to end the write that it has begun."""

_held: set[str] = set()  # owners of this process


class _Holder(msgspec.Struct):
    owner: str
    host: str
    machine: str  # beside the host's name, which need not be its own
    pid: int
    time: float
    run: str = ""


class Lease:
    """An object that says who drives a run.

    It is created, taken over and renewed by conditional writes where the store has them (:mod:`.claims`). Its times
    are the holders' own: the clocks of hosts that may drive the same run must agree to some seconds. A driver that
    was frozen for so long that another took over finds that out before it writes again.

    Args:
        fs: The file system.
        path: The object.
        name: The run's folder, for people.
    """

    def __init__(self, fs: Any, path: str, name: str) -> None:
        self._fs = fs
        self._path = path
        self._name = name
        self._owner = uuid.uuid4().hex
        self._run = ""
        self._renewed = 0.0
        self._claim = claim_of(fs, path)

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
        holder, tag = self._look()
        is_successor = holder is not None and bool(run) and holder.run == run and _is_alive(holder)
        if holder is not None and _is_alive(holder) and not is_successor:
            raise self._refusal(holder)
        try:
            self._write(tag)
        except ClaimLostError:
            holder, _ = self._look()
            if holder is None or holder.owner != self._owner:  # else the answer alone was lost, and it was sent again
                raise self._refusal(holder) from None
        _held.add(self._owner)
        if is_successor:
            time.sleep(RENEWAL + SUCCESSION)

    def is_held(self) -> bool:
        """Whether a driver holds it."""
        holder, _ = self._look()
        return holder is not None and _is_alive(holder)

    def renew(self) -> None:
        """Put the present time into the lease, if the last renewal is some seconds old.

        Raises:
            JournalError: Another driver has taken over.
        """
        if 0.0 <= time.time() - self._renewed < RENEWAL:  # the clock may have been set back
            return
        holder, tag = self._look()
        if holder is None or holder.owner != self._owner:
            raise self._taken_over(holder)
        try:
            self._write(tag)
        except ClaimLostError:
            holder, _ = self._look()
            if holder is None or holder.owner != self._owner:
                raise self._taken_over(holder) from None

    def give_back(self, *, is_away: bool = False) -> None:
        """Remove the lease, if it is this driver's.

        Args:
            is_away: Whether the store refuses just now: then the lease is left to lapse.
        """
        _held.discard(self._owner)
        if is_away:
            return
        with contextlib.suppress(Exception):  # it lapses by itself
            holder, _ = self._look()
            if holder is not None and holder.owner == self._owner:
                self._fs.rm_file(self._path)

    def _write(self, tag: Any) -> None:
        now = time.time()
        holder = _Holder(self._owner, socket.gethostname(), _machine(), os.getpid(), now, self._run)
        self._claim.write(msgspec.json.encode(holder), tag)
        self._renewed = now

    def _look(self) -> tuple[_Holder | None, Any]:
        """The holder of the lease (None where that cannot be read), and the tag of what is there."""
        found = self._claim.read()
        if found is None:
            return None, None
        data, tag = found
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(data, type=_Holder), tag
        return None, tag

    def _taken_over(self, holder: _Holder | None) -> JournalError:
        if holder is None:
            return JournalLostError(
                f"the lease of the run in {self._name} was deleted while the run went on, most likely with all of "
                "the run, so the search was ended; the result so far is this error's attribute result"
            )
        return JournalError(
            f"the run in {self._name} was taken over: process {holder.pid} on {holder.host} holds its lease now (a "
            f"lease lapses when it is not renewed for {LAPSE:g} s); let that process go on"
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
