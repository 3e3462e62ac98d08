"""Rows and bytes per second into batches: ``ParquetLoader`` beside raw pyarrow and the loaders of others.

Each loader reads the same Parquet files into batches of 1024 rows, in a process of its own: a narrow table (10
columns), a wide one (200), and 10 columns of the wide one. Raw pyarrow is ``ParquetFile.iter_batches`` with the same
batch size: it shuffles nothing and makes no tensors, so it is the limit. ``ratio_to_scan`` is beside pyarrow at its
fastest, batches of 65,536 rows that nobody trains with. Loaders take turns, and the fastest turn of each counts.

Hugging Face ``datasets`` (a streaming read into torch tensors, unshuffled) and ``litdata`` (its reader of Parquet,
under its StreamingDataLoader) take part where they are installed. ``readers`` are processes that each read as one rank.

    python -m benchmarks.loader [--quick] [--json PATH]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import parser, publish

BATCH = 1024
COLUMNS = {"narrow": None, "wide": None, "columns": [f"c{number}" for number in range(0, 200, 20)]}
BUFFER_ROWS = 20_000
_BUFFERS = 10  # that the file of the memory's measurement has


def write(path: Path, rows: int, columns: int) -> None:
    """A table of integers of a thousand values and of random floats, in row groups of 50,000 rows."""
    random = np.random.default_rng(0)
    made = {
        f"c{number}": random.standard_normal(rows).astype(np.float32) if number % 2 else random.integers(0, 1000, rows)
        for number in range(columns)
    }
    pq.write_table(pa.table(made), path, row_group_size=50_000)


def maggy(path: str, columns: list[str] | None, rank: int, ranks: int) -> Iterator[int]:
    """Rows of each batch of ``ParquetLoader``, shuffled."""
    from maggy_like.ml import ParquetLoader

    for batch in ParquetLoader(path, columns, batch_size=BATCH * ranks, rank=rank, ranks=ranks):
        yield len(next(iter(batch.values())))


def pyarrow(path: str, columns: list[str] | None, rank: int, ranks: int, rows: int = BATCH) -> Iterator[int]:
    """Rows of each batch of pyarrow; a rank reads every so many-th row group."""
    file = pq.ParquetFile(path)
    groups = list(range(rank, file.num_row_groups, ranks))
    return (len(batch) for batch in file.iter_batches(rows, groups, columns))


def scan(path: str, columns: list[str] | None, rank: int, ranks: int) -> Iterator[int]:
    """Rows of each batch of pyarrow in its own size."""
    return pyarrow(path, columns, rank, ranks, rows=1 << 16)


def datasets(path: str, columns: list[str] | None, rank: int, ranks: int) -> Iterator[int]:
    """Rows of each batch of Hugging Face's streaming reader."""
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    rows = load_dataset("parquet", data_files=path, split="train", streaming=True, columns=columns)
    if ranks > 1:
        rows = split_dataset_by_node(rows, rank, ranks)
    for batch in rows.with_format("torch").iter(BATCH):
        yield len(next(iter(batch.values())))


def litdata(path: str, columns: list[str] | None, rank: int, ranks: int) -> Iterator[int]:
    """Rows of each batch of litdata's reader of Parquet, which reads all columns and knows one rank here."""
    import litdata as lit
    from litdata.streaming.item_loader import ParquetLoader as Items

    folder = str(Path(path).parent / f"litdata-{Path(path).stem}")
    lit.index_parquet_dataset(folder)
    rows = lit.StreamingDataset(folder, item_loader=Items(), shuffle=True)
    for batch in lit.StreamingDataLoader(rows, batch_size=BATCH):
        yield len(batch[0] if isinstance(batch, list) else next(iter(batch.values())))


LOADERS = {"maggy": maggy, "pyarrow": pyarrow, "scan": scan, "datasets": datasets, "litdata": litdata}


def child(arguments: argparse.Namespace) -> None:
    """Read once, and print rows and seconds; a first batch before has imported everything."""
    name, path, table, rank, ranks, most = arguments.child
    next(iter(LOADERS[name](path, COLUMNS[table], int(rank), int(ranks))))
    rows = 0
    start = time.perf_counter()
    for size in LOADERS[name](path, COLUMNS[table], int(rank), int(ranks)):
        rows += size
        if rows >= int(most):
            break
    print(json.dumps([rows, time.perf_counter() - start]), flush=True)
    os._exit(0)  # a stream of `datasets` that is left early aborts as the interpreter ends


