"""``directory=`` is a URL: a run lives in any file system, is found by its URL alone, and outlives its driver."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pytest
import train_functions as fns
from background import Background
from fsspec.implementations.memory import MemoryFileSystem

from maggy_like import Float, Reporter, Result, lagom, load_run
from maggy_like.errors import ConfigError, JournalLostError
from maggy_like.storage import file_systems as directories
from maggy_like.storage.file_systems import check_directory
from maggy_like.storage.run_paths import OutputDirectory, RunPaths, place_for
from optimizers.core.events import AttemptEnded, Event
from optimizers.core.trial import TrialState
from optimizers.schedulers.asha import ASHA

RunScript = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(params=["file", "memory"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/my runs" if request.param == "file" else f"memory://{uuid.uuid4().hex}/my runs"


@pytest.fixture
def search(tmp_path: Path) -> Any:
    def run(directory: str | Path, train_fn: Any = fns.climb_on, **options: Any) -> Result:
        defaults: dict[str, Any] = {"engine": "inline", "optimizer": "random", "n_trials": 4, "max_budget": 3}
        common: dict[str, Any] = {"directory": directory, "progress": False, "name": "run"}
        return lagom(train_fn, {"x": Float(0, 1)}, **{**common, **defaults, **options})

    return run


def test_a_run_at_a_url_is_found_resumed_and_learned_from_by_its_url_alone(
    search: Any, directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = search(f"{directory}/", train_best=True)
    url = f"{directory}/run"
    assert (first.directory, first.store, first.name) == (url, f"{url}/checkpoints", "run")
    again = load_run(url)
    assert again == first
    assert repr(again) == repr(first)
    assert again.load_best() == again.training.load() == 3
    resumed = search(directory, train_best=True, n_trials=6, resume=True)
    assert [trial.config for trial in resumed.trials[:4]] == [trial.config for trial in first.trials]
    assert load_run(f"{url}/") == resumed
    warm = search(directory, name="warm", warm_start=[url], n_trials=1)
    assert warm.best_config == resumed.best_config
    training = first.train(budget=2, progress=False)
    assert training.directory == f"{directory}/{training.name}"
    assert training.name.startswith("run-train-")
    assert load_run(training.directory).training.load() == 2
    assert {path.name for path in tmp_path.iterdir()} <= {"my runs"}
    with pytest.raises(ConfigError, match=r"is a directory of runs, not a run; use .* of one: '.*my runs/run'"):
        load_run(directory)


def test_a_run_at_a_url_moves_with_its_directory(search: Any, directory: str, tmp_path: Path) -> None:
    before = search(directory, train_best=True)
    fs, path = fsspec.core.url_to_fs(directory)
    fs.mv(path, f"{path} moved", recursive=True)
    moved = load_run(f"{directory} moved/run")
    assert (moved.directory, moved.store) == (f"{directory} moved/run", f"{directory} moved/run/checkpoints")
    assert moved.load_best() == moved.training.load() == 3
    assert moved.best_config == before.best_config
    resumed = search(f"{directory} moved", train_best=True, n_trials=5, resume=True)
    assert len(resumed.trials) == 5


def test_a_directory_and_its_url_are_the_same_run(search: Any, tmp_path: Path) -> None:
    search(f"file://{tmp_path}/runs", train_best=True)
    by_path = load_run(tmp_path / "runs" / "run")
    assert by_path.directory == tmp_path / "runs" / "run"
    assert by_path.load_best() == 3
    assert len(search(tmp_path / "runs", n_trials=5, train_best=True, resume=True).trials) == 5
    shutil.move(tmp_path / "runs", tmp_path / "there")
    assert load_run(f"file://{tmp_path}/there/run").load_best() == 3


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("directory", ["s3://bucket/runs/first", "file:///my runs/first"])
def test_paths_at_a_url_are_read_back(directory: str, apart: bool) -> None:
    store = "gs://states/first" if apart else f"{directory}/checkpoints"
    paths = RunPaths(directory, store)
    assert RunPaths.recorded(directory, paths.recorded_store) == paths
    assert paths.of_sibling("second") == RunPaths(
        directory.replace("first", "second"), store.replace("first", "second")
    )
    if not apart:
        moved = RunPaths.recorded("az://new/x", paths.recorded_store)
        assert moved == RunPaths("az://new/x", "az://new/x/checkpoints")


@pytest.mark.parametrize(("given", "told"), [
    ("s3:/bucket/runs", r"is neither a path nor a URL; pass the text 's3://bucket/runs'"),
    (Path("s3://bucket/runs"), r"is neither a path nor a URL; pass the text 's3://bucket/runs'"),
    ("dbfs:/runs", r"pass the text '/dbfs/runs'"),
    ("file:/shared", r"pass the text 'file:///shared'"),
    ("file://shared/runs", r"is relative to the working directory; pass 'file:///shared/runs'"),
    ("simplecache::s3://bucket/runs", r"is a chain of file systems, .*; pass 's3://bucket/runs'"),
    ("s3://bucket/runs?versionId=3", r"has a '\?', which begins a query or a pattern"),
    ("s3://bucket/run*", r"has a '\*', which begins a query or a pattern"),
    ("file:///my%20runs", r"has percent signs, which fsspec does not decode; pass 'file:///my runs'"),
    ("s3://bucket/a/../b", r"has '\.\.', which is an ordinary name in an object store"),
    ("s3://bucket/runs ", r"begins or ends with white space"),
    ("s3://", r"does not name a directory; pass s3://NAME"),
    ("S3://bucket/runs", r"fsspec does not support 'S3'; pass 's3://bucket/runs'"),
    ("dbfs://host/runs", r"cannot be opened: .*'instance' and 'token'; check its address and your credentials"),
    ("nowhere://bucket", r"directory='nowhere://bucket' .*; use a path, or a protocol that fsspec supports"),
    ("gs://bucket/runs", r"a package is missing here \(.*gcsfs.*\); install it here and where the workers run"),
    ("abfss://runs@me.dfs.core.windows.net/a", r"package is missing here \(Install adlfs .*\); install it here and"),
    ("", r"directory must be the path or URL of a directory, got ''; leave it out for 'maggy_runs'"),
    (3, r"directory must be the path or URL of a directory, got 3"),
])  # fmt: skip
def test_mistakes_in_a_url_are_told_before_anything_starts(search: Any, given: Any, told: str) -> None:
    package = next((name for name in ("gcsfs", "adlfs") if name in told), "")
    if package and find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    with pytest.raises(ConfigError, match=told):
        search(given)


def test_a_path_is_left_alone() -> None:
    assert check_directory("directory", "my?runs [1]/%20/") == "my?runs [1]/%20"
    assert check_directory("directory", "/") == "/"


@pytest.mark.parametrize("given", ["a::b", "memory::b", "file://{}/a::b"])
def test_two_colons_in_the_name_of_a_directory_chain_no_file_systems(
    search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given = given.format(tmp_path)
    search(given)
    result = search(given, n_trials=6, resume=True)
    assert len(result.trials) == len(load_run(f"{given}/run").trials) == 6
    assert result.load_best() is not None
    apart = search(given, name="apart", store="c::d")
    assert apart.load_best() is not None
    assert {path.name for path in tmp_path.iterdir()} == {given.rpartition("/")[2], "c::d"}


def test_memory_that_no_worker_sees_is_refused(search: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"directory='memory://runs' is in this process's memory, which workers cannot see"
    ):
        search("memory://runs", engine="local", workers=1)


def test_a_place_that_refuses_is_told_before_anything_starts(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise PermissionError("no credentials")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.pipe_file", refuse)
    told = r"directory='memory://x' cannot be written and read \(PermissionError: no credentials\); check"
    with pytest.raises(ConfigError, match=told):
        search("memory://x")


def test_a_place_that_does_not_answer_is_told_before_anything_starts(
    search: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(directories, "PROBE_PATIENCE", 0.05)
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda *_, **__: answers.wait(60.0))
    with pytest.raises(ConfigError, match=r"directory='memory://x' does not respond: no file could be written in"):
        search("memory://x")
    answers.set()


def test_what_workers_say_themselves_goes_to_the_run_s_directory_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    at_path = OutputDirectory(tmp_path / "run")
    assert (at_path.path, at_path.move()) == (tmp_path / "run" / "workers", "")
    url = f"memory://{uuid.uuid4().hex}/run"
    silent, output, stuck = OutputDirectory(url), OutputDirectory(url), OutputDirectory(url)
    assert (silent.move(), list(tmp_path.iterdir())) == ("", [])
    (output.path / "spark.log").write_text("Java's frames")
    (stuck.path / "0.log").write_text("kept")
    assert output.move() == f"the workers' own output is in {url}/workers"
    assert (output.path.exists(), output.move()) == (False, "")
    assert fsspec.filesystem("memory").cat_file(f"{url}/workers/spark.log") == b"Java's frames"
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", lambda *_: 1 / 0)
    assert stuck.move() == f"the workers' own output is in {stuck.path}"
    assert stuck.move() == ""  # a store that is away is not asked twice
    assert (stuck.path / "0.log").read_text() == "kept"


SCRIPT = """
import sys
from maggy_like import Float, lagom, load_run

