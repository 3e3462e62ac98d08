"""``maggy-like``: parses the arguments, runs the command, and prints an error as one sentence."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from maggy_like.errors import MaggyError
from maggy_like.version import __version__

RUN = "directory of the run: a path, or the URL of any fsspec file system"

_EXIT_STATUS = "Exit status: 0, 1 after an error, 2 if the arguments are not valid, 130 after Ctrl-C."


def parser() -> argparse.ArgumentParser:
    """Make the parser of all commands. Its ``command`` is the name of the given one, and ``parser`` its parser."""
    top = argparse.ArgumentParser(
        "maggy-like",
        description="Shows active and ended runs of maggy_like from their files, and runs scripts on several workers.",
        epilog=f"maggy-like COMMAND --help has all options and examples. {_EXIT_STATUS}",
    )
    top.add_argument("--version", action="version", version=f"maggy-like {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (
        _add_list, _add_show, _add_tail, _add_stacks, _add_watch, _add_dashboard, _add_files, _add_report, _add_export,
        _add_rerun, _add_run,
    ):  # fmt: skip
        add(commands)
    return top


def _add_list(commands: Any) -> None:
    listing = _command(
        commands,
        "list",
        "list the runs in a directory",
        "Lists the runs in a directory, one line per run, the newest first.",
        "maggy-like list",
        "maggy-like list s3://bucket/runs",
    )
    listing.add_argument("directory", nargs="?", default="maggy_runs", help="directory of runs (default: maggy_runs)")


def _add_show(commands: Any) -> None:
    show = _command(
        commands,
        "show",
        "show the result of a run",
        "Shows the result of a run, and its best trials.",
        "maggy-like show maggy_runs/august",
        "maggy-like show maggy_runs/august --decision-log | grep 'trial 7 '",
    )
    show.add_argument("run", metavar="RUN", help=RUN)
    show.add_argument("-n", "--trials", type=_count, default=10, metavar="N", help="trials in the table (default: 10)")
    show.add_argument(
        "--decision-log", action="store_true", help="why each trial was created, promoted, stopped or retried"
    )
    show.add_argument("--story", action=_Renamed, const="--decision-log", nargs=0, help=argparse.SUPPRESS)


def _add_stacks(commands: Any) -> None:
    stacks = _command(
        commands,
        "stacks",
        "show where the running trials are",
        "Shows the Python stacks of the running trials whose workers are on this machine (Linux).",
        "maggy-like stacks maggy_runs/august",
    )
    stacks.add_argument("run", metavar="RUN", help=RUN)


def _add_tail(commands: Any) -> None:
    tail = _command(
        commands,
        "tail",
        "show what trials printed",
        "Shows the newest lines that trials printed.",
        "maggy-like tail maggy_runs/august",
        "maggy-like tail maggy_runs/august 7 -f",
        "maggy-like tail maggy_runs/august 0 --rank 1 -n 100",
    )
    tail.add_argument("run", metavar="RUN", help=RUN)
    tail.add_argument(
        "trial",
        metavar="TRIAL",
        nargs="?",
        type=_index,
        help="number of the trial (default: running trials, or the last)",
    )
    tail.add_argument("-n", "--lines", type=_count, default=20, metavar="N", help="lines per trial (default: 20)")
    tail.add_argument("-f", "--follow", action="store_true", help="follow one trial until it ends")
    tail.add_argument("--rank", type=_index, default=0, metavar="R", help="rank of the worker (default: 0)")


def _add_watch(commands: Any) -> None:
    watch = _command(
        commands,
        "watch",
        "follow a run until it ends",
        "Shows a run as its driver does, until it ends, on any machine that sees its files. Ctrl-C ends only the "
        "watching.",
        "maggy-like watch maggy_runs/august",
        "maggy-like watch s3://bucket/runs/august --plain >> august.log",
    )
    watch.add_argument("run", metavar="RUN", help=RUN)
    watch.add_argument("--plain", action="store_true", help="lines without colors, as if stdout is not a terminal")


def _add_dashboard(commands: Any) -> None:
    dashboard = _command(
        commands,
        "dashboard",
        "show runs in a browser, live",
        "Serves a page about a run, or about all runs in a directory, which follows them. It only reads their files, "
        "on any machine that sees them. Ctrl-C ends it.",
        "maggy-like dashboard",
        "maggy-like dashboard maggy_runs/august",
        "maggy-like dashboard s3://bucket/runs --port 8000 --no-browser",
    )
    dashboard.add_argument(
        "where",
        metavar="RUN_OR_DIRECTORY",
        nargs="?",
        default="maggy_runs",
        help="directory of a run or of runs: a path or a URL (default: maggy_runs)",
    )
    dashboard.add_argument("--port", type=_index, metavar="N", help="port (default: 8240, or a free one)")
    dashboard.add_argument(
        "--host",
        metavar="H",
        default="127.0.0.1",
        help="address to listen at (default: 127.0.0.1, for this machine only); others need the token in the link",
    )
    dashboard.add_argument("--no-browser", action="store_true", help="only print the link")


def _add_files(commands: Any) -> None:
    files = _command(
        commands,
        "files",
        "list or fetch what trials wrote",
        "Lists the files that a trial wrote to reporter.directory or to its working directory, or copies them.",
        "maggy-like files maggy_runs/august 7",
        "maggy-like files s3://bucket/runs/august 7 -o trial7",
        "maggy-like files maggy_runs/august 7 best.pt -o .",
    )
    files.add_argument("run", metavar="RUN", help=RUN)
    files.add_argument("trial", metavar="TRIAL", type=_index, help="number of the trial")
    files.add_argument("names", metavar="FILE", nargs="*", help="paths of files (default: all)")
    files.add_argument("-o", "--output", metavar="DIRECTORY", help="directory to which they are copied")


def _add_report(commands: Any) -> None:
    report = _command(
        commands,
        "report",
        "write a report about a run",
        "Writes an HTML page with the plots, best trials and failures of a run. It needs no other file and no network.",
        "maggy-like report maggy_runs/august",
        "maggy-like report s3://bucket/runs/august -o s3://bucket/reports/august.html",
    )
    report.add_argument("run", metavar="RUN", help=RUN)
    report.add_argument("-o", "--output", metavar="FILE", help="path or URL of the page (default: RUN.html)")
    report.add_argument("--force", action="store_true", help="replace an existing file")


def _add_export(commands: Any) -> None:
    export = _command(
        commands,
        "export",
        "export the trials for other tools",
        "Exports the trials of a run for other tools.",
        "maggy-like export maggy_runs/august",
        "maggy-like export maggy_runs/august --curves -o curves.parquet",
        "maggy-like export maggy_runs/august --format optuna -o sqlite:///studies.db",
    )
    export.add_argument("run", metavar="RUN", help=RUN)
    export.add_argument("--format", choices=("csv", "parquet", "optuna"), help="default: as the name of TARGET, or csv")
    export.add_argument("--curves", action="store_true", help="one row per measurement instead of one row per trial")
    export.add_argument(
        "-o",
        "--output",
        metavar="TARGET",
        help="path or URL of the file, or with optuna a storage (default: RUN.csv, RUN.parquet, sqlite:///RUN.db)",
    )
    export.add_argument("--force", action="store_true", help="replace an existing file")


def _add_rerun(commands: Any) -> None:
    rerun = _command(
        commands,
        "rerun",
        "run a trial again in this process",
        "Runs a recorded trial again in this process, with its configuration and budget, and says at which step its "
        "reports begin to differ from the recorded ones. The run's directory is not changed.",
        "maggy-like rerun maggy_runs/august 7 train.py:train_fn",
        "maggy-like rerun maggy_runs/august 7 train.py:train_fn --from-checkpoint --pdb",
    )
    rerun.add_argument("run", metavar="RUN", help=RUN)
    rerun.add_argument("trial", metavar="TRIAL", type=_index, help="number of the trial")
    rerun.add_argument("function", metavar="FILE:NAME", help="file of Python, and the training function in it")
    rerun.add_argument("--from-checkpoint", action="store_true", help="begin where the last attempt began")
    rerun.add_argument("--pdb", action="store_true", help="open the debugger where the function raises")


def _add_run(commands: Any) -> None:
    run = _command(
        commands,
        "run",
        "run a torchrun script on several workers",
        "Runs a script that was written for torchrun, unchanged, on processes of this machine or on tasks of Spark. "
        "Options of maggy-like come before the script, its arguments after it.",
        "maggy-like run --workers 2 train.py --epochs 3",
        "maggy-like run --spark spark://host:7077 --name august train.py",
        "maggy-like run --spark spark://host:7077 --name august --resume train.py",
    )
    run.add_argument("--workers", type=_count, metavar="N", help="number of ranks (default: all slots)")
    run.add_argument(
        "--spark", metavar="MASTER", help="on tasks of Spark: local[2], spark://host:7077, yarn, sc://host"
    )
    run.add_argument("--name", help="name of the run (default: a new name)")
    run.add_argument("--resume", action="store_true", help="continue the run called NAME: the script starts again")
    run.add_argument("--overwrite", action="store_true", help="first delete the run called NAME")
    run.add_argument("--directory", default="maggy_runs", help="directory of runs (default: maggy_runs)")
    run.add_argument("script", metavar="SCRIPT", help="Python file")
    given = run.add_argument(
        "args", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script, its sys.argv[1:]"
    )
    given.required = False  # before Python 3.12 argparse reports them as missing together with SCRIPT


def _command(commands: Any, name: str, summary: str, description: str, *examples: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog="\n".join(["examples:", *(f"  {example}" for example in examples)]),
        formatter_class=_WithExamples,
    )
    made.set_defaults(parser=made)
    return made


class _Renamed(argparse.Action):
    """Rejects an old option with an error that names the new one."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        parser.error(f"there is no option {self.option_strings[0]}; use {self.const}")


class _WithExamples(argparse.HelpFormatter):
    """Wraps the description, and keeps the lines of the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def _index(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, got {text!r}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default with the arguments of the process.

    Return the exit status: 0, 1 after an error, which is printed, or 130 after Ctrl-C. argparse exits with 2 if the
    arguments are not valid.
    """
    given, unknown = parser().parse_known_args(arguments)
    if unknown:
        given.parser.error(f"unrecognized arguments: {' '.join(unknown)}")  # with the usage of the command
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a table may have characters that ASCII lacks
    try:
        from maggy_like.command_line import commands  # not loaded for --help and for arguments that are not valid

        getattr(commands, f"{given.command}_command")(given)
        if sys.stdout is not None:  # as with `>&-`
            sys.stdout.flush()
    except MaggyError as error:
        print(f"maggy-like: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # of the output: a closed pipe, as `| head` does, or a full disk
        if sys.stdout is not None:  # it would fail again as Python exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"maggy-like: {error}", file=sys.stderr)
            return 1
    return 0
