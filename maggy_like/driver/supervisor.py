"""Keeps the workers of a run alive, also on an engine whose slots come and go, and waits for the first ones."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from maggy_like.display.base import LogLine
from maggy_like.display.text import tried
from maggy_like.driver.loop import Driver
from maggy_like.driver.state_machine.inputs import StopRequested, WorkerLeaving, WorkerLost
from maggy_like.engines.base import EngineRun, EngineStopped, Launcher
from maggy_like.errors import EngineError
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.protocol.task import KeyPair, WorkerId, WorkerTask

MAX_FUTILE_LAUNCHES = 3
"""Launches in a row of which no worker gets ready, after which a worker's place counts as unusable."""

SLOT_PATIENCE = 120.0
"""Seconds without any worker for which the search waits for slots before it ends."""

MAX_PAUSE = 10.0
"""Seconds between two attempts to launch, at most."""

SLOT_POLL = 0.2
"""Seconds between two looks at the slots, at first."""

SHRINK_PATIENCE = 20.0
"""Seconds that workers wait for slots before those that have one are launched alone, if they are enough."""

GOODBYE_PATIENCE = 15.0
"""Seconds that workers which have said goodbye get to end."""

HELD_PATIENCE = 5.0
"""Seconds in which no worker has anything to do, after which those are ended that keep another from its slot."""

HINT_AFTER = 2.0
"""Seconds of waiting after which a hint says so."""


@dataclass(slots=True)
class Vacancy:
    """Workers that ended together, and are to be launched together, as far as there are slots.

    Attributes:
        indexes: The workers.
        incarnation: That of the next launch.
        since: When they ended.
        due: When to try next.
        is_shown: Whether a hint has said that they wait.
    """

    indexes: tuple[int, ...]
    incarnation: int
    since: float
    due: float
    is_shown: bool = False

    def __str__(self) -> str:
        return f"worker{'s' * (len(self.indexes) > 1)} {', '.join(map(str, self.indexes))}"


