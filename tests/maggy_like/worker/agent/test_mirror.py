"""In a mirror, a trial reads what the caller's working directory has, and what it writes is its own."""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path

import pytest

from maggy_like.storage.trial_files import Found
from maggy_like.worker.agent import mirror as mirrors
from maggy_like.worker.agent.mirror import Mirror, make_parents, make_plan


@pytest.fixture
def caller(tmp_path: Path) -> Path:
    directory = tmp_path / "home" / "project"
    (directory / "data" / "deep").mkdir(parents=True)
    (directory / "data" / "deep" / "x.csv").write_text("1")
    (directory / "best.pt").write_text("old")
    (directory / ".git").mkdir()
    (directory / "maggy_runs" / "earlier").mkdir(parents=True)
    (directory / "maggy_runs" / "this").mkdir()
    (directory.parent / "shared").mkdir()
    (directory.parent / "shared" / "y.csv").write_text("2")
    return directory


def mirror_of(caller: Path, tmp_path: Path) -> Mirror:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    parents = make_parents(str(root), str(caller))
    return Mirror(
        os.path.join(parents, "00000"), str(caller), make_plan(str(caller), str(caller / "maggy_runs" / "this"))
    )


def written(mirror: Mirror) -> list[str]:
    found = Found()
    found.add(mirror.path, in_working=True, is_own=mirror.is_written)
    return sorted(found.files)


def test_relative_names_mean_what_they_mean_in_the_callers_directory(caller: Path, tmp_path: Path) -> None:
    mirror = Path(mirror_of(caller, tmp_path).path)
    assert (mirror / "data/deep/x.csv").read_text() == "1"
    for name in ("../shared/y.csv", "../../home/shared/y.csv", "../project/../shared/y.csv"):
        assert Path(os.path.join(mirror, name)).read_text() == "2"
    assert (mirror / "maggy_runs" / "earlier").is_symlink()


def test_a_search_for_files_does_not_run_in_a_circle(caller: Path) -> None:
    root = caller / "maggy_runs" / "this" / "work"
    root.mkdir()
    mirror = Path(mirror_of(caller, root).path)
    found = glob.glob(f"{mirror}/**/*.csv", recursive=True)
    assert [os.path.relpath(path, mirror) for path in found] == ["data/deep/x.csv"]
    assert not os.path.lexists(mirror / "maggy_runs" / "this")


def test_what_a_trial_writes_is_its_own_and_gone_after_a_reset(caller: Path, tmp_path: Path) -> None:
    mirror = mirror_of(caller, tmp_path)
    assert not mirror.is_changed
    path = Path(mirror.path)
    (path / "best.pt").write_text("new")
    assert mirror.is_changed
    (path / "data" / "deep" / "mine").write_text("new")
    (path / "out" / "a").mkdir(parents=True)
    (path / "out" / "a" / "b").write_text("new")
    assert written(mirror) == ["best.pt", "data/deep/mine", "out/a/b"]
    assert (caller / "best.pt").read_text() == "old"
    assert sorted(item.name for item in (caller / "data" / "deep").iterdir()) == ["x.csv"]
    mirror.reset()
    assert (mirror.is_changed, written(mirror), (path / "best.pt").read_text()) == (False, [], "old")
    assert not (path / "out").exists()


def test_removed_and_replaced_entries_come_back(caller: Path, tmp_path: Path) -> None:
    mirror = mirror_of(caller, tmp_path)
    path = Path(mirror.path)
    shutil.rmtree(path / "data")
    (path / "data").write_text("a file now")
    (path / ".git").unlink()
    (path / ".git").write_text("a file now")
    (path / "best.pt").unlink()
    assert written(mirror) == [".git", "data"]
    mirror.reset()
    assert (path / "data/deep/x.csv").read_text() == "1"
    assert ((path / ".git").is_symlink(), (path / "best.pt").read_text()) == (True, "old")


def test_a_write_in_the_moment_in_which_a_mirror_was_made_is_seen(caller: Path, tmp_path: Path) -> None:
    mirror = mirror_of(caller, tmp_path)
    made = os.stat(mirror.path).st_mtime_ns
    (Path(mirror.path) / "x").touch()
    os.utime(mirror.path, ns=(made + 1, made + 1))  # the resolution of a file system's clock
    assert mirror.is_changed


def test_what_is_too_large_is_shared_and_a_change_of_it_is_found(
    caller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "MAX_COPY", 2)
    monkeypatch.setattr(mirrors, "MAX_ENTRIES", 0)
    before = 1e9
    for path in (caller / "best.pt", caller / "data" / "deep", caller / "data"):
        os.utime(path, (before, before))
    mirror = mirror_of(caller, tmp_path)
    assert [*mirror.shared_changes(before + 1)] == []
    (Path(mirror.path) / "best.pt").write_text("through the link")
    (Path(mirror.path) / "data" / "new").write_text("through the link")
    assert sorted(shared.name for shared in mirror.shared_changes(before + 1)) == ["best.pt", "data/new"]
    assert written(mirror) == []


def test_a_file_that_is_written_again_in_a_directory_with_code_is_found(caller: Path, tmp_path: Path) -> None:
    before = 1e9
    (caller / "src").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (caller / "linked").symlink_to(tmp_path / "elsewhere")
    names = ("src/train.py", "src/out.json", "src/kept.json", "linked/of-others.log")
    for name in names:
        (caller / name).write_text("{}")
    for name in (*names, "src", "linked"):
        os.utime(caller / name, (before, before))
    mirror = mirror_of(caller, tmp_path)
    for name in ("src/train.py", "src/out.json", "linked/of-others.log"):
        with open(os.path.join(mirror.path, name), "w") as file:
            file.write("again")
    assert [shared.name for shared in mirror.shared_changes(before + 1)] == ["src/out.json"]
