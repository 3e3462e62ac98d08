"""The files of trials in the run's directory: ``files/00003/best.pt``, and the list of them, ``files/00003.json``.

A worker keeps what a trial has written when an attempt ends, and restores it where the trial continues. The list is
written last. It has the attempt, so that a continuing trial waits for the files of the attempt before, and an attempt
that ends late on an abandoned worker overwrites nothing. A trial on several hosts has a directory and a list per host.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import msgspec

from maggy_like.protocol.values import is_encodable
from maggy_like.storage.checkpoints import Retry, once
from maggy_like.storage.file_systems import is_local, lasting_remedy, open_url, puts_whole, write_file

MAX_FILES = 10_000
"""Maximum number of files that are kept of a trial."""

MAX_SEEN = 20 * MAX_FILES
"""Number of files after which no others are looked for."""

MAX_LINKS = 40
"""Maximum number of absolute links on the way to a file, as on Linux."""

SHOWN = 3
"""Number of files that a message names."""

READ_PATIENCE = 300.0
"""Seconds that a trial waits for the files of its last attempt, which another worker may still be copying."""

_BLOCK = 1 << 20

_NOT_THERE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors of a path at which there is no file."""


class KeptFile(msgspec.Struct, frozen=True, array_like=True):
    """A file in the list of a trial's files."""

    size: int  # bytes
    changed: int  # time of its last change, in nanoseconds
    in_working: bool = False  # whether it was in the trial's working directory, and not in ``reporter.directory``


class FileList(msgspec.Struct, frozen=True):
    """The files of a trial on one host, as of the end of an attempt."""

    attempt: int
    files: dict[str, KeptFile] = {}  # by path in the trial's directory, with slashes
    left_out: tuple[str, ...] = ()  # what is not kept, and why; the first few
    hosts: int = 1  # number of hosts on which the attempt ran


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FileList).decode


class Written(NamedTuple):
    """A file that a trial has written."""

    name: str  # its path in the trial's directory, with slashes
    path: str  # its path on this machine
    size: int
    changed: int
    in_working: bool

    @property
    def kept(self) -> KeptFile:
        return KeptFile(self.size, self.changed, self.in_working)


@dataclass
class Found:
    """The files of a trial's directories on this machine, and what among them cannot be kept."""

    files: dict[str, Written] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    count: int = 0  # number of all files, also of those that are left out
    _directories: set[str] = field(default_factory=set)  # directories with files

    def add(
        self,
        directory: str,
        *,
        known_as: str = "",
        in_working: bool = False,
        is_own: Callable[[os.DirEntry[str]], bool] | None = None,
    ) -> None:
        """Add the files of a directory, except entries for which ``is_own`` is False.

        Links are followed only to files of the same directory, which was at ``known_as`` when the trial made them. What
        disappears meanwhile is left out.
        """
        inside, before = os.path.realpath(directory), os.path.realpath(known_as or directory)
        waiting = [directory]
        while waiting and self.count < MAX_SEEN:
            with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.name == "__pycache__":
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif is_own is None or is_own(entry):
                        self.count += 1
                        with contextlib.suppress(OSError):
                            self._add_file(entry, os.path.relpath(entry.path, directory), inside, before, in_working)

    def _add_file(self, entry: os.DirEntry[str], name: str, inside: str, before: str, in_working: bool) -> None:
        path = entry.path
        shown = name.encode(errors="backslashreplace").decode()
        if entry.is_symlink():
            path = _target(path, inside, before)
            if not path.startswith(f"{inside}{os.sep}"):
                self.left_out.append(f"{shown} (a link out of the trial's directory)")
                return
        about = os.stat(path, follow_symlinks=False)
        if not stat.S_ISREG(about.st_mode):
            self.left_out.append(f"{shown} (not a file)")
        elif not is_encodable(name):
            self.left_out.append(f"{shown} (its name is not UTF-8)")
        elif name in self.files or self.replaces(name):
            self.left_out.append(f"{shown} in the working directory (reporter.directory has one of that name)")
        else:
            self.files[name] = Written(name, path, about.st_size, about.st_mtime_ns, in_working)
            self._directories.update(_directories_of(name))

    def replaces(self, name: str) -> bool:
        """Whether a file of that name is a directory here, or is in one that is a file here."""
        return name in self._directories or not self.files.keys().isdisjoint(_directories_of(name))

    def limit(self, max_bytes: int) -> None:
        """Leave out what exceeds the limits, the largest files first."""
        total = 0
        files = sorted(self.files.values(), key=lambda file: file.size)
        for number, file in enumerate(files):
            total += file.size
            if total > max_bytes or number >= MAX_FILES:
                for over in reversed(files[number:]):
                    del self.files[over.name]
                    self.left_out.append(f"{over.name} ({readable_size(over.size)})")
                return


