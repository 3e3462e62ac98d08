"""A journal in an object store: segments, each rewritten whole until it is full."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from maggy_like.storage.journal.backend import Mark
from maggy_like.storage.journal.lease import Lease
from maggy_like.storage.journal.records import Part

SEGMENT = 256 << 10
"""Bytes from which on a new segment begins: the most that one append writes again."""

_SEGMENT = re.compile(r"journal-(\d{6,})(?:-(\d+)\.(\d+))?\.jsonl")

_DAMAGED = re.compile(r"damaged-\d+")


class _Segment(NamedTuple):
    """A segment of the journal: its place in it, and by whom it was put.

    Attributes:
        number: Its place, from 1.
        epoch: The driver's (see :class:`Lease`).
        turn: How many puts of that driver had failed by then: each of them may take effect later.
    """

    number: int
    epoch: int
    turn: int

    @property
    def name(self) -> str:
        later = "" if (self.epoch, self.turn) == (1, 0) else f"-{self.epoch}.{self.turn}"
        return f"journal-{self.number:06d}{later}.jsonl"


class ObjectStoreBackend:
    """A folder of any fsspec file system that replaces an object whole, as object stores do.

    Such stores cannot append. So each append puts the present segment again, with the new records at its
    end. A put takes effect whole or not at all, and the old object stays readable until then: there are no
    torn records here, and nothing that was safe is ever at risk.

    A put may take effect late: its driver was frozen, or the network has kept it, and another driver goes on with
    the run. So no driver writes to another's objects. The first put of a driver repeats the last segment under a name
    of its own, with the driver's epoch, and readers leave out the segments of earlier epochs from that place on. A put
    that failed is followed by one under another name for the same reason.

    Args:
        fs: The file system.
        path: The folder's path in it.
        url: The folder, for people.
    """

    def __init__(self, fs: Any, path: str, url: str) -> None:
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
        for segment in self._segments():
            data = self._fs.cat_file(self._file(segment))
            self._number, self._segment = segment.number, data
            yield Part(f"{self.name}/{segment.name}", data)

    def added(self, mark: Mark) -> tuple[bytes, Mark] | None:
        data, sizes = b"", {segment.name: (segment, size) for segment, size in self._segments().items()}
        if mark.file and mark.file not in sizes:  # another driver or a repair has written it anew
            return None
        is_known = bool(mark.file)
        for name, (segment, size) in sizes.items():
            if is_known and name != mark.file:
                continue
            known, is_known = mark.size if is_known else 0, False
            if size < known:
                return None
            if size > known:  # a store refuses to read from the very end
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
        # One put makes the repaired journal the valid one: it is of a later epoch or turn than what lies behind it.
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
        self._number, self._segment, self._is_first = 0, b"", True  # what was read of it is not to be put again

    def release(self) -> None:
        self._lease.give_back(is_clean=not self._turn, is_away=self.is_away)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Note whether the store serves."""
        self.is_away = True
        yield
        self.is_away = False

    def _put(self, number: int, content: bytes) -> None:
        """Put the segment whole; after a failure, the next put has another name, and counts in place of this one."""
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
        """The segments that count, in order, and how many bytes each has: an epoch or turn ends those before it."""
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
