"""Ranks: the variables by which torchrun tells a process which one it is, and what they do when they part ways."""

from __future__ import annotations

import os

from maggy_like.protocol.messages import RankInfo

UNEVEN = "the ranks did not take the same steps"
"""In the message of a rank that met another one in a different collective operation."""

_MISMATCHES = ("Received data size doesn't match expected size", "Detected mismatch between collectives")
"""What gloo and torch print then."""


def on_uneven_steps(text: str) -> str:
    """The likely cause of a rank's failure, where its text says that the collective operations did not match."""
    if not any(mismatch in text for mismatch in _MISMATCHES):
        return ""
    return (
        f": another rank was in a different collective operation, so {UNEVEN}. Give prepare() the loaders, which then "
        "yield equally many batches on all ranks, and have all call average() and checkpoint() equally often"
    )


def environment(info: RankInfo, host: str, port: int) -> dict[str, str]:
    """What torchrun would set for this rank."""
    return {
        "RANK": str(info.rank),
        "WORLD_SIZE": str(info.world_size),
        "LOCAL_RANK": str(info.local_rank),
        "LOCAL_WORLD_SIZE": str(info.local_world_size),
        "GROUP_RANK": str(info.group_rank),
        "GROUP_WORLD_SIZE": str(info.group_world_size),
        "ROLE_RANK": str(info.rank),
        "ROLE_WORLD_SIZE": str(info.world_size),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "maggy_like",  # by which Fabric knows torchrun
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there: rank 0 must not open another on its port
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def rank_and_ranks() -> tuple[int, int]:
    """This process's rank and the number of ranks, as torchrun has set them; one rank where nothing did.

    Variables that a platform has set for the whole process are no start by torchrun.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def leave_ranks() -> None:
    """Remove from this process's environment what makes it a rank of several.

    Kubeflow, SageMaker, AzureML and scripts of SLURM set it for the whole process that searches; a trial of one worker
    would wait for ranks that nobody starts.
    """
    alone = RankInfo(0, 1, 0, 1, 0, 1)
    for name in (*environment(alone, "", 0), "NODE_RANK"):  # the last is Lightning's
        os.environ.pop(name, None)
