"""The answer of an ablation study in words, tables and plots, and its report."""

from __future__ import annotations

import html as escaping
import math
import re
import textwrap
from collections.abc import Callable, Iterable
from os import PathLike
from typing import TYPE_CHECKING

from maggy_like.ablation.comparisons import UNDECIDED, Comparisons, Row
from maggy_like.argument_checks import require
from maggy_like.display.text import as_html, clean, number
from maggy_like.results.data import ResultData
from maggy_like.results.report import Section, write_report
from optimizers.comparisons.paired_tests import skewed_together
from optimizers.comparisons.repeats import VARIANT

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def notes(ablation: Comparisons) -> list[str]:
    """Return the lines below the table, about failed trials, too few or equal repeats, and skewed differences."""
    rows = ablation.rows
    tested = [row for row in rows if row.p is not None]
    untested = [row for row in rows if row.p is None and row.verdict != UNDECIDED]
    lines = [
        *_named("no seed has all results: {}", untested, lambda row: row.repeats == 0),
        *_plain(
            "one repeat does not measure the noise, so there is no test; use repeats=5 or more",
            any(row.repeats == 1 for row in untested),
        ),
        *_plain(
            "two repeats find only very large differences; use repeats=5 or more",
            any(row.repeats == 2 for row in tested),
        ),
        *_named(
            "every seed gave the same difference, so there is no test (is the seed used?): {}",
            untested,
            lambda row: row.repeats > 1,
        ),
        *_unchanged(ablation),
        *_counted("seeds left out, because a trial failed: {}", rows, lambda row: row.dropped),
        *_counted(
            "seeds that lack a trial, fitted by least squares with no interaction of three and more: {}",
            rows,
            lambda row: row.fitted,
        ),
    ]
    if open_rows := [row for row in rows if row.verdict == UNDECIDED]:
        lines.append(_undecided(ablation, open_rows))
    skewed = {row.component: row.skewed for row in tested if row.skewed is not None}
    together = skewed_together([finding.sample for finding in ablation.findings.values() if finding.p is not None])
    if together is not None:
        lines.append(
            f"the differences of all lines together are skewed (skewness {abs(together):.1f} on average), so t-tests "
            "find too many"
        )
    if skewed:
        said = [f"{clean(name)} (skewness {g:.1f}, p {p:.2g})" for name, (g, p) in skewed.items()]
        lines.append(
            "skewed differences, for which t-tests find too many, with the p-value of a studentised bootstrap, not "
            f"corrected for the number of comparisons: {', '.join(said)}"
        )
    return lines


def _undecided(ablation: Comparisons, rows: list[Row]) -> str:
    names = ", ".join(clean(row.component) for row in rows)
    if ablation.bound is not None:
        return f"ended before it was decided: {names}"
    ended = min(row.repeats + row.dropped for row in rows)
    return (
        f"undecided after {ended} of {ablation.planned} seeds: {names}; a test before the last seed would find too "
        "many differences, so use resume=True to continue"
    )


def _unchanged(ablation: Comparisons) -> list[str]:
    """Return notes on components whose difference is zero with every seed, and on seeds without effect."""
    zero = [row.component for row in ablation.rows if row.p is not None and row.repeats > 1 and row.is_zero]
    if not zero:
        return []
    values: dict[str, set[float]] = {}
    for run in ablation.runs:
        if run.value is not None:
            values.setdefault(run.variant, set()).add(run.value)
    if all(len(seen) == 1 for seen in values.values()):
        return ["every seed gave the same value, so the seed is not used, and the tests are meaningless"]
    return [f"changed nothing with any seed (is it used?): {', '.join(map(clean, zero))}"]


def _plain(line: str, holds: bool) -> list[str]:
    return [line] if holds else []


def _named(line: str, rows: Iterable[Row], which: Callable[[Row], bool]) -> list[str]:
    names = [clean(row.component) for row in rows if which(row)]
    return [line.format(", ".join(names))] if names else []


