"""Measures of the pages for users, and the rules of the writing guide that a machine can check.

``python tests/support/prose.py [DIRECTORY]`` prints the measures of a directory of pages, ``docs`` by default.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

LONGEST_SENTENCE = 40
"""Words; code counts as one word."""

LONGEST_CELL = 15
MOST_COLUMNS = 6
LONGEST_PAGE = 250
CODE_WITHIN = 15
"""Lines, counted from the top of the page."""

PATTERNS = {
    "per": r"\b[Aa]n? (row|line|directory|process|agent|actor|file) an? \w+"
    r"|\b(seconds|ms|us|bytes|kB|messages|reports) an? \w+",
    "go on": r"\b[Gg](o|oes|oing|one) on\b|\bwent on\b",
    "fused relative": r"(?m)(?:^|(?<=[.;:] ))(Who|Whoever|Whatever|What) [a-z]+(?![^.]*\?)",
    "alone": r"\w+ alone\b",
    "where": r"(?m)(?:^|(?<=[.;:] ))Where [a-z]|, where (?!it |they )[a-z]+",
    "told": r"\b(is|are) (told|named|answered|said)\b|\bsays? so\b|\btells? of\b",
    "is no": r"\b(is|are|was|were|be) no (?!longer|more)\w+",
    "lexicon": r"\b(dear|dearer|amid|anew|reckoned|oftener|shall|ill-meant)\b|\bbut for\b|\bbeside\b|\bone's own\b",
    "jargon": r"\b[Gg]angs?\b|\b[Ll]edgers?\b|\b[Gg]lances?\b|\b[Pp]ictures?\b|\b[Rr]ooms?\b|\b[Ff]loors?\b"
    r"|\bsaved states?\b|\bwide trials?\b|\blate words\b|\bfront door\b|\bstrangers?\b",
    "runs again": r"\bruns? again\b|\bat rest\b",
    "history": r"[Ss]ince then|a day (before|earlier)|from then|(?m:^Before, )|\badr/\d|\bADR \d",
    "tests": r"`test_\w+|\btests/\w+",
    "semicolon": r";",
    "words": r"\b[Ff]olders?\b|\b[Ww]hole numbers?\b|\bmade-up\b|\bby hand\b|\ba training[.,;:]",
    "spelling": r"\b\w*(?:(?:maxim|minim|optim|normal|regular|organ|recogn)is(?:e|ed|es|ing|ation)"
    r"|behaviour|colour|favour|neighbour|licence)\w*",
    "elided verb": r"\bthat of\b[^.]{0,60}\bthat of\b|\bthose that\b[^.]{0,80}\bthose that\b",
}

HEADINGS = r"^(What|How|Where|Who|Whatever|Which|For|Each)\b(?!.*\?$)"

NOT_IN_CODE = frozenset({"history", "semicolon", "tests", "words", "spelling"})
"""Rules that hold for pages only: a message joins what is wrong and its remedy by a semicolon, for example."""

PATTERNS_IN_CODE = {rule: pattern for rule, pattern in PATTERNS.items() if rule not in NOT_IN_CODE} | {
    "is no": r"(?<![Tt]here )(?<!will )" + PATTERNS["is no"],  # docstrings state often that there is none
    "directory": r"(?<![`{/])\b[Ff]olders?\b(?![`}])",
}

LONGEST_MESSAGE = 40
"""Words; a value counts as one word."""

EVIDENCE = "Evidence"
"""The heading under which a page may name tests and benchmarks, and the page that has nothing else."""


class Page(NamedTuple):
    """A page in parts.

    Attributes:
        prose: Paragraphs and items of lists, a block each; code is a word.
        cells: The cells of tables.
        widths: Columns of each table.
        headings: The text of each heading.
        evidence: What stands below the heading for evidence.
        code_lines: The lines at which blocks of code begin.
        length: Lines.
    """

    prose: list[str]
    cells: list[str]
    widths: list[int]
    headings: list[str]
    evidence: list[str]
    code_lines: list[int]
    length: int


def read(text: str) -> Page:
    """Take a page apart; comments, which no reader sees, are left out."""
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    blocks: list[list[str]] = []
    page = Page([], [], [], [], [], [], text.count("\n"))
    sections = {True: page.evidence, False: page.prose}
    in_code, in_evidence, in_table, fresh = False, False, False, True

    def close() -> None:
        sections[in_evidence].extend(plain(" ".join(block)) for block in blocks)
        blocks.clear()

    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("```"):
            in_code = not in_code
            if in_code:
                page.code_lines.append(number)
            fresh = True
        elif in_code or bare.startswith(("::: ", "![", "options:", "|--", "<", "--8<--")):
            continue
        elif bare.startswith("#"):
            close()
            page.headings.append(bare.lstrip("# "))
            in_evidence = EVIDENCE in (page.headings[0], page.headings[-1])
            fresh = True
        elif bare.startswith("|"):
            cells = [plain(cell) for cell in re.split(r"(?<!\\)\|", bare.strip("|"))]
            page.cells.extend(cell for cell in cells if cell)
            if not in_table:
                page.widths.append(len(cells))
        elif not bare:
            fresh = True
        elif fresh or re.match(r"([-*]|\d+\.) ", bare):
            blocks.append([re.sub(r"^([-*]|\d+\.) ", "", bare)])
            fresh = False
        else:
            blocks[-1].append(bare)
        in_table = bare.startswith("|")
    close()
    return page


def plain(text: str) -> str:
    """Markdown as a reader sees it, each piece of code as the word CODE."""
    text = re.sub(r"`[^`]+`", "CODE", text.strip())
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"(?<!\w)[*_]{1,2}(\S(?:.*?\S)?)[*_]{1,2}(?!\w)", r"\1", text)


def sentences(block: str) -> list[str]:
    """The sentences of a block; a list that a colon announces begins another one."""
    return [part for part in re.split(r"(?<=[.!?:])\s+(?=[A-Z(\"*])", block) if part]


def words(text: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def faults(text: str, *, is_reference: bool = False) -> Counter[str]:
    """How often a page breaks each rule."""
    page = read(text)
    found: Counter[str] = Counter()
    everywhere = [*page.prose, *page.cells]
    for rule, pattern in PATTERNS.items():
        found[rule] = sum(len(re.findall(pattern, block)) for block in everywhere)
    raw = "" if text.startswith(f"# {EVIDENCE}\n") else text.split(f"\n## {EVIDENCE}\n")[0]
    found["tests"] = len(re.findall(PATTERNS["tests"], re.sub(r"(?ms)^ *```.*?^ *```|<!--.*?-->", "", raw)))
    for block in page.evidence:
        for rule in PATTERNS.keys() - {"tests", "history"}:
            found[rule] += len(re.findall(PATTERNS[rule], block))
    found["heading"] = sum(bool(re.search(HEADINGS, heading)) for heading in page.headings)
    blocks = [*page.prose, *page.evidence]
    found["long sentence"] = sum(words(each) > LONGEST_SENTENCE for block in blocks for each in sentences(block))
    found["long cell"] = sum(words(cell) > LONGEST_CELL for cell in page.cells)
    found["wide table"] = sum(width > MOST_COLUMNS for width in page.widths)
    if not is_reference:
        found["long page"] = int(page.length > LONGEST_PAGE)
        found["late code"] = int(not page.code_lines or page.code_lines[0] > CODE_WITHIN)
    return +found


def shown(text: str, rules: Iterable[str]) -> Iterator[str]:
    """The places that break some rules, for whoever mends a page."""
    page = read(text)
    blocks = [*page.prose, *page.evidence]
    for rule in rules:
        if rule == "long sentence":
            yield from (
                f"{rule}: {each}" for b in page.prose for each in sentences(b) if words(each) > LONGEST_SENTENCE
            )
        elif rule == "long cell":
            yield from (f"{rule}: {cell}" for cell in page.cells if words(cell) > LONGEST_CELL)
        elif rule == "heading":
            yield from (f"{rule}: {heading}" for heading in page.headings if re.search(HEADINGS, heading))
        elif rule in PATTERNS:
            everywhere = [*blocks, *page.cells]
            yield from (f"{rule}: {block}" for block in everywhere if re.search(PATTERNS[rule], block))


def docstrings_of(source: str) -> Iterator[str]:
    """The docstrings of a module, without their examples and literal blocks, a block each."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (found := ast.get_docstring(node)):
            prose = re.sub(r"(?m)^ *(>>>|\.\.\.).*$|(?s:::\n\n.*?)(?=\n\n\S|\Z)", "", found)
            yield from (plain(" ".join(block.split()).replace("``", "`")) for block in re.split(r"\n\s*\n", prose))


