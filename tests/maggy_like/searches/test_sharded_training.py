"""A sharded training through its checkpoints: on another number of workers, and after a rank was killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import maggy_like
from maggy_like import Reporter

pytestmark = pytest.mark.e2e


def train(reporter: Reporter, steps: int, kill_at: int = 0) -> list[float]:
    """A sharded model that goes on from its last state; rank 1 of the first attempt dies in step ``kill_at``."""
    import torch
    import torch.distributed as dist

    from maggy_like.worker.child import saves

    saves.ANSWER_PATIENCE = 60.0  # the driver may be late on a busy machine
    from torch.distributed.fsdp import fully_shard

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def state(step: int) -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}

    done = 0
    for parameter in model.parameters():  # so that there are momenta to read into
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    restored = reporter.restore(into=state(0))
    if restored is not None:
        model.load_state_dict(restored["model"])
        optimizer.load_state_dict(restored["optimizer"])
        done = restored["step"]
    print(f"goes on after step {done} with {reporter.world_size}")
    for step in range(done + 1, steps + 1):
        if step == kill_at and reporter.attempt == 1 and reporter.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        x = (
            torch.arange(32.0).reshape(8, 4) / 32 + step / 100
        )  # the same on every rank: gradients do not depend on them
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reporter.checkpoint(state(step))
        reporter.report(loss=loss.item(), step=step)
    full = [value.full_tensor().flatten() for value in model.state_dict().values()]
    return torch.cat(full).tolist()


def run(directory: Path, name: str, config: dict[str, Any], **options: Any) -> list[float]:
    weights: list[float] = maggy_like.run(
        train, config, engine="local", directory=directory, name=name, progress=False, **options
    )
    return weights


@pytest.mark.long
def test_a_sharded_training_goes_on_after_a_rank_is_killed(tmp_path: Path) -> None:
    undisturbed = run(tmp_path, "undisturbed", {"steps": 12}, workers=2)
    disturbed = run(tmp_path, "disturbed", {"steps": 12, "kill_at": 9}, workers=2)
    assert disturbed == undisturbed
    log = (tmp_path / "disturbed" / "logs" / "00000.log").read_text()
    assert "goes on after step 0 with 2" in log
    assert any(f"goes on after step {step} with 2" in log for step in (6, 7, 8))  # the last may not be written yet
    states = tmp_path / "undisturbed" / "checkpoints" / "00000"
    assert {f"1-{step}.dcp" for step in (11, 12)} <= {state.name for state in states.iterdir()}
    assert len(list(states.iterdir())) <= 3  # the last two and the best
