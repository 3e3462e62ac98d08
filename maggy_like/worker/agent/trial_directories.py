"""The directories of a worker's trials on this machine, and the thread that keeps what trials have written in them.

Each trial has ``reporter.directory``, which is empty at first, and unless the engine shares the caller's working
directory, one of its own as a working directory (see :mod:`maggy_like.worker.agent.mirror`). Mirrors are made ahead,
and used again: a trial that writes nothing costs two renames.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

import msgspec

from maggy_like.protocol.messages import Assign, Noted, NoteSubject, RankInfo
from maggy_like.protocol.task import FILES_PATIENCE, WorkerTask
from maggy_like.storage.file_systems import is_store_fault, is_visible, refusal, try_local_path
from maggy_like.storage.run_paths import LEFT, WORK
from maggy_like.storage.trial_files import Found, keep, left_out_note
from maggy_like.worker.agent.mirror import MAX_ENTRIES, Mirror, Plan, make_parents, make_plan

PREFIX = ".maggy-"
"""Beginning of the names of directories that no trial uses."""

SPARE = 2
"""Number of mirrors that are made ahead: for the next trial, and while a process of the last one exits."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
"""Seconds before another try of a refused copy: each pause is twice the one before."""

CLOSE_PATIENCE = 1.0
"""Seconds within which the thread must end once nothing is to be kept."""

CHANGED = (
    "{} in the caller's working directory was changed while this trial ran; trials share large files there, and "
    f"directories with code or more than {MAX_ENTRIES} entries, so write to reporter.directory, or to another name"
)

UNSEEN = (
    "the files of trials on {} are not kept, because it does not see {}; pass store= with the URL of a directory that "
    "all workers see"
)

CLAIM_SIZE = 8
"""Bytes of an attempt's number in the file of claims, in which each trial has its place."""

CLOCK = 0.1
"""Seconds by which a file system's time of a change may be too early."""

NO_MIRROR = "trials share the caller's working directory, because none of their own can be made ({})"

WAITING = (
    f"its files wait to be kept: {{}}; the worker tries again, at the end of the run for up to {FILES_PATIENCE:.0f} s"
)

LOST = "its files are not kept: {}; those of reporter.directory remain in {} on {}"

Job = Callable[[], None]

_NUMBERS = itertools.count()


@dataclass(eq=False)
class Place:
    """The directories of a trial on this machine."""

    assign: Assign  # the attempt that uses them
    own: str  # path of ``reporter.directory``, which may not exist
    mirror: Mirror | None  # its working directory
    began: float  # Unix time
    known: tuple[str, str] = ("", "")  # the paths at which the trial finds them, before they are moved away
    registry: str = ""  # directory with an entry for each rank on this machine that shares them, if there are several
    has_files: bool = False  # whether it has any: it has written them, or an earlier attempt has
    moving: threading.Lock = field(default_factory=threading.Lock)  # held while they are moved

    def paths(self) -> tuple[str, str]:
        """Return their present paths."""
        with self.moving:
            return self.own, "" if self.mirror is None else self.mirror.path


