from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from optimizers.errors import SearchSpaceError
from optimizers.space.domains import Choice, Constant, Domain, Float, Integer, Ordinal
from optimizers.space.spellings import read_domain


class LogNormal:
    """A distribution as torch has it, whose ``support`` is no method."""

    support = "positive"

    def sample(self) -> float:
        return 1.0


class Series:
    """A column as pandas has it, which has a ``sample()`` too."""

    shape = (2,)

    def sample(self) -> Series:
        return self


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        (Float(0, 1), Float(0, 1)),
        (["relu", "gelu"], Choice(["relu", "gelu"])),
        (["adam"], Choice(["adam"])),
        (range(1, 4), Choice([1, 2, 3])),
        (0.1, Constant(0.1)),
        ("adam", Constant("adam")),
        (None, Constant(None)),
        (np.int64(3), Constant(3)),
        (("DOUBLE", [0, 1]), Float(0, 1)),
        (("integer", (1, 5)), Integer(1, 5)),
        (("Discrete", [16, 32]), Ordinal([16, 32])),
        (("CATEGORICAL", ["a", "b"]), Choice(["a", "b"])),
        ({"type": "float", "low": 1e-4, "high": 1, "log": True}, Float(1e-4, 1, log=True)),
    ],
)
def test_spellings(spelling: Any, expected: Domain) -> None:
    assert read_domain("p", spelling) == expected


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ((0.1, 0.9), r"use Float\(0.1, 0.9\) or \[0.1, 0.9\]"),
        ((1, 9), r"use Float\(1, 9\), Integer\(1, 9\) or \[1, 9\]"),
        (("DUOBLE", [0, 1]), "did you mean 'DOUBLE'"),
        (("DOUBLE", [0, 1, 2]), r"'DOUBLE' must have \[low, high\], got \[0, 1, 2\]"),
        (("INTEGER", [5, 1]), "low must be below high"),
        (("relu", "gelu"), "use a list for a choice"),
        ((1, 2, 3), "use a list for a choice"),
        ([], "values of Choice must not be empty"),
        ([[1, 2], [{3}]], "look it up in train_fn"),
        ({1, 2}, r"values must be a list, got \{1, 2\}; use \[1, 2\]"),
        ({"low": 0, "high": 1}, "with a type, got"),
        ({"values": [1, 2]}, r"with a type, got .*or a list of values"),
        (
            {"lr": Float(0, 1), "name": "adam"},
            "must be flat, got a dict with 'lr', 'name'; name its parameters 'p_lr', 'p_name'$",
        ),
        ({"type": ["adam", "sgd"], "lr": 0.1}, "must be flat, .* name its parameters 'p_type', 'p_lr'$"),
        ({"lr": {"type": "float", "low": 0, "high": 1}}, "name its parameters 'p_lr'$"),
        ({"layers": [1, 2]}, "name its parameters 'p_layers'$"),
        (
            stats.loguniform(1e-4, 1e-1),
            r"must not be a distribution, got loguniform; use Float\(0.0001, 0.1, log=True\)",
        ),
        (stats.uniform(0, 2), r"must not be a distribution, got uniform; use Float\(0, 2\)"),
        (stats.randint(1, 9), r"must not be a distribution, got randint; use Integer\(1, 8\)"),
        (LogNormal(), r"distribution, got LogNormal; use Float\(low, high, log=True\)"),
        (Series(), r"values must be a list, got a Series, .*; use \.tolist\(\)"),
        (stats.norm(), r"must not be a distribution, got norm; use Float\(low, high\)"),
        (stats.Uniform(a=1, b=2), r"must not be a distribution, got Uniform; use Float\(1, 2\)"),
        (Float, r"must have arguments, got the class Float; use Float\(...\)"),
        (float("inf"), "a number must be finite, got inf"),
    ],
)
def test_an_unreadable_spelling_raises_with_the_parameter_and_a_remedy(spelling: Any, message: str) -> None:
    with pytest.raises(SearchSpaceError, match=f"parameter 'p': .*{message}"):
        read_domain("p", spelling)
