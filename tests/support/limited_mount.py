"""A mount that creates whole files, and cannot append, rename or lock: ``python limited_mount.py ROOT MOUNT``.

Such are mounts of object stores. It needs ``/dev/fuse``, libfuse and mfusepy.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

IS_POSSIBLE = (
    os.path.exists("/dev/fuse")
    and find_spec("mfusepy") is not None
    and shutil.which("fusermount3") is not None
    and any(map(ctypes.util.find_library, ("fuse", "fuse3")))
)


@contextlib.contextmanager
def limited_mount(directory: Path) -> Iterator[Path]:
    """Mount a directory of a directory at another, in a process of its own."""
    root, mount = directory / "root", directory / "mount"
    root.mkdir()
    mount.mkdir()
    with subprocess.Popen([sys.executable, __file__, str(root), str(mount)]) as process:
        try:
            while not mount.is_mount():
                assert process.poll() is None
                time.sleep(0.01)
            yield mount
        finally:
            subprocess.run(["fusermount3", "-u", "-z", str(mount)], check=True)


def _serve(root: str, mount: str) -> None:
    import mfusepy

    def refuse(code: int) -> Callable[..., Any]:
        def refused(*_: Any) -> None:
            raise mfusepy.FuseOSError(code)

        return refused

    class Limited(mfusepy.Operations):  # type: ignore[misc]
        """Passes on what such a mount can do."""

        use_ns = True
        rename, link, symlink = (refuse(errno.ENOTSUP) for _ in range(3))
        lock = refuse(errno.ENOLCK)

        def open(self, path: str, flags: int) -> int:
            is_rewritten = flags & os.O_TRUNC or not os.path.getsize(root + path)
            if flags & (os.O_WRONLY | os.O_RDWR) and not is_rewritten:
                raise mfusepy.FuseOSError(errno.ENOTSUP)
            return os.open(root + path, flags & ~os.O_APPEND)

        def create(self, path: str, mode: int, fi: Any = None) -> int:
            return os.open(root + path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

        def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
            about = os.lstat(root + path)
            names = ("st_gid", "st_mode", "st_nlink", "st_size", "st_uid")
            times = {f"st_{name}time": getattr(about, f"st_{name}time_ns") for name in "acm"}
            return times | {name: getattr(about, name) for name in names}

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *os.listdir(root + path)]

        def mkdir(self, path: str, mode: int) -> None:
            os.mkdir(root + path, mode)

        def rmdir(self, path: str) -> None:
            os.rmdir(root + path)

        def unlink(self, path: str) -> None:
            os.unlink(root + path)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            return os.pwrite(fh, data, offset)

        def truncate(self, path: str, length: int, fh: Any = None) -> None:
            os.truncate(root + path, length)

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

        def utimens(self, path: str, times: Any = None) -> None:
            """Such mounts keep their own times."""

    mfusepy.FUSE(Limited(), mount, foreground=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
