"""What Spark says of a DataFrame's plan: whether it just scans Parquet files, and what it is read from.

The text of a plan is what classic sessions and Spark Connect both give, and Connect gives nothing else.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from pyspark.sql import DataFrame

from maggy_like.ml.columns.spark_columns import quoted
from maggy_like.ml.loader.spark_urls import fsspec_url

_FILE_SCAN = re.compile(r"FileScan parquet .*PartitionFilters: \[\],.*ReadSchema: struct<", re.DOTALL)
_FILES = re.compile(r"Relation ?\[.*\] (parquet|orc|csv|json|text|avro)$")
_PASSES_ALONG = re.compile(r"(\*\(\d+\) )?ColumnarToRow$")


def parquet_files(df: DataFrame, columns: Sequence[str]) -> tuple[str, ...]:
    """The Parquet files whose rows and columns are just those of ``df``; none where there is more to its plan.

    A plan that filters, computes, renames, joins or unions has to be written before others can read its rows.

    Args:
        df: The columns may be more than are asked for.
        columns: Those that are needed.
    """
    selected = df.select(*(quoted(name) for name in columns))
    plan = explained(selected, "simple").split("== Physical Plan ==", 1)[-1].strip()
    nodes = [line.lstrip("+-: ") for line in plan.splitlines() if line.strip()]
    scans = [node for node in nodes if not _PASSES_ALONG.match(node)]
    if len(scans) != 1 or not _FILE_SCAN.match(scans[0]) or "DataFilters: []" not in scans[0]:
        return ()
    read = scans[0].rsplit("ReadSchema: struct<", 1)[-1]
    there = re.findall(r"(?:^|,)([^:<>,]+):", re.sub(r"<[^<>]*>", "", read))  # without the fields of structs
    if not set(columns).issubset(there):  # of a folder's name (date=2026-01-01), in no file; or cut off
        return ()
    return tuple(sorted(map(unquote, selected.inputFiles())))  # Spark gives them percent-encoded


def content_key(df: DataFrame) -> str:
    """A key that two DataFrames share only if their rows are the same, up to the order.

    Where files alone are read, it is made of the plan and of each file's path, size and time: nothing is computed.
    Otherwise (rows from Python, a table of a database) the rows are hashed, which computes the plan once.

    Args:
        df: What is to be written.
    """
    parts: list[Any] = [df.schema.json(), *_plan_key(df)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def explained(df: DataFrame, mode: str) -> str:
    """The text that ``df.explain(mode=mode)`` prints."""
    inner: Any = df  # to catch what is printed would catch what other threads print, too
    if hasattr(df, "_jdf"):
        return str(inner._sc._jvm.PythonSQLUtils.explainString(inner._jdf.queryExecution(), mode))
    return str(inner._explain_string(mode=mode))


def _plan_key(df: DataFrame) -> Iterator[Any]:
    analyzed = explained(df, "extended").split("== Analyzed Logical Plan ==", 1)[-1].split("== Optimized", 1)[0]
    leaves = list(_leaves(analyzed.strip().splitlines()[1:]))  # the first line is the schema
    files = df.inputFiles() if leaves and all(_FILES.match(leaf) for leaf in leaves) else []
    if files:
        yield df.semanticHash()
        yield re.sub(r"#\d+L?", "", analyzed)
        yield from _described([*map(unquote, files)])
    else:
        from pyspark.sql import functions as F

        # As JSON, since Spark's hashes pass over nulls: (null, 1) and (1, null) would have the same.
        row = F.to_json(F.struct(*(F.col(quoted(name)) for name in df.columns)))
        sums = [F.sum(F.xxhash64(F.lit(salt), row).cast("decimal(38,0)")) for salt in (1, 2)]
        yield tuple(df.agg(F.count(F.lit(1)), *sums).first() or ())


def _leaves(tree: Sequence[str]) -> Iterator[str]:
    """The nodes of a plan's text that have none below them."""
    depths = [len(line) - len(line.lstrip("+-: ")) for line in tree]
    for line, depth, following in zip(tree, depths, [*depths[1:], 0], strict=True):
        if following <= depth:
            yield line.lstrip("+-: ")


def _described(files: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    import fsspec

    for file in sorted(files):
        filesystem, path = fsspec.core.url_to_fs(fsspec_url(file))
        about = filesystem.info(path)
        changed = about.get("mtime") or about.get("LastModified") or about.get("ETag") or ""
        yield file, str(about.get("size")), str(changed)