def _counted(line: str, rows: Iterable[Row], count: Callable[[Row], int]) -> list[str]:
    names = [f"{clean(row.component)} ({count(row)})" for row in rows if count(row)]
    return [line.format(", ".join(names))] if names else []


WIDTH = 100
"""Maximum width of the table in a terminal."""

MOST_DECIMALS = 6
"""Maximum number of decimals; numbers with more are written with a power of ten."""

_Column = tuple[str, list[str]]
"""A head and its cells."""

_GAP = "  "
_SECONDS, _PARAMETERS = "seconds saved", "parameters saved"
_FROM_BASE = ("leave_one_out", "leave_one_group_out", "pairs")
"""Designs whose lines are all compared with the base."""

_MARKS = re.compile(r"[\\`*<>|\[\]~$&]|(?<![^\W_])_|_(?![^\W_])")
"""Characters of a name that are markup in Markdown; an underscore inside a word is not."""

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def method(ablation: Comparisons) -> str:
    """Return how the differences were tested, in sentences for a paper."""
    counts = sorted({row.repeats for row in ablation.rows if row.repeats})
    if not counts:
        return f"No seed has given a difference in {ablation.metric} yet."
    first = opening(ablation)
    if counts[-1] == 1:
        return f"{first} There is one seed, so nothing is tested."
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    means = f"{first} Differences are means over {seeds} seeds, paired by seed"
    if all(row.p is None for row in ablation.rows):
        return f"{means}, and are not tested."
    tests = (
        "paired t-tests"
        if ablation.bound is None
        else f"group sequential paired t-tests with at most {ablation.bound} seeds"
    )
    said = f"{means}. {level(ablation, tests)}{_resampled(ablation)}"
    return f"{said}{_estimates(ablation)}{negligible(ablation)}{_tuned(ablation)}"


def level(ablation: Comparisons, tests: str) -> str:
    """Return the sentences on the intervals and the p-values."""
    n, percent = len(ablation.rows), f"{100 * (1 - ablation.alpha):g} %"
    if n == 1:
        return f"The interval is a {percent} confidence interval. The p-value is that of {tests}."
    return (
        f"The {percent} confidence intervals are simultaneous. The p-values are those of {tests}, corrected for {n} "
        "comparisons by max-T."
    )


def _estimates(ablation: Comparisons) -> str:
    if not has_estimates(ablation):
        return ""
    return (
        " Means after an early stop are exaggerated, so the column unbiased has median-unbiased estimates (stage-wise "
        "order)."
    )


def opening(ablation: Comparisons) -> str:
    """Return the first sentence: what is subtracted from what, and which direction is better."""
    better = "higher" if ablation.direction == "max" else "lower"
    everything = with_everything(ablation)
    base = f", {everything} with everything" if everything is not None else ""
    name = clean(ablation.metric)
    return f"A difference is {name} without a component minus {name} with it ({better} is better{base})."


def _resampled(ablation: Comparisons) -> str:
    if not ablation.resampled:
        return " Both hold for the test rows that the seeds had."
    return (
        f" Both use the variance of Nadeau and Bengio for splits of the same rows ({ablation.resampled:.2g} test rows "
        "for each training row)."
    )


def negligible(ablation: Comparisons) -> str:
    """Return what the verdict "no larger" means, if it was asked for."""
    if ablation.negligible is None:
        return ""
    return f" A difference with an interval within ±{ablation.negligible:g} is called no larger (two one-sided tests)."


def _tuned(ablation: Comparisons) -> str:
    if not ablation.n_configs:
        return ""
    return (
        f" In each repeat, every variant was tuned again: the best of {ablation.n_configs} configurations, tried with "
        "another seed, was trained with the repeat's seed."
    )


