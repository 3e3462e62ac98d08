"""The caller's side of a run: it supervises the workers and takes Ctrl-C. A user's code runs elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from maggy_like.display import Display
from maggy_like.display.base import LogLine
from maggy_like.driver.followers import Followers
from maggy_like.driver.loop import Driver
from maggy_like.driver.state_machine.interface import StopRequested, WorkerLeaving, WorkerLost
from maggy_like.engines.base import Engine, EngineRun, EngineStopped, Launcher
from maggy_like.errors import EngineError, StoreError
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.protocol.task import FILES_PATIENCE, LOG_PATIENCE, KeyPair, WorkerId, WorkerTask

MAX_FUTILE_LAUNCHES = 3
"""Launches in a row without a ready worker, after which the slot of a worker counts as unusable."""

SLOT_PATIENCE = 120.0
"""Seconds without any worker after which the search ends."""

MAX_PAUSE = 10.0
"""Seconds between two launches at most."""

SLOT_POLL = 0.2
"""Seconds between two checks of the slots at first."""

SHRINK_PATIENCE = 20.0
"""Seconds that workers wait for slots before only those with a slot are launched, if they are enough."""

GOODBYE_PATIENCE = 15.0
"""Seconds that workers get to end after their last message."""

HELD_PATIENCE = 5.0
"""Seconds in which all workers are idle, after which workers that occupy the slot of another one are ended."""

HINT_AFTER = 2.0
"""Seconds of waiting after which a hint is shown."""


@dataclass(slots=True)
class Vacancy:
    """Workers that ended together, and will be launched together, as far as there are slots."""

    indexes: tuple[int, ...]  # indexes of the workers
    incarnation: int  # incarnation of the next launch
    since: float  # when they ended
    due: float  # when to launch next
    is_shown: bool = False  # whether a hint about their wait was shown

    def __str__(self) -> str:
        return f"worker{'s' * (len(self.indexes) > 1)} {', '.join(map(str, self.indexes))}"


class Supervisor:
    """Keeps ``size`` workers running. Used from the thread that called ``lagom``, which it never blocks.

    A worker that ends too early is launched again as soon as there are slots for it, any number of times. Only two
    things end the search. Either no worker gets ready any more, after :data:`MAX_FUTILE_LAUNCHES` failed launches in a
    row of each one. Or there has been no worker at all for :data:`SLOT_PATIENCE`. While some workers run, the others
    wait for slots without a limit.
    """

    def __init__(
        self,
        driver: Driver,
        engine: Launcher,
        task: WorkerTask,
        admit: Callable[[WorkerId], KeyPair],
        size: int,
        least: int,
        logs: str,
    ) -> None:
        self._driver = driver
        self._least = least  # number of workers that are enough if there are no longer slots for all
        self._engine = engine
        self._task = task
        self._admit = admit  # admits an incarnation of a worker, and returns its key pair
        self._logs = logs
        self._runs: list[EngineRun] = self._launch(range(size), 0)
        self._vacancies: list[Vacancy] = []
        self._announced: set[WorkerId] = set()
        self._futile = dict.fromkeys(range(size), 0)
        self._manned = self._active = time.monotonic()  # when a worker last ran, and when one last ran a trial

    def attend(self) -> None:
        """Report workers that ended to the driver, and replace them as far as there are slots. Returns at once."""
        while not self._driver.replacements.empty():
            self._replace(self._driver.replacements.get())
        self._engine.attend(self._runs)
        for run in list(self._runs):
            self._look_at(run)
        self._await()
        self._free_held_slots()
        if self._driver.has_ended and not self._runs:
            self._driver.expect_no_more()
        for vacancy in list(self._vacancies):
            if time.monotonic() >= vacancy.due and not self._driver.has_ended:
                self._fill(vacancy)

    def await_work(self, seconds: float) -> None:
        """Wait at most ``seconds`` until :meth:`attend` may have work, or the driver is done."""
        self._engine.await_work(self._runs, self._driver.done, seconds)

    @property
    def is_in_function(self) -> bool:
        """Whether the training function is running now in the thread that calls :meth:`attend`."""
        return any(run.is_in_function for run in self._runs)

    def _say(self, text: str) -> None:
        self._driver.lines.append(LogLine(None, text))

    def _fail(self, why: str) -> None:
        """End the search with an error."""
        self._driver.post(StopRequested(Ending.ERROR, EngineError(why)))

    def end_trials(self) -> None:
        """Prevent further calls of the training function in this thread, since the run ends."""
        for run in self._runs:
            run.end_trials()

    def _replace(self, lost: WorkerId) -> None:
        """End a lost worker. If that would end running workers, too, plan its next launch without them.

        Spark cannot end a single task of a barrier stage. The replacement is launched at once. It waits in the engine
        until the lost worker resumes and leaves, or starts in another free slot.
        """
        for run in self._runs:
            if lost.index in run.indexes and lost.incarnation == run.incarnation:
                if len(run.indexes) == 1:
                    run.cancel()
                else:
                    run.give_up(lost.index)
                    now = time.monotonic()
                    self._vacancies.append(Vacancy((lost.index,), lost.incarnation + 1, now, now))

    def _held_back(self, run: EngineRun) -> set[int]:
        """Return abandoned workers of a launch without a connected replacement. They may still occupy slots."""
        return run.given_up - {index for other in self._runs if other.has_come for index in other.indexes}

    def _free_held_slots(self) -> None:
        """Relaunch workers together with a silent one that occupies its slot, if none can work without that one.

        This happens if a training run, or each trial, needs all workers.
        """
        now = time.monotonic()
        holding = [run for run in self._runs if run.given_up and self._held_back(run)]
        if (
            not holding
            or self._driver.has_ended
            or any(worker.state == "busy" for worker in self._driver.snapshot.workers)
        ):
            self._active = now
        elif now - self._active > HELD_PATIENCE:
            for run in holding:
                names = ", ".join(map(str, sorted(self._held_back(run))))
                self._say(f"nothing can run without worker {names}: all workers restart")
                run.cancel()
            self._active = now

    def _was_stopped(self, run: EngineRun) -> None:
        """End the search, since these workers were stopped from outside. It does not wait for them."""
        self._runs.remove(run)
        # First, so that no trial counts as failed.
        self._driver.post(StopRequested(Ending.CANCELLED, by=run.stopped_by))
        for index in run.indexes:
            self._driver.post(WorkerLost(WorkerId(index, run.incarnation), run.stopped_by))

    def _look_at(self, run: EngineRun) -> None:
        """Report workers of a launch that have connected, will leave, or have ended."""
        run.has_come = run.has_come or any(worker in self._driver.met for worker in _workers(run))
        if run.leaving and not self._driver.has_ended:
            for worker in _workers(run):
                if worker not in self._announced:
                    self._announced.add(worker)
                    self._driver.post(WorkerLeaving(worker, run.leaving))
        reason = run.poll()
        if reason is not None and run.stopped_by:
            self._was_stopped(run)
        elif reason is not None and not self._driver.has_ended:
            run.with_node = run.with_node or bool(run.leaving and not reason)
            self._take_down(run, reason or run.leaving or "it left before the search was over")

    def _await(self) -> None:
        """Record when a worker last ran."""
        if self._runs:
            self._manned = time.monotonic()

    def _unusable(self, run: EngineRun, *, was_ready: bool) -> str:
        """Return in words how often the launches of all workers failed in a row. Empty if not all failed."""
        for index in run.indexes:
            self._futile[index] = 0 if was_ready else self._futile[index] + 1
        if min(self._futile.values()) < MAX_FUTILE_LAUNCHES:
            return ""
        before = "" if run.is_cut_off else " before any was ready"
        return f" {self._futile[run.indexes[0]]} times in a row{before}"

    def _free(self, wanted: int) -> int:
        """Return for how many of the wanted workers there are slots."""
        slots = self._engine.slots()
        return wanted if slots is None else slots - sum(len(run.indexes) for run in self._runs)

    def _take_down(self, run: EngineRun, reason: str) -> None:
        """Report workers that ended too early, and plan their next launch."""
        self._runs.remove(run)
        workers = [WorkerId(index, run.incarnation) for index in run.indexes]
        in_vain = run.is_cut_off or not any(worker in self._driver.ready for worker in workers)
        for worker in workers:
            self._driver.post(WorkerLost(worker, reason, with_others=len(workers) > 1, with_node=run.with_node))
        unusable = self._unusable(run, was_ready=not in_vain)
        where = f" (details: {run.details})" if run.details else ""
        now = time.monotonic()
        futile = self._futile[run.indexes[0]]
        vacancy = Vacancy(run.indexes, run.incarnation + 1, now, now + min(MAX_PAUSE, futile / 2))
        if run.is_hopeless or unusable:
            times = "" if run.is_hopeless else unusable
            self._fail(f"{vacancy} failed{times}: {reason}{where}")
        else:
            if len(workers) > 1:
                self._say(f"{vacancy} were lost together, and restart: {reason}{where}")
            elif where or not run.has_come:  # else its loss is shown
                why = "" if run.has_come else f": {reason}"
                self._say(f"{vacancy} restarts{why}{where}")
            self._vacancies.append(vacancy)

    def _fill(self, vacancy: Vacancy) -> None:
        """Launch again if there are slots, else later."""
        wanted, waited = len(vacancy.indexes), time.monotonic() - vacancy.since
        try:
            free = self._free(wanted)
            running = sum(len(run.indexes) for run in self._runs)
            if 0 < free < wanted and running + free >= self._least and waited > SHRINK_PATIENCE:
                vacancy = self._split(vacancy, free)
                wanted = free
            if free >= wanted:
                self._runs += self._launch(vacancy.indexes, vacancy.incarnation, self._driver.snapshot.tried)
                self._vacancies.remove(vacancy)
                if vacancy.is_shown:
                    self._say(f"{vacancy}: launched again")
                return
            lack = f"{wanted} slot{'s' * (wanted != 1)} of engine={self._engine.name!r}, which has {max(0, free)} free"
        except EngineStopped as error:
            self._driver.post(StopRequested(Ending.CANCELLED, by=str(error)))
            return
        except EngineError as error:
            self._fail(f"{vacancy} cannot be launched again: {error}")
            return
        except Exception as error:  # perhaps a temporary one, such as no memory for a process
            lack = f"engine={self._engine.name!r}, which fails with {error!r}"
        self._put_off(vacancy, lack)

    def _launch(self, indexes: Sequence[int], incarnation: int, done: int = 0) -> list[EngineRun]:
        """Launch workers, each with its own key. ``done`` trials have ended before."""
        keys = [self._admit(WorkerId(index, incarnation)) for index in indexes]
        about = f"{self._task.about}, {done} done" if done else self._task.about
        task = msgspec.structs.replace(self._task, about=about)
        return self._engine.launch(task, indexes, incarnation, keys, self._logs)

    def _split(self, vacancy: Vacancy, free: int) -> Vacancy:
        """Split off the workers for which there are slots. The others continue to wait."""
        some = replace(vacancy, indexes=vacancy.indexes[:free], is_shown=False)
        vacancy.indexes, vacancy.due = vacancy.indexes[free:], time.monotonic() + SLOT_POLL
        self._vacancies.append(some)
        self._say(f"{some}: launched again without {vacancy}; min_workers={self._least}")
        return some

    def _put_off(self, vacancy: Vacancy, lack: str) -> None:
        now = time.monotonic()
        waited = now - vacancy.since
        vacancy.due = now + min(MAX_PAUSE, max(SLOT_POLL, waited / 10))
        if not vacancy.is_shown and waited > HINT_AFTER:
            vacancy.is_shown = True
            rest = sum(len(run.indexes) for run in self._runs)
            meanwhile = f"the search continues with {rest} workers" if rest else f"giving up after {SLOT_PATIENCE:g} s"
            self._say(f"{vacancy}: waiting for {lack}; {meanwhile}")
        if now - self._manned > SLOT_PATIENCE:
            message = f"{vacancy} cannot be launched again: waited {SLOT_PATIENCE:g} s for {lack}"
            self._fail(message)

    def leave(self, leaving: Collection[WorkerId], timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the end of the workers, then end them by force.

        Workers that never connected are ended at once. Those that have sent their last message get
        :data:`GOODBYE_PATIENCE` to end, since Spark would show a cancelled job as failed.
        """
        for run in self._runs:
            if not run.has_come:
                run.cancel()
        begun = time.monotonic()
        by_themselves = [
            not (run.given_up and self._held_back(run))
            and all(WorkerId(i, run.incarnation) in leaving for i in run.indexes)
            for run in self._runs
        ]
        for run, will_end in sorted(zip(self._runs, by_themselves, strict=True), key=lambda pair: pair[1]):
            patience = GOODBYE_PATIENCE if will_end else timeout
            if not run.wait(max(0.0, begun + patience - time.monotonic())):
                run.cancel()
        deadline = time.monotonic() + 10.0
        for run in self._runs:
            while not run.wait(0.5) and time.monotonic() < deadline:
                run.cancel()  # again, since a Spark job cannot be cancelled while it is being submitted


