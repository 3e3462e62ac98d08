"""The process that runs the training function, for one trial or for several in a row, on the agent's messages."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import re
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from numbers import Integral
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsFloat

from msgspec.structs import replace

from maggy_like.processes.channel import Channel, Disconnected
from maggy_like.processes.imports import ImportWatch, is_installed_file
from maggy_like.processes.titles import entitle
from maggy_like.protocol.endings import on_uneven_steps
from maggy_like.protocol.messages import (
    MAX_NAMES,
    MAX_NESTED,
    MAX_PLACE,
    MAX_TYPES,
    Assign,
    Broken,
    Decided,
    FailureKind,
    Finished,
    Halt,
    Held,
    Imported,
    Kept,
    Meet,
    Opened,
    Ready,
    Shutdown,
    Stop,
    decode_to_driver,
    decode_to_worker,
    encode,
    is_flat,
)
from maggy_like.protocol.task import WorkerTask
from maggy_like.protocol.torchrun import leave_ranks
from maggy_like.protocol.values import ReportError, as_attributes, encodable, is_encodable, shortened
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.storage.file_systems import StoreFault
from maggy_like.train_function.code import name_of
from maggy_like.train_function.load import NotFoundError, arguments_for, load_train_fn, why_not_loaded
from maggy_like.worker.advice import advice_on
from maggy_like.worker.child.directories import restore_files, working_in
from maggy_like.worker.child.exits import POOL_HINT, flush_output, has_open_files, uses_joblib
from maggy_like.worker.child.reporter import BudgetUsed, Reporter
from maggy_like.worker.child.saves import StoreRetry
from maggy_like.worker.child.sender import Sender, as_number, check_name, pick_objective
from maggy_like.worker.child.stop_state import TrialStopped

if TYPE_CHECKING:
    from maggy_like.distributed.rendezvous import Membership


class Service:
    """Receives the agent's messages; one thread at a time listens.

    Between trials that is the main thread, so that an assignment wakes the thread that runs it, and no other first.
    During a trial it is a second thread, which also sends the reports of each interval, and reports that the trial
    waits for its store.
    """

    def __init__(
        self, channel: Channel, interval: float, on_orphaned: Callable[[], None], imports: ImportWatch | None = None
    ) -> None:
        self.meetings: SimpleQueue[Meet] = SimpleQueue()
        self.sender: Sender | None = None
        self.membership: Membership | None = None
        self._assignments: deque[tuple[Assign, Sender]] = deque()
        self._is_woken = threading.Event()
        self._is_over = False
        self._listening = threading.Lock()
        self._channel = channel
        self._interval = interval
        self._on_orphaned = on_orphaned
        self._imports = imports
        threading.Thread(target=self._run, name="maggy-service", daemon=True).start()

    def next_assignment(self) -> tuple[Assign, Sender] | None:
        """Wait for the next assignment; None if there will be no other."""
        with self._listening:
            while not (self._assignments or self._is_over):
                if (frame := self._channel.receive()) is None:
                    self._is_over = True
                    self._on_orphaned()
                else:
                    self._heard(frame)
        return self.take_assignment()

    def await_assignment(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a message, and not at all if an assignment waits."""
        if self._assignments or self._is_over:
            return
        with self._listening:
            poller = select.poll()
            poller.register(self._channel, select.POLLIN)
            if poller.poll(seconds * 1000):
                self._is_over |= not self._take_in()

    def take_assignment(self) -> tuple[Assign, Sender] | None:
        """Return the next assignment if it has arrived."""
        return self._assignments.popleft() if self._assignments else None

    def await_continuation(self) -> None:
        """Prepare for :meth:`continuation`, before the agent learns that the trial is paused."""
        self._is_woken.clear()

    def continuation(self) -> tuple[Assign, Sender] | None:
        """Wait in a paused trial for its next attempt; None if it does not run in this process."""
        self._is_woken.wait()
        return self.take_assignment()

    @property
    def is_over(self) -> bool:
        """Whether there will be no further assignment."""
        return self._is_over and not self._assignments

    def meeting(self, assign: Assign) -> tuple[str, int]:
        """Wait for the host and port at which the ranks of an attempt meet."""
        while True:
            meet = self.meetings.get()
            if (meet.trial, meet.attempt) == (assign.trial, assign.attempt):
                return meet.host, meet.port

    def _run(self) -> None:
        poller = select.poll()  # select.select() takes no descriptor past 1024
        poller.register(self._channel, select.POLLIN)
        while self._listen():
            if self.membership is not None:
                self.membership.hold()
            sender = self.sender
            try:
                if sender is not None:
                    sender.store.look()
                    if sender.buffer:
                        sender.flush_behind()
                if self._imports is not None and (modules := self._imports.settled()):
                    self._channel.send(encode(Imported.of(modules)))
                behind = sender is not None and sender.is_behind
                poller.poll(0 if behind else self._interval * 1000)
            except OSError:  # the agent is gone, or the trial can open no further file
                break
        if self.sender is not None and self.sender.fault is None:
            self.sender.fault = Disconnected("the worker is gone")  # no report can be sent from now on
        self._is_over = True
        self._is_woken.set()
        self._on_orphaned()

    def _listen(self) -> bool:
        """Process what has arrived, unless the main thread waits for it; False if nothing more can arrive."""
        with self._listening:
            return self._take_in()

    def _take_in(self) -> bool:
        frames, alive = self._channel.drain()
        for frame in frames:
            self._heard(frame)
        return alive

    def _heard(self, frame: bytes) -> None:
        sender = self.sender
        match decode_to_worker(frame):
            case Assign() as assign:
                self.sender = Sender(assign, self._channel.send)
                self._assignments.append((assign, self.sender))
                self._is_woken.set()
            case Meet() as meet:
                self.meetings.put(meet)
            case Shutdown():
                self._is_over = True
                self._is_woken.set()
            case Decided(stop=stop) if sender is not None:
                sender.stop.decide(stop)
            case Kept(discard=discard) if sender is not None:
                sender.kept.put(discard)
            case Halt(trial=trial, attempt=attempt) if sender is not None and sender.stop.is_multi_worker:
                self._channel.send(encode(Held(trial, attempt, sender.stop.halt())))
            case Stop(at=int(report)) if sender is not None and sender.stop.is_multi_worker:
                sender.stop.stop_at(report)
            case Stop() if sender is not None:
                sender.stop.request()


