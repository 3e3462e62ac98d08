"""``python -m maggy_like.processes.zygote FD OWNER``."""

from __future__ import annotations

import sys

from maggy_like.processes.zygote.server import main

if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
