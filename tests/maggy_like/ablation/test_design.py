"""Names that would meet in a design, and how large one may be."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from maggy_like.ablation import AblationStudy
from maggy_like.errors import ConfigError


def columns(*names: str) -> AblationStudy:
    return AblationStudy(data=[*names, "rest"]).features(*names)


@pytest.mark.parametrize(
    ("names", "design", "twice"),
    [
        (("a", "b", "a and b"), "pairs", "without a and b"),
        (("a", "b", "a x b"), "pairs", "a x b"),
        (("a", "b", "a and b"), "factorial", "without a and b"),
        (("any",), "add_one_in", None),
        (("all of them", "b"), "add_one_in", "all of them"),
    ],
)
def test_components_that_are_called_as_several_together(names: Any, design: Any, twice: str | None) -> None:
    study = columns(*names)
    if twice is None:
        assert len(study.designed(design).variants) == 2
    else:
        with pytest.raises(ConfigError, match=f"the design must have different names, got '{twice}' .*rename it"):
            study.designed(design)


def test_only_a_factorial_has_a_limit() -> None:
    names = [f"c{number}" for number in range(80)]
    study = columns(*names).group("even", *names[::2]).group("odd", *names[1::2])
    assert len(study.designed("leave_one_group_out").variants) == 3
    assert len(study.designed("leave_one_out").variants) == 81
    assert len(columns(*names[:12]).designed("pairs").variants) == 1 + 12 + 66
    with pytest.raises(
        ConfigError, match=r"at most limit=64 variants, got 4096 .* give components that belong together one"
    ):
        columns(*names[:12]).designed("factorial")


def test_a_design_is_described_by_what_its_variants_are() -> None:
    study = AblationStudy(
        model=lambda: nn.Sequential(nn.Identity()), data=["a", "b", "c"], config={"rate": 0.1, "loss": object()}
    )
    design = (
        study.features(size=["a", "b"])
        .modules("0", replace=nn.ReLU())
        .config(rate=0.0)
        .custom("half", lambda variant: variant.changed(data=len))
        .designed()
    )
    assert design.described == (
        "base: column a, column b, column c, rate=0.1, loss=<object object>",
        "without size: without column a, without column b, rate=0.1, loss=<object object>",
        "without 0: ReLU() for 0, rate=0.1, loss=<object object>",
        "without rate: rate=0.0, loss=<object object>",
        "without half: rate=0.1, loss=<object object>, changed by len",
    )
