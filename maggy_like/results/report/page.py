"""The page: sections of HTML and figures, with plotly's library inlined once."""

from __future__ import annotations

import base64
import copy
import gzip
import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maggy_like.results.report.assets import SCRIPT, STYLE

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Nothing is loaded from anywhere, whatever the page holds. plotly compiles functions for what it draws with WebGL.
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"

_TRANSPARENT = "rgba(0,0,0,0)"


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: Its heading.
        body: HTML, in which whatever is not ours is escaped.
        figure: A picture below it, whose title and note become text of the page.
        is_wide: Whether the picture needs the width of a desktop; on a narrow screen it is scrolled.
    """

    title: str
    body: str = ""
    figure: Figure | None = None
    is_wide: bool = False


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page.

    Args:
        title: Of the page, as text.
        lead: HTML below the title.
        sections: What follows.
    """
    figures: dict[str, Any] = {}
    parts, links = [], []
    for section in sections:
        place = re.sub(r"[^a-z]+", "-", section.title.lower()).strip("-")
        note, holder = "", ""
        if section.figure is not None:
            figure, note = _plain(section.figure)
            figures[place] = figure
            width = " wide" if section.is_wide else ""
            holder = (
                f'<div class="scroll"><div class="figure{width}" id="figure-{place}" data-figure="{place}" '
                f'style="height:{figure["layout"]["height"]}px"></div></div>'
            )
        said = f'<p class="note">{note}</p>' if note else ""
        heading = html.escape(section.title)
        parts.append(f'<section id="{place}"><h2>{heading}</h2>{said}{section.body}{holder}</section>')
        links.append(f'<a href="#{place}">{heading}</a>')
    data = {"figures": figures, "templates": _templates()} if figures else {}
    name = html.escape(title)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}</title><style>{STYLE}</style></head><body>",
            f"<header><h1>{name}</h1>{lead}</header><nav>{' '.join(links)}</nav>",
            f"<main>{''.join(parts)}</main>",
            _packed("library", _library() if figures else ""),
            _packed("pictures", json.dumps(data, separators=(",", ":"))),
            f"<script>{SCRIPT}</script></body></html>",
        ]
    )


def _library() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _packed(name: str, text: str) -> str:
    """Text that the page's script opens: compressed, since plotly alone has five megabytes."""
    data = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    return f'<script type="application/octet-stream" id="{name}">{data}</script>'


def _plain(figure: Figure) -> tuple[dict[str, Any], str]:
    """A figure as the page's script draws it, and its note: the page has headings of its own, and two templates."""
    form: dict[str, Any] = json.loads(figure.to_json())
    layout = form["layout"]
    title = layout.pop("title", {})
    layout.pop("template", None)
    layout["autosize"] = True
    margin = layout.setdefault("margin", {})
    margin["t"] = max(30, margin.get("t", 80) - 40)
    return {"data": form["data"], "layout": layout}, title.get("subtitle", {}).get("text", "")


def _templates() -> dict[str, Any]:
    """The layouts of plotly's light and dark templates, on the page's own background."""
    import plotly.io

    found = {}
    for kind, name, grid in (("light", "plotly_white", "#e3e6ea"), ("dark", "plotly_dark", "#3a3f47")):
        layout = copy.deepcopy(plotly.io.templates[name].to_plotly_json()["layout"])
        layout |= {"paper_bgcolor": _TRANSPARENT, "plot_bgcolor": _TRANSPARENT}
        for axis in ("xaxis", "yaxis"):
            layout[axis] |= {"gridcolor": grid, "linecolor": grid, "zerolinecolor": grid, "zerolinewidth": 1}
        found[kind] = {"layout": layout}
    return found
