"""What the benchmarks share: their arguments, their output, means, and a search that leaves nothing."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maggy_like import Result


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", type=Path, metavar="PATH", help="write the figures as one flat object")
    made.add_argument("--quick", action="store_true", help="fewer repetitions")
    return made


def publish(figures: Mapping[str, float], path: Path | None) -> None:
    """Print the figures as a table, and write them where asked."""
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:.4g}" if isinstance(value, float) else f"{name:<{width}}  {value}")
    save(figures, path)


def save(figures: Mapping[str, float], path: Path | None) -> None:
    """Write the figures where asked."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n")


def means(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure, over the rows that have it."""
    columns: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            columns[name].append(value)
    return {name: statistics.fmean(values) for name, values in columns.items()}


def search(train: Callable[..., Any], space: Any = None, **options: Any) -> Result:
    """A random search without a display, of one number if no space is given; ``options`` are those of ``lagom``."""
    from maggy_like import Float, lagom  # some processes measure what this import costs

    with tempfile.TemporaryDirectory() as directory:
        common: dict[str, Any] = {"optimizer": "random", "directory": directory, "progress": False}
        found: Result = lagom(train, space or {"x": Float(0, 1)}, **{**common, **options})
        return found
