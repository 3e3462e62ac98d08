"""The commands of ``maggy-like``. ``list_command`` is the function of ``list``, and so on."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
import types
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from maggy_like.api.run import run_script
from maggy_like.api.saved_runs import list_runs, load_run
from maggy_like.argument_checks import require
from maggy_like.cluster_driver.follow import RunFiles
from maggy_like.dashboard import serve
from maggy_like.display.text import clean
from maggy_like.errors import MaggyError, UserError
from maggy_like.processes.stacks import stacks_of_run
from maggy_like.protocol.endings import Ending
from maggy_like.results.data import every_trial, log_urls, reading_log, written
from maggy_like.results.record import read_record
from maggy_like.results.result import Result
from maggy_like.results.runs import find_run
from maggy_like.results.tables import best_trials
from maggy_like.storage.file_systems import open_url
from maggy_like.storage.journal import backend_of, read_header
from maggy_like.storage.run_paths import RunPaths
from maggy_like.storage.trial_files import readable_size
from maggy_like.train_function.load import loading
from maggy_like.train_function.script import read_script
from optimizers.checks import did_you_mean
from optimizers.core.trial import TrialState

if TYPE_CHECKING:
    import pandas

    from maggy_like.ablation import Ablation

LOOK = 0.5
"""Seconds between two reads of the log."""

MOST_COMPARED = 4096
"""Bytes of the last line that are read again, to check that it has not changed."""

_FORMATS = {".csv": "csv", ".parquet": "parquet", ".db": "optuna"}
"""The format that the suffix of an exported file means."""

_OVER = (TrialState.COMPLETED, TrialState.STOPPED, TrialState.FAILED)


def follow_log(result: Result, trial: int, rank: int, first: int, show: Callable[[str], None]) -> None:
    """Show what a trial prints until it, or its run, has ended. ``first`` existing lines are shown first."""
    source, log = RunFiles(str(result.directory)), LogTail(RunPaths(result.directory, result.store), trial, rank)
    is_first, is_over = True, False
    while not is_over:
        if not is_first:
            time.sleep(LOOK)
        is_over = source.is_over()
        source.look(now=is_first or is_over)
        known = source.study.trials[trial]
        is_over = is_over or known.state in _OVER or source.ended is not None
        lines = log.look(known.attempt, is_over=is_over)
        for line in lines[max(0, len(lines) - first) :] if is_first else lines:
            show(line)
        is_first = False


class LogTail:
    """Reads the lines that were added to the log files of a trial's worker since the last read."""

    def __init__(self, paths: RunPaths, trial: int, rank: int) -> None:
        self._paths = paths
        self._trial = trial
        self._rank = rank
        self._files: dict[str, _File] = {}

    def look(self, attempts: int, *, is_over: bool) -> list[str]:
        """Return the new lines of all attempts, also an incomplete one if no more come."""
        new: list[tuple[float, list[bytes]]] = []
        for url in log_urls(self._paths, self._trial, self._rank, attempts):
            fs, path = open_url(url)
            with reading_log(path):
                if lines := self._files.setdefault(url, _File()).take(fs, path, is_over=is_over):
                    new.append((written(fs, path), lines))
        new.sort(key=lambda part: part[0])
        return [line.decode(errors="replace") for _, lines in new for line in lines]


class _File:
    """Position in a log file."""

    def __init__(self) -> None:
        self._count = 0  # lines
        self._end = 0  # end of the last line
        self._last = b""  # the last line, or the end of it

    def take(self, fs: Any, path: str, *, is_over: bool) -> list[bytes]:
        """Return the new whole lines.

        A redrawn line may replace earlier lines. Then the whole file is read, and lines are counted.
        """
        fs.invalidate_cache()
        size = fs.size(path)
        start = self._end - len(self._last)
        data = fs.cat_file(path, start=start, end=size) if size > start else b""
        if data.startswith(self._last):
            lines = _lines(data[len(self._last) :], is_over=is_over)
            self._end += sum(map(len, lines))
        else:
            known = _lines(fs.cat_file(path), is_over=is_over)
            lines, self._end = known[self._count :], sum(map(len, known))
            self._last = known[-1][-MOST_COMPARED:] if known else b""
        self._count += len(lines)
        if lines:
            self._last = lines[-1][-MOST_COMPARED:]
        return lines


