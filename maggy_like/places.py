"""Where a run is kept: its name, and the places of its journal and its checkpoints, which go by that name."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from maggy_like.errors import ConfigError

_LONGEST = 200  # file systems take 255
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_directory(directory: str | Path) -> Path:
    """The folder of all runs, as an absolute path."""
    if not isinstance(directory, str | Path) or not str(directory).strip():
        raise ConfigError(f"directory must be the path of a folder, got {directory!r}; leave it out for 'maggy_runs'")
    return Path(directory).expanduser().resolve()


@dataclass(frozen=True)
class RunPlaces:
    """Where a run's files are.

    Attributes:
        directory: The folder of its logs.
        journal: The folder of its journal, a path or a URL.
        store: The URL of the folder that holds its saved states.
    """

    directory: Path
    journal: str
    store: str

    @classmethod
    def recorded(cls, journal: str, folder: Path, store: str, directory: str) -> RunPlaces:
        """The places as :attr:`record` has them, for a run whose journal is in ``folder`` now."""
        where = folder / directory
        if "://" not in store:
            store = local_url(where / store)
        return cls(where, journal, store)

    @property
    def record(self) -> tuple[str, str]:
        """The store and the directory, for the journal: relative where they move with the run's folder."""
        directory = "." if self.journal == str(self.directory) else str(self.directory)
        root = local_url(self.directory)
        inside = directory == "." and f"{self.store}/".startswith(f"{root}/")
        return self.store[len(root) :].strip("/") if inside else self.store, directory


def local_url(folder: Path) -> str:
    """The URL by which fsspec knows a folder of this machine: as it is, since it reads no ``%20`` as a space."""
    return f"file://{folder}"


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


def check_journal(journal: str | PathLike[str] | None, folder: Path) -> str:
    """Where a run's journal goes: into its own folder, or into one of the same name elsewhere."""
    return str(folder) if journal is None else folder_within("journal", journal, folder.name)


def check_store(store: str | PathLike[str] | None, folder: Path) -> str:
    """The URL of a run's checkpoints: in its own folder, or in one of the same name elsewhere."""
    if store is None:
        return local_url(folder / "checkpoints")
    fs, path = url_to_fs(where := folder_within("store", store, folder.name))
    return local_url(Path(path)) if isinstance(fs, LocalFileSystem) else where  # workers have folders of their own


def folder_within(argument: str, given: str | PathLike[str], name: str) -> str:
    """The folder of a run in a place that the user gave, so that runs which share the place do not meet."""
    if not isinstance(given, str | PathLike):
        raise ConfigError(f"{argument} must be the path or URL of a folder, got {given!r}")
    where = f"{fspath(given).rstrip('/')}/{name}"
    try:
        url_to_fs(where)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{argument}={given!r} cannot be opened: {error}; use a URL that fsspec knows") from error
    return where
