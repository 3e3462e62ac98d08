"""Working directories of trials, in which what the caller's has can be read under the same relative names.

A mirror has the directories and small files of the original as its own, and links to the rest. So what a trial writes
is its own, whether the name existed or not. Only files and directories that are too large are shared.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import tempfile
import zlib
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from maggy_like.storage.trial_files import copy_file

MAX_ENTRIES = 200
"""Number of entries below the top of a mirror; a directory with more is a link."""

MAX_TOP = 10_000
"""Number of entries at the top, and in each of the parents."""

MAX_COPY = 4 << 20
"""Bytes of a file that is copied; a larger one is a link."""

MAX_COPIES = 32 << 20
"""Bytes of all copies of a mirror."""

_CODE = (".py", ".ipynb")

LONG_AGO = 0
"""Time of the last change of a mirror's directories, so that any change is seen however soon it comes."""


class Plan(NamedTuple):
    """The entries of a mirror, by path in it. Parents precede their children."""

    directories: tuple[str, ...]  # directories of its own; the first is the mirror itself, ``""``
    copies: dict[str, tuple[int, int]]  # files of its own, with the time of the last change and the size
    links: dict[str, os.stat_result | None]  # links to what is shared; None if it was not looked at


class Shared(NamedTuple):
    """An entry of the caller's working directory that trials share."""

    name: str
    path: str


def make_plan(original: str, run: str) -> Plan:
    """Plan the mirrors of a directory, without ``run``: the run's directory, in which mirrors may be.

    The directories that contain it are not links, because a recursive search for files would run in a circle.
    """
    directories, copies, links = [""], dict[str, tuple[int, int]](), dict[str, os.stat_result | None]()
    device = os.stat(original).st_dev
    room, budget = MAX_COPIES, MAX_ENTRIES
    waiting = deque([""])
    while waiting:
        directory = waiting.popleft()
        entries = _listed(os.path.join(original, directory))
        if directory:
            if len(entries) > budget or any(entry.name.endswith(".py") for entry in entries):  # code is not written
                links[directory] = _target(os.path.join(original, directory))
                continue
            budget -= len(entries)
            directories.append(directory)
        for entry in sorted(entries, key=lambda entry: entry.name)[:MAX_TOP]:
            name = os.path.join(directory, entry.name)
            try:
                about = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(about.st_mode) and about.st_size <= min(MAX_COPY, room):
                copies[name] = about.st_mtime_ns, about.st_size
                room -= about.st_size
            elif not stat.S_ISDIR(about.st_mode):
                links[name] = _target(entry.path)
            elif f"{run}{os.sep}".startswith(f"{entry.path}{os.sep}"):
                _plan_runs(entry.path, name, run, directories, links)
            elif entry.name.startswith(".") or entry.name == "__pycache__" or about.st_dev != device:
                links[name] = None
            else:
                waiting.append(name)
    return Plan(tuple(directories), copies, links)


def _plan_runs(path: str, name: str, run: str, directories: list[str], links: dict[str, os.stat_result | None]) -> None:
    """Plan a directory that contains the run's directory: itself, with links to all that does not contain it."""
    while path != run:
        directories.append(name)
        inner = os.path.join(path, run[len(path) + 1 :].split(os.sep)[0])
        links |= {os.path.join(name, entry.name): None for entry in _listed(path)[:MAX_TOP] if entry.path != inner}
        path, name = inner, os.path.join(name, os.path.basename(inner))


def _target(path: str) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return os.stat(path)
    return None


def _listed(directory: str, most: int | None = None) -> list[os.DirEntry[str]]:
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        return list(itertools.islice(entries, most))
    return []


def make_parents(root: str, original: str) -> str:
    """Make the parents of mirrors, with links to what the parents of the original have; return their directory."""
    tree = os.path.join(root, f"tree-{zlib.crc32(os.fsencode(original)):08x}")  # workers may have different originals
    if os.path.isdir(made := os.path.join(tree, os.path.dirname(original).lstrip(os.sep))):
        return made
    place = part = tempfile.mkdtemp(prefix="part-", dir=root)
    parent = os.sep
    for child in [*filter(None, os.path.dirname(original).split(os.sep)), ""]:
        for entry in _listed(parent)[:MAX_TOP]:
            if entry.name != child and entry.path != root:
                os.symlink(entry.path, os.path.join(place, entry.name))
        parent, place = os.path.join(parent, child), os.path.join(place, child)
        os.makedirs(place, 0o700, exist_ok=True)
    try:
        os.rename(part, tree)
    except OSError:  # another worker of this machine was faster
        shutil.rmtree(part)
    return made


