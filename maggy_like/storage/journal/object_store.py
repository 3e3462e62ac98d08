"""A journal in a store without locks and appends: a lease for one driver at a time, and segments that are put whole."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from maggy_like.errors import JournalError, JournalLostError
from maggy_like.storage.file_systems import is_mount
from maggy_like.storage.journal import journal
from maggy_like.storage.journal.journal import Mark
from maggy_like.storage.journal.records import Part

SETTLE = 1.0
"""Seconds after a write until a store without conditional writes is read to see whose write won."""


class ClaimLostError(Exception):
    """Another driver has created the object."""


def claim(fs: Any, path: str, data: bytes) -> None:
    """Create an object that no other driver has created; raise ClaimLostError if one has.

    S3 refuses all creations except one. Other stores do not, so the object is read back after a pause. Two drivers that
    write within the pause notice it. A driver that is frozen for longer before its write overwrites the other's.
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
"""Seconds after the last renewal from which another driver may take over."""

SUCCESSION = 2.0
"""Additional seconds that a disconnected driver gets to finish a write."""

_held: set[str] = set()  # owners of this process

_EPOCH = re.compile(r"lease(?:-(\d+))?\.json|journal-\d{6,}(?:-(\d+)\.\d+(?:-\d+)?)?\.jsonl")

_BEAT = re.compile(r"lease-(\d+)-(\d+)\.beat")


class _Holder(msgspec.Struct):
    owner: str
    host: str
    machine: str  # in addition to the host's name, which may not be unique
    pid: int
    time: float
    run: str = ""


class _Latest(NamedTuple):
    """The newest epoch in the directory, or 0, and the driver that has its lease, if that can be read."""

    epoch: int
    holder: _Holder | None


class Lease:
    """An object that identifies the driver of a run. Each driver has its own, whose number is the driver's epoch.

    The first driver's object is at ``path``, which ends in ``lease.json``; the next driver's is ``lease-2.json``.

    The object is created by a conditional write if the store has them (:func:`claim`), and no other driver writes to
    it. So a driver that was frozen, or whose write arrives late, takes nothing from its successor. Its writes to the
    journal carry its epoch, and readers ignore late writes of a former driver. The holder's clock sets the times, so
    the clocks of hosts that may drive the same run must agree to some seconds.

    On a mount, a file that is written again may be read while it is empty, or from a cache. So each renewal creates an
    empty file there, whose name has the epoch and the time: ``lease-2-1764301234567.beat``.
    """

    def __init__(self, fs: Any, path: str, name: str) -> None:
        self.epoch = 0  # this driver's epoch, once the lease was taken: one more than that of the driver before it
        self._fs = fs
        self._is_on_mount = is_mount(fs)
        self._directory = path.rpartition("/")[0]
        self._name = name
        self._owner = uuid.uuid4().hex
        self._run = ""
        self._renewed = 0.0

    def take(self, run: str = "") -> None:
        """Become the holder; raise JournalError if another driver is.

        ``run`` identifies the call of ``lagom``. A lease of the same call is taken over at once: this driver was
        started because the other is dead or disconnected. A disconnected driver reads the lease every :data:`RENEWAL`
        seconds; the method returns once it must have noticed.
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
            if (
                holder is None or holder.owner != self._owner
            ):  # else only the reply was lost, and the request was repeated
                raise self._refusal(holder) from None
        self.epoch, self._renewed = epoch, now
        _held.add(self._owner)
        if is_successor:
            time.sleep(RENEWAL + SUCCESSION)
        if latest.holder is not None:
            with contextlib.suppress(Exception):  # it is not needed any more
                self._remove(latest.epoch)

    def is_held(self) -> bool:
        """Return whether a driver holds it."""
        holder = self._look().holder
        return holder is not None and _is_alive(holder)

    def renew(self) -> None:
        """Write the current time into the lease if the last renewal is some seconds old.

        Raise JournalError if another driver has taken over.
        """
        for _ in range(2):  # again, if this driver was frozen meanwhile
            now = time.time()
            if 0.0 <= now - self._renewed < RENEWAL:  # the clock may have been set back
                return
            latest = self._look()
            if latest.holder is None or latest.holder.owner != self._owner:
                raise self._taken_over(latest)
            self._beat(now)
            self._renewed = now

    def give_back(self, *, is_clean: bool = True, is_away: bool = False) -> None:
        """Let other drivers in.

        If not ``is_clean``, a write of this driver may still arrive. Then the object stays, so that no other driver
        gets its epoch. If ``is_away``, the store is unavailable. Then the lease expires by itself.
        """
        _held.discard(self._owner)
        if not self.epoch or is_away:
            return
        with contextlib.suppress(Exception):  # it expires by itself
            if is_clean:
                self._remove(self.epoch)
            elif not self._is_on_mount:
                self._fs.pipe_file(self._path(self.epoch), self._signed(0.0))

    def _beat(self, now: float) -> None:
        if not self._is_on_mount:
            self._fs.pipe_file(self._path(self.epoch), self._signed(now))
            return
        old = [name for name in self._names() if _BEAT.fullmatch(name)]
        self._fs.pipe_file(f"{self._directory}/lease-{self.epoch}-{now * 1000:.0f}.beat", b"", mode="create")
        for name in old:
            with contextlib.suppress(Exception):  # it does no harm
                self._fs.rm_file(f"{self._directory}/{name}")

    def _remove(self, epoch: int) -> None:
        """Remove the lease of an epoch, and on a mount its renewals."""
        self._fs.rm_file(self._path(epoch))
        for name in self._names() if self._is_on_mount else ():
            if (beat := _BEAT.fullmatch(name)) and int(beat[1]) == epoch:
                self._fs.rm_file(f"{self._directory}/{name}")

    def _names(self) -> list[str]:
        self._fs.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            return [path.rpartition("/")[2] for path in self._fs.ls(self._directory, detail=False)]
        return []

    def _path(self, epoch: int) -> str:
        return f"{self._directory}/lease{f'-{epoch}' if epoch > 1 else ''}.json"

    def _signed(self, now: float) -> bytes:
        return msgspec.json.encode(_Holder(self._owner, socket.gethostname(), _machine(), os.getpid(), now, self._run))

    def _look(self) -> _Latest:
        """Read the newest driver's lease."""
        names = self._names()
        matches = (_EPOCH.fullmatch(name) for name in names)
        epoch = max((int(match[1] or match[2] or 1) for match in matches if match is not None), default=0)
        beats = [int(beat[2]) / 1000 for name in names if (beat := _BEAT.fullmatch(name)) and int(beat[1]) == epoch]
        until = time.monotonic() + SETTLE * self._is_on_mount
        while True:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                try:
                    holder = msgspec.json.decode(self._fs.cat_file(self._path(epoch)), type=_Holder)
                except FileNotFoundError:
                    return _Latest(epoch, None)
                holder.time = max([holder.time, *beats])
                return _Latest(epoch, holder)
            if time.monotonic() >= until:  # else a mount may show it before it is written
                return _Latest(epoch, None)
            time.sleep(SETTLE / 10)

    def _taken_over(self, latest: _Latest) -> JournalError:
        if latest.holder is not None:
            by, advice = (
                f"process {latest.holder.pid} on {latest.holder.host} drives it now",
                "let that process continue",
            )
        elif latest.epoch > self.epoch:
            by, advice = "another driver has continued and left it", "read it with load_run(...)"
        else:
            return JournalLostError(
                f"the lease of the run in {self._name} was deleted while the run was active, probably with the whole "
                "run, so the search was ended; the result so far is this error's attribute result"
            )
        return JournalError(
            f"the run in {self._name} was taken over: {by} (a lease expires if it is not renewed for {LAPSE:g} s); "
            f"{advice}"
        )

    def _refusal(self, holder: _Holder | None) -> JournalError:
        if holder is None:
            return JournalError(f"another driver took the run in {self._name} for a moment; try again")
        left = max(0.0, holder.time + LAPSE - time.time())
        user = journal.process_name(holder.pid, holder.host)
        return JournalError(
            f"the run in {self._name} is in use by {user}; {journal.remedy_of_use(user)} "
            f"(its lease expires in {left:.0f} s if it is dead)"
        )


