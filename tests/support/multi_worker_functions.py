"""Training functions that several workers run together, in a module that the workers can import."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

from maggy_like import Reporter

TORCHRUN = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT",
)  # fmt: skip


def meet() -> dict[str, Any]:
    """Join in as code for torchrun does; what each rank saw."""
    import torch
    from torch import distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, {name: os.environ.get(name) for name in TORCHRUN})
    return {"sum": total.item(), "environment": seen}


def climb_together(directory: str, x: float, reporter: Reporter) -> None:
    """In each step all ranks meet, then report; each writes down to which report it came."""
    import torch
    from torch import distributed as dist

    if reporter.world_size > 1:
        dist.init_process_group("gloo")
    print(f"hello of rank {reporter.rank}", flush=True)
    state = reporter.restore() or {"step": 0}
    for step in range(state["step"] + 1, reporter.budget + 1):
        value = torch.full((1,), x * step)
        if reporter.world_size > 1:
            dist.all_reduce(value)
        reporter.checkpoint({"step": step})
        with open(f"{directory}/{reporter.trial}-{reporter.attempt}-{reporter.rank}", "a") as seen:
            seen.write(f"{step}\n")
        reporter.report(score=value.item() / reporter.world_size, step=step)


def climb_for_ever(directory: str, x: float, reporter: Reporter) -> None:
    """``climb_together`` by whoever nobody stops."""
    reporter.budget = sys.maxsize
    climb_together(directory, x, reporter)


def climb_until_stopped(directory: str, x: float, reporter: Reporter) -> None:
    """``climb_together``, for ever where x is small: however late the word comes, there is something to stop."""
    (climb_together if x > 0.5 else climb_for_ever)(directory, x, reporter)


def fail_once(directory: str, fault: str) -> None:
    """Come to harm, unless this has happened before."""
    mark = Path(directory, "failed")
    if not fault or mark.exists():
        return
    mark.touch()
    print(f"about to: {fault}", flush=True)
    match fault:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill the agent":
            if Path(directory, "saved").exists():  # a gate: until the driver knows the last state
                Path(directory, "saved").open("rb").close()
            psutil.Process().parents()[1].kill()
            threading.Event().wait()
        case "kill the executor":
            psutil.Process().parents()[3].kill()
            threading.Event().wait()
        case "wait":
            threading.Event().wait()
        case "exit":
            sys.exit(3)
        case "raise":
            raise ValueError("the reason")


def train_together(directory: str, fault: str, rank: int, reporter: Reporter) -> list[float]:
    """A regression whose data depend on the step alone; ``rank`` fails once, in the midst. The weights in the end."""
    import torch
    from torch import distributed as dist
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    if reporter.world_size > 1:
        dist.init_process_group("gloo")
    start = 0
    if (state := reporter.restore()) is not None:
        start = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    print(f"from step {start} on {reporter.world_size}", flush=True)
    for step in range(start + 1, reporter.budget + 1):
        if step == reporter.budget // 2 + 1 and reporter.rank == rank:
            fail_once(directory, fault)
        draw = torch.Generator().manual_seed(step)
        batch = torch.randn(8, 4, generator=draw)[reporter.rank :: reporter.world_size]
        loss = (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            if reporter.world_size > 1:
                dist.all_reduce(parameter.grad)
            parameter.grad /= reporter.world_size
        optimizer.step()
        reporter.checkpoint({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()})
        reporter.report(loss=loss.item(), step=step)
    return [weight for parameter in model.parameters() for weight in parameter.detach().flatten().tolist()]


def train_for_search(directory: str, fault: str, rank: int, reporter: Reporter) -> float:
    """The same, as a function of a search."""
    return sum(weight**2 for weight in train_together(directory, fault, rank, reporter))
