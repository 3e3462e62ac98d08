"""One setting, in a process of its own: ``python -m platforms NAME FILE``."""

from __future__ import annotations

import sys
from pathlib import Path

from platforms.kubernetes_settings import SETTINGS_ON_KUBERNETES
from platforms.settings import SETTINGS

if __name__ == "__main__":
    (SETTINGS | SETTINGS_ON_KUBERNETES)[sys.argv[1]]().write(Path(sys.argv[2]))
