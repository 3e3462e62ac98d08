"""Files of trials are kept in the run's directory and restored, and nothing leaves the directories."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from maggy_like.storage import trial_files
from maggy_like.storage.checkpoints import once
from maggy_like.storage.file_systems import open_url, put
from maggy_like.storage.trial_files import Found, keep, left_out_note, read_list, remove_files, restore


@pytest.fixture(params=["path", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "path":
        yield f"file://{tmp_path}/files"
        return
    name = uuid.uuid4().hex
    yield f"memory://{name}/files"
    fs, path = open_url(f"memory://{name}")
    fs.rm(path, recursive=True)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    directory = tmp_path / "own"
    directory.mkdir()
    return directory


def found(directory: Path) -> Found:
    all_files = Found()
    all_files.add(str(directory))
    return all_files


def content(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("links", [False, True])
def test_files_are_kept_and_restored_elsewhere(store: str, own: Path, tmp_path: Path, *, links: bool) -> None:
    (own / "runs" / "a").mkdir(parents=True)
    (own / "runs" / "a" / "events").write_text("1")
    (own / "best.pt").write_text("weights")
    assert keep(store, 3, 1, found(own), links=links)
    elsewhere = tmp_path / "elsewhere"
    assert not restore(store, 3, 1, str(elsewhere), "", once)
    assert content(elsewhere) == {"runs/a/events": "1", "best.pt": "weights"}
    assert not restore(store, 4, 0, str(tmp_path / "none"), "", once)
    assert not (tmp_path / "none").exists()


def test_a_later_attempt_copies_what_has_changed_and_removes_what_is_gone(
    store: str, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("same", "changed", "gone"):
        (own / name).write_text(name)
    keep(store, 0, 1, found(own))
    (own / "changed").write_text("again")
    (own / "gone").unlink()
    copied: list[str] = []
    put_one = trial_files._put
    monkeypatch.setattr(
        trial_files, "_put", lambda fs, source, *rest, **how: (copied.append(source), put_one(fs, source, *rest, **how))
    )
    keep(store, 0, 2, found(own))
    assert [os.path.basename(path) for path in copied] == ["changed"]
    fs, path = open_url(f"{store}/00000")
    assert {name.rpartition("/")[2]: fs.cat_file(name) for name in fs.ls(path, detail=False)} == {
        "same": b"same", "changed": b"again"}  # fmt: skip


@pytest.mark.parametrize("names", [("model", "model/weights/a"), ("model/weights/a", "model")])
def test_a_file_takes_the_place_of_a_directory_and_a_directory_that_of_a_file(
    store: str, own: Path, tmp_path: Path, names: tuple[str, str]
) -> None:
    for attempt, name in enumerate((*names, "other", *names)):  # "other" leaves an empty directory behind
        shutil.rmtree(own)
        (own / name).parent.mkdir(parents=True)
        (own / name).write_text(f"{attempt}")
        assert keep(store, 0, attempt, found(own), links=attempt % 2 == 0)
        there = tmp_path / f"there{attempt}"
        assert not restore(store, 0, attempt, str(there), "", once)
        assert content(there) == {name: f"{attempt}"}


def test_other_ranks_files_stay_unless_one_of_these_takes_their_place(store: str, own: Path, tmp_path: Path) -> None:
    for names in (("a", "model"), ("b", "model/weights")):
        shutil.rmtree(own)
        for name in names:
            (own / name).parent.mkdir(parents=True, exist_ok=True)
            (own / name).write_text(name)
        assert keep(store, 0, 1, found(own), adds=True)
    assert not restore(store, 0, 1, str(tmp_path / "there"), "", once)
    assert content(tmp_path / "there") == {name: name for name in ("a", "b", "model/weights")}


def test_files_are_complete_after_the_store_refused_their_list(
    store: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / "model").write_text("weights")
    (own / "last").symlink_to("model")

    def refuse(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(trial_files, "_write_list", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                keep(store, 0, 1, found(own), links=True)
    assert keep(store, 0, 1, found(own), links=True)
    assert content(own) == {"model": "weights", "last": "weights"}
    shutil.rmtree(own)
    assert not restore(store, 0, 1, str(own), "", once)
    assert content(own) == {"model": "weights", "last": "weights"}
    fs, path = open_url(store)
    assert sorted(name.rpartition("/")[2] for name in fs.ls(path, detail=False)) == ["00000", "00000.json"]


def test_any_two_names_are_kept_side_by_side(store: str, own: Path, tmp_path: Path) -> None:
    names = [f"data{number}.zip{end}" for number in range(4) for end in ("", ".part")]
    for name in names:
        (own / name).write_text(name)
    keep(store, 0, 1, found(own))
    restore(store, 0, 1, str(tmp_path / "there"), "", once)
    assert content(tmp_path / "there") == {name: name for name in names}


def test_a_file_that_its_directory_cannot_take_is_left_out(own: Path, tmp_path: Path) -> None:
    deepest = own
    while len(str(deepest)) < 4000:
        deepest /= "d" * min(200, 4080 - len(str(deepest)))
    deepest.mkdir(parents=True)
    for name in (deepest / "a", own / "b"):
        name.write_text("1")
    listed = found(own)
    assert keep(f"file://{tmp_path}/{'f' * 200}", 0, 1, listed)
    assert [*listed.files] == ["b"]
    assert listed.left_out[0].endswith("/a (File name too long)")


def test_a_missing_file_is_named_and_the_others_are_restored(store: str, own: Path, tmp_path: Path) -> None:
    for name in ("gone", "there"):
        (own / name).write_text(name)
    keep(store, 0, 1, found(own))
    fs, path = open_url(f"{store}/00000/gone")
    fs.rm_file(path)
    answers: set[object] = set()

    def read(verb: str, act: object, *results: type[Exception]) -> object:
        answers.update(results)
        return once(verb, act, *results)  # type: ignore[arg-type]

    missing = restore(store, 0, 1, str(tmp_path / "there"), "", read)
    assert missing == f"files of this trial are missing in {store}: gone"
    assert (tmp_path / "there" / "there").read_text() == "there"
    assert {FileNotFoundError, IsADirectoryError, NotADirectoryError} <= answers  # which nobody waits for


def test_an_abandoned_attempt_overwrites_nothing(store: str, own: Path) -> None:
    (own / "a").write_text("new")
    keep(store, 0, 2, found(own))
    (own / "a").write_text("older")
    keep(store, 0, 1, found(own))
    fs, path = open_url(f"{store}/00000/a")
    assert fs.cat_file(path) == b"new"


def test_a_trial_waits_for_the_files_of_its_last_attempt(store: str, own: Path, tmp_path: Path) -> None:
    (own / "a").write_text("1")
    keep(store, 0, 1, found(own))
    elsewhere, waits = tmp_path / "elsewhere", threading.Event()

    def read(verb: str, act: object, *answers: object) -> object:
        waits.set()
        return once(verb, act, *answers)  # type: ignore[arg-type]

    restoring = threading.Thread(target=restore, args=(store, 0, 2, str(elsewhere), "", read))
    restoring.start()
    assert waits.wait(60)
    (own / "a").write_text("2")
    keep(store, 0, 2, found(own))
    restoring.join(60)
    assert content(elsewhere) == {"a": "2"}


def test_links_out_of_the_directory_pipes_and_directories_named_twice_are_left_out(store: str, own: Path) -> None:
    (own / "best").write_text("1")
    (own / "last").symlink_to("best")
    (own / "etc").symlink_to("/etc")
    (own / "passwd").symlink_to("/etc/passwd")
    (own / "loop").symlink_to(".")
    os.mkfifo(own / "pipe")
    listed = found(own)
    assert sorted(listed.files) == ["best", "last"]
    assert sorted(line.split(" ")[0] for line in listed.left_out) == ["etc", "loop", "passwd", "pipe"]
    keep(store, 0, 1, listed, links=True)
    fs, path = open_url(f"{store}/00000")
    assert [fs.cat_file(f"{path}/{name}") for name in ("best", "last")] == [b"1", b"1"]


def test_the_files_of_one_of_a_trials_directories_are_left_out_where_the_other_has_a_directory(tmp_path: Path) -> None:
    own, working = tmp_path / "own", tmp_path / "working"
    for directory, names in ((own, ("a", "b/c")), (working, ("a/b", "b", "d"))):
        for name in names:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(name)
    listed = found(own)
    listed.add(str(working), in_working=True)
    assert sorted(listed.files) == ["a", "b/c", "d"]
    assert sorted(line.partition(" ")[0] for line in listed.left_out) == ["a/b", "b"]


def test_the_largest_files_are_left_out(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (1, 20, 300):
        (own / f"file{size}").write_bytes(bytes(size))
    listed = found(own)
    listed.limit(300)
    assert sorted(listed.files) == ["file1", "file20"]
    assert "1 of its 3 files are not kept: file300 (300 bytes)" in left_out_note(listed, 300)
    monkeypatch.setattr(trial_files, "MAX_FILES", 1)
    listed.limit(300)
    assert [*listed.files] == ["file1"]


def test_a_file_that_grows_while_it_is_copied_is_copied_as_it_was(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "log").write_bytes(b"x" * 10)
    monkeypatch.setattr(trial_files, "_BLOCK", 5)
    stat = os.fstat

    def grows(descriptor: int) -> os.stat_result:
        about = stat(descriptor)
        with open(own / "log", "ab") as log:
            log.write(b"more")
        return about

    monkeypatch.setattr(os, "fstat", grows)
    trial_files.copy_file(str(own / "log"), str(own / "copy"))
    assert (own / "copy").read_bytes() == b"x" * 10


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "", ".", "a//b"])
def test_a_list_that_names_a_file_elsewhere_is_rejected(store: str, name: str) -> None:
    put(f"{store}/00000.json", f'{{"attempt": 1, "files": {{"{name}": [1, 1, false]}}}}'.encode())
    with pytest.raises(ValueError, match="must be a path in its directory"):
        read_list(store, 0)


def test_restored_files_replace_links_and_are_not_written_through_them(store: str, own: Path, tmp_path: Path) -> None:
    (own / "data").mkdir()
    (own / "data" / "x").write_text("mine")
    keep(store, 0, 1, found(own))
    caller, there = tmp_path / "caller", tmp_path / "there"
    caller.mkdir()
    there.mkdir()
    (there / "data").symlink_to(caller)
    restore(store, 0, 1, str(there), "", once)
    assert (there / "data" / "x").read_text() == "mine"
    assert not [*caller.iterdir()]


def test_the_files_of_all_hosts_are_restored_and_removed(store: str, own: Path, tmp_path: Path) -> None:
    (own / "both").write_text("0")
    keep(store, 5, 1, found(own), host=0, hosts=2)
    (own / "both").write_text("1")
    (own / "shard1").write_text("1")
    keep(store, 5, 1, found(own), host=1, hosts=2)
    restore(store, 5, 1, str(tmp_path / "there"), "", once)
    assert content(tmp_path / "there") == {"both": "0", "shard1": "1"}
    remove_files(store, [4, 5])
    assert (read_list(store, 5), read_list(store, 5, 1)) == (None, None)
