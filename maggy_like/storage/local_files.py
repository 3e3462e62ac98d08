"""The files of this machine, with the part of fsspec's interface that a run's files need.

fsspec is only for URLs of other file systems: its import takes a seventh of a second, in the driver and again in each
worker, before the first trial.
"""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from typing import IO

from maggy_like.processes.system import current_directory


class LocalFiles:
    """Works like fsspec's ``LocalFileSystem``; paths are absolute."""

    protocol = "file", "local"

    def open(self, path: str, mode: str = "rb") -> IO[bytes]:
        """Open a file."""
        return open(path, mode)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the content of a file, or its bytes from ``start`` to ``end``."""
        with open(path, "rb") as file:
            file.seek(start or 0)
            return file.read() if end is None else file.read(max(0, end - file.tell()))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite") -> None:
        """Write a file; with mode ``create``, raise FileExistsError if there is one."""
        with open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def get_file(self, source: str, target: str) -> None:
        """Copy a file to a local path."""
        shutil.copyfile(source, target)

    put_file = get_file

    def get(self, source: str, target: str, recursive: bool = False) -> None:
        """Copy a file, or a directory and its contents, to a local path."""
        if recursive and os.path.isdir(source):
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)

    def mv(self, source: str, target: str) -> None:
        """Move a file or a directory; a file replaces another."""
        shutil.move(source, target)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        os.remove(path)

    def rm(self, path: str, recursive: bool = False) -> None:
        """Remove a file, or a directory and its contents."""
        if recursive and os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.remove(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those that contain it."""
        os.makedirs(path, exist_ok=exist_ok)

    def ls(self, path: str, detail: bool = False) -> list[str]:
        """Return the paths of a directory's entries."""
        return [entry.path for entry in os.scandir(path)]

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory."""
        return os.path.exists(path)

    def isdir(self, path: str) -> bool:
        """Return whether there is a directory."""
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        """Return the bytes of a file."""
        return os.stat(path).st_size

    def modified(self, path: str) -> datetime:
        """Return when a file was written last."""
        return datetime.fromtimestamp(os.stat(path).st_mtime, UTC)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Do nothing: nothing is kept."""

    @staticmethod
    def _parent(path: str) -> str:
        """Return the directory that contains a path."""
        return path.rpartition("/")[0] or "/"


def absolute_path(path: str) -> str:
    """Return a path without a slash at its end, from the root on.

    Raise ConfigError if it is relative and the working directory was deleted.
    """
    path = os.path.expanduser(path).removeprefix("./")
    return (path if path.startswith("/") else f"{current_directory()}/{path}").rstrip("/") or "/"
