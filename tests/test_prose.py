"""The measurable part of the writing guide holds for the pages of the docs, save for the exceptions listed here."""

from __future__ import annotations

from pathlib import Path

import pytest
from prose import faults, pages_of, plain, shown, words

ROOT = Path(__file__).parent.parent
CHANGELOG = "CHANGELOG.md"
REFERENCE = frozenset(
    {
        CHANGELOG,
        "glossary.md",
        "run-folder.md",
        "failure-kinds.md",
        "faq.md",
        "optimizer-benchmark-tables.md",
        "reliability-evidence.md",
    }
)
"""Pages that are looked up, and may be long or have no code; the generated ones are not measured."""

PAGES = pages_of(ROOT / "docs") | {CHANGELOG: (ROOT / CHANGELOG).read_text()}

LONGEST_CHANGE = 20
"""Words of an entry in the changelog."""

ACCEPTED: dict[str, dict[str, int]] = {
    "coming-from/index.md": {"late code": 1},
}
"""How often a page may break a rule. The numbers are exact, so they can only shrink."""


@pytest.mark.parametrize("page", PAGES)
def test_a_page_keeps_the_rules_of_the_guide(page: str) -> None:
    found = faults(PAGES[page], is_reference=page in REFERENCE)
    accepted = ACCEPTED.get(page, {})
    places = list(shown(PAGES[page], [rule for rule in found if found[rule] > accepted.get(rule, 0)]))
    assert dict(found) == accepted, "\n".join(places)


def test_each_entry_of_the_changelog_is_one_short_line() -> None:
    changes = [line for line in PAGES[CHANGELOG].splitlines() if line.startswith("- ")]
    assert changes
    assert [change for change in changes if words(plain(change)) > LONGEST_CHANGE] == []
    assert "\n  " not in PAGES[CHANGELOG]


def test_every_exception_is_of_a_page() -> None:
    assert ACCEPTED.keys() <= PAGES.keys()
    assert PAGES.keys() >= REFERENCE


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("per", "The table has a row a trial."),
        ("go on", "The search goes on."),
        ("fused relative", "Who comes from Optuna reads this."),
        ("alone", "It is for the workers alone."),
        ("where", "Where there is no GPU, the CPU is used."),
        ("told", "The user is told the reason."),
        ("is no", "That is no error."),
        ("lexicon", "A dear optimizer."),
        ("jargon", "The gang starts."),
        ("runs again", "The trial runs again."),
        ("history", "Since then it is faster."),
        ("tests", "See `test_that`."),
        ("semicolon", "One; two."),
        ("heading", "# How sure"),
        ("long sentence", f"{'word ' * 26}end."),
        ("long cell", f"| {'word ' * 16} |"),
        ("wide table", "| a | b | c | d | e | f | g |"),
        ("long page", "\n" * 121),
        ("late code", "text\n" * 16 + "```\n```\n"),
    ],
)
def test_a_page_that_breaks_a_rule_is_found(rule: str, text: str) -> None:
    assert faults(text)[rule] == 1


def test_code_comments_and_evidence_are_left_out() -> None:
    page = "<!-- a gang; -->\n```python\nx = 1; y = 2  # the gang\n```\n`ledger;` is code.\n"
    page += "\n## Evidence\n\n`test_it` shows it.\n"
    assert faults(page) == {}
