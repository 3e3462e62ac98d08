"""The answer of an ablation study in words and tables."""

from __future__ import annotations

import html as escaping
import math
import re
import textwrap

from maggy_like.ablation.comparisons import Comparisons, Row
from maggy_like.display.text import clean, number

WIDTH = 100
"""Columns of a terminal that the table keeps to."""

MOST_DECIMALS = 6
"""Decimals of a number, above which it is written with a power of ten."""

_Column = tuple[str, list[str]]
"""A head and its cells."""

_GAP = "  "
_SECONDS, _PARAMETERS = "seconds saved", "parameters saved"
_FROM_BASE = ("leave_one_out", "leave_one_group_out", "pairs")
"""Designs whose lines are all compared with the variant that has everything."""

_MARKS = re.compile(r"[\\`*<>|]")
"""What Markdown reads as other than itself in a name; an underscore inside a word is no mark."""

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def method(ablation: Comparisons) -> str:
    """How the differences were tested: a sentence for a paper."""
    counts = sorted({row.repeats for row in ablation.rows if row.repeats})
    if not counts:
        return f"No seed has given a difference in {ablation.metric} yet."
    differences = opening(ablation)
    if counts[-1] == 1:
        return f"{differences} of one seed, and so not tested."
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    means = f"{differences} means over {seeds} seeds, paired by seed"
    if all(row.p is None for row in ablation.rows):
        return f"{means}, and not tested."
    n = len(ablation.rows)
    tests = (
        "paired t-tests"
        if ablation.bound is None
        else f"group sequential paired t-tests (at most {ablation.bound} seeds)"
    )
    level = f"{'simultaneous ' if n > 1 else ''}{100 * (1 - ablation.alpha):g} % confidence intervals"
    corrected = f", corrected for {n} comparisons by max-T" if n > 1 else ""
    said = f"{means}; {level}; p-values of {tests}{corrected}{_resampled(ablation)}."
    return f"{said}{_estimates(ablation)}{negligible(ablation)}{_tuned(ablation)}"


def _estimates(ablation: Comparisons) -> str:
    if not has_estimates(ablation):
        return ""
    return " Means of what stopped early overstate; unbiased are median-unbiased estimates (stage-wise order)."


def opening(ablation: Comparisons) -> str:
    """How the sentence begins: what differs from what, and which way is good."""
    better = "higher" if ablation.direction == "max" else "lower"
    everything = with_everything(ablation)
    base = f"; {everything} with everything" if everything is not None else ""
    return f"Differences in {ablation.metric} ({better} is better{base}), without less with, are"


def _resampled(ablation: Comparisons) -> str:
    if not ablation.resampled:
        return "; they hold for the test rows that the seeds had"
    return (
        f", with the variance of Nadeau and Bengio for splits of the same rows ({ablation.resampled:.2g} test rows for "
        "each training row)"
    )


def negligible(ablation: Comparisons) -> str:
    """What is called no larger, where that was asked."""
    if ablation.negligible is None:
        return ""
    return f" What has an interval within ±{ablation.negligible:g} is called no larger (two one-sided tests)."


def _tuned(ablation: Comparisons) -> str:
    if not ablation.n_configs:
        return ""
    return (
        f" In each repeat every variant was tuned anew: the best of {ablation.n_configs} configurations, tried with "
        "another seed, was trained with the repeat's."
    )


def plain(ablation: Comparisons) -> str:
    """A table for a terminal, at most 100 columns wide where the names of the components allow it."""
    columns, hidden = _fitting(ablation)
    rows = [*zip(*(cells for _, cells in columns), strict=True)]
    heads = [_aligned(cells, columns) for cells in zip(*(_wrapped(head) for head, _ in columns), strict=True)]
    lines = [*filter(None, heads), "-" * _width(columns)]
    lines += [_aligned(cells, columns) for cells in rows]
    below = [ablation.method, *(f"note: {note}" for note in (*ablation.notes, *hidden))]
    return "\n".join([*lines, *(line for words in below for line in textwrap.wrap(words, WIDTH))])


def markdown(ablation: Comparisons) -> str:
    """A table in GitHub's Markdown, with the columns of the terminal's."""
    columns, hidden = _fitting(ablation)
    heads, rows = _transposed(columns)
    rule = ["---", *["---:"] * (len(heads) - 2), "---"]
    escaped = [[_MARKS.sub(r"\\\g<0>", cells[0]), *cells[1:]] for cells in rows]  # names alone may have marks in them
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, rule, *escaped)]
    return "\n".join([*lines, "", ablation.method, *(f"Note: {note}." for note in (*ablation.notes, *hidden))]) + "\n"


def latex(ablation: Comparisons) -> str:
    """A table for a paper that uses booktabs."""
    heads, rows = _transposed(_columns(ablation))
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
    """A table for a notebook."""
    heads, rows = _transposed(_columns(ablation))
    head = "".join(f"<th>{escaping.escape(cell)}</th>" for cell in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escaping.escape(c)}</td>' for c in cells)}</tr>" for cells in rows)
    below = "<br>".join(map(escaping.escape, [ablation.method, *ablation.notes]))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{below}</p>"


