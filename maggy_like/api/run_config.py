"""The arguments of a function that :func:`~maggy_like.run` runs, checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from maggy_like.errors import ConfigError
from maggy_like.protocol.values import shortened
from optimizers.space import Config
from optimizers.space.scalars import plain, read_value


def check_config(config: Mapping[str, Any] | None) -> Config:
    """The arguments of a function that is run.

    Raises:
        ConfigError: They are no plain values by name.
    """
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"config must be a dict of arguments by name, got {config!r}")
    given = dict(config or {})
    for name, value in given.items():
        for item in _items(value):
            if item is not None and not isinstance(item, bool | int | float | str):
                raise ConfigError(
                    f"config[{name!r}] is {' '.join(shortened(value).split())} of type {type(value).__name__}; pass "
                    "numbers, text, booleans or None, or tuples or lists of them, there, and other objects by "
                    "functools.partial(train_fn, ...)"
                )
            if isinstance(item, float) and not math.isfinite(item):
                raise ConfigError(
                    f"config[{name!r}] is {value!r}, which the journal cannot hold; pass a finite number or None "
                    "there, or functools.partial(train_fn, ...)"
                )
    return {name: read_value(value) for name, value in given.items()}


def _items(value: Any) -> Iterator[Any]:
    """The plain values in a value of :func:`~optimizers.space.scalars.read_value`."""
    if type(value) in (tuple, list):
        for inner in value:
            yield from _items(inner)
    else:
        yield plain(value)
