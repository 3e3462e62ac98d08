"""Where the driver of a Spark search runs, for workers on other machines."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator
from itertools import islice

from maggy_like.processes.installation import is_installation
from maggy_like.processes.module_path import module_path
from maggy_like.processes.working_folder import working_folder
from maggy_like.protocol.task import DriverProcess
from maggy_like.protocol.versions import PYTHON

MAX_ENTRIES = 1000
"""Entries of a folder that are looked at: a home folder on a slow disk must not keep a search waiting."""


def driver_process() -> DriverProcess:
    """Where this process runs, and which modules lie beside its script."""
    return DriverProcess(socket.gethostname(), sys.executable, PYTHON, working_folder(), own_modules())


def own_modules() -> dict[str, str]:
    """The modules and packages in the folders that the user's script imports from, by name, and their files."""
    found: dict[str, str] = {}
    for folder in module_path():
        if not is_installation(folder):
            for name, path in _modules_in(os.path.abspath(folder)):
                found.setdefault(name, path)  # the first folder that has it counts
    return found


def _modules_in(folder: str) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # archives, and what is gone, are passed over
        for entry in islice(entries, MAX_ENTRIES):
            name, extension = os.path.splitext(entry.name)
            if extension == ".py" or os.path.exists(os.path.join(entry.path, "__init__.py")):
                yield name, entry.path
