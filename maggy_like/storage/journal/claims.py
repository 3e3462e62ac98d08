"""One object in a store that only one of several drivers can claim at a time."""

from __future__ import annotations

import time
from typing import Any, Protocol

SETTLE = 1.0
"""Seconds after which a store without conditional writes is asked whose write stands."""


class ClaimLostError(Exception):
    """Another driver has written the object since it was read."""


class Claim(Protocol):
    """The object. A tag is what :meth:`read` or a write gave; it stands for that content."""

    def read(self) -> tuple[bytes, Any] | None:
        """The object's content and its tag; None if it is not there."""
        ...

    def write(self, data: bytes, tag: Any = None) -> Any:
        """Create the object, or replace the content that ``tag`` stands for; the new content's tag.

        Raises:
            ClaimLostError: The object is there already, or has another content by now.
        """
        ...


def claim_of(fs: Any, path: str) -> Claim:
    """The object at a path of an fsspec file system, written as safely as that can be done there."""
    is_s3 = "s3" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,)) and hasattr(fs, "call_s3")
    return ConditionalClaim(fs, path) if is_s3 else SettledClaim(fs, path)


class ConditionalClaim:
    """An object of S3, written conditionally: no other writer can come between."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs = fs
        self._path = path
        self._bucket, self._key, _ = fs.split_path(path)

    def read(self) -> tuple[bytes, Any] | None:
        try:
            # The tag first: should another driver write in between, the tag is the older one, and no longer holds.
            tag = self._fs.info(self._path, refresh=True)["ETag"]
            return self._fs.cat_file(self._path), tag
        except FileNotFoundError:
            return None

    def write(self, data: bytes, tag: Any = None) -> Any:
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            answer = self._fs.call_s3("put_object", Bucket=self._bucket, Key=self._key, Body=data, **condition)
        except OSError as error:
            if _is_refused(error):
                raise ClaimLostError(self._path) from error
            raise
        self._fs.invalidate_cache(self._path)
        return answer["ETag"]


class SettledClaim:
    """An object of a file system that knows no conditions: it is written, and read back after a while.

    Two drivers that write within that while find out. One that stands still between its last look and its write for
    longer than that overwrites the other's claim; the other finds that out when it renews its own.
    """

    def __init__(self, fs: Any, path: str) -> None:
        self._fs = fs
        self._path = path
        self._mine: bytes | None = None

    def read(self) -> tuple[bytes, Any] | None:
        try:
            data = self._fs.cat_file(self._path)
        except FileNotFoundError:
            return None
        return data, data

    def write(self, data: bytes, tag: Any = None) -> Any:
        if self._content() != tag:
            raise ClaimLostError(self._path)
        try:
            self._fs.pipe_file(self._path, data, mode="create" if tag is None else "overwrite")
        except FileExistsError as error:
            raise ClaimLostError(self._path) from error
        if self._mine is None or tag != self._mine:  # else it is only renewed
            time.sleep(SETTLE)
            if self._content() != data:
                raise ClaimLostError(self._path)
        self._mine = data
        return data

    def _content(self) -> bytes | None:
        found = self.read()
        return None if found is None else found[0]


def _is_refused(error: OSError) -> bool:
    """Whether a store says that the condition of a write does not hold."""
    if isinstance(error, FileExistsError | FileNotFoundError):
        return True
    response = getattr(error.__cause__, "response", None) or {}
    code = str(response.get("Error", {}).get("Code"))
    return code in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