def _lines(data: bytes, *, is_over: bool) -> list[bytes]:
    lines = data.splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n") and not is_over:
        lines.pop()  # still being written
    return lines


def list_command(given: Namespace) -> None:
    """Print the runs in a directory."""
    runs = list_runs(given.directory)
    if not runs:
        if _is_run(given.directory):
            raise UserError(f"{given.directory!r} is a run, not a directory of runs; use maggy-like show")
        raise UserError(
            f"there are no runs in {given.directory!r}; use the directory of runs: the value of directory=, or "
            "maggy_runs in the working directory of the program"
        )
    print(runs)


def show_command(given: Namespace) -> None:
    """Print the result of a run, and its best trials, the table of its ablation, or its decision log."""
    result = load_run(given.run)
    print(repr(result))
    if given.decision_log:
        print("", *result.decision_log(), sep="\n")
        return
    answer = _ablation(result)
    if table := best_trials(result, given.trials) if answer is None else repr(answer):
        print("", table, sep="\n")
    _print_failure(result)


def stacks_command(given: Namespace) -> None:
    """Print where the running trials are whose workers are on this machine."""
    result = load_run(given.run)
    print(stacks_of_run(result.name) or f"no trial of {result.name!r} runs on this machine")


def _ablation(result: Result) -> Ablation | None:
    """Return the answer of an ablation. None for other runs."""
    comparisons = read_header(backend_of(str(result.directory))).comparisons
    if not comparisons:
        return None
    from maggy_like.ablation.outcome import recorded_answer  # for ablations only, since it takes a second

    return recorded_answer(result, comparisons)


def _print_failure(result: Result) -> None:
    """Print the traceback of the first failure that no display has shown."""
    for trial in every_trial(result):
        is_shown = result._shown.lines and not trial.is_final_training  # whose traceback no display shows
        if is_shown or trial.failure is None or trial.state is not TrialState.FAILED:
            continue
        text = trial.failure.traceback.rstrip() or trial.failure.message
        print("", f"{'the training' if trial.is_final_training else f'trial {trial.id}'} failed:", sep="\n")
        for line in f"{text}\n{read_record(result).rerun_hint(trial.id)}".rstrip().splitlines():
            _print_line(line)
        return


def files_command(given: Namespace) -> None:
    """List the files of a trial, or copy them."""
    files = load_run(given.run).files(given.trial)
    if unknown := [name for name in given.names if name not in files]:
        raise UserError(f"trial {given.trial} has no file {unknown[0]!r}{did_you_mean(unknown[0], files)}")
    if given.output is not None:
        for path in files.fetch(given.output, *given.names):
            _print_line(str(path))
        return
    width = max(map(len, given.names or files), default=0)
    for name in given.names or files:
        _print_line(f"{name:{width}}  {readable_size(files.size(name))}")
    for left_out in files.left_out:
        _print_line(f"not kept: {left_out}")
    if not files:
        print(f"trial {given.trial} has no files")


