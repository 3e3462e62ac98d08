"""Commands wait until the journal has the events that they depend on. The driver's loop carries them here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn

from maggy_like.driver.state_machine.failures import STORE_PATIENCE
from maggy_like.driver.state_machine.interface import (
    AfterJournal,
    Append,
    BeforeJournal,
    Command,
    Show,
    StoreReturned,
)
from maggy_like.errors import StoreError
from maggy_like.storage.file_systems import is_store_fault, lasting_remedy
from maggy_like.storage.journal import Journal

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
"""Seconds between two attempts. Each pause is twice the previous one, and at least as long as the last attempt."""

SLOW_REFUSAL = 1.0
"""Seconds of a refused attempt from which a stopped run ends without another one."""

RENEWAL = 0.25
"""Seconds between two checks that the journal is still there, and still this driver's."""

REMEDY = "free space or fix the access, then use resume=True"


class WriteAhead:
    """Keeps commands in order until the journal is written. While a disk or store refuses, writing is retried.

    The driver continues to receive messages and to answer its workers. It sends nothing that depends on the journal.
    After ``patience`` seconds of refusals the run ends.
    """

    def __init__(
        self,
        journal: Journal,
        keep: Callable[[Any], None] | None,
        show: Callable[[Show], None],
        patience: float | None = None,
    ) -> None:
        self._journal = journal
        self._keep = keep  # stores the value of a function that may return anything. None for a training function
        self._show = show
        self._patience = STORE_PATIENCE if patience is None else patience
        self._commands: list[Command] = []
        self._began: float | None = None
        self._error: StoreError | None = None
        self._pause = self._due = self._took = self._renewed = 0.0
        self.is_writing = False  # whether a call of the file system is under way. For any thread

    @property
    def is_stuck(self) -> bool:
        """Whether the store refuses to write."""
        return self._began is not None

    def carry(self, commands: list[Command], *, is_last: bool = False) -> list[Append | AfterJournal]:
        """Take the commands of a round, and return all commands whose events the journal has.

        If the run was stopped, this attempt is the last one.
        """
        self._commands += commands
        started = time.monotonic()
        if self._error is not None and is_last and self._took >= SLOW_REFUSAL:
            self._give_up(self._error, started)
        if self._began is not None and not is_last and started < self._due:
            return []
        self.is_writing = True
        try:
            self._write()
        except StoreError as error:
            if remedy := lasting_remedy(error.__cause__):
                raise StoreError(f"{error}; {remedy}, then use resume=True") from error
            self._refused(error, started, is_last)
            return []
        finally:
            self.is_writing = False
        if self._began is not None:
            self._show(Show(f"the journal can be written again after {time.monotonic() - self._began:.0f} s"))
            self._began = self._error = None
        done, self._commands = self._commands, []
        return [command for command in done if not isinstance(command, BeforeJournal)]

    def _write(self) -> None:
        """Write all waiting events in one append."""
        for command in self._commands:
            if isinstance(command, BeforeJournal):
                self._prepare(command)
        if (now := time.monotonic()) - self._renewed >= RENEWAL:
            self._journal.renew()
            self._renewed = now
        # Last: a later failure would append the same events again.
        self._journal.append([command.event for command in self._commands if isinstance(command, Append)])

    def _prepare(self, command: StoreReturned) -> None:
        """Store the returned value."""
        if self._keep is None:
            return
        try:
            self._keep(command.returned)
        except Exception as error:
            if not (is_store_fault(error) or lasting_remedy(error)):
                raise
            raise StoreError(f"the returned value cannot be saved: {error}") from error

    def _refused(self, error: StoreError, started: float, is_last: bool) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began, self._pause = started, FIRST_PAUSE
            if not is_last:
                self._show(Show(f"{error}; the search waits and tries again"))
        if is_last or now - self._began >= self._patience:
            self._give_up(error, now)
        self._error, self._took = error, now - started
        self._due = now + max(self._pause, self._took)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _give_up(self, error: StoreError, now: float) -> NoReturn:
        seconds = now - (now if self._began is None else self._began)
        raise StoreError(f"{error}, for {seconds:.0f} s now; {REMEDY}") from error
