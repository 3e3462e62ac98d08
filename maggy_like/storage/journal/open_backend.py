"""The backend that serves a folder: by appending to a file, or by putting objects."""

from __future__ import annotations

from maggy_like.storage.file_systems import is_local, open_url
from maggy_like.storage.journal.backend import JournalBackend
from maggy_like.storage.journal.local import LocalBackend
from maggy_like.storage.journal.object_store import ObjectStoreBackend


def backend_of(url: str) -> JournalBackend:
    """The folder at a path or at any URL that fsspec knows.

    Raises:
        ValueError: The URL's file system is not known.
        ImportError: Its package is not installed.
    """
    fs, path = open_url(url)
    return LocalBackend(path) if is_local(fs) else ObjectStoreBackend(fs, path, url)
