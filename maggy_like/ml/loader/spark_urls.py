"""URLs as Spark spells them, and as fsspec does."""

from __future__ import annotations

import re


def fsspec_url(url: str) -> str:
    """A URL as fsspec spells it: Spark writes ``s3a://`` and ``s3n://`` for S3, and ``file:/`` for a local path.

    Example:
        >>> fsspec_url("s3a://bucket/rows"), fsspec_url("file:/tmp/rows")
        ('s3://bucket/rows', 'file:///tmp/rows')
    """
    return re.sub(r"^file:/(?!/)", "file:///", re.sub(r"^s3[an]://", "s3://", url))