def tail_command(given: Namespace) -> None:
    """Print the newest lines of a trial, or of all running trials."""
    result = load_run(given.run)
    known = every_trial(result)
    if given.trial is not None:
        chosen = [trial for trial in known if trial.id == given.trial]
        if not chosen:
            raise UserError(f"TRIAL must be one of the {len(known)} trials of {given.run!r}, got {given.trial}")
    else:
        begun = [trial for trial in known if trial.attempt]
        chosen = [trial for trial in begun if trial.state is TrialState.RUNNING] or begun[-1:]
    if given.follow and len(chosen) > 1:
        numbers = ", ".join(str(trial.id) for trial in chosen)
        raise UserError(
            f"--follow follows one trial, and {numbers} are running; pass one, or use maggy-like watch {given.run}"
        )
    if lacking := [trial for trial in chosen if given.rank >= trial.world_size]:
        trial = lacking[0]
        raise UserError(f"--rank must be at most {trial.world_size - 1} for trial {trial.id}, got {given.rank}")
    for trial in chosen:
        if given.trial is None:
            print(f"==> trial {trial.id} ({trial.state.value}) <==", flush=True)
        if given.follow:
            follow_log(result, trial.id, given.rank, given.lines, _print_line)
        else:
            for line in result.log(trial.id, given.rank).splitlines()[-given.lines :]:
                _print_line(line)
    if not chosen:
        print("no trial has started")


def watch_command(given: Namespace) -> None:
    """Show a run until it ends, then its result."""
    result = load_run(given.run)
    if result.ending in (Ending.RUNNING, Ending.KILLED):  # Spark may be about to restart its driver
        result = result.watch(progress="plain" if given.plain else True)
    print(result)
    _print_failure(result)
    if result.ending is Ending.RUNNING:
        raise KeyboardInterrupt  # Ctrl-C has ended the watching


def dashboard_command(given: Namespace) -> None:
    """Serve the dashboard of a run or a directory until Ctrl-C."""
    serve(given.where, given.host, given.port, opens_browser=not given.no_browser)


def report_command(given: Namespace) -> None:
    """Write the report of a run."""
    result = load_run(given.run)
    target = _target(given, f"{result.name}.html")
    (_ablation(result) or result).report(target)
    print(f"the report is in {target}")


def export_command(given: Namespace) -> None:
    """Write the trials or the measurements of a run."""
    result = load_run(given.run)
    kind = _format_of(given)
    if kind == "optuna":
        _export_to_optuna(result, given)
        return
    require("pandas", f"--format {kind}")
    if kind == "parquet":
        require("pyarrow", "--format parquet")
    target = _target(given, f"{result.name}{'-curves' * given.curves}.{kind}")
    table = result.curves() if given.curves else result.to_pandas()
    write = table.to_csv if kind == "csv" else _with_types(table).to_parquet
    try:
        write(target, index=False)
    except Exception as error:  # of any file system
        raise UserError(f"{target!r} cannot be written ({error}); pass another --output") from error
    print(f"{len(table)} {'measurements' if given.curves else 'trials'} are in {target}")


def rerun_command(given: Namespace) -> None:
    """Run a trial again, and print where its reports begin to differ; under the debugger, stop where it raises."""
    result = load_run(given.run)
    trial = result._trial(given.trial)  # its error is raised before the file runs
    train_fn = _function_of(given.function)
    try:
        print(result.rerun(trial, train_fn, from_checkpoint=given.from_checkpoint))
    except MaggyError:
        raise
    except Exception as error:
        if given.pdb:
            import pdb

            traceback.print_exc()
            pdb.post_mortem(error.__traceback__)
            return
        sys.stdout.flush()
        traceback.print_exc()
        raise UserError(
            f"trial {given.trial} raised {type(error).__name__}: {error}; add --pdb to look at it in the debugger"
        ) from None


def _function_of(spelled: str) -> Callable[..., Any]:
    """Return the function that FILE:NAME names.

    The file is run as a module, so its main guard is not entered, and pickle finds its classes. If it has no guard, it
    runs up to the search that it would start. By then it has the function.
    """
    path, _, name = spelled.rpartition(":")
    if not path or not name:
        raise UserError(f"{spelled!r} must be FILE:NAME, such as train.py:train_fn")
    if not os.path.isfile(path):
        raise UserError(f"there is no file {path!r}; pass FILE:NAME, such as train.py:train_fn")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    module = types.ModuleType("maggy_like_rerun")
    module.__file__ = path
    sys.modules[module.__name__] = module
    try:
        with loading():
            exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(module))
    except UserError:
        if not hasattr(module, name):
            raise
    except Exception as error:
        traceback.print_exc()
        raise UserError(f"{path!r} raised {type(error).__name__}: {error}; fix it, or pass another file") from None
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{path!r} has no function {name!r}; pass the name of its training function")
    return cast("Callable[..., Any]", function)