def _is_alive(holder: _Holder) -> bool:
    """Return whether the lease is valid: it expires with time, or at once if its process is known to be dead."""
    if time.time() - holder.time > LAPSE:
        return False
    if (holder.host, holder.machine) != (socket.gethostname(), _machine()):
        return True
    if holder.pid == os.getpid():  # the process id was used again
        return holder.owner in _held
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _machine() -> str:
    """Identify the process table: containers may share a host's name and address, but not its process ids."""
    machine = f"{uuid.getnode():012x}"
    with contextlib.suppress(OSError):  # only Linux has them
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{machine}-{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    return machine


SEGMENT = 256 << 10
"""Bytes from which a new segment begins: the maximum that one append writes again."""

_SEGMENT = re.compile(r"journal-(\d{6,})(?:-(\d+)\.(\d+)(?:-(\d+))?)?\.jsonl")

_DAMAGED = re.compile(r"damaged-\d+")


class _Segment(NamedTuple):
    """A segment of the journal: its place, and the driver that wrote it."""

    number: int  # its place, from 1
    epoch: int  # the driver's epoch (see :class:`Lease`)
    turn: int  # how many puts of that driver had failed before, each of which may still take effect; on a mount, all
    size: int = 0  # on a mount, its bytes, without which it is not complete

    @property
    def name(self) -> str:
        later = "" if (self.epoch, self.turn) == (1, 0) else f"-{self.epoch}.{self.turn}"
        return f"journal-{self.number:06d}{later}{f'-{self.size}' if self.size else ''}.jsonl"

    @classmethod
    def parse(cls, name: str) -> _Segment | None:
        """Return the segment of a file's name; None if it is another file."""
        found = _SEGMENT.fullmatch(name)
        return found and cls(int(found[1]), int(found[2] or 1), int(found[3] or 0), int(found[4] or 0))


class ObjectStoreBackend:
    """A directory of any fsspec file system that replaces objects completely, as object stores do.

    Such stores cannot append. So each append puts the current segment again, with the new records at its end. A put
    takes effect completely or not at all, and the old object stays readable until then. So no record is ever torn, and
    earlier records are never at risk.

    A put may take effect late: its driver was frozen, or the network was slow, while another driver continued the run.
    So no driver writes to another's objects. The first put of a driver repeats the last segment under a new name with
    the driver's epoch. From that place on, readers ignore the segments of earlier epochs. For the same reason, a put
    that follows a failed one uses another name.

    On a mount, a file may be visible before it is complete, and a file that is written again may be lost, or read from
    a cache. So each put creates a file of another name there, which has the size, and then removes the one before.
    """

    def __init__(self, fs: Any, path: str, url: str) -> None:
        self._fs = fs
        self._is_on_mount = is_mount(fs)
        self._path = path.rstrip("/")
        self._lease = Lease(fs, f"{self._path}/lease.json", url)
        self._number = 0
        self._segment = b""
        self._turn = 0
        self._is_first = True  # the next put is the first of its epoch and turn
        self._has_failed = False
        self._last: _Segment | None = None  # the one that this driver has put last
        self.is_away = False
        self.name = url

    def exists(self) -> bool:
        return bool(self._segments())

    def read(self) -> Iterator[Part]:
        number, data = self._number, self._segment
        for segment in self._segments():
            number, data = segment.number, self._content(segment)
            yield Part(f"{self.name}/{segment.name}", data)
        self._number, self._segment = number, data  # only at the end: a reader of the header stops earlier

    def ends(self) -> tuple[bytes, bytes]:
        segments = list(self._segments().items())
        if not segments:
            return b"", b""
        (head, _), (tail, size) = segments[0], segments[-1]
        last = self._content(tail, start=max(0, size - journal.END))
        is_whole = head == tail and size <= journal.END
        return last if is_whole else self._content(head, start=0, end=journal.END), last

    def added(self, mark: Mark) -> tuple[bytes, Mark] | None:
        data, sizes = b"", {segment.name: (segment, size) for segment, size in self._segments().items()}
        if mark.file and mark.file not in sizes:
            old = _Segment.parse(str(mark.file))
            later = [name for name, (it, size) in sizes.items() if old and it[:2] == old[:2] and size >= mark.size]
            if not (self._is_on_mount and later):  # another driver or a repair has rewritten it
                return None
            mark = Mark(later[0], mark.size)
        is_known = bool(mark.file)
        for name, (segment, size) in sizes.items():
            if len(data) >= journal.BLOCK:
                break
            if is_known and name != mark.file:
                continue
            known, is_known = mark.size if is_known else 0, False
            if size < known:
                return None
            if size > known:  # a store refuses a read that starts at the end
                new = self._content(segment, start=known)
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
            self._fs.pipe_file(f"{self._path}/damaged-{count}/{segment.name}", self._content(segment))
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
        self._last = None

    def release(self) -> None:
        self._lease.give_back(is_clean=not self._has_failed, is_away=self.is_away)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Note whether the store is available."""
        self.is_away = True
        yield
        self.is_away = False

    def _put(self, number: int, content: bytes) -> None:
        """Put the segment; after a failure, the next put has another name and replaces this one."""
        self._turn += self._is_on_mount
        segment = _Segment(number, self._lease.epoch, self._turn, len(content) * self._is_on_mount)
        try:
            self._fs.pipe_file(self._file(segment), content, **({"mode": "create"} if self._is_on_mount else {}))
        except BaseException:
            self._turn += 1
            self._is_first = self._has_failed = True
            raise
        self._number, self._segment, self._is_first = number, content, False
        if self._is_on_mount and self._last is not None and self._last.number == number:
            with contextlib.suppress(Exception):  # readers ignore it
                self._fs.rm_file(self._file(self._last))
        self._last = segment

    def _content(self, segment: _Segment, **part: int) -> bytes:
        """Read a segment; on a mount, the one by which it was replaced meanwhile."""
        while True:
            try:
                return bytes(self._fs.cat_file(self._file(segment), **part))
            except FileNotFoundError:
                later = [it for it in self._segments() if it[:2] == segment[:2] and it > segment]
                if not (self._is_on_mount and later):
                    raise
                segment = later[0]

    def _file(self, segment: _Segment) -> str:
        return f"{self._path}/{segment.name}"

    def _segments(self) -> dict[_Segment, int]:
        """Return the valid segments in order with their sizes: each epoch or turn invalidates earlier ones."""
        self._fs.invalidate_cache()
        found: list[dict[str, Any]] = []
        with contextlib.suppress(FileNotFoundError):
            found = self._fs.ls(self._path, detail=True)
        matches = ((_Segment.parse(entry["name"].rsplit("/", 1)[-1]), int(entry["size"])) for entry in found)
        sizes = {segment: size for segment, size in matches if segment and segment.size in (0, size)}
        valid: dict[int, _Segment] = {}
        newest = (0, 0)
        for segment in sorted(sizes):
            if segment[1:3] >= newest:
                newest = segment[1:3]
                valid[segment.number] = segment
        return {segment: sizes[segment] for segment in valid.values()}
