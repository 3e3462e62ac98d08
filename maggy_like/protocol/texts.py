"""Texts that can be sent and written: valid Unicode, and not too long."""

from __future__ import annotations

import reprlib

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200


def is_encodable(text: str) -> bool:
    r"""Whether a text can be sent. A lone surrogate, such as file names have that are no UTF-8, cannot.

    Example:
        >>> [is_encodable(text) for text in ("café", "caf\udce9")]
        [True, False]
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shortened(value: object) -> str:
    """A value's repr, with its middle left out where it is long."""
    try:
        return _REPR.repr(value)
    except ValueError:  # Python writes no int of more than 4300 digits
        return f"one of {value.bit_length()} bits" if isinstance(value, int) else f"a {type(value).__name__}"


def encodable(text: str) -> str:
    r"""The text with lone surrogates written as escapes.

    Example:
        >>> encodable("no file caf\udce9.csv")
        'no file caf\\udce9.csv'
    """
    return text.encode("utf-8", "backslashreplace").decode()