def train(x, reporter):
    print("at", x)
    begun = reporter.restore() or 0
    for step in range(begun + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)
        if x == 0.5 and not begun:
            raise ConnectionError("once")

def search(**options):
    return lagom(train, {"x": Float(0, 1)}, points_to_evaluate=[{"x": 0.5}], optimizer="random", workers=2,
                 engine="local", max_budget=3, name="run", directory=sys.argv[1], **options)

result = search(n_trials=3, progress="plain")
again = load_run(sys.argv[1] + "/run")
assert again == result, (again, result)
assert again.load_best() == 3
more = search(n_trials=4, progress=False, resume=True)
assert [t.config for t in more.trials[:3]] == [t.config for t in result.trials]
assert more.log(0).count("at 0.5") == more.trials[0].attempt == 2
assert [more.log(t.id) for t in more.trials[1:]] == [f"at {t.config['x']}" + chr(10) for t in more.trials[1:]]
print("done", more.directory)
"""


@pytest.mark.long
@pytest.mark.e2e
def test_a_run_whose_directory_is_in_an_object_store(
    object_store: dict[str, str], run_script: RunScript, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ran = run_script(SCRIPT, "s3://runs/here", env={**object_store, "TMPDIR": str(scratch)})
    assert "done s3://runs/here/run" in ran.stdout, ran.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"scratch", "script.py"}
    assert not [path.name for path in scratch.iterdir() if path.name.startswith("maggy")]


@pytest.mark.e2e
def test_a_store_that_refuses_logs_costs_nothing_and_is_told_once(
    search: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(x: float, reporter: Reporter) -> float:
        print("hello")
        return x

    # `refusing://` is known to this process alone: the workers have no package for it.
    fsspec.register_implementation("refusing", MemoryFileSystem, clobber=True)
    monkeypatch.setattr("maggy_like.driver.runner.is_in_memory", lambda _: False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = search(f"refusing://{uuid.uuid4().hex}", train, engine="local", workers=2, progress="plain")
    assert result.counts == {TrialState.COMPLETED: 4}
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("the trials' logs do not arrive: the store refusing://") == 1
    assert "cannot access the store of this run (ValueError: Protocol not known: refusing), so" in out
    assert "check the package, the credentials and the network on that host" in out
    assert sorted(file.name for file in tmp_path.glob("maggy-logs-*/*.log")) == [f"0000{n}.log" for n in range(4)]


def refusal(real: Any, code: int, applies: Callable[..., bool]) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        if applies(*args):
            raise OSError(code, os.strerror(code))
        return real(*args, **options)

    return call


def is_probe(fd: int) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}").endswith("journal.jsonl")


@pytest.mark.parametrize(
    ("call", "code", "applies", "told"),
    [
        ("fcntl.flock", errno.ENOLCK, lambda *_: True, "lock files"),
        ("os.open", errno.EOPNOTSUPP, lambda path, flags, *_: flags & os.O_APPEND, "append to files"),
        ("os.write", errno.EOPNOTSUPP, lambda fd, _: is_probe(fd) and os.fstat(fd).st_size, "append to files"),
        ("os.rename", errno.EPERM, lambda *_: True, "rename files"),
    ],
    ids=["no locks", "no appends", "one write for a file", "no renames"],
)
def test_a_run_is_kept_as_at_a_url_where_a_journal_cannot_be_appended_to(
    search: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    code: int,
    applies: Callable[..., bool],
    told: str,
) -> None:
    module, _, name = call.partition(".")
    search(tmp_path, name="before")
    with monkeypatch.context() as odd:
        odd.setattr(call, refusal(getattr(sys.modules[module], name), code, applies))
        assert place_for(tmp_path / "runs" / "run") == f"mount://{tmp_path}/runs/run"
        assert place_for(tmp_path / "before") == tmp_path / "before"  # it has a journal that must be appended to
        with pytest.raises(ConfigError, match=f"directory='.*' cannot .*{told}.*; start another run there"):
            search(tmp_path, name="before", resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before"]
    assert place_for(tmp_path / "runs" / "run") == tmp_path / "runs" / "run"


def test_a_full_disk_is_told_before_anything_starts(
    search: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as odd:
        odd.setattr("os.write", refusal(os.write, errno.ENOSPC, lambda fd, _: is_probe(fd)))
        with pytest.raises(ConfigError, match=r"cannot be written \(.*No space.*\); free space"):
            search(tmp_path / "runs", engine="inline")
    assert not list((tmp_path / "runs").iterdir())
    assert search(tmp_path / "runs", engine="inline").counts[TrialState.COMPLETED]


def test_a_probe_leaves_nothing_and_touches_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    directories.probe_path(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# -- a run in an object store outlives its driver, and its driver's directory --------------------------


KILLED = """
import sys, threading
from maggy_like import Float, lagom
from optimizers.core.events import AttemptEnded, AttemptStarted

