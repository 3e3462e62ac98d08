"""Writing the report of a run."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from maggy_like.errors import ConfigError, JournalError, UserError
from maggy_like.extras import require
from maggy_like.protocol.texts import encodable
from maggy_like.results.data import ResultData
from maggy_like.results.plots.plots import Plots
from maggy_like.results.record import Record, read_record
from maggy_like.results.report import sections as parts
from maggy_like.results.report.page import Section, page
from maggy_like.storage.file_systems import open_url

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def write_report(result: ResultData, path: str | PathLike[str], first: Sequence[Section] = ()) -> None:
    """Write the report of a run; see :meth:`maggy_like.Result.report`.

    Args:
        result: What came of it.
        path: The page's file: a path or a URL.
        first: What stands before all else: the answer of an ablation.

    Raises:
        UserError: plotly is missing, or the file cannot be written.
    """
    require("plotly", "report()")
    if not isinstance(path, str | PathLike):
        raise ConfigError(f"report takes the path or URL of the page, got {path!r}; write report('report.html')")
    _write(fspath(path), make_report(result, first))


def make_report(result: ResultData, first: Sequence[Section] = ()) -> str:
    """The report's page."""
    record, missing = _record(result)
    found = [*first]
    if not first:
        title = "Pareto set" if result.others else "Best configuration"
        found.append(Section(title, parts.best(result)))
    found += _pictures(result, is_ablation=bool(first))
    found.append(Section("Best trials", parts.trials_table(result, parts.top_trials(result))))
    if failed := parts.failures(result, record):
        found.append(Section("Failures", failed))
    found.append(Section("Environment", missing + parts.environment(result, record)))
    return page(result.name, parts.lead(result, record), found)


def _pictures(result: ResultData, *, is_ablation: bool) -> list[Section]:
    """The sections with a picture; one that cannot be drawn says why."""
    plot = Plots(result)
    found = [_section("History", plot.history)] if not is_ablation else []
    if result.others:
        found.append(_section("Objectives", plot.pareto))
    found.append(_section("Learning curves", plot.curves))
    if result.training is not None:
        found.append(_section("Training", plot.training, body=parts.training(result)))
    if result.space.names and not is_ablation:
        found += [
            _section("Importance", plot.importance),
            _section("Slices", plot.slices, is_wide=True),
            _section("Parallel coordinates", plot.parallel, is_wide=True),
        ]
    return [*found, _section("Workers", plot.timeline)]


def _section(title: str, draw: Callable[[], Figure], *, body: str = "", is_wide: bool = False) -> Section:
    try:
        return Section(title, body, draw(), is_wide)
    except (UserError, JournalError) as error:
        return Section(title, f'{body}<p class="note">Not drawn: {html.escape(str(error))}.</p>')


def _record(result: ResultData) -> tuple[Record | None, str]:
    """What the journal has beyond the result, or why it cannot be read."""
    try:
        return read_record(result), ""
    except (UserError, JournalError) as error:
        return None, f'<p class="note">{html.escape(str(error))}</p>'


def _write(where: str, text: str) -> None:
    try:
        if "://" in where:
            fs, path = open_url(where)
            fs.pipe_file(path, text.encode())
        else:
            Path(where).expanduser().write_text(encodable(text), encoding="utf-8")
    except Exception as error:  # of whatever file system it is
        said = f"{type(error).__name__}: {error}"
        raise UserError(
            f"the report cannot be written to {where!r} ({said}); pass the path of a file in a folder that is there"
        ) from error
