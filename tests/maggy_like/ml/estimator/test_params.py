from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from maggy_like.errors import ConfigError
from maggy_like.ml import TorchEstimator, TorchModel

MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: TorchEstimator(bacthSize=3), TypeError, r"no argument 'bacthSize', got bacthSize=3 .*'batchSize'"),  # type: ignore[call-arg]
    (lambda: TorchEstimator(learning_rate=1), TypeError, "did you mean 'learningRate'"),  # type: ignore[call-arg]
    (lambda: TorchEstimator(print), TypeError, r"takes no argument by position, got .*model="),  # type: ignore[misc]
    (lambda: TorchEstimator().setParams(epoch=3), ConfigError, r"no Param 'epoch', got epoch=3 .*'epochs'"),
    (lambda: TorchModel().setParams(xyz=3), ConfigError, "no Param 'xyz', got xyz=3; use one of batchSize"),
    (lambda: TorchEstimator(batchSize=0), ConfigError, "batchSize must be at least 1, got 0"),
]


@pytest.mark.parametrize(("mistake", "kind", "message"), MISTAKES)
def test_a_name_or_value_that_is_none_of_a_param_is_told(
    mistake: Callable[[], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        mistake()
