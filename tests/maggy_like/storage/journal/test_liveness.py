"""Whether a run goes on, seen from its own process, another one, another host and another container."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from maggy_like.errors import JournalError
from maggy_like.storage.journal.backends import BEAT, LAPSE, LocalBackend

HOLD = """
import sys
from maggy_like.storage.journal.backends import LocalBackend
LocalBackend(sys.argv[1]).hold()
print("held", flush=True)
input()
"""

LOOK = """
import sys
from maggy_like.storage.journal.backends import LocalBackend
print(LocalBackend(sys.argv[1]).is_held())
"""


def look(folder: Path, *prefix: str) -> str:
    command = [*prefix, sys.executable, "-c", LOOK, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def holders() -> dict[str, str]:
    host = os.uname().nodename
    return {
        "another host": "process 1234 on container-7f3a",
        "a process id that was reused": f"process 1 on {host}",
        "this very process": f"process {os.getpid()} on {host}",
    }


@pytest.mark.parametrize("seen_from", holders())
def test_a_killed_driver_holds_nothing_whatever_its_lock_says(tmp_path: Path, seen_from: str) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=-1, stdout=-1, text=True) as driver:
        assert driver.stdout.readline() == "held\n"
        assert LocalBackend(tmp_path).is_held()
        with pytest.raises(JournalError, match=rf"in use by another driver \(process {driver.pid} on "):
            LocalBackend(tmp_path).hold()
        driver.kill()
        driver.communicate()
    (tmp_path / "journal.lock").write_text(holders()[seen_from])
    assert not LocalBackend(tmp_path).is_held()
    successor = LocalBackend(tmp_path)
    successor.hold()
    assert LocalBackend(tmp_path).is_held()
    successor.release()


@pytest.mark.parametrize("seen_from", holders())
def test_a_live_driver_holds_its_run_whatever_its_lock_says(tmp_path: Path, seen_from: str) -> None:
    driver = LocalBackend(tmp_path)
    driver.hold()
    (tmp_path / "journal.lock").write_text(holders()[seen_from])
    assert LocalBackend(tmp_path).is_held()
    assert look(tmp_path) == "True"
    driver.release()
    assert not LocalBackend(tmp_path).is_held()


def test_a_run_goes_on_seen_from_a_container_with_other_process_ids(tmp_path: Path) -> None:
    driver = LocalBackend(tmp_path)
    driver.hold()
    try:
        there = look(tmp_path, "unshare", "--pid", "--fork", "--mount-proc")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to make a namespace of processes")
    finally:
        driver.release()
    assert there == "True"


def test_a_reader_that_looks_just_then_keeps_no_driver_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal.lock").touch()
    with open(tmp_path / "journal.lock") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda _: fcntl.flock(reader, fcntl.LOCK_UN))
        driver = LocalBackend(tmp_path)
        driver.hold()
    assert LocalBackend(tmp_path).is_held()
    driver.release()


def test_without_locks_a_reader_goes_by_the_driver_s_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    driver, lock = LocalBackend(tmp_path), tmp_path / "journal.lock"
    driver.hold()
    with monkeypatch.context() as mounted:
        mounted.setattr(fcntl, "flock", refuse)
        assert LocalBackend(tmp_path).is_held()
        os.utime(lock, (time.time(), time.time() - LAPSE - 1))
        assert not LocalBackend(tmp_path).is_held()
        driver._beat -= BEAT
        driver.renew()
        assert LocalBackend(tmp_path).is_held()
    driver.release()
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not LocalBackend(tmp_path).is_held()


def test_a_folder_without_a_lock_is_held_by_nobody(tmp_path: Path) -> None:
    assert not LocalBackend(tmp_path).is_held()
    assert not list(tmp_path.iterdir())
