"""Docstrings as `make docs` reads them: Google's style, with roles of reST, becomes Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`(~?)([\w.]+)`")


class AsMarkdown(griffe.Extension):
    """Turns roles into code, and has ``Example:`` read as the section that it is, not as a paragraph of text."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object, once it is read."""
        if obj.docstring is not None:
            text = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
            obj.docstring.value = _ROLE.sub(_code, text)


def _code(role: re.Match[str]) -> str:
    is_short, name = role.groups()
    return f"`{name.rpartition('.')[2] if is_short else name}`"
