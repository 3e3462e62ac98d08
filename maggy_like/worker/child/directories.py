"""A trial's directories in its process: restored files, and the working directory."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping

from maggy_like.protocol.messages import NO_FILES, Assign
from maggy_like.protocol.task import WorkerTask
from maggy_like.storage.checkpoints import Retry
from maggy_like.storage.trial_files import restore


def restore_files(assign: Assign, task: WorkerTask, retry: Retry) -> None:
    """Put the files of the trial's last attempt into its directories, on one rank for all of a machine."""
    info = assign.rank_info
    if assign.files != NO_FILES and (info is None or info.local_rank == 0):
        known = max(0, assign.files)
        directories = os.fsdecode(assign.directory), os.fsdecode(assign.working_directory)
        if missing := restore(task.files, assign.trial, known, *directories, retry):
            print(missing, file=sys.stderr)


@contextlib.contextmanager
def working_in(directory: str) -> Iterator[Mapping[str, str]]:
    """Run in a working directory, if one is given; relative entries of the module search path keep their meaning.

    Yield the directory whose names it has, by its own path; nothing if none is given.
    """
    if not directory:
        yield {}
        return
    before, path = os.getcwd(), sys.path[:]
    sys.path[:] = [os.path.abspath(entry) for entry in path]
    os.chdir(directory)
    try:
        yield {os.getcwd(): before}
    finally:
        with contextlib.suppress(OSError):  # it is gone
            os.chdir(before)
