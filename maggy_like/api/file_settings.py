"""Where a run is to be kept, checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from maggy_like.argument_checks import flag
from maggy_like.driver.settings import FileSettings
from maggy_like.errors import ConfigError
from maggy_like.protocol.values import is_encodable
from maggy_like.storage.folders import within
from maggy_like.storage.run_paths import (
    RunPaths,
    Store,
    check_directory,
    check_name,
    default_name,
    read_store,
    store_url,
)
from maggy_like.train_function.code import code_hash


def check_files(
    train_fn: Callable[..., Any],
    *,
    name: str | None,
    directory: str | Path,
    store: str | Path | Store | None,
    resume: bool,
    overwrite: bool,
) -> FileSettings:
    """Check where a run is to be kept, and give it a name if it has none.

    Raises:
        ConfigError: An argument is wrong.
    """
    flag("resume", resume, "resume=True goes on with the run called name")
    flag("overwrite", overwrite, "overwrite=True deletes an earlier run called name")
    if (resume or overwrite) and name is None:
        raise ConfigError(f"{'resume' if resume else 'overwrite'}=True needs the name of the run; pass name='...'")
    if resume and overwrite:
        raise ConfigError(
            "resume=True continues the earlier run and overwrite=True deletes it, so both cannot be True; pass one"
        )
    name = check_name(name) if name is not None else default_name(train_fn)
    folder = within(check_directory(directory), name)
    kept = read_store(store)
    paths = RunPaths(folder, store_url(kept.url, folder, name))
    if not is_encodable(paths.recorded_store):
        raise ConfigError(
            f"store must be a folder whose path is UTF-8, since the journal records it, got {paths.recorded_store!r}; "
            "pass another, or leave it out to keep the states in directory"
        )
    return FileSettings(name, paths, resume, kept.keep_checkpoints, code_hash(train_fn), overwrite)
