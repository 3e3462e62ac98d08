"""A temporary folder in memory, where Linux has a large one, since the tests make and remove many thousands of files.

On a disk, ext4 looks at each inode that was freed in the last minutes before it makes a file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")

ROOM = 4 * 1024**3
"""Bytes that have to be free there."""

PREFIX = "maggy-tests-"


def begin() -> Path | None:
    """Make it the folder of ``tempfile`` and of all processes; None if there is none, or the caller has set ``TMPDIR``.

    Folders of tests that were killed are removed.
    """
    if "TMPDIR" in os.environ or not os.path.ismount(MEMORY):
        return None
    about = os.statvfs(MEMORY)
    if about.f_bavail * about.f_frsize < ROOM or about.f_flag & os.ST_NOEXEC or not os.access(MEMORY, os.W_OK):
        return None
    for left in MEMORY.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX)).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = MEMORY / f"{PREFIX}{os.getpid()}"
    folder.mkdir(0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder
