"""``python -m maggy_like``: the command line."""

from __future__ import annotations

import sys

from maggy_like.command_line import main

if __name__ == "__main__":
    sys.exit(main())
