"""A temporary directory in memory, where Linux has a large one: the tests make and remove many thousands of files.

On a disk, ext4 looks at each inode that was freed in the last minutes before it makes a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")

ROOM = 4 * 1024**3
"""Bytes that have to be free there."""

PREFIX = "maggy-tests-"


def begin() -> Path | None:
    """Make a directory there, the temporary one of this process and its children from now on.

    Return None if there is no room, or the caller has set ``TMPDIR``. The directories of killed runs are removed.
    """
    if "TMPDIR" in os.environ or not os.path.ismount(MEMORY):
        return None
    about = os.statvfs(MEMORY)
    if about.f_bavail * about.f_frsize < ROOM or about.f_flag & os.ST_NOEXEC or not os.access(MEMORY, os.W_OK):
        return None
    for left in MEMORY.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is in use, or another user's
            os.close(_locked(left))
            shutil.rmtree(left, ignore_errors=True)
    directory = tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY)
    _locked(Path(directory))
    os.environ["TMPDIR"] = tempfile.tempdir = directory
    return Path(directory)


def _locked(directory: Path) -> int:
    """Lock a directory until the descriptor is closed, or this process ends; raise OSError if another process has."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
