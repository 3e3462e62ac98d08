"""What each kind of failure means."""

from __future__ import annotations

import pytest

from optimizers.core.trial import FailureKind

BLAMELESS = {"store", "stage_lost", "node_lost", "node_left", "driver_lost"}


@pytest.mark.parametrize("kind", FailureKind)
def test_what_it_means(kind: FailureKind) -> None:
    assert kind.counts == (kind not in BLAMELESS)
    assert kind.is_fault == (kind not in BLAMELESS | {"worker_lost"})
    assert kind.is_final == (kind in {"report", "no_value"})
    assert kind.is_stage_loss == (kind in {"stage_lost", "node_lost"})
    assert kind.is_drivers == (kind in {"worker_lost", "stage_lost", "node_lost", "node_left", "driver_lost"})
