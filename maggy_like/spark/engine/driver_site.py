"""The location of the driver of a Spark search, for workers on other machines."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from maggy_like.processes.imports import is_installation, module_path
from maggy_like.processes.system import working_folder
from maggy_like.protocol.messages import PYTHON
from maggy_like.protocol.task import DriverProcess
from maggy_like.spark.kinds import is_classic
from maggy_like.storage.run_paths import RunPaths

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOUNTS = Path("/proc/self/mounts")

_SHARED = re.compile(r"nfs|cifs|smb|fuse|lustre|ceph|gpfs|gluster|beegfs|afs|wekafs|9p")
"""Prefixes of the types of file systems that outlive a container."""

_OVERLAY = "fuse-overlayfs"
"""Type of a container's own disk, although it begins like a shared one's."""

_OF_DATABRICKS = ("/dbfs", "/Volumes", "/Workspace")


def path_hints(session: SparkSession, paths: RunPaths) -> list[str]:
    """Return hints about the location of a run, if it is on a disk that is removed with the driver's container.

    Args:
        session: Session, classic or Spark Connect. The driver of the latter is always on this machine.
        paths: Location of the run's files. A URL, also ``file://``, declares that it is permanent.
    """
    where = _driver_in_cluster(session, os.environ)
    lost = [given for given, folder in _local_folders(paths) if not _stays(folder)]
    if where is None or not lost:
        return []
    return [
        f"the driver runs in the cluster ({where}), and {' and '.join(lost)} is on its own disk, which is removed with "
        "it; use directory='s3://bucket/runs' or another permanent URL, or 'file:///PATH' of a permanent volume"
    ]


def _driver_in_cluster(session: SparkSession, environment: Mapping[str, str]) -> str | None:
    """Return what shows that the driver's machine is in the cluster; None if nothing does."""
    if version := environment.get("DATABRICKS_RUNTIME_VERSION"):
        return f"Databricks {version}"
    if not is_classic(session):
        return None
    if session.conf.get("spark.submit.deployMode", "client") == "cluster":
        return "spark.submit.deployMode=cluster"
    master = str(session.conf.get("spark.master", ""))
    if master.startswith("k8s://") and "KUBERNETES_SERVICE_HOST" in environment:
        return "a Kubernetes pod"
    if master == "yarn" and "CONTAINER_ID" in environment:
        return f"YARN's {environment['CONTAINER_ID']}"
    return None


def _local_folders(paths: RunPaths) -> Iterator[tuple[str, Path]]:
    """Yield the folders of the run that were given as paths: as arguments, and their locations."""
    if isinstance(paths.directory, Path):
        yield f"directory={str(paths.directory.parent)!r}", paths.directory


def _stays(folder: Path) -> bool:
    """Whether a folder is on a file system that outlives the machine that mounts it."""
    if any(folder.is_relative_to(root) for root in _OF_DATABRICKS):
        return True
    kind = _kind_of_file_system(folder)
    return _SHARED.match(kind) is not None and _OVERLAY not in kind


def _kind_of_file_system(folder: Path) -> str:
    """Return the type of the file system of a folder; empty if that is not known."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return ""
    kinds = {Path(_plain(point)): kind for _, point, kind, *_ in map(str.split, lines)}  # the last at a point counts
    return next((kinds[at] for at in (folder, *folder.parents) if at in kinds), "")


def _plain(point: str) -> str:
    """Unescape a mount point as the kernel writes it."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)


MAX_ENTRIES = 1000
"""Maximum number of entries of a folder to inspect, because a home folder on a slow disk must not delay a search."""


def driver_process() -> DriverProcess:
    """Describe this process, and the modules next to its script."""
    return DriverProcess(socket.gethostname(), sys.executable, PYTHON, working_folder(), own_modules())


def own_modules() -> dict[str, str]:
    """Return the files of the modules and packages in the folders that the user's script imports from, by name."""
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