def plain(ablation: Comparisons) -> str:
    """Return a table for a terminal, at most 100 columns wide if the names of the components allow it."""
    columns, hidden = _fitting(ablation)
    rows = [*zip(*(cells for _, cells in columns), strict=True)]
    heads = [_aligned(cells, columns) for cells in zip(*(_wrapped(head) for head, _ in columns), strict=True)]
    lines = [*filter(None, heads), "-" * _width(columns)]
    lines += [_aligned(cells, columns) for cells in rows]
    below = [ablation.method, *(f"note: {note}" for note in (*ablation.notes, *hidden))]
    return "\n".join([*lines, *(line for words in below for line in textwrap.wrap(words, WIDTH))])


def markdown(ablation: Comparisons) -> str:
    """Return a table in GitHub's Markdown, with the columns of the terminal's."""
    columns, hidden = _fitting(ablation)
    heads, rows = _transposed(columns)
    rule = ["---", *["---:"] * (len(heads) - 2), "---"]
    escaped = [[_marked_down(cells[0]), *cells[1:]] for cells in rows]  # only names may have marks in them
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, rule, *escaped)]
    below = [ablation.method, *(f"Note: {note}." for note in (*ablation.notes, *hidden))]
    return "\n".join([*lines, "", *map(_marked_down, below)]) + "\n"


def latex(ablation: Comparisons) -> str:
    """Return a table for a paper that uses booktabs."""
    heads, rows = table(ablation)
    body = [" & ".join(map(_tex, cells)) + r" \\" for cells in rows]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 2)}l}}",
            r"\toprule",
            " & ".join(map(_tex, heads)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            "",
            _tex(ablation.method),
            *(_tex(f"Note: {note}.") for note in ablation.notes),
            "",
        ]
    )


def html(ablation: Comparisons) -> str:
    """Return a table for a notebook."""
    heads, rows = table(ablation)
    below = "<br>".join(map(escaping.escape, [ablation.method, *ablation.notes]))
    return f"{as_html(heads, rows)}<p>{below}</p>"


