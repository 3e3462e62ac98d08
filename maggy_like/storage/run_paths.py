"""Where a run is kept: its name, its folder, and that of its checkpoints, which go by that name."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from maggy_like.errors import ConfigError
from maggy_like.processes.working_folder import working_folder
from maggy_like.storage.folders import Folder, beside, check_folder, local_path, local_url, url_of, within

_LONGEST = 200  # file systems take 255
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_directory(directory: str | PathLike[str]) -> Folder:
    """The folder of all runs: a path, made absolute, or a URL."""
    if not isinstance(directory, str | PathLike) or not str(directory).strip():
        raise ConfigError(
            f"directory must be the path or URL of a folder, got {directory!r}; leave it out for 'maggy_runs'"
        )
    where = check_folder("directory", directory)
    if "://" in where:
        return where
    path = Path(where).expanduser()
    return (path if path.is_absolute() else Path(working_folder(), path)).resolve()


@dataclass(frozen=True)
class RunPaths:
    """Where a run's files are.

    Attributes:
        directory: The folder of its journal and its logs: a path, or a URL where one was given.
        store: The URL of the folder that holds its saved states.
    """

    directory: Folder
    store: str

    @classmethod
    def recorded(cls, folder: Folder, store: str) -> RunPaths:
        """The paths of a run whose folder is ``folder`` now, and whose journal says ``store``."""
        return cls(folder, store if "://" in store else url_of(within(folder, store) if store else folder))

    @property
    def recorded_store(self) -> str:
        """The store, for the journal: relative where it moves with the run's folder."""
        root = url_of(self.directory)
        return self.store[len(root) :].strip("/") if f"{self.store}/".startswith(f"{root}/") else self.store

    @property
    def journal(self) -> str:
        """The folder of its journal, as text."""
        return str(self.directory)

    @property
    def logs(self) -> Folder:
        """The folder of the trials' log files."""
        return within(self.directory, "logs")

    @property
    def log_copies(self) -> str:
        """URL of the folder for logs of workers that do not see that one; empty where the store is no other place."""
        return "" if self.has_own_store else f"{self.store}/logs"

    @property
    def has_own_store(self) -> bool:
        """Whether its states are in its own folder, where they are by default."""
        return self.store == store_url(None, self.directory)

    def of_sibling(self, name: str) -> RunPaths:
        """The paths of another run that lies beside this one."""
        directory = beside(self.directory, name)
        return RunPaths(directory, store_url(None, directory) if self.has_own_store else str(beside(self.store, name)))


def check_name(name: str) -> str:
    """A run's name, fit for a folder."""
    if isinstance(name, str) and len(name) > _LONGEST:
        raise ConfigError(f"name={name[:40]!r}... has {len(name)} characters; use at most {_LONGEST}")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"name={name!r} cannot name a folder; use the letters a to z and A to Z, digits, '.', '_' and '-', and "
            "begin with a letter or a digit"
        )
    return name


def default_name(train_fn: Callable[..., Any]) -> str:
    """A new run's name: the function's, the time, and four characters that make it its own."""
    function = re.sub(r"[^A-Za-z0-9._-]", "", getattr(train_fn, "__name__", "")).lstrip("._-") or "run"
    return f"{function[: _LONGEST // 2]}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"


def store_url(store: str | PathLike[str] | None, folder: Folder, name: str = "") -> str:
    """The URL of a run's checkpoints: in its own folder, or in one of the same name elsewhere.

    Args:
        store: The folder of all runs' checkpoints, checked; None for the run's own.
        folder: The run's own.
        name: The run's name.
    """
    if store is None:
        return url_of(within(folder, "checkpoints"))
    where = f"{store}/{name}"
    path = local_path(where)
    return where if path is None else local_url(path)  # workers have present folders of their own
