"""How an answer shows itself: as tables and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from maggy_like.ablation import forest, text
from maggy_like.ablation.comparisons import Comparisons, Row
from maggy_like.extras import require

if TYPE_CHECKING:
    import pandas


class Answer(Comparisons):
    """Comparisons with tables and a plot."""

    def to_pandas(self) -> pandas.DataFrame:
        """A row a comparison; the columns are the attributes of :class:`Row`."""
        require("pandas", "to_pandas()")
        import pandas

        return pandas.DataFrame([{name: getattr(row, name) for name in Row.__slots__} for row in self.rows])

    def to_markdown(self) -> str:
        """The table, with the method below it, in GitHub's Markdown."""
        return text.markdown(self)

    def to_latex(self) -> str:
        """The table as a ``tabular`` for the package booktabs, with the method below it."""
        return text.latex(self)

    def plot(self, path: str | Path) -> None:
        """Draw a forest plot: each difference with its interval.

        Args:
            path: The picture's file; its suffix says of which kind (``.png``, ``.svg``, ``.pdf``).

        Raises:
            UserError: matplotlib is missing.

        Example:
            >>> ablation.plot("ablation.pdf")
        """
        forest.plot(self, path)

    def __repr__(self) -> str:
        return text.plain(self)

    def _repr_html_(self) -> str:
        return text.html(self)
