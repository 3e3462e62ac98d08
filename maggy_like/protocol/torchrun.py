"""The environment variables of ranks, as torchrun sets them."""

from __future__ import annotations

import os

from maggy_like.protocol.messages import RankInfo


def environment(info: RankInfo, host: str, port: int) -> dict[str, str]:
    """Return the variables that torchrun would set for this rank."""
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
        "TORCHELASTIC_RUN_ID": "maggy_like",  # by which Fabric detects torchrun
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is open: rank 0 must not open another on its port
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


def defaults_of_libraries(info: RankInfo, has_accelerator: bool) -> dict[str, str]:
    """Return variables by which a ``Trainer()`` without further arguments trains with all ranks.

    They are defaults of transformers (Accelerate) and Lightning. Without accelerators, both would otherwise train on
    each rank alone, also under torchrun. Lightning accepts any number of ranks on a host only as one node.
    """
    if has_accelerator:
        return {
            "PL_TRAINER_DEVICES": str(info.local_world_size),
            "PL_TRAINER_NUM_NODES": str(info.group_world_size),
        }
    return {"ACCELERATE_USE_CPU": "true", "PL_TRAINER_DEVICES": str(info.world_size), "PL_TRAINER_NUM_NODES": "1"}


def rank_and_ranks() -> tuple[int, int]:
    """Return this process's rank and the number of ranks as torchrun set them; (0, 1) without torchrun.

    Variables that a platform set for the whole process do not count as torchrun's.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


_OF_LAUNCHERS = """
    NODE_RANK
    OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
    OMPI_COMM_WORLD_NODE_RANK
    PMI_RANK PMI_SIZE PMI_LOCAL_RANK PMI_LOCAL_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS
    MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_SIZE
    SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NPROCS SLURM_NTASKS_PER_NODE
    JSM_NAMESPACE_RANK JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_RANK JSM_NAMESPACE_LOCAL_SIZE
"""
"""Variables by which Accelerate, Lightning and others find the ranks of mpirun, srun and jsrun."""


def leave_ranks() -> None:
    """Remove the variables from this process's environment that make it one of several ranks.

    Kubeflow, SageMaker, AzureML, mpirun and srun set them for the whole process that searches; a trial of one worker
    would wait for ranks that nobody starts.
    """
    single = RankInfo(0, 1, 0, 1, 0, 1)
    for name in (*environment(single, "", 0), *_OF_LAUNCHERS.split()):
        os.environ.pop(name, None)
