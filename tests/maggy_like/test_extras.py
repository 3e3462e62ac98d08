"""What a user reads where a package of an extra is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from maggy_like.argument_checks import EXTRAS, require
from maggy_like.errors import UserError

WITHOUT = """
import sys
for package in ("optuna", "pandas", "pyarrow", "torch"):
    sys.modules[package] = None

import maggy_like
from maggy_like import Float, lagom
from maggy_like.errors import UserError


def train(x):
    return x


if __name__ == "__main__":
    result = lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=2, workers=1, progress=False)
    print(len(result.trials), result.ending, result._repr_html_()[:5])
    sys.modules["pyspark"] = None  # only now: that it is loaded means a session to engine="auto"
    for use in (result.to_pandas, result.curves, result.to_optuna, lambda: maggy_like.spark_session):
        try:
            use()
        except UserError as error:
            print(error)
"""


@pytest.mark.parametrize(("package", "extra"), EXTRAS.items())
def test_a_missing_package_is_named_with_its_extra(package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    message = rf"plot\(\) needs {package}; install it with: pip install 'maggy_like\[{extra}\]'"
    with pytest.raises(UserError, match=message):
        require(package, "plot()")


@pytest.mark.slow
def test_the_core_alone_searches(tmp_path: Path) -> None:
    """A plain function on processes of this machine, without the packages of any extra."""
    script = tmp_path / "search.py"
    script.write_text(WITHOUT)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2 completed <pre>",
        "to_pandas() needs pandas; install it with: pip install 'maggy_like[pandas]'",
        "curves() needs pandas; install it with: pip install 'maggy_like[pandas]'",
        "to_optuna() needs optuna; install it with: pip install 'maggy_like[optuna]'",
        "Spark needs pyspark; install it with: pip install 'maggy_like[spark]'",
    ]
