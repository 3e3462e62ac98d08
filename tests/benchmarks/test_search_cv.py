"""The figures of SearchCV beside other searches."""

from __future__ import annotations

from benchmarks.search_cv import figures_of


def test_the_time_to_the_same_score_is_that_of_the_smallest_search_that_reaches_what_all_do() -> None:
    found = {"first": {10: (1.0, 0.8), 40: (4.0, 0.95)}, "second": {10: (2.0, 0.91), 40: (9.0, 0.9)}}
    assert figures_of(found) == {
        "seconds.first": 4.0,
        "score.first": 0.95,
        "seconds_to_same.first": 4.0,
        "seconds.second": 9.0,
        "score.second": 0.9,
        "seconds_to_same.second": 2.0,
        "score.same": 0.9,
    }