class Mirror:
    """One mirror, for one trial at a time."""

    def __init__(self, path: str, original: str, plan: Plan, *, is_made: bool = False) -> None:
        self.path = path
        self._original = original
        self._plan = plan
        self._copied = dict(plan.copies)
        if is_made:  # by another worker of this machine
            return
        for directory in plan.directories:
            os.mkdir(os.path.join(path, directory), 0o700)
        for name in (*plan.copies, *plan.links):
            self._make(name)
        self._set_times()

    def move(self, path: str) -> None:
        """Give it another path."""
        os.rename(self.path, path)
        self.path = path

    @property
    def is_changed(self) -> bool:
        """Whether a trial has written anything in it."""
        try:
            return any(
                os.stat(os.path.join(self.path, directory)).st_mtime_ns != LONG_AGO
                for directory in self._plan.directories
            ) or any(not self._is_intact(name) for name in self._copied)
        except OSError:
            return True

    def is_written(self, entry: os.DirEntry[str]) -> bool:
        """Whether a trial has written a file."""
        name = entry.path[len(self.path) + 1 :]
        if name in self._copied:
            return not self._is_intact(name)
        is_link = name in self._plan.links and entry.is_symlink()
        return not (is_link and os.readlink(entry.path) == os.path.join(self._original, name))

    def reset(self) -> None:
        """Remove what a trial has written, and restore what it has changed."""
        own = {os.path.join(self.path, directory) for directory in self._plan.directories}
        for directory in self._plan.directories:
            path = os.path.join(self.path, directory)
            if os.path.islink(path) or not os.path.isdir(path):
                _remove(path)
                os.mkdir(path, 0o700)
            for entry in _listed(path):
                is_directory = entry.is_dir(follow_symlinks=False)
                if entry.path not in own and (is_directory or self.is_written(entry)):
                    _remove(entry.path)
        for name in (*self._plan.copies, *self._plan.links):
            if not os.path.lexists(os.path.join(self.path, name)):
                self._make(name)
        self._set_times()

    def shared_changes(self, since: float) -> Iterator[Shared]:
        """Yield what has changed since that Unix time among what is shared, except code, which its author edits.

        A file that is written again does not change its directory, so up to :data:`MAX_ENTRIES` entries of unchanged
        directories are looked at too.
        """
        room = MAX_ENTRIES
        for name, before in self._plan.links.items():
            path = os.path.join(self._original, name)
            now = None if before is None else _target(path)
            if before is None or now is None:
                continue
            is_changed = now.st_mtime_ns != before.st_mtime_ns and now.st_mtime >= since
            if not stat.S_ISDIR(now.st_mode):
                if is_changed:
                    yield Shared(name, path)
                continue
            if is_changed:
                entries = _listed(path)
            elif room and not os.path.islink(path):  # others may write to what the caller has linked
                entries = _listed(path, room)
                room -= len(entries)
            else:
                continue
            for entry in entries:
                with contextlib.suppress(OSError):
                    is_code = entry.name == "__pycache__" or entry.name.endswith(_CODE)
                    if not is_code and entry.stat().st_mtime >= since:
                        yield Shared(os.path.join(name, entry.name), entry.path)

    def _make(self, name: str) -> None:
        path, source = os.path.join(self.path, name), os.path.join(self._original, name)
        with contextlib.suppress(OSError):  # what is gone or cannot be read is as good as not there
            if name in self._plan.copies:
                copy_file(source, path)
                made = os.lstat(path)
                self._copied[name] = made.st_mtime_ns, made.st_size
            else:
                os.symlink(source, path)

    def _is_intact(self, name: str) -> bool:
        """Whether a copy is as it was made; one that a trial has removed is not written."""
        try:
            now = os.lstat(os.path.join(self.path, name))
        except FileNotFoundError:
            return True
        return (now.st_mtime_ns, now.st_size) == self._copied[name]

    def _set_times(self) -> None:
        for directory in reversed(self._plan.directories):
            os.utime(os.path.join(self.path, directory), ns=(LONG_AGO, LONG_AGO))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