def messages_of(source: str) -> Iterator[str]:
    """What a module raises, warns of or logs; each value in a text is the word CODE."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from map(_text_of, node.exc.args[:1])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in {"warn", "warning", "error", "info", "add_note"}:
                yield from map(_text_of, node.args[:1])
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            yield _text_of(node.value)


def _text_of(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text_of(part) if isinstance(part, ast.Constant) else "CODE" for part in node.values)
    return ""


def code_faults(source: str) -> list[str]:
    """The docstrings and messages of a module that break a rule, each after the name of the rule."""
    messages = list(messages_of(source))
    found = [f"long message: {text}" for text in messages if words(text) > LONGEST_MESSAGE]
    for text in [*docstrings_of(source), *messages]:
        found += [f"{rule}: {text}" for rule, pattern in PATTERNS_IN_CODE.items() if re.search(pattern, text)]
    return found


class Measures(NamedTuple):
    """What the review of the prose measured, of many pages together."""

    pages: int
    words: int
    words_in_tables: int
    semicolons_per_1000: float
    mean_sentence: float
    over_30_words_percent: float
    words_per_code_block: float
    longest_page: tuple[int, str]
    longest_cell: tuple[int, str]


def measures(texts: dict[str, str]) -> Measures:
    """Measure pages."""
    pages = {name: read(text) for name, text in texts.items()}
    blocks = [block for page in pages.values() for block in [*page.prose, *page.evidence]]
    lengths = [words(each) for block in blocks for each in sentences(block)]
    total = sum(words(block) for block in blocks)
    cells = [(words(cell), name) for name, page in pages.items() for cell in page.cells]
    codes = sum(len(page.code_lines) for page in pages.values())
    return Measures(
        pages=len(pages),
        words=total,
        words_in_tables=sum(length for length, _ in cells),
        semicolons_per_1000=round(1000 * sum(block.count(";") for block in blocks) / max(total, 1), 2),
        mean_sentence=round(sum(lengths) / max(len(lengths), 1), 1),
        over_30_words_percent=round(100 * sum(length > 30 for length in lengths) / max(len(lengths), 1), 1),
        words_per_code_block=round(total / max(codes, 1)),
        longest_page=max((page.length, name) for name, page in pages.items()),
        longest_cell=max(cells, default=(0, "")),
    )


def pages_of(directory: Path) -> dict[str, str]:
    """The pages for users below a directory: neither the choices nor the generated reference."""
    paths = sorted(directory.rglob("*.md"))
    kept = [path for path in paths if not {"adr", "reference"} & set(path.relative_to(directory).parts)]
    return {str(path.relative_to(directory)): path.read_text() for path in kept}


if __name__ == "__main__":
    for field, measured in measures(pages_of(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")))._asdict().items():
        print(f"{field:24}{measured}")
