"""Rows per second into batches: ``ParquetLoader`` beside raw pyarrow and the loaders of others.

Each loader reads the same Parquet files into batches of 1024 rows, in a process of its own: a narrow table (10
columns), a wide one (200), and 10 columns of the wide one. Raw pyarrow is ``ParquetFile.iter_batches`` with the same
batch size: it shuffles nothing and makes no tensors, so it is the limit. Loaders take turns, and the fastest turn of
each counts. ``ratio_to_pyarrow`` is of the first epoch of a process, and ``second_epoch_ratio`` of the next, in which
each uses its memory again. Hugging Face ``datasets`` (a streaming read into torch tensors, unshuffled) and ``litdata``
(its reader of Parquet, under its StreamingDataLoader) take part where they are installed.

``rss_growth_mb`` is how much memory grows at its peak, in an epoch over a file of ten buffers.

    python -m benchmarks.loader [--quick] [--json PATH]
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.common import parser, publish

BATCH = 1024
COLUMNS = {"narrow": None, "wide": None, "columns": [f"c{number}" for number in range(0, 200, 20)]}
BUFFER_ROWS, BUFFERS = 20_000, 10
"""Of the file in which memory is measured."""


def write(path: Path, rows: int, columns: int) -> None:
    """A table of integers of a thousand values and of random floats, in row groups of 50,000 rows."""
    random = np.random.default_rng(0)
    made = {
        f"c{number}": random.standard_normal(rows).astype(np.float32) if number % 2 else random.integers(0, 1000, rows)
        for number in range(columns)
    }
    pq.write_table(pa.table(made), path, row_group_size=50_000)


def maggy(path: str, columns: list[str] | None) -> Iterator[int]:
    """Rows of each batch of ``ParquetLoader``, shuffled."""
    from maggy_like.ml import ParquetLoader

    for batch in ParquetLoader(path, columns, batch_size=BATCH):
        yield len(next(iter(batch.values())))


def pyarrow(path: str, columns: list[str] | None) -> Iterator[int]:
    """Rows of each batch of pyarrow."""
    return (len(batch) for batch in pq.ParquetFile(path).iter_batches(BATCH, columns=columns))


def datasets(path: str, columns: list[str] | None) -> Iterator[int]:
    """Rows of each batch of Hugging Face's streaming reader."""
    from datasets import load_dataset

    rows = load_dataset("parquet", data_files=path, split="train", streaming=True, columns=columns)
    for batch in rows.with_format("torch").iter(BATCH):
        yield len(next(iter(batch.values())))


def litdata(path: str, columns: list[str] | None) -> Iterator[int]:
    """Rows of each batch of litdata's reader of Parquet, which reads all columns from a directory with an index."""
    import litdata as lit
    from litdata.streaming.item_loader import ParquetLoader as Items

    directory = str(Path(path).parent / f"litdata-{Path(path).stem}")
    lit.index_parquet_dataset(directory)
    rows = lit.StreamingDataset(directory, item_loader=Items(), shuffle=True)
    for batch in lit.StreamingDataLoader(rows, batch_size=BATCH):
        yield len(batch[0] if isinstance(batch, list) else next(iter(batch.values())))


LOADERS = {"maggy": maggy, "pyarrow": pyarrow, "datasets": datasets, "litdata": litdata}
PEERS = [name for name in ("datasets", "litdata") if importlib.util.find_spec(name)]


def read(name: str, path: str, table: str, most: float) -> list[float]:
    """Rows per second of two epochs, each of at most so many rows; a first batch before has imported everything."""
    next(iter(LOADERS[name](path, COLUMNS[table])))
    paces = []
    for _ in range(2):
        rows = 0
        start = time.perf_counter()
        for size in LOADERS[name](path, COLUMNS[table]):
            rows += size
            if rows >= most:
                break
        paces.append(rows / (time.perf_counter() - start))
    return paces


def growth(path: str, small: str) -> float:
    """Megabytes by which this process grows at its peak. It reads ``small`` first, which loads all code."""
    from maggy_like.ml import ParquetLoader

    for _ in ParquetLoader(small, batch_size=BATCH):
        pass
    before = psutil.Process().memory_info().rss
    for _ in ParquetLoader(path, batch_size=BATCH, buffer_rows=BUFFER_ROWS):
        pass
    lines = Path("/proc/self/status").read_text().splitlines()  # getrusage would count what the parent held as well
    peak = next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return (peak - before) / (1 << 20)


def in_a_process(function: str, *arguments: str | float) -> Any:
    """What ``read`` or ``growth`` returns in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loader", "--child", json.dumps([function, *arguments])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def rows_per_second(name: str, path: Path, table: str, most: float = 1e18) -> npt.NDArray[np.float64]:
    """Rows per second of one loader in its first and second epoch; a slow one may end after ``most`` rows."""
    return np.array(in_a_process("read", name, str(path), table, most))


def compare(files: dict[str, Path], turns: int) -> dict[str, float]:
    """Every loader on every table, in turns."""
    figures: dict[str, float] = {}
    ratios = []
    for table, path in files.items():
        best = {"maggy": np.zeros(2), "pyarrow": np.zeros(2)}
        for _ in range(turns):
            for name in best:
                best[name] = np.maximum(best[name], rows_per_second(name, path, table))
        first, second = best["maggy"] / best["pyarrow"]
        figures |= {f"ratio_to_pyarrow.{table}": float(first), f"second_epoch_ratio.{table}": float(second)}
        for name in PEERS:
            if name != "litdata" or table == "narrow":
                best[name] = rows_per_second(name, path, table, most=20 * BATCH)
                ratios.append(float(best["maggy"][0] / best[name][0]))
        figures |= {f"rows_per_second.{table}.{name}": float(value[0]) for name, value in best.items()}
    return figures | ({"best_peer_ratio": min(ratios)} if ratios else {})


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--child"]:
        function, *values = json.loads(sys.argv[2])
        functions: dict[str, Callable[..., Any]] = {"read": read, "growth": growth}
        print(json.dumps(functions[function](*values)), flush=True)
        os._exit(0)  # a stream of `datasets` that is left early aborts as the interpreter ends
    arguments = parser(__doc__).parse_args()
    scale = 1 if arguments.quick else 4
    with tempfile.TemporaryDirectory() as directory:
        names = ("narrow", "wide", "deep", "small")
        narrow, wide, deep, small = (Path(directory) / f"{name}.parquet" for name in names)
        write(narrow, 500_000 * scale, 10)
        write(wide, 100_000 * scale, 200)
        write(deep, BUFFER_ROWS * BUFFERS, 200)
        write(small, 2 * BATCH, 200)
        (Path(directory) / "litdata-narrow").mkdir()
        (Path(directory) / "litdata-narrow" / "part.parquet").symlink_to(narrow)
        figures: dict[str, float] = {"rss_growth_mb": in_a_process("growth", str(deep), str(small))}
        figures |= compare({"narrow": narrow, "wide": wide, "columns": wide}, turns=2 if arguments.quick else 5)
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
