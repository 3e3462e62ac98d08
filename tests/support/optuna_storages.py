"""Databases of Optuna's for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from optuna.storages import RDBStorage


@contextmanager
def database(url: str) -> Iterator[RDBStorage]:
    """Open a database, and close its connections: Python 3.13 warns where one is collected that is open."""
    storage = RDBStorage(url)
    try:
        yield storage
    finally:
        storage.engine.dispose()