def table(ablation: Comparisons) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the cells of the whole table, line by line."""
    return _transposed(_columns(ablation))


def p_text(p: float | None) -> str:
    """Format a p-value as in papers."""
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def interval_text(row: Row) -> str:
    """Format an interval with as many decimals as its difference; empty without one."""
    if not (math.isfinite(row.low) and math.isfinite(row.high)):
        return "-"
    digits = _digits(row)
    return f"[{_rounded(row.low, digits)}, {_rounded(row.high, digits)}]"


def difference_text(row: Row) -> str:
    """Format a difference with its sign, and with as many decimals as the width of its interval supports."""
    return _rounded(row.difference, _digits(row), "+") if math.isfinite(row.difference) else "-"


def with_everything(ablation: Comparisons) -> str | None:
    """Return the mean with nothing removed if all lines share it, for the sentence below the table."""
    rows = [row for row in ablation.rows if row.with_it is not None]
    if ablation.design.name not in _FROM_BASE or len(rows) < 2 or len({row.with_it for row in rows}) > 1:
        return None
    return max((_mean(row, row.with_it) for row in rows), key=len)


def _columns(ablation: Comparisons) -> list[_Column]:
    """Return the columns of the table, without empty ones and those that the sentence below it has."""
    rows = ablation.rows
    columns: list[_Column] = [
        ("component", [clean(row.component) for row in rows]),
        ("with", [_mean(row, row.with_it) for row in rows] if with_everything(ablation) is None else []),
        ("without", [_mean(row, row.without_it) for row in rows]),
        ("difference", [difference_text(row) for row in rows]),
        ("unbiased", [_unbiased_text(row) for row in rows] if has_estimates(ablation) else []),
        (f"{100 * (1 - ablation.alpha):g} % interval", [interval_text(row) for row in rows]),
        ("p", [p_text(row.p) for row in rows]),
        ("repeats", [str(row.repeats) for row in rows] if len({row.repeats for row in rows}) > 1 else []),
        (_SECONDS, [_seconds(row) for row in rows]),
        (_PARAMETERS, ["-" if row.parameters_saved is None else f"{row.parameters_saved:,}" for row in rows]),
        ("failed", [f"{row.failed}" for row in rows] if any(row.failed for row in rows) else []),
        ("verdict", [row.verdict for row in rows]),
    ]
    return [(head, cells) for head, cells in columns if head == "verdict" or any(cell != "-" for cell in cells)]


def _fitting(ablation: Comparisons) -> tuple[list[_Column], list[str]]:
    """Return the columns that fit in the width, and a note on the others."""
    columns, hidden = _columns(ablation), []
    for least in (_SECONDS, _PARAMETERS):
        if _width(columns) > WIDTH and least in (head for head, _ in columns):
            columns = [(head, cells) for head, cells in columns if head != least]
            hidden.append(least)
    return columns, [f"the table is too wide for {' and '.join(hidden)}; to_pandas() has all columns"] if hidden else []


def _width(columns: list[_Column]) -> int:
    return sum(_widest(column) for column in columns) + len(_GAP) * (len(columns) - 1)


def _widest(column: _Column) -> int:
    head, cells = column
    return max(map(len, (*_wrapped(head), *cells)))


def _wrapped(head: str) -> tuple[str, str]:
    """Return a head in two lines, because heads about savings are wider than their cells."""
    first, _, second = head.rpartition(" ") if head in (_SECONDS, _PARAMETERS) else ("", "", head)
    return first, second


def _aligned(cells: tuple[str, ...], columns: list[_Column]) -> str:
    """Return a line with names and verdicts aligned to the left, and numbers to the right."""
    last = len(columns) - 1
    widths = map(_widest, columns)
    placed = (
        cell.ljust(width) if place in (0, last) else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return _GAP.join(placed).rstrip()


def _transposed(columns: list[_Column]) -> tuple[list[str], list[list[str]]]:
    """Return the heads, and the cells line by line."""
    return [head for head, _ in columns], [list(cells) for cells in zip(*(cells for _, cells in columns), strict=True)]


def _seconds(row: Row) -> str:
    """Format seconds to a hundredth, with half the width of their interval, because they are never known better."""
    if row.seconds_saved is None:
        return "-"
    saved = f"{round(row.seconds_saved, 2) + 0.0:+.2f}"
    return f"{saved} ± {row.seconds_high - row.seconds_saved:.2f}" if row.seconds_high is not None else saved


def _unbiased_text(row: Row) -> str:
    return _rounded(row.unbiased, _digits(row), "+") if row.unbiased is not None else "-"


def has_estimates(ablation: Comparisons) -> bool:
    """Whether a median-unbiased estimate differs from an exaggerated mean."""
    return any(row.repeats and row.unbiased not in (None, row.difference) for row in ablation.rows)


def _mean(row: Row, mean: float | None) -> str:
    if mean is None:
        return "-"
    mean = round(mean, _digits(row)) + 0.0 if _digits(row) <= MOST_DECIMALS else mean + 0.0  # no negative zero
    return f"{mean:.{_digits(row)}f}" if abs(mean) < 1e6 and _digits(row) <= MOST_DECIMALS else number(mean)


def _digits(row: Row) -> int:
    """Return the decimals that show two digits of the interval's width, or three of the difference without one.

    If an end would become zero, there are more: the verdict depends on which side of zero it lies.
    """
    width = (row.high - row.low) / 2.0
    scale = width if math.isfinite(width) and width > 0.0 else abs(row.difference) / 10.0
    digits = max(0, 1 - math.floor(math.log10(scale))) if math.isfinite(scale) and scale > 0.0 else 3
    ends = [end for end in (row.low, row.high) if math.isfinite(end) and end != 0.0]
    while digits < MOST_DECIMALS and any(round(end, digits) == 0.0 for end in ends):
        digits += 1
    return digits


def _rounded(value: float, digits: int, sign: str = "-") -> str:
    """Format a number with so many decimals; as a power of ten if there are too many zeros."""
    if digits > MOST_DECIMALS:
        return f"{value + 0.0:{sign}.2e}"
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"


def _marked_down(text: str) -> str:
    return _MARKS.sub(r"\\\g<0>", text)


def _tex(cell: str) -> str:
    return re.sub(r"[\\~^&%$#_{}]", lambda found: _LATEX[found[0]], cell.replace("<", "$<$")).replace(r"\$<\$", "$<$")


WORSE, BETTER, OPEN = "#d9534f", "#3b8bc4", "#8a8f98"
"""Colors of verdicts. They are visible on white and on black, and distinguishable with color blindness."""

_WIDEST = 4.0  # times the largest difference: intervals that reach further are cut


def reach_of(rows: list[Row]) -> float:
    """Return the limit of the axis on either side."""
    sizes = [abs(row.difference) for row in rows if math.isfinite(row.difference)]
    ends = [abs(end) for row in rows for end in (row.low, row.high) if math.isfinite(end)]
    largest = max(sizes, default=0.0)
    return min(max([largest, *ends]) * 1.05, _WIDEST * largest) if largest else max(ends, default=1.0) or 1.0


def color_of(row: Row) -> str:
    """Return the color of a row's verdict."""
    if row.verdict.startswith(("worse", "both: worse")):
        return WORSE
    return BETTER if row.verdict.startswith(("better", "both: better")) else OPEN


