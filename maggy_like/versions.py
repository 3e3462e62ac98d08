"""Which maggy_like and which Python a process runs, so that two processes can say how they differ."""

from __future__ import annotations

import os
import sys

import maggy_like

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The minor version: packages are made for one, and so are functions that travel by value."""

HOME = os.path.dirname(os.path.dirname(os.path.abspath(maggy_like.__file__)))
"""The folder, or archive, that this maggy_like lies in."""