MAX_TEXT = 100_000
"""Characters of a message or traceback that are sent; an exception may quote a whole data set."""

_CALLERS = ("maggy_like.worker.", "maggy_like.train_function.")
"""The modules through which a user's function or script is called."""

_OUR_ERROR = re.compile(r"^(?:maggy_like|optimizers)(?:\.\w+)*\.([A-Z]\w*)(?=: |$)", re.MULTILINE)
"""An error of this project as Python writes it where a line of a traceback names it."""

_BACKENDS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer")
"""What the messages of failed collective operations speak of, where they are plain RuntimeErrors."""


def kind_of(error: BaseException) -> FailureKind:
    """Classify an exception as a kind of failure."""
    if isinstance(error, ReportError):
        return FailureKind.REPORT
    if isinstance(error, StoreFault):
        return FailureKind.STORE
    distributed = sys.modules.get("torch.distributed")
    is_collective = (distributed is not None and isinstance(error, distributed.DistError)) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _BACKENDS)
    )
    return FailureKind.COLLECTIVE if is_collective else FailureKind.EXCEPTION


def format_message(error: BaseException) -> str:
    """Return the exception's type and message."""
    return _with_short_names("".join(traceback.format_exception_only(error)).strip())


def format_traceback(error: BaseException) -> str:
    """Return the traceback from the user's function onwards, without the frames of this project above it.

    A wrong report has only the frames of the user's code, since the message says all about those of this project, and
    no traceback if the function has returned.
    """
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__", "").startswith(_CALLERS):
        frames = frames.tb_next
    cause = error.__cause__ or error.__context__
    if isinstance(error, ReportError) and (cause is None or not _users_frames(cause.__traceback__)):
        lines = traceback.format_list(_users_frames(frames))
        if lines:
            lines = ["Traceback (most recent call last):\n", *lines, *traceback.format_exception_only(error)]
    else:
        lines = traceback.format_exception(type(error), error, frames or error.__traceback__)
    return _with_short_names("".join(lines))


