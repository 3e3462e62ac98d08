"""The mark that a driver leaves in its store, by which a worker sees that both mean the same place."""

from __future__ import annotations

from typing import Any

from maggy_like.storage.file_systems import open_url, write_file

MAX_REASON = 300
"""Characters of what a file system says that a worker passes on."""


def is_visible(store: str, run_id: str) -> bool:
    """Whether ``store`` holds the mark that the driver left there (see :func:`mark_store`)."""
    return look_for_mark(store, run_id) is None


def look_for_mark(store: str, run_id: str) -> str | None:
    """Why the driver's mark (see :func:`mark_store`) is not seen in ``store``; None where it is.

    Returns:
        Empty where nothing refuses: another place has that name here, such as a folder of this machine's own.
    """
    try:
        fs, path = _mark_of(store)
        return None if fs.cat_file(path) == run_id.encode() else ""
    except FileNotFoundError:
        return ""
    except Exception as error:  # of whatever file system it is: no credentials, no package, no way to it
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_REASON]


def is_marked(store: str) -> bool:
    """Whether ``store`` holds the mark of any run."""
    fs, path = _mark_of(store)
    return bool(fs.exists(path))


def mark_store(store: str, run_id: str) -> None:
    """Leave a mark in the store by which workers see that it is the same place."""
    fs, path = _mark_of(store)
    write_file(fs, path, run_id.encode())


def unmark_store(store: str) -> None:
    """Take the mark away again."""
    fs, path = _mark_of(store)
    fs.rm_file(path)


def _mark_of(store: str) -> tuple[Any, str]:
    return open_url(f"{store.rstrip('/')}/.run")
