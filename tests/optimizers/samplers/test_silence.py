"""Silence that several threads share."""

from __future__ import annotations

import warnings

import pytest

from optimizers.samplers.optuna_space import quiet
from optimizers.samplers.silence import without_warnings


@pytest.mark.parametrize("silence", [without_warnings, quiet])
@pytest.mark.parametrize("first_to_leave", [0, 1])
def test_whichever_of_two_threads_leaves_first_the_other_stays_silent_and_the_last_one_restores(
    silence: object, first_to_leave: int
) -> None:
    optuna = pytest.importorskip("optuna")
    before = list(warnings.filters), optuna.logging.get_verbosity()
    threads = [silence(), silence()]  # type: ignore[operator]
    for thread in threads:
        thread.__enter__()
    threads.pop(first_to_leave).__exit__(None, None, None)
    warnings.warn("of a library", FutureWarning, stacklevel=1)  # would be an error here
    threads.pop().__exit__(None, None, None)
    assert (warnings.filters, optuna.logging.get_verbosity()) == before
    with pytest.raises(FutureWarning):
        warnings.warn("of the user's code", FutureWarning, stacklevel=1)
