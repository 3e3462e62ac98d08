"""Reading what trials have saved and printed, from wherever that is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from maggy_like.errors import SavedStateError, UserError
from maggy_like.protocol.state_names import SHARDED
from maggy_like.storage.checkpoints import StateLostError, load_state
from maggy_like.storage.file_systems import open_url
from maggy_like.storage.folders import url_of
from maggy_like.storage.log_file import log_name
from maggy_like.storage.run_paths import RunPaths


def read_saved(url: str | None, whose: str) -> Any:
    """A saved state.

    Args:
        url: Where it is; None where there is none.
        whose: Who saved it, for people.

    Raises:
        SavedStateError: It is damaged, or gone.
        UserError: There is none, or it is sharded.
    """
    if url is None:
        raise UserError(f"{whose} has no saved state; call reporter.checkpoint(state) in train_fn")
    if url.endswith(SHARDED):
        raise UserError(f"{url} is sharded; read it with torch.distributed.checkpoint.load")
    try:
        return load_state(url)
    except StateLostError as error:
        raise SavedStateError(f"the saved state {error}; use load(trial) to read another trial's") from error


def read_log(paths: RunPaths, trial: int, rank: int, attempts: int) -> str:
    """What a trial printed on one of its workers.

    Args:
        paths: Where the run is. Workers that do not see its folder copy their logs to its store.
        trial: The trial's number.
        rank: The worker's.
        attempts: How many files there may be in a store: each attempt copies one of its own.

    Raises:
        UserError: A file system does not answer.
    """
    parts: list[tuple[float, bytes]] = []
    for url in log_urls(paths, trial, rank, attempts):
        fs, path = open_url(url)
        with reading_log(path):
            parts.append((written(fs, path), fs.cat_file(path)))
    parts.sort(key=lambda part: part[0])  # a worker that copies may have had an attempt before one that does not
    return b"".join(text for _, text in parts).decode(errors="replace")


def log_urls(paths: RunPaths, trial: int, rank: int, attempts: int) -> list[str]:
    """Where there may be log files of a trial's worker; the arguments are those of :func:`read_log`."""
    folders = filter(None, (url_of(paths.logs), paths.log_copies))
    return [f"{folder}/{log_name(trial, rank, attempt)}" for folder in folders for attempt in range(1, attempts + 1)]


@contextlib.contextmanager
def reading_log(path: str) -> Iterator[None]:
    """Read a log file, if it is there.

    Raises:
        UserError: Its file system does not answer.
    """
    try:
        yield
    except FileNotFoundError:  # the trial was silent
        return
    except Exception as error:  # of whatever file system it is
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"the log {path} cannot be read ({said}); fix the access, or try again") from error


def written(fs: Any, path: str) -> float:
    """When a file was last written to, in Unix time; 0 where its file system does not say."""
    with contextlib.suppress(NotImplementedError, KeyError):
        return float(fs.modified(path).timestamp())
    return 0.0
