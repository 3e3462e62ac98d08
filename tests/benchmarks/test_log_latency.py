"""The benchmark of log lines, on one worker and for a moment."""

from __future__ import annotations

from benchmarks.log_latency import Clocked, measure


def test_it_measures_every_line() -> None:
    found = measure(workers=1, seconds=0.05)
    assert (found["lines"], found["dropped"]) == (5, 0)
    assert 0 <= found["delay_s.median"] <= found["delay_s.p99"] <= found["delay_s.max"]


def test_a_line_counts_once_and_others_do_not() -> None:
    stream = Clocked()
    stream.write("[trial 3] line 7 printed at 5.0\n" * 2 + "[1/8] no result yet\n")
    assert list(stream.delays) == [(3, 7)]
