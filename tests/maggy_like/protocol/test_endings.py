"""What phases and endings of a run mean."""

from __future__ import annotations

import pytest

from maggy_like.protocol.endings import Ending, Phase


@pytest.mark.parametrize("ending", Ending)
def test_endings(ending: Ending) -> None:
    assert ending.is_over == (ending != "running")
    assert ending.is_planned == (ending in {"completed", "timeout", "target"})
    assert ending.is_cut_short == (ending in {"timeout", "stopped", "interrupted", "cancelled"})


def test_a_phase_is_not_over() -> None:
    assert not any(phase.is_over for phase in Phase)
