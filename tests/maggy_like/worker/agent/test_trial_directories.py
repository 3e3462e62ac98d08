"""The directories of a worker's trials belong to the newest attempt of each trial on a machine."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from maggy_like.protocol.messages import Assign, RankInfo
from maggy_like.protocol.task import WorkerTask
from maggy_like.storage.file_systems import mark_store, put
from maggy_like.storage.trial_files import FileList, read_list
from maggy_like.worker.agent.trial_directories import TrialDirectories

LOST = """
import sys
from maggy_like.protocol.messages import Assign
from maggy_like.protocol.task import WorkerTask
from maggy_like.worker.agent.trial_directories import TrialDirectories

task = WorkerTask("", b"", "", b"", (), (), (), store=f"file://{sys.argv[1]}/checkpoints", logs=f"{sys.argv[1]}/logs")
directories = TrialDirectories(task)
directories.begin(Assign(0, 1, {}, 1))
print("begun", flush=True)
sys.stdin.readline()
print(directories.end(0, "a process"), flush=True)
directories.finish()
directories.close()
"""


def task_of(run: Path) -> WorkerTask:
    urls = {name: (run / name).as_uri() for name in ("checkpoints", "files")}
    return WorkerTask("", b"", "", b"", (), (), (), store=urls["checkpoints"], logs=f"{run}/logs", files=urls["files"])


def join_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "maggy-files":
            thread.join(300)


def test_a_worker_that_was_given_up_leaves_the_directories_to_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    run = tmp_path / "run"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", LOST, str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as lost:
        assert lost.stdout is not None
        assert lost.stdout.readline() == "begun\n"
        task = task_of(run)
        successor = TrialDirectories(task)
        assigned = successor.begin(Assign(0, 2, {}, 1))
        directories = map(os.fsdecode, (assigned.directory, assigned.working_directory))
        written = [Path(directory, "best.pt") for directory in directories]
        for path in written:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("of the second attempt")
        assert lost.communicate("\n", timeout=300)[0] == "False\n"
    assert [path.read_text() for path in written] == ["of the second attempt"] * 2
    assert successor.end(0, "another process")
    successor.finish()
    successor.close()


def kept_at_the_end(directories: TrialDirectories, task: WorkerTask) -> FileList:
    """Return the list of the files of trial 0, which has ended."""
    assert directories.end(0, "a process")
    directories.finish()
    join_threads()
    directories.close()
    kept = read_list(task.files, 0)
    assert kept is not None
    return kept


def test_the_files_of_a_trial_that_began_on_a_full_disk_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    task = task_of(tmp_path / "run")
    mark_store(task.store, task.run_id)
    directories = TrialDirectories(task)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        assigned = directories.begin(Assign(0, 1, {}, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    own = Path(os.fsdecode(assigned.directory))
    own.mkdir()
    (own / "best.pt").write_text("1")
    kept = kept_at_the_end(directories, task)
    assert [*kept.files] == ["best.pt"]


@pytest.mark.parametrize("executors", [("one", "one"), ("one", "another")])
@pytest.mark.parametrize("last", [0, 1])
def test_the_files_of_all_ranks_on_a_machine_are_kept(
    executors: tuple[str, str], last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, ranks = tmp_path / "run", []
    task = task_of(run)
    mark_store(task.store, task.run_id)
    for rank, executor in enumerate(executors):
        (tmp_path / executor).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / executor)
        directories = TrialDirectories(task)
        ranks.append((directories, directories.begin(Assign(0, 1, {}, 1, rank_info=RankInfo(rank, 2, rank, 2, 0, 1)))))
    for rank, (_, assigned) in enumerate(ranks):
        assert assigned.directory == ranks[0][1].directory
        Path(os.fsdecode(assigned.working_directory), f"relative{rank}").write_text("1")
        Path(os.fsdecode(assigned.directory)).mkdir(exist_ok=True)
        Path(os.fsdecode(assigned.directory), f"own{rank}").write_text("1")
    for directories, _ in (ranks[1 - last], ranks[last]):
        assert directories.end(0, "a process")
        directories.finish()
    join_threads()
    for directories, _ in ranks:
        directories.close()
    assert not list(run.glob("work/*"))
    kept = read_list(task.files, 0)
    assert kept is not None
    assert sorted(kept.files) == ["own0", "own1", "relative0", "relative1"]


def test_files_that_a_store_refuses_to_the_end_remain_where_the_note_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    task = task_of(run)
    mark_store(task.store, task.run_id)
    (run / "files").write_text("a file where a directory was")
    directories = TrialDirectories(task)
    own = Path(os.fsdecode(directories.begin(Assign(3, 1, {}, 1)).directory))
    own.mkdir()
    (own / "model").write_text("weights")
    monkeypatch.setattr(directories._gives_up, "wait", lambda _: directories._gives_up.set())
    assert directories.end(3, "a process")
    directories.finish()
    join_threads()
    waiting, note = directories.take_notes()
    assert waiting.message.startswith("its files wait to be kept: the store")
    directories.close()
    shutil.rmtree(run / "work", ignore_errors=True)  # as the driver does
    assert note.message.startswith("its files are not kept: the store")
    left = run / "work-left" / "00003.1"
    assert f"those of reporter.directory remain in {left} on" in note.message
    assert (left / "model").read_text() == "weights"


def test_files_are_given_up_at_once_if_no_later_try_can_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    task = task_of(run)
    mark_store(task.store, task.run_id)
    put(f"{task.files}/00003.json", b'{"attempt": 1, "files": {"../a": [1, 1]}}')
    directories = TrialDirectories(task)
    own = Path(os.fsdecode(directories.begin(Assign(3, 1, {}, 1)).directory))
    own.mkdir()
    assert directories.end(3, "a process")
    directories.finish()
    join_threads()
    assert "its files are not kept" in directories.take_notes()[0].message
    directories.close()


def test_ranks_share_a_working_directory_that_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second must not put its own in place of the one in which the first works."""
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    run = tmp_path / "run"
    task = task_of(run)
    ranks = [TrialDirectories(task), TrialDirectories(task)]
    used = []
    for rank, directories in enumerate(ranks):
        assigned = directories.begin(Assign(0, 1, {}, 1, rank_info=RankInfo(rank, 2, rank, 2, 0, 1)))
        used.append(os.stat(assigned.working_directory))
    assert os.path.samestat(*used)
    for directories in ranks:
        directories.finish()
        directories.close()


