"""What the benchmarks share: their arguments and their output."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path


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
