"""Searches as estimators of scikit-learn: :class:`SearchCV` (extra ``sklearn``)."""

from __future__ import annotations

from maggy_like.argument_checks import require

require("sklearn", "maggy_like.sklearn")

from maggy_like.sklearn.search_cv import SearchCV  # noqa: E402  # the error above names the extra

__all__ = ["SearchCV"]