def test_a_rank_may_begin_while_the_others_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry is in a directory that the last of the others removes, perhaps just after it was made."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    task = task_of(run)
    directories, others = TrialDirectories(task), [0, 1]
    make = os.mkdir

    def make_but_lose(path: str, *args: Any, **options: Any) -> None:
        make(path, *args, **options)
        if others and "ranks" in path and Path(path).name.startswith("tree"):
            os.rmdir(path)
            others.pop()

    monkeypatch.setattr(os, "mkdir", make_but_lose)
    assigned = directories.begin(Assign(0, 1, {}, 1, rank_info=RankInfo(2, 3, 2, 3, 0, 1)))
    assert not others
    assert Path(os.fsdecode(assigned.working_directory)).is_dir()
    assert not directories.end(0, "a process")
    directories.finish()
    directories.close()


def test_absolute_links_to_files_of_the_same_directory_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    run = tmp_path / "run"
    task = task_of(run)
    mark_store(task.store, task.run_id)
    directories = TrialDirectories(task)
    assigned = directories.begin(Assign(0, 1, {}, 1))
    for name, directory in enumerate(map(os.fsdecode, (assigned.directory, assigned.working_directory))):
        Path(directory).mkdir(exist_ok=True)
        Path(directory, f"model{name}").write_text("weights")
        Path(directory, f"best{name}").symlink_to(f"{directory}/model{name}")
        Path(directory, f"last{name}").symlink_to(f"{directory}/best{name}")
        Path(directory, f"same{name}").symlink_to(f"best{name}")
        Path(directory, f"loop{name}").symlink_to(f"{directory}/loop{name}")
        Path(directory, f"out{name}").symlink_to(tmp_path / "home")
    kept = kept_at_the_end(directories, task)
    assert sorted(kept.files) == sorted(
        f"{name}{place}" for name in ("model", "best", "last", "same") for place in (0, 1)
    )
    assert (run / "files" / "00000" / "last0").read_text() == "weights"
    assert sorted(line.split(" ")[0] for line in kept.left_out) == ["loop0", "loop1", "out0", "out1"]


@pytest.mark.parametrize("end", ["removed", "renamed"])
def test_a_trial_may_remove_its_working_directory(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "data").write_text("of the caller")
    monkeypatch.chdir(tmp_path / "home")
    task = task_of(tmp_path / "run")
    mark_store(task.store, task.run_id)
    directories = TrialDirectories(task)
    for trial in range(4):
        assigned = directories.begin(Assign(trial, 1, {}, 1))
        working, own = (Path(os.fsdecode(path)) for path in (assigned.working_directory, assigned.directory))
        assert (working / "data").read_text() == "of the caller"
        own.mkdir()
        (own / "model").write_text("weights")
        if end == "removed":
            shutil.rmtree(working)
        else:
            working.rename(working.with_name(f"{working.name}-done"))
        assert directories.end(trial, trial)
        directories.exited(trial)
    directories.finish()
    join_threads()
    assert directories.take_notes() == []
    directories.close()
    kept = [read_list(task.files, trial) for trial in range(4)]
    assert [list(listed.files) for listed in kept if listed is not None] == [["model"]] * 4