def _target(link: str, inside: str, before: str) -> str:
    """Return the file of a link. The targets of absolute links have moved from ``before`` to ``inside``."""
    path = os.path.realpath(link)
    for _ in range(MAX_LINKS):
        if before == inside or not path.startswith(f"{before}{os.sep}"):
            break
        path = os.path.realpath(f"{inside}{path[len(before) :]}")
    return path


def _directories_of(name: str) -> list[str]:
    """Return the directories of a file in the trial's directory, the outermost first."""
    parts = name.split("/")
    return ["/".join(parts[:number]) for number in range(1, len(parts))]


def readable_size(size: int) -> str:
    """Return a number of bytes for people."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def list_name(trial: int, host: int = 0) -> str:
    """Return the name of the directory of a trial's files, and of their list without its suffix.

    Example:
        >>> list_name(7), list_name(7, host=1)
        ('00007', '00007-1')
    """
    return f"{trial:05d}-{host}" if host else f"{trial:05d}"


def check_file_name(name: str) -> str:
    """Return the name of a kept file; raise ValueError if it would leave the trial's directory."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or str(path) != name or "\0" in name or name == ".":
        raise ValueError(f"the name of a trial's file must be a path in its directory, got {name[:100]!r}")
    return name


def read_list(directory: str, trial: int, host: int = 0, retry: Retry = once) -> FileList | None:
    """Return the list of a trial's files on one host; None if none were kept."""
    fs, path = open_url(f"{directory}/{list_name(trial, host)}.json")
    try:
        listed = _decode(retry("read", partial(fs.cat_file, path), FileNotFoundError))
    except FileNotFoundError:
        return None
    for name in listed.files:
        check_file_name(name)
    return listed


def read_lists(directory: str, trial: int, retry: Retry = once) -> list[FileList | None]:
    """Return the lists of a trial's files, by host."""
    first = read_list(directory, trial, retry=retry)
    return [
        first,
        *(read_list(directory, trial, host, retry) for host in range(1, 1 if first is None else first.hosts)),
    ]


def keep(
    directory: str,
    trial: int,
    attempt: int,
    found: Found,
    *,
    is_valid: Callable[[], bool] = lambda: True,
    host: int = 0,
    hosts: int = 1,
    links: bool = False,
    adds: bool = False,
) -> bool:
    """Copy a trial's files to the run's directory, without those that it has already, and write the list.

    With ``links``, a file on the same file system is not copied but linked, because nobody changes it any more. Files
    that a later attempt has kept stay, and with ``adds`` also those of the same attempt, which other ranks have kept.
    Return False if ``found`` is not valid any more, since its directories were moved.
    """
    name = list_name(trial, host)
    before = read_list(directory, trial, host)
    known = {} if before is None else before.files
    if before is not None and before.attempt > attempt:
        return True
    fs, base = open_url(f"{directory}/{name}")
    if is_local(fs):
        os.makedirs(base, 0o700, exist_ok=True)
    for file in [*found.files.values()]:
        if known.get(file.name) == file.kept:
            continue
        try:
            _put(fs, file.path, base, file.name, part=f"{base}.{attempt}.part", links=links)
        except OSError as error:
            if os.path.exists(file.path):  # else it was removed meanwhile
                if os.access(file.path, os.R_OK) and not lasting_remedy(error):
                    raise
                found.left_out.append(f"{file.name} ({error.strerror})")
            del found.files[file.name]
    if not is_valid():
        return False
    kept = {file.name: file.kept for file in found.files.values()}
    left_out = found.left_out
    if adds and before is not None and before.attempt == attempt:
        kept = {name: file for name, file in known.items() if not found.replaces(name)} | kept
        left_out = [*dict.fromkeys((*before.left_out, *left_out))]
    for gone in known.keys() - kept.keys():
        if puts_whole(fs) or not found.replaces(gone):
            with contextlib.suppress(*_NOT_THERE):
                fs.rm_file(f"{base}/{gone}")
    _write_list(f"{directory}/{name}.json", FileList(attempt, kept, tuple(left_out[:20]), hosts))
    return True


def _write_list(url: str, listed: FileList) -> None:
    fs, path = open_url(url)
    if puts_whole(fs):
        fs.pipe_file(path, _encode(listed))
        return
    write_file(fs, f"{path}.part", _encode(listed))
    fs.mv(f"{path}.part", path)


def _put(fs: Any, source: str, base: str, name: str, *, part: str, links: bool) -> None:
    try:
        _put_once(fs, source, f"{base}/{name}", part=part, links=links)
    except Exception:  # each file system raises its own
        if not _make_way(fs, base, name):
            raise
        _put_once(fs, source, f"{base}/{name}", part=part, links=links)