def train(x, reporter):
    for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)
        if {hangs} and x == 0.5 and step == 2:
            print("at step 2", flush=True)
            threading.Event().wait()
    return {{"score": x * reporter.budget}}

def tell(event):
    if isinstance(event, AttemptStarted | AttemptEnded):
        print(type(event).__name__, event.trial, event.attempt, flush=True)

result = lagom(train, {{"x": Float(0, 1)}}, optimizer="random", n_trials=4, workers=2, engine="local", max_budget=3,
               points_to_evaluate=[{{"x": 0.25}}, {{"x": 0.5}}], callbacks=[tell], name="run",
               directory="s3://runs/of-a-killed-driver", store="s3://runs/states", progress="plain",
               resume=len(sys.argv) > 1)
print("states", *(t.state for t in result.trials), "steps", *(len(t.curve) for t in result.trials))
"""


@pytest.mark.e2e
def test_a_killed_driver_s_run_goes_on_from_the_store_alone(
    object_store: dict[str, str], run_script: RunScript, tmp_path: Path
) -> None:
    script = tmp_path / "first.py"
    script.write_text(KILLED.format(hangs=True))
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, **object_store}, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if any("at step 2" in text for text in said) and sum("AttemptEnded" in text for text in said) == 3:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
    assert children, "".join(said)
    assert not psutil.wait_procs(children, timeout=300)[1]

    again = run_script(KILLED.format(hangs=False), "resume", env=object_store)
    assert "states completed completed completed completed steps 3 3 3 3" in again.stdout, again.stderr
    started = [line for line in again.stdout.splitlines() if line.startswith("AttemptStarted")]
    assert started == ["AttemptStarted 1 2"]  # at once: the lease of a dead process of this host counts for nothing
    listing = run_script(
        "import fsspec; print(*fsspec.filesystem('s3').glob('s3://runs/of-a-killed-driver/run/journal*'))",
        env=object_store,
    )
    assert listing.stdout.split() == [
        f"runs/of-a-killed-driver/run/journal-000001{epoch}.jsonl" for epoch in ("-2.0", "")
    ], listing.stderr


# -- the directory of a run is moved and deleted -------------------------------------------------------


def promote(directory: Path, train_fn: Any = fns.climb_on, **options: Any) -> Result:
    defaults: dict[str, Any] = {"engine": "inline", "optimizer": ASHA(mode="promotion"), "n_trials": 9}
    common: dict[str, Any] = {"directory": directory, "name": "run", "progress": False, "max_budget": 9}
    return lagom(train_fn, {"x": Float(0, 1)}, **{**defaults, **common, **options})


def states_of(run: Path) -> dict[str, bytes]:
    store = run / "checkpoints"
    return {str(file.relative_to(store)): file.read_bytes() for file in store.rglob("*.pkl")}


@pytest.mark.e2e
def test_both_copies_of_a_run_go_on_and_touch_nothing_of_each_other(tmp_path: Path) -> None:
    background, rested = Background(), []

    def on_event(event: Event) -> None:
        rested.extend([event] if isinstance(event, AttemptEnded) and event.state is TrialState.PAUSED else [])
        if len(rested) == 5:
            background.stop()

    first = background.run(promote, tmp_path / "here", callbacks=[on_event])
    assert first.counts[TrialState.PAUSED] >= 3
    shutil.copytree(tmp_path / "here", tmp_path / "copy")
    shutil.move(tmp_path / "here", tmp_path / "there")
    before = states_of(tmp_path / "copy" / "run")
    moved = promote(tmp_path / "there", resume=True)
    assert states_of(tmp_path / "copy" / "run") == before
    after = states_of(tmp_path / "there" / "run")
    copied = promote(tmp_path / "copy", resume=True)
    assert states_of(tmp_path / "there" / "run") == after
    assert not (tmp_path / "here").exists()
    for result in (moved, copied):
        assert (result.ending, result.failures, len(result.trials)) == ("completed", [], 9)
        assert any(trial.metrics.get("start", 1) > 1 for trial in result.trials)  # from a state that was saved before
    assert moved.best_config == copied.best_config


@pytest.mark.parametrize("how", ["deleted", "moved"])
@pytest.mark.e2e
def test_a_search_whose_directory_is_gone_says_so_and_has_its_result(tmp_path: Path, how: str) -> None:
    def train(x: float, reporter: Reporter) -> float:
        if reporter.trial == 2:
            if how == "deleted":
                shutil.rmtree(tmp_path / "run")
            else:
                (tmp_path / "run").rename(tmp_path / "elsewhere")
            while not threading.Event().wait(0.01):  # until it is told to stop
                reporter.report(score=x)
        return x

    with pytest.raises(JournalLostError, match=f"run was {how} with its journal .*so the search was ended") as lost:
        promote(tmp_path, train, optimizer="random", max_budget=10**9)
    result = lost.value.result
    assert isinstance(result, Result)
    assert [trial.state for trial in result.trials[:2]] == [TrialState.COMPLETED] * 2
    assert not any("resume=True" in note for note in getattr(lost.value, "__notes__", []))


@pytest.mark.e2e
def test_an_object_store_s_run_that_is_deleted_is_missed_with_the_next_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maggy_like.storage.journal.object_store.RENEWAL", 0.0)

    def train(x: float, reporter: Reporter) -> float:
        if reporter.trial == 1:
            fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)
            while not threading.Event().wait(0.01):
                reporter.report(score=x)
        return x

    with pytest.raises(JournalLostError, match=r"the lease of the run in memory://.*/run was deleted") as lost:
        promote(f"memory://{tmp_path.name}", train, optimizer="random", max_budget=10**9)
    assert isinstance(lost.value.result, Result)
