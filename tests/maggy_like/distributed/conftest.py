"""Gangs of real processes with torchrun's environment."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import pytest
from torch.distributed import TCPStore

RunRanks = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def run_ranks() -> RunRanks:
    """``run_ranks(function, n, *args)`` calls a function in n processes of one gang and returns what each returned."""
    context = multiprocessing.get_context("forkserver")
    # What takes seconds to import is imported once, not by each rank (DDP imports torch._dynamo).
    context.set_forkserver_preload(["torch._dynamo", "torch.distributed.checkpoint.state_dict"])

    def run(function: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        with ProcessPoolExecutor(ranks, mp_context=context) as pool:
            futures = [pool.submit(_be_rank, rank, ranks, store.port, function, args) for rank in range(ranks)]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                for process in list(pool._processes.values()):
                    process.kill()  # who waits for a rank that failed may wait for ever
                raise
            return [future.result() for future in futures]

    return run


def _be_rank(rank: int, ranks: int, port: int, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        GLOO_SOCKET_IFNAME="lo",
    )
    import warnings

    import torch.distributed as dist

    warnings.simplefilter("error")
    try:
        return function(*args)
    finally:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
