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
        ({"model": nn.Linear(1, 1)}, r"got a Linear itself; give the class or a function.*lambda: Linear\("),
        ({"data": COLUMNS, "label": 2}, "label must be the name of a column, or several, got 2"),
        ({"data": COLUMNS, "label": ["y", 2]}, r"label must be .* got \['y', 2\]"),
        ({"data": COLUMNS, "label": None}, "got None; for none, leave it out"),
        ({"label": "y"}, "label 'y' is a column of data, and the study has none; give data=table"),
        ({"data": COLUMNS, "label": "yy"}, r"'yy' is no column of data \(did you mean 'y'"),
        ({"data": ["y"], "label": "y"}, "no column beside the label"),
        ({"data": ["a", "a", "y"]}, "data has two columns 'a'.*rename one"),
        ({"data": pandas.DataFrame([[1, 2]], columns=["a", "a"])}, "data has two columns 'a'"),
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
        (lambda s: s.features("y"), "no column 'y' among the features, since it is the label"),
        (lambda s: s.features(both=["a", "y"]), "no column 'y' among the features, since it is the label"),
        (lambda s: s.features({3: ["a"]}), "a component is called by a word, got 3"),
        (lambda s: s.custom("", lambda variant: variant), "a component is called by a word, got ''"),
        (lambda s: s.group("g", ["a", "b"]), r"component of the group 'g' .* got \['a', 'b'\]; name each by itself"),
        (lambda s: s.group(["g"], "a"), r"a group is called by a word, got \['g'\]"),
        (lambda s: s.features("a").without(3), r"no component 3; there are \['a'\]"),
        (lambda s: s.designed(), r"keep what the call returns, since a study never changes: study = study.features\("),
    ],
)
def test_calls_are_told(wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrong(AblationStudy(data=COLUMNS, label="y"))


def test_a_class_a_function_and_several_labels_will_do() -> None:
    assert AblationStudy(model=nn.ReLU).factory is nn.ReLU
    assert AblationStudy(data=np.array(["a", "b", "y", "z"]), label=np.array(["y", "z"])).columns == ("a", "b")