def _users_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback that are in the user's code."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(trace)]
    summaries = zip(traceback.extract_tb(trace), modules, strict=True)
    return [summary for summary, module in summaries if not _is_installed(summary.filename, module)]


def _with_short_names(text: str) -> str:
    """Remove the modules, which are not public, from the names of this project's errors."""
    return _OUR_ERROR.sub(r"\1", text)


def types_of(error: BaseException) -> list[str]:
    """Return the names of an exception's class and of its base classes."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__[:-1])
    return [sendable(name[:MAX_PLACE])[:MAX_PLACE] for name in itertools.islice(names, MAX_TYPES)]


def place_of(error: BaseException) -> str:
    """Return the place where an exception was raised: the innermost frame of the user's code, or of all frames.

    The folder is left out, because hosts may keep the same file in different folders.
    """
    users, innermost = "", ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        innermost = f"{os.path.basename(code.co_filename)}:{code.co_qualname}:{line}"
        if not _is_installed(code.co_filename, frame.f_globals.get("__name__", "")):
            users = innermost
    return sendable((users or innermost)[-MAX_PLACE:])[-MAX_PLACE:]


def _is_installed(filename: str, module: str) -> bool:
    """Whether code belongs to this project, to Python or to an installed package."""
    if module.partition(".")[0] in ("maggy_like", "optimizers") or filename.startswith("<frozen"):
        return True
    return is_installed_file(filename)


def sendable(text: str) -> str:
    r"""Make a text fit to send: cut the middle of a long one, and escape lone surrogates.

    Example:
        >>> sendable("no file caf\udce9.csv")
        'no file caf\\udce9.csv'
    """
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    return encodable(text)


class Returned(NamedTuple):
    """The returned value of a training function."""

    value: float | None  # the objective, or None if the last report is the value
    metrics: dict[str, float]  # all numbers by name, including the objective
    attributes: dict[str, Any]  # entries that are not numbers


def read_returned(returned: object, reporter: Reporter, assign: Assign, task: WorkerTask) -> Finished:
    """Build the end of an attempt whose function returned; only rank 0 sends the returned value.

    Raise ReportError if it is not the value of a training (see :func:`read_value`), or cannot be saved.
    """
    trial, attempt = assign.trial, reporter.attempt
    if not reporter.is_main:
        return Finished(trial, attempt, "returned")
    if not task.returns_anything:
        found = read_value(returned, reporter.objective, is_reported=reporter.is_under_way)
        return Finished(
            trial,
            attempt,
            "returned",
            found.value,
            found.metrics,
            attributes=found.attributes,
            cut_at=reporter.cut_at,
            whole=reporter.was_silent,
        )
    if is_flat(returned, MAX_NESTED) and is_plain(returned):
        return Finished(trial, attempt, "returned", returned=returned)
    reporter.keep(returned)
    return Finished(trial, attempt, "returned", stored=True)


def is_plain(value: object) -> bool:
    """Whether a value arrives exactly as it is sent: numbers, text, and lists and dicts of them."""
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(type(key) is str and is_encodable(key) for key in value) and all(map(is_plain, value.values()))
    return (
        value is None
        or type(value) in (bool, float, bytes)
        or (type(value) is str and is_encodable(value))
        or (type(value) is int and -(1 << 63) <= value < 1 << 63)
    )


def read_value(returned: object, objective: str | None, *, is_reported: bool = False) -> Returned:
    """Split what the training function returned into the objective, other metrics and attributes.

    In a dict, entries that are not numbers are attributes. The last report is the value if the dict has only
    attributes, or if it lacks an objective that was reported. ``objective`` is None while no metric was named or
    reported. Raise ReportError if the objective is not a number, is missing, or is ambiguous.
    """
    if returned is None:
        return Returned(None, {}, {})
    if isinstance(returned, Mapping):
        return _read_dict({str(name): value for name, value in returned.items()}, objective, is_reported=is_reported)
    remedy = "return a number, a dict with a number, or None after reports"
    if isinstance(returned, tuple | list):
        remedy = "return a dict with a name for each number, such as {'loss': loss, 'seconds': seconds}"
    elif inspect.iscoroutine(returned):
        returned.close()  # else Python warns that nobody awaited it
        remedy = "return asyncio.run(...) of it"
    elif inspect.isgenerator(returned):
        remedy = "call reporter.report(...) instead of yield, or return a number"
    return Returned(as_number("train_fn's value", returned, remedy), {}, {})


def _read_dict(returned: Mapping[str, Any], objective: str | None, *, is_reported: bool) -> Returned:
    if isinstance(status := returned.get("status"), str) and status == "fail":  # Hyperopt's: its loss does not count
        raise ReportError(
            "train_fn must raise an exception in a trial that fails, got status='fail'; if its value should count, "
            "use another name than 'status'"
        )
    if objective is not None and objective in returned:
        as_number(f"train_fn's {objective!r}", returned[objective])
    metrics = {
        name: value
        for name, value in returned.items()
        if name == objective or (_is_number(value) and not _is_flag(value))
    }
    if not metrics and objective is None:
        metrics = {name: value for name, value in returned.items() if _is_flag(value)}
    attributes = as_attributes({name: value for name, value in returned.items() if name not in metrics})
    if len(metrics) > MAX_NAMES:
        raise ReportError(
            f"train_fn must return at most {MAX_NAMES} metrics, got {len(metrics)}; save the others to a file"
        )
    numbers = {name: _as_returned(f"train_fn's {name!r}", value) for name, value in metrics.items()}
    for name in numbers:
        check_name(name)
    if objective is None:
        doubtful = {name: value for name, value in returned.items() if name in numbers or _was_meant_as_number(value)}
        if not numbers:
            given = ", ".join(f"{name!r}: {shortened(value)}" for name, value in list(returned.items())[:5])
            raise ReportError(
                f"train_fn must return a number, got none: {{{given}}}; return the objective as a number, or report it"
            )
        objective = pick_objective(doubtful, None)
    elif not numbers or (is_reported and objective not in numbers):
        return Returned(None, numbers, attributes)
    return Returned(float(numbers[pick_objective(numbers, objective)]), numbers, attributes)


def _as_returned(what: str, value: object) -> float:
    """Return a returned number: an integer as it is, if it can be sent, since a float may round it."""
    if isinstance(value, Integral) and not _is_flag(value) and -(1 << 63) <= (whole := int(value)) < 1 << 63:
        return whole
    return as_number(what, value)


def _is_number(value: object) -> bool:
    try:
        as_number("", value)
    except ReportError:
        return False
    return True


def _is_flag(value: object) -> bool:
    """Whether it is a boolean of Python or numpy, which is an attribute unless it is the objective."""
    return type(value).__name__ == "bool"


def _was_meant_as_number(value: object) -> bool:
    """Whether it looks like a number but is not one: digits as text, or an array of several.

    In that case no other entry becomes the objective merely because it is the only number.
    """
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, SupportsFloat) and not _is_flag(value)


BeforeEnd = Callable[[Callable[[], None]], None]


def serve(
    channel: Channel,
    task: WorkerTask,
    *,
    trials: int | None,
    before_end: BeforeEnd,
    on_orphaned: Callable[[], None],
    train_fn: Callable[..., Any] | None = None,
    known: Collection[str] | None = None,
) -> None:
    """Run assigned trials, at most ``trials`` unless it is None, until the agent ends the run.

    ``known`` are the modules that later processes need not import; None if there will be no others. The other arguments
    are those of :class:`TrialRunner`. Raise Disconnected if the agent cannot be reached.
    """
    imports = None if known is None else ImportWatch(known)
    runner = make_runner(channel, task, before_end, on_orphaned, train_fn=train_fn, imports=imports)
    if runner is None:
        return
    done = 0
    while (trials is None or done < trials) and (assigned := runner.service.next_assignment()) is not None:
        runner.run(*assigned)
        done += 1
    if done == trials:  # the agent says when to exit: tearing a process down keeps a core busy for milliseconds
        runner.service.next_assignment()


def make_runner(
    channel: Channel,
    task: WorkerTask,
    before_end: BeforeEnd,
    on_orphaned: Callable[[], None],
    *,
    train_fn: Callable[..., Any] | None = None,
    imports: ImportWatch | None = None,
) -> TrialRunner | None:
    """Load the function unless it is given, and announce it to the agent; None if it cannot be loaded.

    Raise Disconnected if the agent cannot be reached.
    """
    try:
        train_fn = train_fn or load_train_fn(task)
    except BaseException as error:
        cause = error.__cause__ if isinstance(error, NotFoundError) and error.__cause__ is not None else error
        reason = sendable(why_not_loaded(error) + advice_on(cause, task.driver))
        channel.send(encode(Broken(f"train_fn cannot be loaded on the worker: {reason}")))
        return None
    runner = TrialRunner(channel, task, train_fn, before_end, on_orphaned, imports)
    channel.send(encode(Ready()))
    return runner


class TrialRunner:
    """Runs the trials that an agent assigns to this process, in the calling thread.

    ``before_end`` is called after each trial, before its end is sent, to run exit hooks and flush output. Its argument
    is a function that sends the end, for hooks that hang. ``on_orphaned`` is called when the agent is gone, by the
    thread that notices it. ``imports`` finds what trials import, for the agent.
    """

    def __init__(
        self,
        channel: Channel,
        task: WorkerTask,
        train_fn: Callable[..., Any],
        before_end: BeforeEnd,
        on_orphaned: Callable[[], None],
        imports: ImportWatch | None = None,
    ) -> None:
        self.service = Service(channel, task.interval, on_orphaned, imports)
        self.is_in_function = False
        self._channel = channel
        self._task = task
        self._train_fn = train_fn
        self._parameters = inspect.signature(train_fn).parameters.values()
        self._before_end = before_end
        self._imports = imports
        self._sender: Sender | None = None  # of the newest attempt
        self._is_end_sent = False

    def run(self, assign: Assign, sender: Sender) -> None:
        """Call the function, and send how it ended; raise Disconnected if the agent cannot be reached.

        Raise KeyboardInterrupt, and send no end, if the user interrupted a function in the caller's process.
        """
        task, process = self._task, os.getpid()
        self._sender, self._is_end_sent = sender, False
        if task.isolation != "none":
            entitle(f"trial {assign.trial}")
        waits = task.isolation == "process" and assign.rank_info is None
        reporter = Reporter.for_trial(assign, self._store(assign, sender), sender, self._pause if waits else None)

        def enter() -> Membership | None:
            restore_files(assign, task, StoreRetry(task.files, sender))
            return join(assign, task, sender, self.service)

        with working_in(os.fsdecode(assign.working_directory)):
            self.is_in_function = True
            try:
                finished = run_attempt(self._train_fn, self._parameters, reporter, assign, task, enter)
            finally:
                self.is_in_function = False
            if os.getpid() != process:  # a fork that train_fn made and let return; the trial has one end
                os._exit(0)
            if assign.trial == 0 and assign.attempt == 1 and task.isolation == "process" and uses_joblib():
                print(POOL_HINT, file=sys.stderr)
            self._end(reporter, finished)

    def cut(self, assign: Assign, sender: Sender) -> None:
        """Send that an attempt has stopped as requested, if its function is not running."""
        self._sender, self._is_end_sent = sender, False
        reporter = Reporter.for_trial(assign, self._store(assign, sender), sender)
        self._end(reporter, Finished(assign.trial, assign.attempt, "stopped"))

    def _store(self, assign: Assign, sender: Sender) -> CheckpointStore:
        retry = StoreRetry(self._task.store, sender)
        return CheckpointStore(self._task.store, assign.trial, assign.discard, retry)

    def _pause(self, reporter: Reporter) -> tuple[Assign, CheckpointStore, Sender] | None:
        """End the attempt while its function waits in a report; return the trial's next attempt if it runs here."""
        assert self._sender is not None
        paused = Finished(reporter.trial, reporter.attempt, "returned", paused=True)
        finished = wind_up(self._sender, reporter, paused)
        flush_output()
        self.service.await_continuation()
        self._channel.send(encode(finished))
        self._is_end_sent = True
        if not finished.paused or (following := self.service.continuation()) is None:
            return None
        assign, self._sender = following
        self._is_end_sent = False
        return assign, self._store(assign, self._sender), self._sender

    def _end(self, reporter: Reporter, finished: Finished) -> None:
        sender = self._sender
        assert sender is not None
        if self._is_end_sent:
            self._before_end(lambda: None)
        else:
            finished = wind_up(sender, reporter, finished)  # first: exit hooks end the threads of remote stores
            send = partial(send_end, self._channel, sender, reporter, finished)
            self._before_end(send)
            send()
        if self.service.sender is sender:  # an inline attempt may have been ended without it, and the next have begun
            self.service.sender = None
        if self._imports is not None and (modules := self._imports.new()):
            self._channel.send(encode(Imported.of(modules)))


