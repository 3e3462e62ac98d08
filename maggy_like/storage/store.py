"""Where saved states go, and how many are kept."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any

from maggy_like.argument_checks import whole
from maggy_like.errors import ConfigError
from maggy_like.storage.folders import check_folder


@dataclass(frozen=True)
class Store:
    """Where the saved states of a run go, and how many are kept. ``store="s3://..."`` is ``Store("s3://...")``.

    Args:
        url: Path or URL of a folder that gets the states, in a folder of the run's name, where ``directory`` is not
            shared by all hosts; by default they are in ``directory``.
        keep_checkpoints: How many of a trial's newest states to keep, beside that of its best value.

    Raises:
        ConfigError: An argument is not valid.

    Example:
        >>> lagom(train_fn, space, store=Store("s3://bucket/states", keep_checkpoints=1))
    """

    url: str | PathLike[str] | None = None
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        if self.url is not None:
            object.__setattr__(self, "url", check_folder("store", self.url))
        object.__setattr__(self, "keep_checkpoints", whole("keep_checkpoints", self.keep_checkpoints, least=1))


def read_store(store: Any) -> Store:
    """The store that an argument stands for: one, its path or URL, or None for the default.

    Raises:
        ConfigError: It is none.
    """
    if isinstance(store, Store):
        return store
    if store is not None and not isinstance(store, str | PathLike):
        raise ConfigError(f"store must be the path or URL of a folder, or a Store, got {store!r}")
    return Store(store)
