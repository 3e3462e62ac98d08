from __future__ import annotations

from pathlib import Path

from benchmarks.plot_performance import by_workers, draw_scale, draw_time_saved


def test_figures_are_found_by_the_number_of_workers() -> None:
    figures = {"a.b.32": 2.0, "a.b.8": 1.0, "a.b.min.8": 0.0, "a.8": 5.0, "a.b.all": 9.0}
    assert by_workers(figures, "a.b") == ([8, 32], [1.0, 2.0])


def test_both_pictures_are_drawn(tmp_path: Path) -> None:
    saved = {f"time_saved.{kind}.{n}": 0.5 for kind in ("async", "early_stopping") for n in (8, 32)}
    draw_time_saved(saved, tmp_path / "saved.png")
    keys = ("dispatch_p99_ms", "dispatch_median_ms", "driver_load")
    draw_scale({f"{key}.{n}": 0.5 for key in keys for n in (100, 1000)}, tmp_path / "scale.png")
    assert [path.read_bytes()[:4] for path in sorted(tmp_path.iterdir())] == [b"\x89PNG"] * 2
