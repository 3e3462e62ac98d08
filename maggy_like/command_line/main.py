"""``maggy-like``: parses the arguments, runs the command, and prints errors as a sentence."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from maggy_like.errors import MaggyError
from maggy_like.version import __version__

RUN = "folder of the run: a path, or the URL of any fsspec file system"

_EXIT_STATUS = "Exit status: 0, 1 after an error, 2 where the arguments cannot be read, 130 after Ctrl-C."


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; ``command`` is the name of the one that was given."""
    top = argparse.ArgumentParser(
        "maggy-like",
        description="Runs of maggy_like, over or going on, from their files alone; and scripts run on a gang.",
        epilog=f"maggy-like COMMAND --help says more, with examples. {_EXIT_STATUS}",
    )
    top.add_argument("--version", action="version", version=f"maggy-like {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_add_list, _add_show, _add_tail, _add_watch, _add_report, _add_export, _add_run):
        add(commands)
    return top


def _add_list(commands: Any) -> None:
    listing = _command(
        commands,
        "list",
        "the runs in a folder",
        "The runs in a folder, a line each, the newest first.",
        "maggy-like list",
        "maggy-like list s3://bucket/runs",
    )
    listing.add_argument("directory", nargs="?", default="maggy_runs", help="folder of runs (default: maggy_runs)")


def _add_show(commands: Any) -> None:
    show = _command(
        commands,
        "show",
        "what a run found",
        "What a run found, and its best trials.",
        "maggy-like show maggy_runs/august",
        "maggy-like show maggy_runs/august --story | grep 'trial 7 '",
    )
    show.add_argument("run", metavar="RUN", help=RUN)
    show.add_argument("-n", "--trials", type=_count, default=10, metavar="N", help="trials in the table (default: 10)")
    show.add_argument("--story", action="store_true", help="why each trial was created, promoted, stopped or run again")


def _add_tail(commands: Any) -> None:
    tail = _command(
        commands,
        "tail",
        "what trials printed",
        "The newest lines that trials printed.",
        "maggy-like tail maggy_runs/august",
        "maggy-like tail maggy_runs/august 7 -f",
        "maggy-like tail maggy_runs/august 0 --rank 1 -n 100",
    )
    tail.add_argument("run", metavar="RUN", help=RUN)
    tail.add_argument(
        "trial", metavar="TRIAL", nargs="?", type=_index, help="its number (default: those that run, or the last)"
    )
    tail.add_argument("-n", "--lines", type=_count, default=20, metavar="N", help="lines of each (default: 20)")
    tail.add_argument("-f", "--follow", action="store_true", help="go on with what one trial prints, until it ends")
    tail.add_argument("--rank", type=_index, default=0, metavar="R", help="which of the workers that run it together")


def _add_watch(commands: Any) -> None:
    watch = _command(
        commands,
        "watch",
        "a run while it goes on",
        "A run as its driver shows it, until it ends; from any machine that sees its files. Ctrl-C ends the watching "
        "alone.",
        "maggy-like watch maggy_runs/august",
        "maggy-like watch s3://bucket/runs/august --plain >> august.log",
    )
    watch.add_argument("run", metavar="RUN", help=RUN)
    watch.add_argument("--plain", action="store_true", help="lines without colours, as where stdout is no terminal")


def _add_report(commands: Any) -> None:
    report = _command(
        commands,
        "report",
        "a page with all there is to say of a run",
        "A page of HTML with a run's pictures, best trials and failures; it needs no other file and no network.",
        "maggy-like report maggy_runs/august",
        "maggy-like report s3://bucket/runs/august -o s3://bucket/reports/august.html",
    )
    report.add_argument("run", metavar="RUN", help=RUN)
    report.add_argument("-o", "--output", metavar="FILE", help="path or URL of the page (default: RUN.html)")
    report.add_argument("--force", action="store_true", help="replace the file if it is there")


def _add_export(commands: Any) -> None:
    export = _command(
        commands,
        "export",
        "trials for other tools",
        "The trials of a run, for other tools.",
        "maggy-like export maggy_runs/august",
        "maggy-like export maggy_runs/august --format parquet --curves -o curves.parquet",
        "maggy-like export maggy_runs/august --format optuna -o sqlite:///studies.db",
    )
    export.add_argument("run", metavar="RUN", help=RUN)
    export.add_argument("--format", choices=("csv", "parquet", "optuna"), default="csv", help="default: csv")
    export.add_argument("--curves", action="store_true", help="a row a measurement instead of a row a trial")
    export.add_argument(
        "-o",
        "--output",
        metavar="TARGET",
        help="path or URL of the file, or of optuna a storage (default: RUN.csv, RUN.parquet, sqlite:///RUN.db)",
    )
    export.add_argument("--force", action="store_true", help="replace the file if it is there")


def _add_run(commands: Any) -> None:
    run = _command(
        commands,
        "run",
        "a script for torchrun, on a gang",
        "Runs a script that was written for torchrun, unchanged, on processes of this machine or on tasks of Spark. "
        "Options of maggy-like stand before the script, its arguments behind it.",
        "maggy-like run --workers 2 train.py --epochs 3",
        "maggy-like run --spark spark://host:7077 --name august train.py",
        "maggy-like run --spark spark://host:7077 --name august --resume train.py",
    )
    run.add_argument("--workers", type=_count, metavar="N", help="ranks (default: as many as there are slots)")
    run.add_argument(
        "--spark", metavar="MASTER", help="on tasks of Spark: local[2], spark://host:7077, yarn, sc://host"
    )
    run.add_argument("--name", help="the run's name (default: made up)")
    run.add_argument("--resume", action="store_true", help="go on with the run called NAME: the script begins again")
    run.add_argument("--overwrite", action="store_true", help="delete the run called NAME first")
    run.add_argument("--directory", default="maggy_runs", help="folder of runs (default: maggy_runs)")
    run.add_argument("script", metavar="SCRIPT", help="file of Python")
    given = run.add_argument(
        "args", metavar="ARGS", nargs=argparse.REMAINDER, help="what the script gets as sys.argv[1:]"
    )
    given.required = False  # before Python 3.12 argparse names them as missing where SCRIPT is


def _command(commands: Any, name: str, summary: str, description: str, *examples: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog="\n".join(["examples:", *(f"  {example}" for example in examples)]),
        formatter_class=_WithExamples,
    )
    return made


class _WithExamples(argparse.HelpFormatter):
    """Wraps the description, and keeps the lines of the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count; use 1 or more")
    return int(text)


def _index(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number; use 0 or more")
    return int(text)


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
