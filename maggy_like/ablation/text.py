"""The answer of an ablation study in words and tables."""

from __future__ import annotations

import html as escaping
import math
import re
from typing import TYPE_CHECKING

from maggy_like.display.text import clean, number

if TYPE_CHECKING:
    from maggy_like.ablation.outcome import Ablation, Row
    from optimizers.paired_tests import Finding

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def verdict(finding: Finding, *, is_interaction: bool) -> str:
    """A finding in words."""
    if finding.differs and is_interaction:
        return "both: worse than the sum" if finding.difference > 0.0 else "both: better than the sum"
    if finding.differs:
        return "worse without it" if finding.difference > 0.0 else "better without it"
    if not finding.decided:
        return "undecided"
    if finding.corrected is None:
        return "not tested"
    return "no interaction seen" if is_interaction else "no difference seen"


def notes(ablation: Ablation) -> list[str]:
    """What a reader must know of the data."""
    lines = []
    untested = {row.component: row.repeats for row in ablation.rows if row.p is None}
    missing = [name for name, repeats in untested.items() if repeats == 0]
    single = [name for name, repeats in untested.items() if repeats == 1]
    constant = [name for name, repeats in untested.items() if repeats > 1]
    few = [row.component for row in ablation.rows if row.repeats == 2 and row.p is not None]
    dropped = [f"{row.component} ({row.dropped})" for row in ablation.rows if row.dropped]
    undecided = [row.component for row in ablation.rows if row.verdict == "undecided"]
    if missing:
        lines.append(f"no seed has all results: {_all(missing)}")
    if single:
        lines.append("one repeat says nothing of the noise, so there is no test; use repeats=5 or more")
    if few:
        lines.append("two repeats find very large differences alone; use repeats=5 or more")
    if constant:
        lines.append(f"every seed gave the same difference, so there is no test (is the seed used?): {_all(constant)}")
    if dropped:
        lines.append(f"seeds left out, since a trial failed: {_all(dropped)}")
    if undecided:
        lines.append(f"ended before it was decided: {_all(undecided)}")
    return lines


def plain(ablation: Ablation) -> str:
    """A table for a terminal."""
    heads, rows = _cells(ablation)
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    left = (0, len(heads) - 1)
    lines = [
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in (heads, *rows)
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join([*lines, ablation.method, *(f"note: {note}" for note in notes(ablation))])


def markdown(ablation: Ablation) -> str:
    """A table in GitHub's Markdown."""
    heads, rows = _cells(ablation)
    rule = ["---", *["---:"] * (len(heads) - 2), "---"]
    escaped = [[cell.replace("|", "\\|") for cell in cells] for cells in (heads, rule, *rows)]
    lines = [f"| {' | '.join(cells)} |" for cells in escaped]
    return "\n".join([*lines, "", ablation.method, *(f"Note: {note}." for note in notes(ablation))]) + "\n"


def latex(ablation: Ablation) -> str:
    """A table for a paper that uses booktabs."""
    heads, rows = _cells(ablation)
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
            *(_tex(f"Note: {note}.") for note in notes(ablation)),
            "",
        ]
    )


def html(ablation: Ablation) -> str:
    """A table for a notebook."""
    heads, rows = _cells(ablation)
    head = "".join(f"<th>{escaping.escape(cell)}</th>" for cell in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escaping.escape(c)}</td>' for c in cells)}</tr>" for cells in rows)
    below = "<br>".join(map(escaping.escape, [ablation.method, *notes(ablation)]))
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
    return f"[{_fixed(row.low, digits)}, {_fixed(row.high, digits)}]"


def difference_text(row: Row) -> str:
    """A difference with its sign, and as many decimals as the width of its interval bears."""
    return f"{row.difference:+.{_digits(row)}f}" if math.isfinite(row.difference) else "-"


def _cells(ablation: Ablation) -> tuple[list[str], list[list[str]]]:
    """The heads and the cells of the table; columns with nothing in them are left out."""
    arrow = "higher" if ablation.direction == "max" else "lower"
    rows = ablation.rows
    columns: list[tuple[str, list[str]]] = [
        (f"{clean(ablation.metric)} ({arrow} is better)", [clean(row.component) for row in rows]),
        ("with", [_mean(row, row.with_it) for row in rows]),
        ("without", [_mean(row, row.without_it) for row in rows]),
        ("difference", [difference_text(row) for row in rows]),
        (f"{100 * (1 - ablation.alpha):g} % interval", [interval_text(row) for row in rows]),
        ("p", [p_text(row.p) for row in rows]),
        ("repeats", [str(row.repeats) for row in rows]),
        ("seconds saved", ["-" if row.seconds_saved is None else f"{row.seconds_saved:+.2g}" for row in rows]),
        ("parameters saved", ["-" if row.parameters_saved is None else f"{row.parameters_saved:,}" for row in rows]),
        ("verdict", [row.verdict for row in rows]),
    ]
    shown = [(head, cells) for head, cells in columns if head == "verdict" or any(cell != "-" for cell in cells)]
    return [head for head, _ in shown], [list(cells) for cells in zip(*(cells for _, cells in shown), strict=True)]


def _mean(row: Row, mean: float | None) -> str:
    return "-" if mean is None else f"{mean:.{_digits(row)}f}" if abs(mean) < 1e6 else number(mean)


def _digits(row: Row) -> int:
    """Decimals that show two digits of the width of the interval, or three of the difference without one."""
    width = (row.high - row.low) / 2.0
    scale = width if math.isfinite(width) and width > 0.0 else abs(row.difference) / 10.0
    return min(6, max(0, 1 - math.floor(math.log10(scale)))) if math.isfinite(scale) and scale > 0.0 else 3


def _fixed(value: float, digits: int) -> str:
    return f"{value + 0.0:.{digits}f}"


def _tex(cell: str) -> str:
    return re.sub(r"[\\~^&%$#_{}]", lambda found: _LATEX[found[0]], cell.replace("<", "$<$")).replace(r"\$<\$", "$<$")


def _all(names: list[str]) -> str:
    return ", ".join(map(clean, names))
