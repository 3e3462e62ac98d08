"""GPU addresses that Spark hands out, against those of the machine."""

from __future__ import annotations

import pytest

from maggy_like.errors import EngineError
from maggy_like.spark.engine.job import unfit_worker
from maggy_like.spark.engine.task import check_gpus

LISTED = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5a1e0c0e-0000)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-77b2ac11-0000)
  MIG 1g.10gb     Device  0: (UUID: MIG-9f00-1)
"""


@pytest.mark.parametrize("given", [("0",), ("0", "1"), ("GPU-77b2ac11-0000",), ("GPU-77b2",), ("MIG-9f00-1",), ()])
def test_gpus_of_this_machine_pass(given: tuple[str, ...]) -> None:
    check_gpus(given, LISTED)


def test_a_machine_that_lists_none_may_have_made_up_ones() -> None:
    check_gpus(("7",), "")


@pytest.mark.parametrize("wrong", ["2", "10", "GPU-6", "MIG-9f00-2"])
def test_a_gpu_that_the_trial_would_not_see_ends_the_search_with_the_script_to_correct(wrong: str) -> None:
    with pytest.raises(EngineError, match=rf"gave a task GPU {wrong}, and nvidia-smi lists 0, 1, .*script") as error:
        check_gpus(("0", wrong), LISTED)
    assert unfit_worker(str(error.value)) == ""  # another launch would end in the same way
