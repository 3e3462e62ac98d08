"""``maggy-like``: reads what was typed, does it, and tells errors in a sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from maggy_like.command_line.parser import parser
from maggy_like.errors import MaggyError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: As typed behind ``maggy-like``; by default those of the process.

    Returns:
        The exit status: 0, or 1 after an error, which is printed; 130 after Ctrl-C. argparse exits by itself with 2
        where the arguments cannot be read.
    """
    given = parser().parse_args(arguments)
    try:
        from maggy_like.command_line import commands  # loaded after mistakes are told, and not for --help

        getattr(commands, f"{given.command}_command")(given)
        sys.stdout.flush()
    except MaggyError as error:
        print(f"maggy-like: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
