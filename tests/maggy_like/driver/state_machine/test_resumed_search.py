"""A search that goes on after its driver was gone."""

from __future__ import annotations

import pytest
from hand import Hand


@pytest.mark.parametrize(("written", "seconds"), [(0.0, 30.0), (45.0, 45.0), (1e9, 1000.0)])
def test_the_time_between_two_drivers_is_no_trials_time(written: float, seconds: float) -> None:
    """A trial ran until the newest time that the journal tells, or until it was written to last."""
    first = Hand().start()
    first.join(0)
    first.now = 30.0
    first.join(1)  # its trial begins now
    again = Hand()
    again.machine.replay(first.events, written)
    again.now = 1000.0
    again.start()
    assert [trial.seconds for trial in again.study.trials[:2]] == [seconds, seconds - 30.0]