def _workers(run: EngineRun) -> Iterator[WorkerId]:
    """Yield the workers of a launch, of which there may be thousands."""
    return (WorkerId(index, run.incarnation) for index in run.indexes)


GROWTH_PATIENCE = 600.0
"""Seconds that the search waits for as many workers as a trial needs before it ends."""

IDLE_PATIENCE = 10.0
"""Seconds of idle workers after which no more are requested."""


class GrowingSupervisor(Supervisor):
    """Launches all workers at once. Those without a slot wait inside the engine, and join later.

    The search waits only for as many workers as a trial needs (``least``). While workers are idle, waiting launches are
    cancelled, so that the cluster does not start machines in vain.
    """

    _in_row = 0  # launches in a row without a ready worker
    _were_ready = 0  # number of ready workers before those
    _busy = math.inf  # when there was last work for more workers

    def _await(self) -> None:
        if self._driver.has_ended:
            return
        now, there = time.monotonic(), self._live()
        self._follow_demand(now)
        if there >= self._least:
            self._manned = now
        elif now - self._manned > GROWTH_PATIENCE:
            self._manned = now
            needed = f"{self._least} worker{'s' * (self._least != 1)}"
            message = (
                f"engine={self._engine.name!r} had {there} of the {needed} that a trial needs for {GROWTH_PATIENCE:g} "
                f"s, though {len(self._futile)} were requested; check what its cluster grants"
            )
            self._fail(message)

    def _unusable(self, run: EngineRun, *, was_ready: bool) -> str:
        for index in run.indexes:  # a single failing worker is launched less and less often
            self._futile[index] = 0 if was_ready else self._futile[index] + 1
        if was_ready or self._live() or len(self._driver.ready) > self._were_ready:
            self._in_row, self._were_ready = 0, len(self._driver.ready)
            return ""
        self._in_row += 1
        at_a_time = 1
        with contextlib.suppress(Exception):  # a session that was stopped, or cannot be reached, is reported elsewhere
            at_a_time = max(1, min(len(self._futile), self._engine.slots() or 1))
        if self._in_row < MAX_FUTILE_LAUNCHES * at_a_time:
            return ""
        return f", as {self._in_row} launches in a row, before any was ready"

    def _free(self, wanted: int) -> int:
        self._engine.slots()  # raises if the session was stopped
        return wanted

    def _live(self) -> int:
        """Return how many connected workers have not left."""
        return sum(worker.state not in ("gone", "lost") for worker in self._driver.snapshot.workers)

    def _follow_demand(self, now: float) -> None:
        """Cancel waiting launches while workers are idle, and launch again once all are busy."""
        idle = sum(worker.state == "idle" for worker in self._driver.snapshot.workers)
        if idle < self._least or self._driver.snapshot.phase is not Phase.SEARCHING:
            self._busy = now
            for vacancy in self._vacancies:
                vacancy.due = min(vacancy.due, now + IDLE_PATIENCE)
        elif now - self._busy > IDLE_PATIENCE:
            for run in [run for run in self._runs if not run.has_come]:
                run.cancel()
            for vacancy in self._vacancies:
                vacancy.due = math.inf


