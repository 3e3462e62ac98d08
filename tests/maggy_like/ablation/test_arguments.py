"""The arguments of a study are checked as they are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
from torch import nn

from maggy_like.ablation import AblationStudy
from maggy_like.errors import ConfigError

COLUMNS = ["a", "b", "y"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": nn.Linear(1, 1)}, r"got a Linear; use AblationStudy\(model=lambda: Linear\("),
        ({"data": COLUMNS, "label": 2}, "label must be the name of a column or a list of names, got 2"),
        ({"data": COLUMNS, "label": ["y", 2]}, r"label must be .* got \['y', 2\]"),
        ({"data": COLUMNS, "label": None}, "got None; omit it"),
        ({"label": "y"}, r"label must be a column of data, got 'y' without data; use AblationStudy\(data=table"),
        ({"data": COLUMNS, "label": "yy"}, r"label must be a column of data, got 'yy' \(did you mean 'y'"),
        ({"data": ["y"], "label": "y"}, "a column in addition to the label"),
        ({"data": ["a", "a", "y"]}, "must have different names, got 'a' twice; rename one"),
        ({"data": pandas.DataFrame([[1, 2]], columns=["a", "a"])}, "must have different names, got 'a' twice"),
        ({"config": ["d"]}, r"config must be a dict \{name: value\}, got \['d'\]"),
        ({"config": {3: 1}}, r"config must be a dict \{name: value\}, got \{3: 1\}"),
    ],
)
def test_arguments_are_told(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AblationStudy(**given)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda s: s.features("y"), "features must not have the label, got 'y'"),
        (lambda s: s.features(both=["a", "y"]), "features must not have the label, got 'y'"),
        (lambda s: s.features({3: ["a"]}), "the name of a component must be a word, got 3"),
        (lambda s: s.custom("", lambda variant: variant), "the name of a component must be a word, got ''"),
        (lambda s: s.group("g", ["a", "b"]), r"components of the group 'g' .* got \['a', 'b'\]; pass them one by one"),
        (lambda s: s.group(["g"], "a"), r"the name of a group must be a word, got \['g'\]"),
        (lambda s: s.features("a").without(3), r"must be components of the study, got 3; use some of \['a'\]"),
        (lambda s: s.designed(), r"use study = study.features\(.*returns a new study"),
    ],
)
def test_calls_are_told(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrong(AblationStudy(data=COLUMNS, label="y"))


def test_a_class_a_function_and_several_labels_will_do() -> None:
    assert AblationStudy(model=nn.ReLU).factory is nn.ReLU
    assert AblationStudy(data=np.array(["a", "b", "y", "z"]), label=np.array(["y", "z"])).columns == ("a", "b")
