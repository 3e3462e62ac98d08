"""What the fields of messages may hold: sizes and ranges, checked as a message is decoded.

A worker of ours stays below them all. What exceeds one is refused as malformed.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

UNBOUNDED = 2**31 - 1
"""The budget of a function that was given no number of steps."""

MAX_STEP = 2**63 - 1
"""The largest step, and the most negative one without its sign."""

MAX_NAME = 500
"""Characters of a metric's name."""

MAX_NAMES = 10_000
"""Different names of metrics that one trial may report."""

MAX_NESTED = 50
"""How deep lists and dicts may be nested in what a function returned."""

Number = Annotated[int, Meta(ge=0, le=UNBOUNDED)]
"""Of a trial, an attempt, a worker, an incarnation or a rank."""

Count = Annotated[int, Meta(ge=0, le=2**53)]
Step = Annotated[int, Meta(ge=-MAX_STEP, le=MAX_STEP)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Host = Annotated[str, Meta(max_length=255)]
Name = Annotated[str, Meta(max_length=MAX_NAME)]
Line = Annotated[str, Meta(max_length=10_000)]
Text = Annotated[str, Meta(max_length=1_000_000)]


def is_flat(value: Any, depth: int) -> bool:
    """Whether plain data is nested ``depth`` times at most, and has text for keys.

    Example:
        >>> is_flat([{"a": [1]}], 3), is_flat([{"a": [1]}], 2), is_flat({1: 2}, 3)
        (True, False, False)
    """
    if isinstance(value, dict):
        if any(type(key) is not str for key in value):
            return False
        value = value.values()
    elif not isinstance(value, list):
        return True
    return depth > 0 and all(is_flat(item, depth - 1) for item in value if type(item) in (list, dict))
