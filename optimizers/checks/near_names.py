"""Names near a misspelled one, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """A clause that names what is near, or nothing.

    Args:
        name: What was given.
        known: The names that there are.
        cutoff: How near a name must be, from 0 to 1.

    Example:
        >>> did_you_mean("lr_rate", ["lr", "rate"])
        " (did you mean 'rate'?)"
    """
    near = difflib.get_close_matches(name, list(known), cutoff=cutoff)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def class_name(kind: type) -> str:
    """The name of a class by which another process knows it.

    Example:
        >>> class_name(ValueError)
        'builtins.ValueError'
    """
    return f"{kind.__module__}.{kind.__qualname__}"
