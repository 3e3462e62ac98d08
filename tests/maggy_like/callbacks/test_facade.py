"""What maggy_like.callbacks offers, and what its import loads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import maggy_like.callbacks
from maggy_like.train_function.code import CALLBACKS


def test_all_names_are_known_as_savers_of_states() -> None:
    assert set(maggy_like.callbacks._HOMES) == CALLBACKS


def test_the_import_loads_no_library() -> None:
    code = (
        "import sys, maggy_like.callbacks\n"
        "print([name for name in ('keras', 'lightgbm', 'lightning', 'sklearn', 'torch', 'transformers', 'xgboost')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_star_import_gives_what_is_installed_and_a_name_says_what_is_not() -> None:
    code = (
        "import sys\n"
        "for name in ('keras', 'lightgbm', 'lightning', 'transformers', 'xgboost'):\n    sys.modules[name] = None\n"
        "before = set(globals())\n"
        "from maggy_like.callbacks import *\n"
        "print(sorted(set(globals()) - before - {'before'}))\n"
        "try:\n    from maggy_like.callbacks import LightGBMReport\n"
        "except ValueError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == (
        "['sklearn_steps']\nLightGBMReport needs lightgbm; install it with: pip install 'maggy_like[lightgbm]'\n"
    )


@pytest.mark.slow
def test_a_backend_of_keras_that_is_missing_is_told() -> None:
    pytest.importorskip("keras")
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "try:\n    from maggy_like.callbacks import KerasReport\n"
        "except ValueError as error:\n    print(error)"
    )
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.startswith("KerasReport needs a backend of Keras, and the backend cannot be imported: ")
    assert "set the environment variable KERAS_BACKEND to an installed one" in done.stdout


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(AttributeError, match=r"module 'maggy_like.callbacks' has no attribute 'CatBoostReport'"):
        _ = maggy_like.callbacks.CatBoostReport
