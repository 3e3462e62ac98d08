"""The file of a run that gets what Spark says of failed jobs: pages of Java, of which a reader is shown one line."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

NAME = "spark.log"


def write_details(folder: str, run: str, indexes: Sequence[int], incarnation: int, text: str) -> str:
    """Append an error to the file.

    Args:
        folder: The run's folder for what its workers print.

    Returns:
        The file's path; empty where it cannot be written.
    """
    path = Path(folder, NAME)
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    workers = ", ".join(map(str, indexes))
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8", errors="replace") as log:
            log.write(
                f"--- {when} {run}: the job of workers {workers}, incarnation {incarnation}, ended\n{text.rstrip()}\n"
            )
        return str(path)
    return ""
