"""One setting, in a process of its own: ``python -m platforms NAME FILE``."""

from __future__ import annotations

import sys
from pathlib import Path

from platforms.settings import SETTINGS

if __name__ == "__main__":
    SETTINGS[sys.argv[1]]().write(Path(sys.argv[2]))