class TrialDirectories:
    """Makes, keeps and removes the directories of the trials of one worker."""

    def __init__(self, task: WorkerTask) -> None:
        self._task = task
        self._original = ""
        self._root = self._parents = ""
        self._claims = -1  # a file with the attempt that uses the directories of each trial
        self._plan: Plan | None = None
        self._spare: deque[Mirror] = deque()
        self._making = threading.Lock()
        self._places: dict[int, Place] = {}  # by trial: of attempts that run, or are paused in their process
        self._retired: dict[Hashable, list[Mirror]] = {}  # used by a process that has not exited
        self._notes: deque[tuple[NoteSubject, str, int | None]] = deque()
        self._later: deque[Job] = deque()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._gives_up = threading.Event()
        self._is_seen: bool | None = None  # whether this machine sees the place of the files
        with contextlib.suppress(OSError):  # the working directory is gone
            self._original = os.path.realpath(os.getcwd())
        self._has_mirrors = bool(self._original) and task.working_directory == "trial" and task.isolation != "none"
        if self._has_mirrors:
            self._do(self._stock)

    # -- an attempt ---------------------------------------------------------------------------

    def begin(self, assign: Assign) -> Assign:
        """Return an assignment with the directories of its trial."""
        with self._making:
            self._prepare()
        with contextlib.suppress(OSError):  # a full disk: an earlier attempt remains there, or none
            os.pwrite(self._claims, assign.attempt.to_bytes(CLAIM_SIZE, "big"), assign.trial * CLAIM_SIZE)
        place = self._places.get(assign.trial)
        if place is None:
            place = self._places[assign.trial] = self._make_place(assign)
        place.assign = assign
        working = "" if place.mirror is None else place.mirror.path
        return msgspec.structs.replace(assign, directory=os.fsencode(place.own), working_directory=os.fsencode(working))

    def checkpointed(self, trial: int) -> None:
        """Keep the files of a trial that has saved a state, if that was asked for."""
        place = self._places.get(trial) if self._task.files_at_checkpoints else None
        if place is not None and self._is_owned(place) and self._is_used(place):
            self._do(partial(self._keep, place, place.assign, is_last=False))

    def end(self, trial: int, process: Hashable, *, paused: bool = False) -> bool:
        """Return whether an attempt that has ended has files; they are kept after the next call of :meth:`work`.

        Unless it is ``paused``, its directories are no longer used by a trial, but ``process`` may still use them.
        """
        if (place := self._places.get(trial)) is None:
            return False
        if not self._is_owned(place):
            del self._places[trial]
            return False
        info = place.assign.rank_info
        has_files = self._is_used(place)
        is_free, is_last = (True, False) if paused else self._leave(place, process)
        if is_free and (has_files or (info is not None and (info.group_world_size > 1 or info.local_world_size > 1))):
            self._later.append(partial(self._keep, place, place.assign, is_last=is_last))
        if is_free and not paused and place.mirror is not None:
            self._later.append(partial(self._look_at_shared, place.mirror, trial, place.began))
        return has_files

    def work(self) -> None:
        """Let the thread begin with the files of the attempts that have ended."""
        while self._later:
            self._do(self._later.popleft())

    def discard(self, trial: int, process: Hashable) -> None:
        """Give up the directories of a paused trial that does not continue in its process; its files are kept."""
        if (place := self._places.get(trial)) is None:
            return
        if not self._is_owned(place):
            del self._places[trial]
        elif self._leave(place, process)[1]:
            self._do(partial(shutil.rmtree, place.own, ignore_errors=True))

    def exited(self, process: Hashable) -> None:
        """Let later trials use the working directories of a process that uses them no longer."""
        self.work()
        for mirror in self._retired.pop(process, ()):
            self._do(partial(self._recycle, mirror))

    def _is_owned(self, place: Place) -> bool:
        """Whether no later attempt uses the directories, because the driver has given this worker up for lost."""
        claim = os.pread(self._claims, CLAIM_SIZE, place.assign.trial * CLAIM_SIZE)
        return int.from_bytes(claim, "big") <= place.assign.attempt

    def _is_used(self, place: Place) -> bool:
        """Whether a trial has files; a look at what it may have written, which takes some microseconds."""
        is_written = place.mirror is not None and place.mirror.is_changed
        place.has_files |= is_written or os.path.lexists(place.own)
        return place.has_files

    def _make_place(self, assign: Assign) -> Place:
        name = f"{assign.trial:05d}"
        place = Place(assign, os.path.join(self._root, "own", name), None, time.time())
        info = assign.rank_info
        shares = info is not None and info.local_world_size > 1
        if shares and info is not None:
            # Ranks in several executors of a machine have different originals, and so different mirrors.
            tree = os.path.relpath(self._parents, self._root).split(os.sep)[0] if self._has_mirrors else "tree"
            place.registry = os.path.join(self._root, "ranks", f"{name}.{assign.attempt}", tree)
            _enter(place.registry, info)
        elif os.path.lexists(place.own):  # left by a worker that was killed
            self._set_aside(place.own)
        if self._has_mirrors:
            try:
                place.mirror = self._mirror_at(os.path.join(self._parents, name), shares=shares)
            except OSError as error:
                self._notes.append(("files", NO_MIRROR.format(error), None))
        place.known = place.paths()
        return place

    def _mirror_at(self, path: str, *, shares: bool) -> Mirror:
        with self._alone_on_this_machine() if shares else contextlib.nullcontext():
            if os.path.lexists(path):
                if shares:  # another rank was faster
                    assert self._plan is not None
                    return Mirror(path, self._original, self._plan, is_made=True)
                self._set_aside(path)
            with self._making:
                mirror = self._spare.popleft() if self._spare else self._new_mirror()
            mirror.move(path)  # which would replace an empty directory
        return mirror

    @contextlib.contextmanager
    def _alone_on_this_machine(self) -> Iterator[None]:
        """Let no other worker on this machine take a working directory meanwhile."""
        with contextlib.suppress(OSError):  # no locks
            fcntl.flock(self._claims, fcntl.LOCK_EX)  # released also when this process is killed
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(self._claims, fcntl.LOCK_UN)

    def _set_aside(self, path: str) -> None:
        aside = self._unique(os.path.dirname(path))
        with contextlib.suppress(OSError):
            os.rename(path, aside)
            self._do(partial(shutil.rmtree, aside, ignore_errors=True))

    def _leave(self, place: Place, process: Hashable) -> tuple[bool, bool]:
        """Move a trial's directories away, unless other ranks use them.

        Return whether its working directory was moved, and whether ``reporter.directory`` was too.
        """
        del self._places[place.assign.trial]
        is_free = is_last = True
        if place.registry and (info := place.assign.rank_info) is not None:
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(place.registry, str(info.rank)))
            is_free = _rmdir(place.registry)
            is_last = is_free and _rmdir(os.path.dirname(place.registry))
        with place.moving:
            if is_last:
                own, place.own = place.own, self._unique(os.path.dirname(place.own))
                with contextlib.suppress(OSError):  # it does not exist
                    os.rename(own, place.own)
            if is_free and place.mirror is not None:
                try:
                    place.mirror.move(self._unique(self._parents))
                    self._retired.setdefault(process, []).append(place.mirror)
                except OSError:  # the trial has removed or renamed it
                    place.mirror = None
        return is_free, is_last

    def _unique(self, directory: str) -> str:
        return os.path.join(directory, f"{PREFIX}{os.getpid()}-{next(_NUMBERS)}")

    # -- the end ------------------------------------------------------------------------------

    def take_notes(self) -> list[Noted]:
        """Return the messages for the user since the last call."""
        notes = []
        while self._notes:
            notes.append(Noted(*self._notes.popleft()))
        return notes

    def finish(self) -> None:
        """Record that no other attempt will come."""
        for trial in list(self._places):
            self.end(trial, None)
        self.work()
        if self._thread is not None:
            self._jobs.put(None)

    @property
    def is_busy(self) -> bool:
        """Whether files are being kept; False some time after :meth:`finish`."""
        return self._thread is not None and self._thread.is_alive()

    def give_up(self) -> None:
        """Keep no file that the store refuses now."""
        self._gives_up.set()
        if self._thread is not None:
            self._thread.join(CLOSE_PATIENCE)

    def close(self) -> None:
        """Remove the directories, except those with files that could not be kept."""
        self._jobs.put(None)
        self.give_up()
        if not self._root or self.is_busy:
            return
        if self._claims >= 0:  # else it was closed before, and the number may be of another file now
            os.close(self._claims)
            self._claims = -1
        for mirror in (*self._spare, *itertools.chain(*self._retired.values())):
            shutil.rmtree(mirror.path, ignore_errors=True)
        registry = os.path.join(self._root, "workers")
        with contextlib.suppress(OSError):
            for pid in os.listdir(registry):
                if pid == str(os.getpid()) or not _runs(int(pid)):
                    os.rmdir(os.path.join(registry, pid))
            os.rmdir(registry)  # fails unless this is the last worker on this machine
            shutil.rmtree(self._root, ignore_errors=True)

    # -- the thread ---------------------------------------------------------------------------

    def _do(self, job: Job) -> None:
        self._jobs.put(job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="maggy-files", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except OSError as error:  # a full disk, or a directory that is gone: later trials make their own
                self._notes.append(("files", NO_MIRROR.format(error), None))

    def _stock(self) -> None:
        for _ in range(SPARE):
            with self._making:
                if self._prepare() and len(self._spare) < SPARE:
                    self._spare.append(self._new_mirror())

    def _prepare(self) -> bool:
        """Make the root of all directories if there is none; return whether there are to be mirrors."""
        if self._root:
            return self._has_mirrors
        for root in roots(self._task):
            try:
                os.makedirs(os.path.join(root, "workers", str(os.getpid())), 0o700, exist_ok=True)
                os.makedirs(os.path.join(root, "own"), 0o700, exist_ok=True)
                if self._has_mirrors:
                    self._parents = make_parents(root, self._original)
                    self._plan = self._plan or make_plan(self._original, run_directory(self._task))
                self._use(root)
                return self._has_mirrors
            except OSError as error:  # a file system without links, for example
                why = error
        self._has_mirrors = False
        self._use(tempfile.mkdtemp(prefix="maggy-work-"))
        self._notes.append(("files", NO_MIRROR.format(why), None))
        return False

    def _use(self, root: str) -> None:
        self._claims = os.open(os.path.join(root, "claims"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._root = root

    def _new_mirror(self) -> Mirror:
        assert self._plan is not None
        return Mirror(self._unique(self._parents), self._original, self._plan)

    def _recycle(self, mirror: Mirror) -> None:
        if mirror.is_changed:
            mirror.reset()
        with self._making:
            self._spare.append(mirror)

    def _keep(self, place: Place, assign: Assign, *, is_last: bool) -> None:
        """Copy the files of an attempt to the run's directory, and try again if its store refuses."""
        pause = FIRST_PAUSE
        while True:
            try:
                self._keep_now(place, assign, is_last=is_last)
            except Exception as error:  # each file system raises its own
                if self._gives_up.is_set() or not is_store_fault(error):
                    why = refusal(self._task.files, "written", error)
                    where = self._leave_behind(place) if is_last else place.own
                    self._notes.append(("files", LOST.format(why, where, socket.gethostname()), assign.trial))
                    return
                if pause == FIRST_PAUSE:
                    why = refusal(self._task.files, "written", error)
                    self._notes.append(("waiting", WAITING.format(why), assign.trial))
                self._gives_up.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if is_last:
                shutil.rmtree(place.own, ignore_errors=True)
            return

    def _leave_behind(self, place: Place) -> str:
        """Move ``reporter.directory`` to where nobody removes it, and return its path."""
        directory = f"{self._root}{LEFT}"
        left = os.path.join(directory, f"{place.assign.trial:05d}.{place.assign.attempt}")
        try:
            os.makedirs(directory, 0o700, exist_ok=True)
            os.rename(place.own, left)
        except OSError:  # it does not exist, or the disk is full
            return place.own
        return left

    def _keep_now(self, place: Place, assign: Assign, *, is_last: bool) -> None:
        if self._is_seen is None:
            self._is_seen = is_visible(self._task.store, self._task.run_id)
            if not self._is_seen:
                self._notes.append(("files", UNSEEN.format(socket.gethostname(), self._task.files), assign.trial))
        if not self._is_seen:
            return
        info = assign.rank_info
        host, hosts = (0, 1) if info is None else (info.group_rank, info.group_world_size)
        is_complete = False
        while not is_complete:  # its directories may be moved away meanwhile
            paths, found = place.paths(), Found()
            found.add(paths[0], known_as=place.known[0])
            if place.mirror is not None:
                found.add(paths[1], known_as=place.known[1], in_working=True, is_own=place.mirror.is_written)
            found.limit(self._task.max_files)
            with self._alone(place):
                is_complete = keep(
                    self._task.files,
                    assign.trial,
                    assign.attempt,
                    found,
                    is_valid=partial(_are_equal, place.paths, paths),
                    host=host,
                    hosts=hosts,
                    links=is_last,
                    adds=bool(place.registry),
                )
        if note := left_out_note(found, self._task.max_files):
            self._notes.append(("files", note, assign.trial))

    @contextlib.contextmanager
    def _alone(self, place: Place) -> Iterator[None]:
        """Let no other rank on this machine keep the trial's files meanwhile."""
        if not place.registry:
            yield
            return
        with open(f"{os.path.dirname(place.registry)}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, or when this process is killed
            yield

    def _look_at_shared(self, mirror: Mirror, trial: int, since: float) -> None:
        for shared in itertools.islice(mirror.shared_changes(since - CLOCK), 1):
            self._notes.append(("shared", CHANGED.format(shared.name), trial))


def _runs(pid: int) -> bool:
    """Whether a process exists; one of another user does."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _enter(registry: str, info: RankInfo) -> None:
    """Add a rank to a registry. Each of the other ranks may remove the empty registry once, when it ends."""
    for others_left in reversed(range(info.local_world_size)):
        try:
            os.makedirs(os.path.join(registry, str(info.rank)), 0o700, exist_ok=True)
        except FileNotFoundError:
            if not others_left:
                raise
        else:
            return


def _rmdir(directory: str) -> bool:
    """Remove a directory if it is empty; return whether it was."""
    try:
        os.rmdir(directory)
    except OSError:
        return False
    return True


def _are_equal(paths: Callable[[], tuple[str, str]], before: tuple[str, str]) -> bool:
    return paths() == before


def run_directory(task: WorkerTask) -> str:
    """Return the path of the run's directory; empty if it is at a URL."""
    logs = try_local_path(task.logs)
    return "" if logs is None else os.path.dirname(os.path.realpath(logs))


def roots(task: WorkerTask) -> list[str]:
    """Return where the directories of trials may be: in the run's, if that is on this machine, or temporary."""
    temporary = os.path.join(tempfile.gettempdir(), f"maggy-{task.run_id}")
    run = run_directory(task)
    return [os.path.join(run, WORK), temporary] if task.driver is None and run else [temporary]
