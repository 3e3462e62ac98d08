"""A script as a function: what travels, and what it finds where it runs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import cloudpickle
import pytest

from maggy_like.errors import TrainFunctionError
from maggy_like.train_function import script as scripts
from maggy_like.train_function.script import Script, read_script


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    for name, text in {
        "main.py": "import sys\nimport one\nfrom pack.inner import two\n"
        "print(__name__, one.three, two, sys.argv[1:], __file__)\nassert sys.modules['__main__'].one is one\n",
        "one.py": "from helper import three\n",
        "helper.py": "three = 3\n",
        "unused.py": "",
        "pack/inner.py": "two = 2\n",
        "data.csv": "1\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "helper", "pack", "pack.inner"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)


def test_what_it_imports_from_its_folder_travels(folder: Path) -> None:
    assert set(read_script(folder / "main.py").files) == {"main.py", "one.py", "helper.py", "pack/inner.py"}


def test_it_runs_as_main_in_its_folder_and_leaves_all_as_it_was(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.argv, sys.path, sys.modules["__main__"]
    read_script(folder / "main.py", ["--epochs", 3])()
    assert capsys.readouterr().out == f"__main__ 3 2 ['--epochs', '3'] {folder / 'main.py'}\n"
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_where_its_folder_is_not_seen_it_runs_from_a_copy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sent = cloudpickle.dumps(read_script(folder / "main.py"))
    shutil.rmtree(folder)
    script: Script = cloudpickle.loads(sent)
    script()
    *words, where = capsys.readouterr().out.split()
    assert words == ["__main__", "3", "2", "[]"]
    assert Path(where).name == "main.py"
    assert not Path(where).parent.exists()


@pytest.mark.parametrize(("code", "fails"), [("", False), ("0", False), ("3", True), ("'words'", True)])
def test_its_exit_status(tmp_path: Path, code: str, fails: bool) -> None:
    (tmp_path / "leave.py").write_text(f"import sys\nsys.exit({code})\n")
    script = read_script(tmp_path / "leave.py")
    if fails:
        with pytest.raises(SystemExit):
            script()
    else:
        script()


def test_too_much_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "MAX_BYTES", 100)
    with pytest.raises(TrainFunctionError, match="install the larger modules where the workers run"):
        read_script(folder / "main.py")
