"""What `make docs` adds to the pages of this directory: the files of the project to which they link.

A page may link to a test, an example or another text of the project. The site has these files as pages of its own, in
`project/`, so that all links work wherever the site is read.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

_LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
_DIRECTORY = "project/"
_DOCS = "docs/"
_NOT_FOUND = ("adr/", "project/")
"""What a search of the site leaves out: its reader looks for what to do, not for how it came about."""
_FOUND_LATER = ("reference/", "evidence.md")
"""What a search of the site shows after the guides."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file to which a page links, and for those to which these link."""
    root = Path(config.docs_dir).parent
    waiting = [(page.src_uri, page.content_string) for page in files.documentation_pages()]
    known = set[str]()
    while waiting:
        uri, text = waiting.pop()
        for _, link, _ in _LINK.findall(text):
            path = _path_of(uri, link)
            if path in known or path.startswith(_DOCS) or not (root / path).is_file():
                continue
            known.add(path)
            content = (root / path).read_text()
            if path.endswith(".py"):
                content = f"# {path}\n\n```python\n{content}```\n"
            files.append(File.generated(config, _uri_of(path), content=content))
            waiting.append((_uri_of(path), "" if path.endswith(".py") else content))
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Have links to files of the project lead to their pages; a link to a directory is text alone."""
    here = page.file.src_uri
    if here.startswith(_NOT_FOUND):
        page.meta["search"] = {"exclude": True}
    elif here.startswith(_FOUND_LATER):
        page.meta["search"] = {"boost": 0.3}

    def lead(match: re.Match[str]) -> str:
        target = _uri_of(_path_of(here, match[2]))
        if files.get_file_from_path(target) is None:
            return match[0] if _path_of(here, match[2]).startswith(_DOCS) else match[1]
        return f"[{match[1]}]({os.path.relpath(target, posixpath.dirname(here))}{match[3] or ''})"

    return markdown if page.file.src_uri.endswith(".py.md") else _LINK.sub(lead, markdown)


def _path_of(uri: str, link: str) -> str:
    """Where a page's link leads, as a path in the project."""
    source = uri.removeprefix(_DIRECTORY) if uri.startswith(_DIRECTORY) else _DOCS + uri
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _uri_of(path: str) -> str:
    """The page of a file of the project."""
    if path.startswith(_DOCS):
        return path.removeprefix(_DOCS)
    return _DIRECTORY + path + (".md" if path.endswith(".py") else "")
