"""What cannot be sent to the workers is named."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torch import nn

from maggy_like.ablation import AblationStudy
from maggy_like.ablation.search import check_sendable
from maggy_like.errors import TrainFunctionError

LOCK = threading.Lock()


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2))


class Locked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lock = LOCK


CASES = {
    "factory": (AblationStudy(model=lambda: (LOCK, make())[1]).config(a=0), "model's factory uses the global 'LOCK'"),
    "config": (AblationStudy(config={"lock": LOCK}).config(a=0), "the value of 'lock' in the study's config cannot"),
    "setting": (AblationStudy(config={"b": 1}).config(b=LOCK), "the value of 'b' without 'b' cannot"),
    "module": (AblationStudy(model=make).modules(lin="0", replace=Locked()), "replacement of 'lin' uses .* 'lock'"),
    "replacing": (
        AblationStudy(model=make).modules(lin="0", replace=lambda module: (LOCK, module)[1]),
        "the replacement of 'lin' uses the global 'LOCK' of type lock",
    ),
    "model": (
        AblationStudy(model=make).custom("bias", lambda variant: variant.changed(model=lambda model: (LOCK, model)[1])),
        "the change of 'bias' uses the global 'LOCK'",
    ),
    "data": (
        AblationStudy().custom("rows", lambda variant: variant.changed(data=lambda table, lock=LOCK: table)),
        "the change of 'rows' uses the default 'lock'",
    ),
    "changed": (
        AblationStudy(config={"b": 1}).custom("b off", lambda variant: variant.changed(config={"b": LOCK})),
        "the value of 'b' without 'b off' cannot",
    ),
}  # fmt: skip


def train(variant: Any, seed: int, a: int = 1) -> float:
    return 0.0


@pytest.mark.parametrize("case", CASES)
def test_the_part_that_cannot_be_sent_is_named(case: str) -> None:
    study, message = CASES[case]
    with pytest.raises(TrainFunctionError, match=message):
        check_sendable(study.bound(train))


def test_what_can_be_sent_passes() -> None:
    study = AblationStudy(model=make, config={"f": lambda x: x}).modules("0", replace=lambda module: nn.ReLU())
    check_sendable(study.config(a=0).bound(train))
