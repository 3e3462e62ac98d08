"""Where a run is kept: its name, and the places of its journal and its checkpoints, which go by that name."""

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
    return where if "://" in where else Path(where).expanduser().resolve()


@dataclass(frozen=True)
class RunPaths:
    """Where a run's files are.

    Attributes:
        directory: The folder of its logs: a path, or a URL where one was given.
        journal: The folder of its journal, a path or a URL.
        store: The URL of the folder that holds its saved states.
    """

    directory: Folder
    journal: str
    store: str

    @classmethod
    def recorded(cls, journal: str, folder: Folder, store: str, directory: str) -> RunPaths:
        """The places as :attr:`record` has them, for a run whose journal is in ``folder`` now."""
        away: Folder = directory if "://" in directory else Path(directory)
        where = folder if directory == "." else away
        if "://" not in store:
            store = url_of(where if store in ("", ".") else within(where, store))
        return cls(where, journal, store)

    @property
    def record(self) -> tuple[str, str]:
        """The store and the directory, for the journal: relative where they move with the run's folder."""
        directory = "." if self.journal == str(self.directory) else str(self.directory)
        root = url_of(self.directory)
        inside = directory == "." and f"{self.store}/".startswith(f"{root}/")
        return self.store[len(root) :].strip("/") if inside else self.store, directory

    @property
    def logs(self) -> Folder:
        """The folder of the trials' log files."""
        return within(self.directory, "logs")

    @property
    def log_copies(self) -> str:
        """URL of the folder for logs of workers that do not see that one; empty where the store is no other place."""
        return "" if self._has_own_store else f"{self.store}/logs"

    @property
    def _has_own_store(self) -> bool:
        return self.store == check_store(None, self.directory)

    def of_sibling(self, name: str) -> RunPaths:
        """The places of another run that lies beside this one."""
        directory = beside(self.directory, name)
        store = check_store(None, directory) if self._has_own_store else str(beside(self.store, name))
        return RunPaths(directory, str(beside(self.journal, name)), store)


def check_name(name: str) -> str:
    """A run's name, fit for a folder."""
    if isinstance(name, str) and len(name) > _LONGEST:
        raise ConfigError(f"name={name[:40]!r}... has {len(name)} characters; use at most {_LONGEST}")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"name={name!r} cannot name a folder; use letters, digits, '.', '_' and '-', and begin with one of "
            "the first two"
        )
    return name


def default_name(train_fn: Callable[..., Any]) -> str:
    """A new run's name: the function's, the time, and four characters that make it its own."""
    function = re.sub(r"[^A-Za-z0-9._-]", "", getattr(train_fn, "__name__", "")).lstrip("._-") or "run"
    return f"{function}-{time.strftime('%Y%m%d-%H%M%S')}-{uuid.uuid4().hex[:4]}"


def check_journal(journal: str | PathLike[str] | None, folder: Folder, name: str) -> str:
    """Where a run's journal goes: into its own folder, or into one of the same name elsewhere."""
    return str(folder) if journal is None else f"{check_folder('journal', journal)}/{name}"


def check_store(store: str | PathLike[str] | None, folder: Folder, name: str = "") -> str:
    """The URL of a run's checkpoints: in its own folder, or in one of the same name elsewhere."""
    if store is None:
        return url_of(within(folder, "checkpoints"))
    where = f"{check_folder('store', store)}/{name}"
    path = local_path(where)
    return where if path is None else local_url(path)  # workers have present folders of their own