def send_end(channel: Channel, sender: Sender, reporter: Reporter, finished: Finished) -> None:
    """Send the rest of an attempt, then its end."""
    channel.send(encode(wind_up(sender, reporter, finished)))


def wind_up(sender: Sender, reporter: Reporter, finished: Finished) -> Finished:
    """Send the rest of an attempt, remove what is no longer needed, and return its end.

    An attempt whose reports cannot be sent has failed.
    """
    if reporter.attributes:
        attributes = as_attributes({**reporter.attributes, **finished.attributes})
        finished = replace(finished, attributes=attributes)
    try:
        sender.flush()
        if finished.outcome == "returned":
            reporter.finish()
        if finished.outcome != "raised":
            reporter.tidy()
    except Disconnected:
        raise
    except Exception as error:
        if finished.outcome != "raised":
            return raised(finished.trial, finished.attempt, error)
    return finished


def join(assign: Assign, task: WorkerTask, sender: Sender, service: Service) -> Membership | None:
    """Meet the other ranks of a multi-worker attempt; the caller's own process is not changed."""
    if task.isolation == "none":
        return None
    if assign.rank_info is None:
        leave_ranks()
        return None
    from maggy_like.distributed.rendezvous import Membership

    def opened(host: str, port: int) -> None:
        sender.send(Opened(assign.trial, assign.attempt, host, port))

    membership = Membership(assign.rank_info, task, opened, partial(service.meeting, assign))
    service.membership = membership
    return membership


