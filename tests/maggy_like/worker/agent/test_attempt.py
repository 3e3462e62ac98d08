"""What the agent knows of an attempt, by what its child says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like.protocol.messages import Assign, Waiting
from maggy_like.protocol.task import WorkerTask
from maggy_like.worker.agent.attempt import Attempt
from maggy_like.worker.agent.logs import LogLocation


@pytest.mark.parametrize("wait", [Waiting(0, 1, "the store is full"), Waiting(0, 1, calls=True)])
def test_silence_does_not_count_while_the_trial_waits_for_the_store(wait: Waiting) -> None:
    keys: dict[str, Any] = {"server_key": b"", "run_id": "run", "train_fn": b"", "store": "", "logs": ""}
    keys |= {"preload": (), "sys_path": (), "argv": (), "report_timeout": 60.0}
    child: Any = SimpleNamespace(output=None)
    task = WorkerTask("tcp://x:1", **keys)
    attempt = Attempt(Assign(0, 1, {}, 9), child, task, LogLocation(task))
    assert attempt.due is not None
    attempt.heard(wait)
    assert attempt.due is None
    attempt.heard(Waiting(0, 1))
    assert attempt.due is not None