def p_text(p: float | None) -> str:
    """A p-value as papers write it."""
    if p is None:
        return "-"
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def interval_text(row: Row) -> str:
    """An interval with as many decimals as its difference, or nothing where there is none."""
    if not (math.isfinite(row.low) and math.isfinite(row.high)):
        return "-"
    digits = _digits(row)
    return f"[{_rounded(row.low, digits)}, {_rounded(row.high, digits)}]"


def difference_text(row: Row) -> str:
    """A difference with its sign, and as many decimals as the width of its interval bears."""
    return _rounded(row.difference, _digits(row), "+") if math.isfinite(row.difference) else "-"


def with_everything(ablation: Comparisons) -> str | None:
    """The mean with nothing removed, where every line has the same: then the sentence below the table tells it."""
    rows = [row for row in ablation.rows if row.with_it is not None]
    if ablation.design.name not in _FROM_BASE or len(rows) < 2 or len({row.with_it for row in rows}) > 1:
        return None
    return max((_mean(row, row.with_it) for row in rows), key=len)


def _columns(ablation: Comparisons) -> list[_Column]:
    """The columns of the table, less those with nothing in them and those that the sentence below it tells."""
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
    """The columns for which there is room, and a note on the others."""
    columns, hidden = _columns(ablation), []
    for least in (_SECONDS, _PARAMETERS):
        if _width(columns) > WIDTH and least in (head for head, _ in columns):
            columns = [(head, cells) for head, cells in columns if head != least]
            hidden.append(least)
    return columns, [f"no room for {' and '.join(hidden)}; to_pandas() has all"] if hidden else []


def _width(columns: list[_Column]) -> int:
    return sum(_widest(column) for column in columns) + len(_GAP) * (len(columns) - 1)


def _widest(column: _Column) -> int:
    head, cells = column
    return max(map(len, (*_wrapped(head), *cells)))


def _wrapped(head: str) -> tuple[str, str]:
    """A head in two lines: what it saves is wide, and its cells are not."""
    first, _, second = head.rpartition(" ") if head in (_SECONDS, _PARAMETERS) else ("", "", head)
    return first, second


def _aligned(cells: tuple[str, ...], columns: list[_Column]) -> str:
    """A line: names and verdicts to the left, numbers to the right."""
    last = len(columns) - 1
    widths = map(_widest, columns)
    placed = (
        cell.ljust(width) if place in (0, last) else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return _GAP.join(placed).rstrip()


def _transposed(columns: list[_Column]) -> tuple[list[str], list[list[str]]]:
    """The heads, and the cells line by line."""
    return [head for head, _ in columns], [list(cells) for cells in zip(*(cells for _, cells in columns), strict=True)]


def _seconds(row: Row) -> str:
    """Seconds to a hundredth, with half the width of their interval: how long a trial takes is never known better."""
    if row.seconds_saved is None:
        return "-"
    saved = f"{round(row.seconds_saved, 2) + 0.0:+.2f}"
    return f"{saved} ± {row.seconds_high - row.seconds_saved:.2f}" if row.seconds_high is not None else saved


def _unbiased_text(row: Row) -> str:
    return _rounded(row.unbiased, _digits(row), "+") if row.unbiased is not None else "-"


def has_estimates(ablation: Comparisons) -> bool:
    """Whether a median-unbiased estimate stands beside a mean that overstates."""
    return any(row.repeats and row.unbiased not in (None, row.difference) for row in ablation.rows)


def _mean(row: Row, mean: float | None) -> str:
    if mean is None:
        return "-"
    mean = round(mean, _digits(row)) + 0.0 if _digits(row) <= MOST_DECIMALS else mean + 0.0  # no negative zero
    return f"{mean:.{_digits(row)}f}" if abs(mean) < 1e6 and _digits(row) <= MOST_DECIMALS else number(mean)


def _digits(row: Row) -> int:
    """Decimals that show two digits of the width of the interval, or three of the difference without one."""
    width = (row.high - row.low) / 2.0
    scale = width if math.isfinite(width) and width > 0.0 else abs(row.difference) / 10.0
    return max(0, 1 - math.floor(math.log10(scale))) if math.isfinite(scale) and scale > 0.0 else 3


def _rounded(value: float, digits: int, sign: str = "-") -> str:
    """A number with so many decimals; in powers of ten where nobody would count the zeros."""
    if digits > MOST_DECIMALS:
        return f"{value + 0.0:{sign}.2e}"
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}"


def _tex(cell: str) -> str:
    return re.sub(r"[\\~^&%$#_{}]", lambda found: _LATEX[found[0]], cell.replace("<", "$<$")).replace(r"\$<\$", "$<$")