def report(answer: Comparisons, result: ResultData, path: str | PathLike[str]) -> None:
    """See :meth:`~maggy_like.ablation.outcome.Ablation.report`."""
    require("plotly", "report()")
    body = f'<div class="scroll">{html(answer)}</div>'
    write_report(result, path, [Section("Differences", body, forest(answer))], by=VARIANT)


def forest(answer: Comparisons) -> Figure:
    """Implement :meth:`~maggy_like.ablation.outcome.Ablation.plot`."""
    from maggy_like.results.figures import style

    rows = answer.rows
    reach = reach_of(rows)
    worse, better = ("left", "right") if answer.direction == "max" else ("right", "left")
    kind = f"{100 * (1 - answer.alpha):g} % intervals{' (simultaneous)' if len(rows) > 1 else ''}"
    figure = style.new_figure(
        "Differences",
        f"To the {worse}: worse without it; to the {better}: better without it.",
        height=150 + 34 * len(rows),
        x=f"change of {style.label(answer.metric)}, {kind}",
    )
    for place, row in enumerate(rows):
        color = color_of(row)
        low, high = max(row.low, -reach), min(row.high, reach)
        p = f"p {p_text(row.p)}" if row.p is not None else "not tested"
        found = f"{difference_text(row)} {interval_text(row)}{f', {p}' * (row.p is not None)}; {row.verdict}"
        said = f"{style.label(row.component)}: {style.label(found, most=120)}"
        if math.isfinite(row.low) or math.isfinite(row.high):
            line = {"color": color, "width": 3}
            figure.add_scatter(x=[low, high], y=[place] * 2, mode="lines", line=line, text=said, hoverinfo="text")
        for end, is_cut, arrow in ((low, row.low < -reach, "left"), (high, row.high > reach, "right")):
            if is_cut and row.p is not None:
                mark = {"symbol": f"triangle-{arrow}", "size": 9, "color": color}
                figure.add_scatter(x=[end], y=[place], mode="markers", marker=mark, text=said, hoverinfo="text")
        if math.isfinite(row.difference):
            mark = {"symbol": "square" if row.p is not None else "square-open", "size": 10, "color": color}
            figure.add_scatter(x=[row.difference], y=[place], mode="markers", marker=mark, text=said, hoverinfo="text")
        figure.add_annotation(
            x=1.0,
            xref="paper",
            xanchor="left",
            y=place,
            text=style.label(f"{difference_text(row)}, {p}"),
            font={"color": color, "size": 11},
            showarrow=False,
        )
    names = [style.label(row.component) for row in rows]
    figure.update_layout(showlegend=False, margin={"r": 120})
    figure.update_yaxes(
        tickvals=[*range(len(rows))], ticktext=names, range=[len(rows) - 0.4, -0.6], zeroline=False, automargin=True
    )
    figure.update_xaxes(range=[-1.04 * reach, 1.04 * reach], zeroline=True)
    return figure