def run_attempt(
    train_fn: Callable[..., Any],
    parameters: Iterable[inspect.Parameter],
    reporter: Reporter,
    assign: Assign,
    task: WorkerTask,
    enter: Callable[[], Membership | None],
) -> Finished:
    """Run the training function once and return how it ended; ``enter`` meets the other ranks."""
    membership: Membership | None = None
    try:
        membership = enter()
        returned = call(train_fn, arguments_for(parameters, assign.config, reporter), reporter, task)
        reporter.settle()
        finished = read_returned(returned, reporter, assign, task)
        if membership is not None:
            membership.leave()
        return finished
    except TrialStopped:
        return Finished(assign.trial, reporter.attempt, "stopped")
    except SystemExit as error:
        remedy = "; use return, which keeps the trial's reports" if error.code in (None, 0) else ""
        message = sendable(f"{name_of(train_fn)} called sys.exit({error.code!r}){remedy}")
        place = place_of(error)
        kind, at = FailureKind.EXIT, time.time()
        return Finished(assign.trial, reporter.attempt, "raised", kind=kind, message=message, place=place, at=at)
    except BaseException as error:
        at = time.time()
        if task.isolation == "none" and _is_callers_own(error):
            raise KeyboardInterrupt from error
        if isinstance(error, MemoryError):  # the function's objects leave too little memory for the message
            traceback.clear_frames(error.__traceback__)
        advice = advice_on(error, task.driver) or reporter.advice_on(error)
        return raised(assign.trial, reporter.attempt, error, membership, at, advice)


