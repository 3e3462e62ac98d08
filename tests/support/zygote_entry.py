"""What a test of zygotes starts: says what it is, and does as its first argument says."""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    what, *arguments = sys.argv[1:]
    if what == "tell":
        told = {
            "arguments": arguments,
            "environment": os.environ.get("TOLD"),
            "directory": os.getcwd(),
            "is_main": __name__ == "__main__",
            "leads": os.getsid(0) == os.getpid(),
            "loaded": [name for name in arguments if name in sys.modules],
            "parent": os.getppid(),
            "path": sys.path,
            "pythonpath": os.environ.get("PYTHONPATH"),
            "stdin": sys.stdin.read(),
        }
        print(json.dumps(told), flush=True)
    elif what == "write":
        os.write(int(arguments[0]), b"written")
    elif what == "fail":
        raise ValueError("no")
    else:
        sys.exit(int(arguments[0]))


if __name__ == "__main__":
    main()
