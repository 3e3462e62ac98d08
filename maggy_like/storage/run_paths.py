"""The places of a run: its name, its directory, its store of checkpoints, and the agents' own output."""

from __future__ import annotations

import contextlib
import functools
import glob
import math
import os
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from maggy_like.argument_checks import flag, real, whole
from maggy_like.errors import ConfigError
from maggy_like.processes.system import current_directory
from maggy_like.storage.file_systems import (
    MOUNT,
    Directory,
    check_directory,
    creates_once,
    local_path,
    local_url,
    missing_operations,
    name_of_directory,
    put,
    sibling_of,
    url_of,
    within,
)
from optimizers.checks import explains_init

WORK = "work"
"""Name of the directory in a run's directory for the directories of trials that run; it is removed at the end."""

LEFT = "-left"
"""End of the name of the directory next to it for directories whose files could not be kept."""

_JOURNAL = "journal.jsonl"
_SEGMENTS = "journal-*.jsonl"

_LONGEST = 200  # file systems take 255
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_runs_directory(directory: str | PathLike[str]) -> Directory:
    """Return the directory of all runs: an absolute path, or a URL."""
    if not isinstance(directory, str | PathLike) or not str(directory).strip():
        raise ConfigError(
            f"directory must be the path or URL of a directory, got {directory!r}; leave it out for 'maggy_runs'"
        )
    where = check_directory("directory", directory)
    if "://" in where:
        return where
    path = Path(where).expanduser()
    return (path if path.is_absolute() else Path(current_directory(), path)).resolve()


def place_for(directory: Directory) -> Directory:
    """Return the directory of a run, as the URL of a mount if its file system cannot append, rename or lock.

    The directory need not exist, so this is tried in the first of its parents that does.
    """
    if not isinstance(directory, Path) or os.path.exists(directory / _JOURNAL):
        return directory
    if (kept := kept_at(directory)) != directory:
        return kept
    existing = next(parent for parent in (directory, *directory.parents) if os.path.isdir(parent))
    with contextlib.suppress(OSError):  # it cannot be written, which is reported when the run begins
        if missing_operations(existing):
            return _on_mount(directory)
    return directory


def kept_at(directory: Directory) -> Directory:
    """Return the directory of a run that exists, as the URL of a mount if it was kept as on one.

    A directory that may not be searched stays as it is, and reading its journal reports the reason. The methods of Path
    would raise PermissionError here.
    """
    if (
        isinstance(directory, Path)
        and not os.path.exists(directory / _JOURNAL)
        and glob.glob(_SEGMENTS, root_dir=directory)
    ):
        return _on_mount(directory)
    return directory


def _on_mount(directory: Path) -> str:
    return f"{MOUNT}://{directory}"


def mount_hints(directory: Directory) -> list[str]:
    """Return hints about a run that is kept as on a mount."""
    if isinstance(directory, Path) or not directory.startswith(f"{MOUNT}://"):
        return []
    path = Path(directory.removeprefix(f"{MOUNT}://"))
    hints = [
        f"{path.parent} cannot append to, rename or lock files, as mounts of object stores; the run is kept there as "
        "at a URL"
    ]
    if not creates_once(url_of(directory)):
        hints.append(
            f"{path.parent} creates files that exist already, so two drivers that begin this run within a second may "
            "not notice each other; begin it once"
        )
    return hints


@dataclass(frozen=True)
class RunPaths:
    """Where a run's files are."""

    directory: Directory  # the directory of its journal and its logs: a path, or a URL if one was given
    store: str  # the URL of the directory that holds its checkpoints

    @classmethod
    def recorded(cls, directory: Directory, store: str) -> RunPaths:
        """Return the paths of a run in ``directory`` whose journal has ``store``."""
        return cls(directory, store if "://" in store else url_of(within(directory, store) if store else directory))

    @property
    def recorded_store(self) -> str:
        """The store for the journal: relative if it is in the run's directory, so that it can be moved with it."""
        root = url_of(self.directory)
        return self.store[len(root) :].strip("/") if f"{self.store}/".startswith(f"{root}/") else self.store

    @property
    def journal(self) -> str:
        """The directory of its journal as text."""
        return str(self.directory)

    @property
    def logs(self) -> Directory:
        """The directory of the trials' log files."""
        return within(self.directory, "logs")

    @property
    def log_copies(self) -> str:
        """URL of the directory for logs of workers that do not see ``logs``; empty if the run's has the store."""
        return "" if self.has_own_store else f"{self.store}/logs"

    @property
    def files(self) -> str:
        """URL of the directory for the files of trials."""
        return url_of(within(self.directory, "files")) if self.has_own_store else f"{self.store}/files"

    @property
    def has_own_store(self) -> bool:
        """Whether its states are in its own directory, as by default."""
        return self.store == store_url(None, self.directory)

    def of_sibling(self, name: str) -> RunPaths:
        """Return the paths of another run in the same places."""
        directory = sibling_of(self.directory, name)
        return RunPaths(
            directory, store_url(None, directory) if self.has_own_store else str(sibling_of(self.store, name))
        )


