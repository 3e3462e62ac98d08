"""The text of the user's files and notebook cells, which tracebacks on the workers quote."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

from maggy_like.train_function.references import own_functions

MAX_SOURCE = 100_000
"""Characters of a file whose text travels with the function."""


def sources_of(train_fn: Callable[..., Any]) -> dict[str, str]:
    """The text of the files and notebook cells that define what travels by value, by file name, for tracebacks."""
    names = {function.__code__.co_filename for function in own_functions(train_fn) if function.__module__ == "__main__"}
    texts = {name: "".join(linecache.getlines(name)) for name in sorted(names)}
    return {name: text for name, text in texts.items() if 0 < len(text) <= MAX_SOURCE}
