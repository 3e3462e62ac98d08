"""Tables of text, aligned for a terminal and in HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence

from maggy_like.display.text import clean

Rows = Sequence[Sequence[str]]


def aligned(head: Sequence[str], rows: Rows) -> str:
    """Return a table as text, with two spaces between columns. Numbers are aligned to the right.

    Example:
        >>> print(aligned(["run", "best"], [["august", "0.97"], ["may", "0.9"]]))
        run     best
        august  0.97
        may      0.9
    """
    cells = [list(map(clean, row)) for row in (head, *rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(_is_number(cell) for cell in column[1:]) for column in columns]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )


def as_html(head: Sequence[str], rows: Rows) -> str:
    """Return a table as HTML. The cells are escaped. Numbers are aligned to the right, at their decimal points."""
    columns = [[row[place] for row in rows] for place in range(len(head))]
    numeric = [all(map(_is_number, column)) for column in columns]
    widest = [max((len(_decimals(cell)) for cell in column), default=0) for column in columns]

    def line(cells: Sequence[str], tag: str) -> str:
        parts = []
        for cell, right, most in zip(cells, numeric, widest, strict=True):
            mark = ' class="number"' if right else ""
            missing = "" if tag == "th" or not right else _DECIMALS[len(_decimals(cell)) : most]
            hidden = f'<span style="visibility:hidden" aria-hidden="true">{missing}</span>' if missing else ""
            parts.append(f"<{tag}{mark}>{html.escape(clean(cell))}{hidden}</{tag}>")
        return "".join(parts)

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(head, 'th')}</tr></thead><tbody>{body}</tbody></table>"


_DECIMALS = "." + 30 * "0"
"""Stands for missing decimals, as wide as they are."""


def _decimals(cell: str) -> str:
    """Return a number's decimals, with the point."""
    _, point, rest = cell.partition(".")
    return point + rest


def _is_number(cell: str) -> bool:
    return bool(cell) and cell[0] in "-+<0123456789" and cell.strip("-+<0123456789.:eE% ") == ""
