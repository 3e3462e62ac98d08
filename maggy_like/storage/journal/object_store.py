"""A journal in an object store: segments, each rewritten whole until it is full."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from maggy_like.storage.journal.backend import Mark
from maggy_like.storage.journal.lease import Lease
from maggy_like.storage.journal.records import Part

SEGMENT = 256 << 10
"""Bytes from which on a new segment begins: the most that one append writes again."""

_SEGMENT = re.compile(r"journal-(\d{6,})\.jsonl")


class ObjectStoreBackend:
    """A folder of any fsspec file system that replaces an object whole, as object stores do.

    Such stores cannot append. So each append puts the present segment again, with the new records at its
    end. A put takes effect whole or not at all, and the old object stays readable until then: there are no
    torn records here, and nothing that was safe is ever at risk.

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
        self._tried: tuple[int, bytes] | None = None  # where an append that failed would have been put
        self.is_away = False
        self.name = url

    def exists(self) -> bool:
        return bool(self._segments())

    def read(self) -> Iterator[Part]:
        for number in self._segments():
            data = self._fs.cat_file(self._file(number))
            self._number, self._segment = number, data
            yield Part(f"{self.name}/journal-{number:06d}.jsonl", data)

    def added(self, mark: Mark) -> tuple[bytes, Mark] | None:
        data, sizes = b"", self._sizes()
        if mark.file and mark.file not in sizes:  # a repair has written all of it anew
            return None
        for number, size in sizes.items():
            if number < mark.file:
                continue
            known = mark.size if number == mark.file else 0
            if size < known:
                return None
            if size > known:  # a store refuses to read from the very end
                new = self._fs.cat_file(self._file(number), start=known)
                data, mark = data + new, Mark(number, known + len(new))
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
        number, segment = self._number, self._segment
        if self._tried is not None:  # it may have taken effect all the same: this replaces it
            number, segment = self._tried
        elif not number or (segment and len(segment) + len(data) > SEGMENT):
            number, segment = number + 1, b""
        self._tried = number, segment
        self._fs.pipe_file(self._file(number), segment + data)
        self._number, self._segment, self._tried = number, segment + data, None

    def replace(self, data: bytes) -> str:
        count = 1
        while self._fs.exists(f"{self._path}/damaged-{count}"):
            count += 1
        numbers = self._segments()
        self._fs.makedirs(f"{self._path}/damaged-{count}", exist_ok=True)
        for number in numbers:
            kept = f"{self._path}/damaged-{count}/journal-{number:06d}.jsonl"
            self._fs.pipe_file(kept, self._fs.cat_file(self._file(number)))
        # One put makes the repaired journal the valid one; what still lies behind it has lower numbers.
        self._fs.pipe_file(self._file(numbers[0]), data)
        for number in numbers[1:]:
            self._fs.rm_file(self._file(number))
        self._number, self._segment = numbers[0], data
        return f"{self.name}/damaged-{count}"

    def release(self) -> None:
        self._lease.give_back(is_away=self.is_away)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Note whether the store serves."""
        self.is_away = True
        yield
        self.is_away = False

    def _file(self, number: int) -> str:
        return f"{self._path}/journal-{number:06d}.jsonl"

    def _segments(self) -> list[int]:
        return list(self._sizes())

    def _sizes(self) -> dict[int, int]:
        """How many bytes each segment has, by its number, in order."""
        self._fs.invalidate_cache()
        found: list[dict[str, Any]] = []
        with contextlib.suppress(FileNotFoundError):
            found = self._fs.ls(self._path, detail=True)
        matches = ((_SEGMENT.fullmatch(entry["name"].rsplit("/", 1)[-1]), entry["size"]) for entry in found)
        return dict(sorted((int(match[1]), int(size)) for match, size in matches if match is not None))