def run_command(given: Namespace) -> None:
    """Run a script on the processes of this machine, or on tasks of Spark."""
    if (given.resume or given.overwrite) and given.name is None:
        option, what = ("--resume", "continues") if given.resume else ("--overwrite", "deletes")
        raise UserError(f"{option} {what} a run by its name; add --name NAME (see maggy-like list)")
    engine = "local"
    with contextlib.ExitStack() as stack:
        if given.spark is not None:
            require("pyspark", "--spark")
            from maggy_like.spark.session import spark_session

            read_script(given.script)  # its errors are raised before Java starts
            engine = "spark"
            stack.callback(spark_session(given.spark).stop)
        run_script(
            given.script,
            given.args,
            workers=given.workers,
            engine=engine,
            name=given.name,
            directory=given.directory,
            resume=given.resume,
            overwrite=given.overwrite,
        )


def _is_run(directory: str) -> bool:
    try:
        find_run(directory)
    except MaggyError:
        return False
    return True


def _format_of(given: Namespace) -> str:
    """Return the format to export: the given one, that of the output's name, or CSV."""
    suffixes = Path(given.output or "").suffixes
    named = next((_FORMATS[suffix] for suffix in suffixes if suffix in _FORMATS), None)
    if named is None and suffixes and given.format is None:
        raise UserError(f"{given.output!r} does not name a format; pass --format csv, parquet or optuna")
    if named and given.format and named != given.format:
        raise UserError(f"{given.output!r} would be written as {given.format}; leave --format out, or rename it")
    return str(given.format or named or "csv")


def _export_to_optuna(result: Result, given: Namespace) -> None:
    if given.curves or given.force:
        raise UserError("--format optuna exports trials with their curves, and never replaces a study; leave "
                        f"--{'curves' if given.curves else 'force'} out")  # fmt: skip
    require("optuna", "--format optuna")
    from optuna.storages import RDBStorage

    url = given.output or f"{result.name}.db"
    url = url if "://" in url else f"sqlite:///{url}"
    try:
        storage = RDBStorage(url)
    except Exception as error:  # of any database
        said = str(error).partition("\n")[0]
        raise UserError(f"Optuna cannot open the storage {url} ({said}); pass another --output") from error
    try:
        study = result.to_optuna(storage)
        print(f"{len(study.trials)} trials are in the study {study.study_name!r} of {url}")
    except UserError as error:
        raise UserError(f"{url} has a study {result.name!r} already; pass another --output") from error
    finally:
        storage.engine.dispose()  # Python 3.13 warns of connections that are left open


def _target(given: Namespace, default: str) -> str:
    """Return the file to write."""
    target = str(given.output or default)
    exists = is_directory = False
    with contextlib.suppress(Exception):  # of any file system: the error of writing has the reason
        fs, path = open_url(target)
        exists, is_directory = fs.exists(path), fs.isdir(path)
    if is_directory:
        raise UserError(f"{target!r} is a directory; pass the path of a file as --output")
    if exists and not given.force:
        raise UserError(f"there is a file {target!r} already; pass --force to replace it, or another --output")
    return target


def _with_types(table: pandas.DataFrame) -> pandas.DataFrame:
    """Return the table as Parquet can store it: columns of mixed types become text."""
    import pyarrow

    for name in table.columns:
        try:
            pyarrow.array(table[name], from_pandas=True)
        except pyarrow.ArrowException:
            table[name] = table[name].map(str, na_action="ignore")
    return table


def _print_line(line: str) -> None:
    print(clean(line.rstrip("\n"), keeps_tabs=True), flush=True)