JOIN_PATIENCE = 10.0
"""Seconds without any worker after which a hint about the reason is shown."""

LOOK = 2.0
"""Seconds between two checks of the reason."""

HINT_AGAIN = 30.0
"""Seconds between two hints if the reason has changed."""

START_PATIENCE = 3600.0
"""Seconds without any worker after which the search ends, since another job may occupy the slots for long."""


class FirstWorkers:
    """Reports why workers have not connected. Used from the thread that called ``lagom``."""

    def __init__(self, driver: Driver, engine: Launcher, size: int) -> None:
        self._driver = driver
        self._engine = engine
        self._size = size
        self._is_over = False
        self._began = driver.elapsed()  # the call may have loaded the function for long
        self._due = JOIN_PATIENCE
        self._hint_at = 0.0
        self._hint = ""

    def look(self) -> None:
        """Show a hint about what the search waits for if it is due, and end the search after too long a wait."""
        now = self._driver.elapsed() - self._began
        came = self._driver.came
        # If slots come and go, not all workers need to connect.
        enough = 1 if self._engine.is_elastic else self._size
        self._is_over = self._is_over or self._driver.has_ended or came >= enough
        if self._is_over or now < self._due:
            return
        self._due = now + LOOK
        line = self._waits_for(came)
        if line and line != self._hint and now >= self._hint_at:
            self._hint, self._hint_at = line, now + HINT_AGAIN
            self._driver.lines.append(LogLine(None, f"still waiting for {line}"))
        if now > START_PATIENCE and not came:
            self._is_over = True
            self._driver.post(StopRequested(Ending.ERROR, EngineError(f"waited {START_PATIENCE:g} s for {line}")))

    def _waits_for(self, came: int) -> str:
        """Return what the search waits for. Empty if another hint reports it, or the reason is unknown."""
        one = "one of " if self._engine.is_elastic else ""
        noun = f"{one}{self._size} workers" if self._size > 1 else "a worker"
        reason = ""
        with contextlib.suppress(Exception):  # the supervisor reports any error
            reason = self._engine.waits_for(self._size, came)
            if not reason and self._engine.is_elastic and self._engine.slots() == 0:
                return ""
        if came:
            return f"{self._size - came} of {self._size} workers: {reason}" if reason else ""
        return f"engine={self._engine.name!r} to start {noun}" + (f": {reason}" if reason else "")


