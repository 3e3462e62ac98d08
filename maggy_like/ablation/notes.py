"""What a reader of an ablation must know of its data."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from maggy_like.ablation.comparisons import UNDECIDED, Comparisons, Row
from maggy_like.display.text import clean
from optimizers.comparisons.skewness import skewed_together


def notes(ablation: Comparisons) -> list[str]:
    """The lines below the table: failed trials, too few repeats, repeats that do not differ, skewed differences."""
    rows = ablation.rows
    tested = [row for row in rows if row.p is not None]
    untested = [row for row in rows if row.p is None and row.verdict != UNDECIDED]
    lines = [
        *_named("no seed has all results: {}", untested, lambda row: row.repeats == 0),
        *_plain(
            "one repeat says nothing of the noise, so there is no test; use repeats=5 or more",
            any(row.repeats == 1 for row in untested),
        ),
        *_plain(
            "two repeats find very large differences alone; use repeats=5 or more",
            any(row.repeats == 2 for row in tested),
        ),
        *_named(
            "every seed gave the same difference, so there is no test (is the seed used?): {}",
            untested,
            lambda row: row.repeats > 1,
        ),
        *_unchanged(ablation),
        *_counted("seeds left out, since a trial failed: {}", rows, lambda row: row.dropped),
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
            f"the differences of all lines together are skewed (skewness {abs(together):.1f} on average), so that "
            "t-tests find too many"
        )
    if skewed:
        said = [f"{clean(name)} (skewness {g:.1f}, p {p:.2g})" for name, (g, p) in skewed.items()]
        lines.append(
            "differences that are skewed, where t-tests find too many; beside them the p-value of a studentised "
            f"bootstrap, for one comparison alone: {', '.join(said)}"
        )
    return lines


def _undecided(ablation: Comparisons, rows: list[Row]) -> str:
    names = ", ".join(clean(row.component) for row in rows)
    if ablation.bound is not None:
        return f"ended before it was decided: {names}"
    ended = min(row.repeats + row.dropped for row in rows)
    return (
        f"{ended} of {ablation.planned} seeds, so undecided: {names}; who may stop at the first difference seen finds "
        "too many, so there is no test before all have ended (resume=True goes on)"
    )


def _unchanged(ablation: Comparisons) -> list[str]:
    """Components of which every seed gave the difference zero, and whether the seeds did anything at all."""
    zero = [row.component for row in ablation.rows if row.p is not None and row.repeats > 1 and row.is_zero]
    if not zero:
        return []
    values: dict[str, set[float]] = {}
    for run in ablation.runs:
        if run.value is not None:
            values.setdefault(run.variant, set()).add(run.value)
    if all(len(seen) == 1 for seen in values.values()):
        return ["every seed gave the same value, so the seed is not used, and the tests say nothing"]
    return [f"changed nothing with any seed (is it used?): {', '.join(map(clean, zero))}"]


def _plain(line: str, holds: bool) -> list[str]:
    return [line] if holds else []


def _named(line: str, rows: Iterable[Row], which: Callable[[Row], bool]) -> list[str]:
    names = [clean(row.component) for row in rows if which(row)]
    return [line.format(", ".join(names))] if names else []


def _counted(line: str, rows: Iterable[Row], count: Callable[[Row], int]) -> list[str]:
    names = [f"{clean(row.component)} ({count(row)})" for row in rows if count(row)]
    return [line.format(", ".join(names))] if names else []
