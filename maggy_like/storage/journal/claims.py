"""Objects of a store that only one of several drivers creates."""

from __future__ import annotations

import time
from typing import Any

SETTLE = 1.0
"""Seconds after which a store without conditional writes is asked whose write stands."""


class ClaimLostError(Exception):
    """Another driver has created the object."""


def claim(fs: Any, path: str, data: bytes) -> None:
    """Create an object.

    S3 refuses all creations but one. Elsewhere the object is read back after a while: two drivers that write within
    that while find out, and one that stands still between its look and its write for longer overwrites the other's.

    Raises:
        ClaimLostError: Another driver has created it.
    """
    if "s3" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)) and hasattr(fs, "call_s3"):
        _create_in_s3(fs, path, data)
        return
    try:
        fs.pipe_file(path, data, mode="create")
    except FileExistsError as error:
        raise ClaimLostError(path) from error
    time.sleep(SETTLE)
    if fs.cat_file(path) != data:
        raise ClaimLostError(path)


def _create_in_s3(fs: Any, path: str, data: bytes) -> None:
    bucket, key, _ = fs.split_path(path)
    try:
        fs.call_s3("put_object", Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
    except OSError as error:
        response = getattr(error.__cause__, "response", None) or {}
        code = str(response.get("Error", {}).get("Code"))
        refusals = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
        if isinstance(error, FileExistsError) or code in refusals:
            raise ClaimLostError(path) from error
        raise
    fs.invalidate_cache(path)
