"""What a setting came to, and how its process tells it to the one that prints the table."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

NAN = math.nan


@dataclass
class Outcome:
    """What came of one setting.

    Attributes:
        wrong: What went wrong; nothing where all is well.
        first: Seconds from the first call to the beginning of its first trial.
        second: The same of the second call in the same session.
        total: Seconds of the whole process, with Spark's start.
        best: The best value of the search.
        lost: Attempts that trials lost.
        cancel: Seconds from a cancel to the return of ``lagom``.
        leftovers: What was still there afterwards.
    """

    wrong: list[str] = field(default_factory=list)
    first: float = NAN
    second: float = NAN
    total: float = NAN
    best: float = NAN
    lost: int = 0
    cancel: float = NAN
    leftovers: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write it to a file, in one go."""
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(dataclasses.asdict(self)))
        draft.replace(path)

    @classmethod
    def read(cls, path: Path) -> Outcome:
        """Read it back."""
        return cls(**json.loads(path.read_text()))
