"""The measurable part of the writing guide holds for pages, docstrings and messages, except where listed here."""

from __future__ import annotations

from pathlib import Path

import pytest
from prose import code_faults, faults, pages_of, plain, shown, words

ROOT = Path(__file__).parent.parent
CHANGELOG = "CHANGELOG.md"
REFERENCE = frozenset(
    {
        CHANGELOG,
        "faq.md",
        "evidence.md",
    }
)
"""Pages that are looked up, and may be long or have no code; the generated ones are not measured."""

README = "README.md"
PAGES = pages_of(ROOT / "docs") | {page: (ROOT / page).read_text() for page in (CHANGELOG, README)}

LONGEST_CHANGE = 20
"""Words of an entry in the changelog."""

ACCEPTED: dict[str, dict[str, int]] = {
    README: {"late code": 1},  # it says first what the project is, and has at most 150 lines
}
"""How often a page may break a rule. The numbers are exact, so they can only shrink."""


MEASURED = (
    "ablation",
    "callbacks",
    "distributed",
    "driver/state_machine",
    "errors.py",
    "ml",
    "rpc",
    "sklearn",
    "spark",
    "trackers",
    "worker",
)
"""The parts of ``maggy_like`` whose docstrings and messages are measured."""


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


@pytest.mark.parametrize("part", MEASURED)
def test_docstrings_and_messages_keep_the_rules_of_the_guide(part: str) -> None:
    place = ROOT / "maggy_like" / part
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    assert [f"{file.relative_to(ROOT)}: {fault}" for file in files for fault in code_faults(file.read_text())] == []


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("jargon", '"""Start the gang."""'),
        ("is no", 'def f(x):\n    """Check it.\n\n    Raises:\n        ValueError: It is no number.\n    """'),
        ("go on", 'raise ValueError(f"the run {name} cannot go on")'),
        ("alone", 'warnings.warn("this is for workers alone")'),
        ("lexicon", 'HINT = "the model is built anew"'),
        ("directory", 'raise ValueError("the folder is not there")'),
        ("long message", f'raise ValueError("{"word " * 41}")'),
    ],
)
def test_code_that_breaks_a_rule_is_found(rule: str, code: str) -> None:
    assert [fault.split(":")[0] for fault in code_faults(code)] == [rule]


def test_examples_and_values_are_left_out_of_what_is_measured_of_code() -> None:
    docstring = '"""Do it::\n\n    gang()\n\nExample:\n    >>> gang()  # alone\n"""\n'
    assert code_faults(docstring + 'raise ValueError(f"got {gang}; use 1")') == []


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
        ("words", "The folder of a run."),
        ("spelling", "The loss is minimised."),
        ("heading", "# How sure"),
        ("long sentence", f"{'word ' * 41}end."),
        ("long cell", f"| {'word ' * 16} |"),
        ("wide table", "| a | b | c | d | e | f | g |"),
        ("long page", "\n" * 251),
        ("late code", "text\n" * 16 + "```\n```\n"),
    ],
)
def test_a_page_that_breaks_a_rule_is_found(rule: str, text: str) -> None:
    assert faults(text)[rule] == 1


def test_code_comments_and_evidence_are_left_out() -> None:
    page = "<!-- a gang; -->\n```python\nx = 1; y = 2  # the gang\n```\n`ledger;` is code.\n"
    page += "\n## Evidence\n\n`test_it` shows it.\n"
    assert faults(page) == {}
