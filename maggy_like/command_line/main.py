"""What ``maggy-like`` takes, and what it does with an error."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from maggy_like.errors import MaggyError
from maggy_like.version import __version__

RUN = "folder of the run: a path, or the URL of any fsspec file system"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: As typed behind ``maggy-like``; by default those of the process.

    Returns:
        The exit status: 0, or 1 after an error, which is printed; 130 after Ctrl-C. argparse exits by itself with 2
        where the arguments cannot be read.
    """
    given = parser().parse_args(arguments)
    from maggy_like.command_line import commands  # loaded after mistakes are told, and not for --help

    try:
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


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; ``command`` is the name of the one that was given."""
    top = argparse.ArgumentParser(
        "maggy-like", description="Runs of maggy_like, over or going on, from their files alone."
    )
    top.add_argument("--version", action="version", version=f"maggy-like {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    listing = commands.add_parser(
        "list", help="the runs in a folder", description="The runs in a folder, newest first."
    )
    listing.add_argument("directory", nargs="?", default="maggy_runs", help="folder of runs (default: maggy_runs)")

    show = commands.add_parser("show", help="what a run found", description="What a run found, and its best trials.")
    show.add_argument("run", metavar="RUN", help=RUN)
    show.add_argument("--trials", type=_count, default=10, metavar="N", help="trials in the table (default: 10)")
    show.add_argument("--story", action="store_true", help="why each trial was created, promoted, stopped or run again")

    tail = commands.add_parser("tail", help="what trials printed", description="The newest lines that trials printed.")
    tail.add_argument("run", metavar="RUN", help=RUN)
    tail.add_argument(
        "trial", metavar="TRIAL", nargs="?", type=_index, help="its number (default: those that run, or the last)"
    )
    tail.add_argument("-n", "--lines", type=_count, default=20, metavar="N", help="lines of each (default: 20)")
    tail.add_argument("--rank", type=_index, default=0, help="which of the workers that run a trial together")

    watch = commands.add_parser(
        "watch", help="a run while it goes on", description="A run until it ends; Ctrl-C ends the watching alone."
    )
    watch.add_argument("run", metavar="RUN", help=RUN)
    watch.add_argument("--plain", action="store_true", help="lines without colours, as in a file")

    export = commands.add_parser(
        "export", help="trials for other tools", description="The trials of a run, for other tools."
    )
    export.add_argument("run", metavar="RUN", help=RUN)
    export.add_argument("--format", choices=("csv", "parquet", "optuna"), default="csv", help="default: csv")
    export.add_argument("--curves", action="store_true", help="a row a measurement instead of a row a trial")
    export.add_argument(
        "--to", metavar="TARGET", help="file, or of optuna a storage (default: RUN.csv, RUN.parquet, sqlite:///RUN.db)"
    )
    return top


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count; use 1 or more")
    return int(text)


def _index(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number; use 0 or more")
    return int(text)