def _put_once(fs: Any, source: str, target: str, *, part: str, links: bool) -> None:
    if not is_local(fs):
        if not puts_whole(fs):
            fs.makedirs(fs._parent(target), exist_ok=True)
        fs.put_file(source, target)
        return
    os.makedirs(os.path.dirname(target), 0o700, exist_ok=True)
    if os.path.exists(target) and os.path.samefile(source, target):
        return  # it was linked before the store refused another
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)  # left by a killed worker; it may be a link, whose file must not be written
    try:
        if not (links and _link(source, part)):
            copy_file(source, part)
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _link(source: str, target: str) -> bool:
    """Link a file, and return whether that was possible; it is not across file systems."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        return False
    return True


def _make_way(fs: Any, base: str, name: str) -> bool:
    """Remove a directory that has the name of a file to be kept, or a file that has that of one of its directories.

    An earlier attempt has left them. Return whether there were any.
    """
    for directory in _directories_of(name):
        path = f"{base}/{directory}"
        if fs.exists(path) and not fs.isdir(path):
            fs.rm_file(path)
            return True
    if fs.isdir(f"{base}/{name}"):
        fs.rm(f"{base}/{name}", recursive=True)
        return True
    return False


def copy_file(source: str, target: str) -> None:
    """Copy a file as it is now, up to its present size, since it may grow meanwhile; it must not be a link."""
    with open(source, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as read:
        about = os.fstat(read.fileno())
        left = about.st_size
        mode = 0o600 | about.st_mode & 0o100
        with open(target, "wb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, mode)) as write:
            while left and (data := read.read(min(left, _BLOCK))):
                write.write(data)
                left -= len(data)
    os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))


def restore(directory: str, trial: int, attempt: int, own: str, working: str, retry: Retry) -> str:
    """Put the files of a trial's last attempt into its directories; return what is missing, empty if nothing is.

    ``attempt`` is the last one that has left files, or 0 if that is not known. Its files are waited for.
    """
    waited, seconds = 0.0, 0.01
    while (first := read_list(directory, trial, retry=retry)) is None or first.attempt < attempt:
        if waited >= READ_PATIENCE or not attempt:
            break
        time.sleep(seconds)
        waited += seconds
        seconds = min(2 * seconds, 1.0)
    missing = []
    for host, listed in reversed(list(enumerate(read_lists(directory, trial, retry)))):  # those of rank 0's host win
        if listed is None:
            continue
        fs, base = open_url(f"{directory}/{list_name(trial, host)}")
        for name, file in listed.files.items():
            place = working if file.in_working and working else own
            target = make_place(place, name)
            try:
                retry("read", partial(_get, fs, f"{base}/{name}", target), *_NOT_THERE)
            except _NOT_THERE:
                missing.append(name)
            else:
                os.utime(target, ns=(file.changed, file.changed))
    if attempt and (first is None or first.attempt < attempt):
        return f"the files of attempt {attempt} of this trial have not arrived in {directory}"
    return f"files of this trial are missing in {directory}: {_some(missing)}" if missing else ""


def _get(fs: Any, source: str, target: str) -> None:
    if is_local(fs):
        copy_file(source, target)
    else:
        fs.get_file(source, target)


def make_place(directory: str, name: str) -> str:
    """Return the path of a file to be written in a directory, without links on the way, and make its parents."""
    *parents, last = check_file_name(name).split("/")
    path = directory
    os.makedirs(path, 0o700, exist_ok=True)
    for parent in parents:
        path = os.path.join(path, parent)
        if os.path.islink(path) or os.path.isfile(path):
            os.unlink(path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    path = os.path.join(path, last)
    if os.path.lexists(path) and not os.path.isdir(path):
        os.unlink(path)
    return path


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def left_out_note(found: Found, max_bytes: int) -> str:
    """Return the message about files that are not kept; empty if all are."""
    if not found.left_out:
        return ""
    return (
        f"{len(found.left_out)} of its {found.count} files are not kept: {_some(found.left_out)}; a trial keeps up to "
        f"{MAX_FILES:,} files and {readable_size(max_bytes)}, the smallest first; use Store(max_files_gb=...) for more"
    )


def remove_files(directory: str, trials: Iterable[int]) -> None:
    """Remove the files of trials, and their lists."""
    for trial in trials:
        for host, listed in enumerate(read_lists(directory, trial)):
            if listed is None:
                continue
            fs, path = open_url(f"{directory}/{list_name(trial, host)}")
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(f"{path}.json")
            with contextlib.suppress(FileNotFoundError):
                fs.rm(path, recursive=True)