class Supervisor:
    """Keeps ``size`` workers running; used from the thread that called ``lagom``, which never waits for it.

    A worker that ends too early is launched again as soon as there are slots for it, however often it ends. Only two
    things end the search: no worker gets ready any more (the launches of each failed :data:`MAX_FUTILE_LAUNCHES` times
    in a row), or there has been no worker at all for :data:`SLOT_PATIENCE`. While some workers run, the others wait for
    slots for as long as it takes.

    Args:
        engine: Provides the slots.
        task: What all workers of the run are given.
        admit: Lets an incarnation of a worker in; gives its key pair.
        size: How many workers.
        least: How many are enough, where there are no slots for all of them any more.
        logs: Folder for the agents' own output.
    """

    def __init__(
        self, engine: Launcher, task: WorkerTask, admit: Callable[[WorkerId], KeyPair], size: int, least: int, logs: str
    ) -> None:
        self._least = least
        self._engine = engine
        self._task = task
        self._admit = admit
        self._logs = logs
        self._runs: list[EngineRun] = self._launch(range(size), 0)
        self._vacancies: list[Vacancy] = []
        self._announced: set[WorkerId] = set()
        self._futile = dict.fromkeys(range(size), 0)
        self._manned = self._active = time.monotonic()  # when some worker ran last, and when some ran a trial

    def attend(self, driver: Driver) -> None:
        """Replace workers that ended, as far as there are slots, and report them to the driver. Returns at once."""
        while not driver.replacements.empty():
            self._replace(driver.replacements.get(), driver)
        self._engine.attend(self._runs)
        for run in list(self._runs):
            self._look_at(run, driver)
        self._await(driver)
        self._free_held_slots(driver)
        if driver.has_ended and not self._runs:
            driver.expect_no_more()
        for vacancy in list(self._vacancies):
            if time.monotonic() >= vacancy.due and not driver.has_ended:
                self._fill(vacancy, driver)

    def await_work(self, driver: Driver, seconds: float) -> None:
        """Wait until there may be something to :meth:`attend` to, or the driver is done: ``seconds`` at most."""
        self._engine.await_work(self._runs, driver.done, seconds)

    @property
    def is_in_function(self) -> bool:
        """Whether the training function is being called just now, in the thread that attends."""
        return any(run.is_in_function for run in self._runs)

    def end_trials(self) -> None:
        """Have the training function called no more in this thread: the run ends."""
        for run in self._runs:
            run.end_trials()

    def _replace(self, lost: WorkerId, driver: Driver) -> None:
        """End a lost worker; where that would end others that run, plan its next launch beside them.

        Spark cannot end one task of a barrier stage alone. The worker that follows is launched at once: it waits in the
        engine until the lost one wakes and leaves, or starts in a slot that is free anyway.
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
        """Given up workers of a launch whose successors have not come: their slots may be held yet."""
        return run.given_up - {index for other in self._runs if other.has_come for index in other.indexes}

    def _free_held_slots(self, driver: Driver) -> None:
        """Launch workers anew, with one that holds its slot in silence, if none can do anything without that one.

        So it is where a training needs the whole gang, or each trial all of it.
        """
        now = time.monotonic()
        holding = [run for run in self._runs if run.given_up and self._held_back(run)]
        if not holding or driver.has_ended or any(worker.state == "busy" for worker in driver.snapshot.workers):
            self._active = now
        elif now - self._active > HELD_PATIENCE:
            for run in holding:
                names = ", ".join(map(str, sorted(self._held_back(run))))
                driver.lines.append(LogLine(None, f"nothing can run without worker {names}: all start again"))
                run.cancel()
            self._active = now

    def _was_stopped(self, run: EngineRun, driver: Driver) -> None:
        """Somebody stopped these workers from outside: that ends the search, which does not wait for them."""
        self._runs.remove(run)
        driver.post(StopRequested(Ending.CANCELLED, by=run.stopped_by))  # first: no trial is held to have failed
        for index in run.indexes:
            driver.post(WorkerLost(WorkerId(index, run.incarnation), run.stopped_by))

    def _look_at(self, run: EngineRun, driver: Driver) -> None:
        """Report workers of a launch that have come, are to leave, or are gone."""
        run.has_come = run.has_come or any(worker in driver.met for worker in _workers(run))
        if run.leaving and not driver.has_ended:
            for worker in _workers(run):
                if worker not in self._announced:
                    self._announced.add(worker)
                    driver.post(WorkerLeaving(worker, run.leaving))
        reason = run.poll()
        if reason is not None and run.stopped_by:
            self._was_stopped(run, driver)
        elif reason is not None and not driver.has_ended:
            run.with_node = run.with_node or bool(run.leaving and not reason)
            self._take_down(run, reason or run.leaving or "it left before the search was over", driver)

    def _await(self, driver: Driver) -> None:
        """Note when some worker ran last."""
        if self._runs:
            self._manned = time.monotonic()

    def _unusable(self, run: EngineRun, *, was_ready: bool, driver: Driver) -> str:
        """How often launches of every worker failed in a row, in words; empty where not all did."""
        for index in run.indexes:
            self._futile[index] = 0 if was_ready else self._futile[index] + 1
        if min(self._futile.values()) < MAX_FUTILE_LAUNCHES:
            return ""
        before = "" if run.is_cut_off else " before any was ready"
        return f" {self._futile[run.indexes[0]]} times in a row{before}"

    def _free(self, wanted: int) -> int:
        """For how many of the wanted workers there are slots."""
        slots = self._engine.slots()
        return wanted if slots is None else slots - sum(len(run.indexes) for run in self._runs)

    def _take_down(self, run: EngineRun, reason: str, driver: Driver) -> None:
        """Report workers that ended too early, and plan their next launch."""
        self._runs.remove(run)
        workers = [WorkerId(index, run.incarnation) for index in run.indexes]
        in_vain = run.is_cut_off or not any(worker in driver.ready for worker in workers)
        for worker in workers:
            driver.post(WorkerLost(worker, reason, with_gang=len(workers) > 1, with_node=run.with_node))
        unusable = self._unusable(run, was_ready=not in_vain, driver=driver)
        where = f" (details: {run.details})" if run.details else ""
        now = time.monotonic()
        futile = self._futile[run.indexes[0]]
        vacancy = Vacancy(run.indexes, run.incarnation + 1, now, now + min(MAX_PAUSE, futile / 2))
        if run.is_hopeless or unusable:
            times = "" if run.is_hopeless else unusable
            driver.post(StopRequested(Ending.ERROR, EngineError(f"{vacancy} failed{times}: {reason}{where}")))
        else:
            if len(workers) > 1:
                driver.lines.append(LogLine(None, f"{vacancy} were lost together, and start again: {reason}{where}"))
            elif where or not run.has_come:  # of one that had come, its loss is shown
                why = "" if run.has_come else f": {reason}"
                driver.lines.append(LogLine(None, f"{vacancy} starts again{why}{where}"))
            self._vacancies.append(vacancy)

    def _fill(self, vacancy: Vacancy, driver: Driver) -> None:
        """Launch again if there are slots, else try later."""
        wanted, waited = len(vacancy.indexes), time.monotonic() - vacancy.since
        try:
            free = self._free(wanted)
            running = sum(len(run.indexes) for run in self._runs)
            if 0 < free < wanted and running + free >= self._least and waited > SHRINK_PATIENCE:
                vacancy = self._split(vacancy, free, driver)
                wanted = free
            if free >= wanted:
                self._runs += self._launch(vacancy.indexes, vacancy.incarnation, tried(driver.snapshot))
                self._vacancies.remove(vacancy)
                if vacancy.is_shown:
                    driver.lines.append(LogLine(None, f"{vacancy}: launched again"))
                return
            lack = f"{wanted} slot{'s' * (wanted != 1)} of engine={self._engine.name!r}, which has {max(0, free)} free"
        except EngineStopped as error:
            driver.post(StopRequested(Ending.CANCELLED, by=str(error)))
            return
        except EngineError as error:
            driver.post(StopRequested(Ending.ERROR, EngineError(f"{vacancy} cannot be launched again: {error}")))
            return
        except Exception as error:  # no memory for a process, say: it may pass
            lack = f"engine={self._engine.name!r}, which fails with {error!r}"
        self._put_off(vacancy, lack, driver)

    def _launch(self, indexes: Sequence[int], incarnation: int, done: int = 0) -> list[EngineRun]:
        """Launch workers, each with a key of its own; ``done`` trials have ended before."""
        keys = [self._admit(WorkerId(index, incarnation)) for index in indexes]
        about = f"{self._task.about}, {done} done" if done else self._task.about
        task = msgspec.structs.replace(self._task, about=about)
        return self._engine.launch(task, indexes, incarnation, keys, self._logs)

    def _split(self, vacancy: Vacancy, free: int, driver: Driver) -> Vacancy:
        """Split off the workers for which there are slots; the others go on waiting."""
        some = replace(vacancy, indexes=vacancy.indexes[:free], is_shown=False)
        vacancy.indexes, vacancy.due = vacancy.indexes[free:], time.monotonic() + SLOT_POLL
        self._vacancies.append(some)
        driver.lines.append(LogLine(None, f"{some}: launched again without {vacancy}; min_workers={self._least}"))
        return some

    def _put_off(self, vacancy: Vacancy, lack: str, driver: Driver) -> None:
        now = time.monotonic()
        waited = now - vacancy.since
        vacancy.due = now + min(MAX_PAUSE, max(SLOT_POLL, waited / 10))
        if not vacancy.is_shown and waited > HINT_AFTER:
            vacancy.is_shown = True
            rest = sum(len(run.indexes) for run in self._runs)
            meanwhile = f"the search goes on with {rest} workers" if rest else f"giving up after {SLOT_PATIENCE:g} s"
            driver.lines.append(LogLine(None, f"{vacancy}: waiting for {lack}; {meanwhile}"))
        if now - self._manned > SLOT_PATIENCE:
            message = f"{vacancy} cannot be launched again: waited {SLOT_PATIENCE:g} s for {lack}"
            driver.post(StopRequested(Ending.ERROR, EngineError(message)))

    def leave(self, leaving: Collection[WorkerId], timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the workers to end, then end them by force; at once those that never came.

        Args:
            leaving: Those that have said goodbye. They are about to end, and get :data:`GOODBYE_PATIENCE` for it: a
                Spark job that is cancelled just then is shown as failed for ever.
            timeout: What the others get.
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
                run.cancel()  # again: a Spark job that was still being submitted was not cancelled


def _workers(run: EngineRun) -> Iterator[WorkerId]:
    """The workers of a launch: thousands, it may be, so made for those who look at them alone."""
    return (WorkerId(index, run.incarnation) for index in run.indexes)


GROWTH_PATIENCE = 600.0
"""Seconds for which the search waits for as many workers as a trial needs before it ends."""

IDLE_PATIENCE = 10.0
"""Seconds of idle workers after which no more are asked for."""


class GrowingSupervisor(Supervisor):
    """Launches all workers at once; those without a slot wait inside the engine, and join late.

    The search waits only for as many workers as a trial needs (``least``). While workers have nothing to do, launches
    that still wait are cancelled: the cluster would start machines for nothing.
    """

    _in_row = 0  # launches in a row of which no worker got ready
    _were_ready = 0  # how many workers had got ready before those
    _busy = math.inf  # when there was work for more workers last

    def _await(self, driver: Driver) -> None:
        if driver.has_ended:
            return
        now, there = time.monotonic(), live_workers(driver)
        self._follow_demand(driver, now)
        if there >= self._least:
            self._manned = now
        elif now - self._manned > GROWTH_PATIENCE:
            self._manned = now
            needed = f"{self._least} worker{'s' * (self._least != 1)}"
            message = (
                f"engine={self._engine.name!r} had {there} of the {needed} that a trial needs for {GROWTH_PATIENCE:g} "
                f"s, though it was asked for {len(self._futile)}; see what its cluster grants"
            )
            driver.post(StopRequested(Ending.ERROR, EngineError(message)))

    def _unusable(self, run: EngineRun, *, was_ready: bool, driver: Driver) -> str:
        for index in run.indexes:  # a worker that fails alone is launched less and less often
            self._futile[index] = 0 if was_ready else self._futile[index] + 1
        if was_ready or live_workers(driver) or len(driver.ready) > self._were_ready:
            self._in_row, self._were_ready = 0, len(driver.ready)
            return ""
        self._in_row += 1
        at_a_time = 1
        with contextlib.suppress(Exception):  # a session that was stopped, or does not answer, says so itself
            at_a_time = max(1, min(len(self._futile), self._engine.slots() or 1))
        if self._in_row < MAX_FUTILE_LAUNCHES * at_a_time:
            return ""
        return f", as {self._in_row} launches in a row, before any was ready"

    def _free(self, wanted: int) -> int:
        self._engine.slots()  # raises where the session was stopped
        return wanted

    def _follow_demand(self, driver: Driver, now: float) -> None:
        """Cancel launches that wait while workers have nothing to do; launch again once all are busy."""
        idle = sum(worker.state == "idle" for worker in driver.snapshot.workers)
        if idle < self._least or driver.snapshot.phase is not Phase.SEARCHING:
            self._busy = now
            for vacancy in self._vacancies:
                vacancy.due = min(vacancy.due, now + IDLE_PATIENCE)
        elif now - self._busy > IDLE_PATIENCE:
            for run in [run for run in self._runs if not run.has_come]:
                run.cancel()
            for vacancy in self._vacancies:
                vacancy.due = math.inf


def live_workers(driver: Driver) -> int:
    """How many workers the driver knows that have not left."""
    return sum(worker.state not in ("gone", "lost") for worker in driver.snapshot.workers)


JOIN_PATIENCE = 10.0
"""Seconds without any worker after which a hint says what the search waits for."""

LOOK = 2.0
"""Seconds between two looks at why."""

HINT_AGAIN = 30.0
"""Seconds between two hints, where the reason has changed."""

START_PATIENCE = 3600.0
"""Seconds without any worker after which the search ends: a job of the user's that holds the slots may take long."""