STOPPING = signal.SIGINT, signal.SIGTERM
"""The signals that ask a process to end."""


@contextlib.contextmanager
def interrupts_to(handle: Callable[[int], None], signals: Sequence[signal.Signals] = STOPPING) -> Iterator[None]:
    """Call ``handle(count)`` for each signal while the block runs. The first count is 1.

    Only the main thread receives signals, so nothing changes in another one. A signal that the process ignores stays
    ignored. The handlers are restored afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    counts = itertools.count(1)
    with contextlib.ExitStack() as undo:
        for number in signals:
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN):
                signal.signal(number, lambda *_: handle(next(counts)))
                undo.callback(signal.signal, number, before)
        yield


POLL = 0.05
STANDSTILL_CHECK = 1.0
"""Seconds for which the driver must be seen to stand still."""

LEAVE_PATIENCE = 3.0
"""Seconds that workers get to leave by themselves after the end of the search."""


def run_search(
    driver: Driver,
    engine: Engine,
    task: WorkerTask,
    admit: Callable[[WorkerId], KeyPair],
    size: int,
    *,
    least: int,
    logs: str,
    displays: Sequence[Display],
    followers: Followers,
    interrupts: contextlib.ExitStack,
) -> None:
    """Launch the workers, follow the search until its end, and leave no process behind.

    Until ``interrupts`` is closed, Ctrl-C and SIGTERM end the search instead of raising, since the caller has files to
    close and a result to return.
    """
    patience = LEAVE_PATIENCE + (LOG_PATIENCE if task.copies_logs else 0.0)
    monitor = Monitor(driver, followers, patience)
    interrupts.enter_context(interrupts_to(lambda _: monitor.signalled()))
    interrupts.enter_context(engine.interruptible())
    kind = GrowingSupervisor if engine.is_elastic else Supervisor
    supervisor = kind(driver, engine, task, admit, size, least, logs)
    driver.start()
    followers.show_on(displays)
    try:
        monitor.until_done(supervisor, FirstWorkers(driver, engine, size))
    finally:
        driver.release()
        supervisor.leave(set() if monitor.hurried else driver.leaving, timeout=0.0 if monitor.hurried else 2.0)
        driver.join()
        monitor.finish()
    if driver.was_left:
        raise StoreError(f"{driver.standstill()}; correct what it waits for, then use resume=True")


class Monitor:
    """Supervises a running search and handles Ctrl-C."""

    def __init__(self, driver: Driver, followers: Followers, patience: float = LEAVE_PATIENCE) -> None:
        self.hurried = False  # whether the user has pressed Ctrl-C a second time
        self._was_interrupted = self._is_closing = self._has_warned = False
        self._still_since = math.inf  # when the driver was first seen to stand still
        self._patience = patience
        self._driver = driver
        self._followers = followers
        self._supervisor: Supervisor | None = None

    def signalled(self) -> None:
        """Handle Ctrl-C or SIGTERM: for a function that runs in this thread, else for the search."""
        if self._supervisor is not None and self._supervisor.is_in_function:
            raise KeyboardInterrupt
        self.interrupted()

    def interrupted(self) -> None:
        """Stop the search after the first interruption. After the second, do not wait for workers and trackers."""
        if not (self._was_interrupted or self._is_closing):
            self._was_interrupted = True
            self._driver.post(StopRequested(Ending.INTERRUPTED))
        else:
            self.hurried = True
            self._driver.release(at_once=True)

    def until_done(self, supervisor: Supervisor, first: FirstWorkers) -> None:
        """Follow the search until it has ended, and the workers have left or had time to."""
        self._supervisor = supervisor
        while not (self._driver.has_ended or self._driver.is_abandoned):
            self._look(supervisor)
            first.look()
        ended = time.monotonic()
        while not (self._driver.done.is_set() or self._driver.is_abandoned or self.hurried):
            if time.monotonic() > ended + self._patience + (FILES_PATIENCE if self._driver.keeps_files else 0.0):
                break
            self._look(supervisor)

    def finish(self) -> None:
        """Pass the last events to the callbacks, and show the last state."""
        self._is_closing = True
        self._followers.finish(self._driver.ending, lambda: self.hurried)

    def _watch_driver(self) -> None:
        """Warn once of a driver that stands still while this thread runs: the whole process may have been stopped."""
        now = time.monotonic()
        self._still_since = min(self._still_since, now) if self._driver.stands_still else math.inf
        if now - self._still_since > STANDSTILL_CHECK and not self._has_warned:
            self._has_warned = True
            hears_ctrl_c = threading.current_thread() is threading.main_thread()
            leave = "press Ctrl-C twice" if hears_ctrl_c else "call stop() of its handle (see block=False)"
            text = f"{self._driver.standstill()}; {leave} to leave"
            self._driver.lines.append(LogLine(None, text, is_warning=True))

    def _look(self, supervisor: Supervisor) -> None:
        supervisor.await_work(POLL)
        self._watch_driver()
        self._followers.look()  # before the next trial, if that runs in this thread: a callback may end the run
        if self._driver.is_stopping:
            supervisor.end_trials()
        try:
            supervisor.attend()
        except KeyboardInterrupt:  # raised in a function that runs in this thread
            self.interrupted()
