"""A client of a Spark Connect server that searches twice: ``python -m platforms.client URL FILE SETTINGS``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from platforms.searching import session, twice

if __name__ == "__main__":
    with session(sys.argv[1]) as spark:
        outcome = twice(spark, **json.loads(sys.argv[3]))
    outcome.write(Path(sys.argv[2]))