class FirstWorkers:
    """Watches until a search has had all its workers; used from the thread that called ``lagom``.

    Args:
        engine: Knows why none comes, if it can be known.
        size: How many workers were launched.
    """

    def __init__(self, engine: Launcher, size: int) -> None:
        self._engine = engine
        self._size = size
        self._is_over = False
        self._due = JOIN_PATIENCE
        self._hint_at = 0.0
        self._hint = ""

    def look(self, driver: Driver) -> None:
        """Give a hint about what the search waits for, if it is time to; end the search after too long a wait."""
        now = driver.elapsed()
        came = driver.came
        # Where slots come and go, they need not all come.
        self._is_over = self._is_over or driver.has_ended or came >= (1 if self._engine.is_elastic else self._size)
        if self._is_over or now < self._due:
            return
        self._due = now + LOOK
        line = self._waits_for(came)
        if line and line != self._hint and now >= self._hint_at:
            self._hint, self._hint_at = line, now + HINT_AGAIN
            driver.lines.append(LogLine(None, f"still waiting for {line}"))
        if now > START_PATIENCE and not came:
            self._is_over = True
            driver.post(StopRequested(Ending.ERROR, EngineError(f"waited {START_PATIENCE:g} s for {line}")))

    def _waits_for(self, came: int) -> str:
        """What the search waits for; empty where another hint says it, and where nothing keeps the others away."""
        one = "one of " if self._engine.is_elastic else ""
        noun = f"{one}{self._size} workers" if self._size > 1 else "a worker"
        reason = ""
        with contextlib.suppress(Exception):  # whatever it is, the supervisor reports it
            if self._engine.is_elastic and self._engine.slots() == 0:
                return ""
            reason = self._engine.waits_for(self._size, came)
        if came:
            return f"{self._size - came} of {self._size} workers: {reason}" if reason else ""
        return f"engine={self._engine.name!r} to start {noun}" + (f": {reason}" if reason else "")