def rows_per_second(name: str, path: Path, table: str, readers: int = 1, most: int = 1 << 60) -> float:
    """Rows per second of so many processes together; a slow loader may end after ``most`` rows."""

    def read(rank: int) -> list[float]:
        words = [name, str(path), table, str(rank), str(readers), str(most)]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.loader", "--child", *words], capture_output=True, text=True, check=True
        )
        found: list[float] = json.loads(done.stdout.splitlines()[-1])
        return found

    with ThreadPoolExecutor(readers) as pool:
        return sum(rows / seconds for rows, seconds in pool.map(read, range(readers)))


def memory(path: Path, small: Path) -> float:
    """Megabytes by which memory grows at its peak, in an epoch over a file of ten buffers.

    It is taken in a process of its own that has read another file, ``small``: the code is loaded by then.
    """
    words = [sys.executable, "-m", "benchmarks.loader", "--memory", str(path), str(small)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def memory_child(path: str, small: str) -> None:
    """Print the growth of this process."""
    from maggy_like.ml import ParquetLoader

    for _ in ParquetLoader(small, batch_size=BATCH):
        pass
    before = psutil.Process().memory_info().rss
    for _ in ParquetLoader(path, batch_size=BATCH, buffer_rows=BUFFER_ROWS):
        pass
    print((peak() - before) / (1 << 20))


def peak() -> int:
    """The most bytes that this process has held (Linux); ``getrusage`` would count what its parent held as well."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def peers() -> list[str]:
    """The loaders of others that are installed."""
    return [name for name in ("datasets", "litdata") if importlib.util.find_spec(name)]


def compare(figures: dict[str, float], files: dict[str, Path], turns: int) -> None:
    """Every loader on every table, in turns."""
    for table, path in files.items():
        best: dict[str, float] = {}
        for _ in range(turns):
            for name in ("maggy", "pyarrow", "scan"):
                best[name] = max(best.get(name, 0.0), rows_per_second(name, path, table))
        for name in peers():
            if name != "litdata" or table == "narrow":  # it reads all columns, from a folder with an index
                best[name] = rows_per_second(name, path, table, most=20 * BATCH)
        figures |= {f"rows_per_second.{table}.{name}": value for name, value in best.items()}
        meta = pq.read_metadata(path)
        there = range(meta.num_columns) if COLUMNS[table] is None else range(0, meta.num_columns, 20)
        row_bytes = sum(4 if number % 2 else 8 for number in there)
        figures[f"mb_per_second.{table}.maggy"] = best["maggy"] * row_bytes / 1e6
        figures[f"ratio_to_pyarrow.{table}"] = best["maggy"] / best["pyarrow"]
        figures[f"ratio_to_scan.{table}"] = best["maggy"] / best["scan"]
        if others := [best[name] for name in peers() if name in best]:
            ratio = best["maggy"] / max(others)
            figures["best_peer_ratio"] = min(figures.get("best_peer_ratio", ratio), ratio)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--child", nargs=6, help=argparse.SUPPRESS)
    options.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.child:
        child(arguments)
        return
    if arguments.memory:
        memory_child(*arguments.memory)
        return
    scale = 1 if arguments.quick else 4
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        names = ("narrow", "wide", "deep", "small")
        narrow, wide, deep, small = (Path(folder) / f"{name}.parquet" for name in names)
        write(narrow, 500_000 * scale, 10)
        write(wide, 100_000 * scale, 200)
        write(deep, BUFFER_ROWS * _BUFFERS, 200)
        write(small, 2 * BATCH, 200)
        figures["rss_growth_mb"] = memory(deep, small)
        (Path(folder) / "litdata-narrow").mkdir()
        (Path(folder) / "litdata-narrow" / "part.parquet").symlink_to(narrow)
        compare(figures, {"narrow": narrow, "wide": wide, "columns": wide}, turns=2 if arguments.quick else 5)
        figures["rows_per_second.narrow.maggy.two_readers"] = rows_per_second("maggy", narrow, "narrow", readers=2)
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