def call(train_fn: Callable[..., Any], arguments: dict[str, Any], reporter: Reporter, task: WorkerTask) -> Any:
    """Call the training function; return None if a report ended it because the trial is paused, or past its budget.

    A function may catch what a report raises, or raise something else instead, as libraries do that catch every
    exception of a callback. Later actions of the function do not count.

    Raise TrialStopped if a report has stopped it.
    """
    try:
        returned = train_fn(**arguments)
    except BaseException as error:
        is_own = task.isolation == "none" and _is_callers_own(error)
        if is_own or not reporter.has_ended:
            raise
        if not isinstance(error, TrialStopped | BudgetUsed):
            print(f"raised after a report had ended it:\n{format_traceback(error)}", file=sys.stderr)
        returned = None
    if reporter.is_stopped:
        raise TrialStopped
    return None if reporter.has_ended else returned


def _is_callers_own(error: BaseException) -> bool:
    """Whether it is Ctrl-C or the ``q`` of a debugger, by which the user ends the run."""
    debugger = sys.modules.get("bdb")
    return isinstance(error, KeyboardInterrupt) or (debugger is not None and isinstance(error, debugger.BdbQuit))


def raised(
    trial: int,
    attempt: int,
    error: BaseException,
    membership: Membership | None = None,
    at: float | None = None,
    advice: str = "",
) -> Finished:
    """Build the end of an attempt by an exception; append ``advice`` to its message.

    ``membership`` knows whether one of the ranks returned before the others. ``at`` is the time of the exception; now
    by default.
    """
    at = time.time() if at is None else at
    kind, message = kind_of(error), format_message(error)
    if kind is FailureKind.COLLECTIVE and (uneven := on_uneven_steps(message)):
        message += uneven
    elif kind is FailureKind.COLLECTIVE and membership is not None and (gone := membership.gone()):
        message = (
            f"{gone} before a collective operation of all ranks (all must call prepare(), "
            f"average() and a prepared model equally often): {message}"
        )
    trace = sendable(format_traceback(error))
    return Finished(
        trial,
        attempt,
        "raised",
        kind=kind,
        message=sendable(message + advice),
        traceback=trace,
        types=types_of(error),
        place=place_of(error),
        at=at,
    )


ROUNDS = 20
"""Calls until Python has specialised the code of a trial (PEP 659), and some more."""


def rehearse(task: WorkerTask) -> None:
    """Run the code of a trial from assignment to end, without an agent and without a function.

    A fork server does this so that its children inherit the code as Python has specialised it, and the pages of memory
    as they are after that. A child copies a shared page on its first write, and a reference count is a write. The
    trial would wait for that: half a millisecond before its first line and after its last.
    """
    assign = decode_to_worker(encode(Assign(0, 1, {"x": 0.5}, 1, objective="value")))
    assert isinstance(assign, Assign)
    sender = Sender(assign, lambda frame: None)
    reporter = Reporter.for_trial(assign, CheckpointStore(None), sender)
    path, here = sys.path[:], ""
    with contextlib.suppress(OSError):  # it is gone
        here = os.getcwd()
    with working_in(here):
        restore_files(assign, task, StoreRetry(task.files, sender))
        finished = run_attempt(lambda: {"value": 0.5}, (), reporter, assign, task, lambda: None)
    sys.path[:] = path
    has_open_files()
    flush_output()
    decode_to_driver(encode(wind_up(sender, reporter, finished)))
