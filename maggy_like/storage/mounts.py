"""The file system of ``mount://`` URLs: directories that create whole files, and cannot append, rename or lock.

Such are mounts of object stores: Databricks' ``/Volumes``, gcsfuse, mountpoint-s3, s3fs, and some NFS mounts. A run in
one is kept as at a URL, since its file system is not :func:`~maggy_like.storage.file_systems.is_local`: its journal has
segments, its driver a lease, and its logs are copied as whole files.
"""

from __future__ import annotations

import os
import shutil
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


class MountFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Files of a mount: each is written with one open and one close, and its directory is made."""

    protocol = "mount"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"auto_mkdir": True})

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Write a file; with mode ``create``, raise FileExistsError if there is one."""
        path = self._strip_protocol(path)
        os.makedirs(self._parent(path), 0o700, exist_ok=True)
        with _create(path) if mode == "create" else _replace(path) as file:
            file.write(value)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        """Copy a file, from the mount or to it."""
        target = self._strip_protocol(path2)
        os.makedirs(self._parent(target), 0o700, exist_ok=True)
        with open(self._strip_protocol(path1), "rb") as source, _replace(target) as file:
            shutil.copyfileobj(source, file, 1 << 20)


def _create(path: str, flags: int = os.O_EXCL) -> IO[bytes]:
    return open(path, "wb", opener=lambda path, mode: os.open(path, mode & ~os.O_TRUNC | flags, 0o600))


def _replace(path: str) -> IO[bytes]:
    """Open a file to be written anew; a mount may refuse this if there is one, which is then removed first."""
    try:
        return _create(path, os.O_TRUNC)
    except OSError:
        if not os.path.isfile(path):
            raise
        os.unlink(path)
        return _create(path)


fsspec.register_implementation(MountFileSystem.protocol, MountFileSystem, clobber=True)