def check_name(name: str) -> str:
    """Check that a name can be a run's: it must also be the name of a directory."""
    if isinstance(name, str) and len(name) > _LONGEST:
        raise ConfigError(f"name must have at most {_LONGEST} characters, got {len(name)}: {name[:40]!r}...")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"name must be the name of a directory, got {name!r}; use the letters a to z and A to Z, digits, '.', '_' "
            "and '-', and begin with a letter or a digit"
        )
    return name


def default_name(train_fn: Callable[..., Any]) -> str:
    """Return a new run's name: the function's, the time, and four random characters."""
    function = re.sub(r"[^A-Za-z0-9._-]", "", getattr(train_fn, "__name__", "")).lstrip("._-") or "run"
    return f"{function[: _LONGEST // 2]}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"


def store_url(store: str | PathLike[str] | None, directory: Directory, name: str = "") -> str:
    """Return the URL of a run's checkpoints: in its own directory, or in one of its name in ``store``."""
    if store is None:
        return url_of(within(directory, "checkpoints"))
    where = f"{store}/{name}"
    path = local_path(where)
    return where if path is None else local_url(path)  # not relative: a worker has another working directory


@explains_init
@dataclass(frozen=True)
class Store:
    """Choose where a run saves its checkpoints, and how many it keeps. ``store="s3://..."`` is ``Store("s3://...")``.

    Args:
        url: Path or URL of a directory in which each run has a directory of its name for its checkpoints and the files
            of its trials. Set it if ``directory`` is not shared by all hosts. By default, they are in ``directory``.
        keep_checkpoints: Number of a trial's newest checkpoints to keep, in addition to that of its best value.
        keep_files: Number of trials, the best ones, whose files remain after the run. 0 keeps no files. Default: all.
        max_files_gb: Size of the files to keep of each trial, in GB. Files that exceed it are left out, the largest
            first. Default: 1.
        files_at_checkpoints: If True, files are also kept when a trial saves a checkpoint, and not only when an attempt
            ends.

    Raises:
        ConfigError: An argument is not valid.

    Example:
        >>> result = lagom(train_fn, space, store=Store("states", keep_checkpoints=1))
        >>> result.best_checkpoint
        'file:///.../states/train_fn-.../00000/...pkl'
    """

    url: str | PathLike[str] | None = None
    keep_checkpoints: int = 2
    keep_files: int | None = None
    max_files_gb: float = 1.0
    files_at_checkpoints: bool = False

    def __post_init__(self) -> None:
        if self.url is not None:
            object.__setattr__(self, "url", check_directory("store", self.url))
        object.__setattr__(self, "keep_checkpoints", whole("keep_checkpoints", self.keep_checkpoints, least=1))
        if self.keep_files is not None:
            remedy = "leave it out to keep those of all trials"
            object.__setattr__(self, "keep_files", whole("keep_files", self.keep_files, least=0, remedy=remedy))
        if (size := real(self.max_files_gb)) is None or not 0 < size < math.inf:
            raise ConfigError(f"max_files_gb must be a positive number, got {self.max_files_gb!r}; use 1.0 for 1 GB")
        object.__setattr__(self, "max_files_gb", size)
        flag("files_at_checkpoints", self.files_at_checkpoints, "use files_at_checkpoints=True to keep them more often")


def read_store(store: Any) -> Store:
    """Return the :class:`Store` of an argument: a store, its path or URL, or None for the default."""
    if isinstance(store, Store):
        return store
    if store is not None and not isinstance(store, str | PathLike):
        raise ConfigError(
            f"store must be the path or URL of a directory, or a Store, got {store!r}; use 's3://bucket/states'"
        )
    return Store(store)


COPY_PATIENCE = 10.0
"""Seconds for copying the files to a store."""


class OutputDirectory:
    """The directory for the output of agents and fork servers outside of trials, which helps when one dies.

    It is ``workers`` in the run's directory. For a run at a URL it is a temporary directory, whose files are moved to
    ``workers`` at the end.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory, self._own = directory, local_path(directory)
        self._is_tried = False

    @functools.cached_property
    def path(self) -> Path:
        """Its path on this machine; a temporary directory is made at the first use."""
        if self._own is not None:
            return self._own / "workers"
        return Path(tempfile.mkdtemp(prefix=f"maggy-{name_of_directory(self._directory)}-"))

    def move(self, *, is_away: bool = False) -> str:
        """Move the files to the run's directory at a URL, with a single try; if the store ``is_away``, they stay.

        Return a line with their place; empty for a run at a path, and without output.
        """
        if self._own is not None or "path" not in vars(self) or not self.path.exists() or self._is_tried:
            return ""
        self._is_tried = True
        files = [file for file in self.path.iterdir() if file.stat().st_size]
        arrived: list[Path] = []
        copying = threading.Thread(target=self._copy, args=(files, arrived), name="maggy-output", daemon=True)
        if files and not is_away:
            copying.start()
            copying.join(COPY_PATIENCE)
        if len(arrived) < len(files):
            return f"the workers' own output is in {self.path}"
        shutil.rmtree(self.path, ignore_errors=True)
        return f"the workers' own output is in {self._directory}/workers" if files else ""

    def _copy(self, files: list[Path], arrived: list[Path]) -> None:
        """Copy files until the store refuses one."""
        for file in files:
            try:
                put(f"{self._directory}/workers/{file.name}", file.read_bytes())
            except Exception:  # each file system raises its own; the files stay, and move() returns their place
                return
            arrived.append(file)
