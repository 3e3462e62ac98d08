"""The benchmark of the largest cell."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import cell
from benchmarks.report import chromium


@pytest.mark.browser
def test_the_largest_cell_is_small_and_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api")
    if chromium() is None:
        pytest.skip("there is no Chromium")
    path = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["cell", "--quick", "--json", str(path)])
    cell.main()
    figures = json.loads(path.read_text())
    assert 100 < figures["size_kb"] < 200
    assert figures["make_ms"] > 0
    assert figures["draw_ms"] > 0
