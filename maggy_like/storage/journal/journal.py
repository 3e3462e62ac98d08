"""Append and replay of a run's events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from maggy_like.errors import JournalError, StoreError
from maggy_like.storage.journal.backends import JournalBackend
from maggy_like.storage.journal.records import Contents, Part, Record, RunHeader, RunStatus, decode, decode_each, encode
from optimizers.core.events import Event


class Journal:
    """A journal that is open for appending; only one driver at a time may hold it.

    Attributes:
        earlier_seconds: For how long earlier drivers had the run, once it was read.
        is_longer: Whether they had it for longer than is known.
        code: That of the function that the last of them had (see :attr:`RunStatus.code`).

    Args:
        backend: Where it is kept.
        run: The call of ``lagom`` for which it is opened (see :meth:`JournalBackend.hold`).

    Raises:
        JournalError: Another driver holds it, or it cannot be written.

    Example:
        >>> journal = Journal(backend_of("s3://bucket/runs/first"))
        >>> journal.begin(header)
        >>> journal.append([TrialCreated(0, {"lr": 0.1})])
        >>> journal.close()
    """

    def __init__(self, backend: JournalBackend, run: str = "") -> None:
        self._backend = backend
        self._last = 0
        self.earlier_seconds, self.is_longer, self.code = 0.0, False, ""
        with self._writing("then try again"):
            backend.hold(run)

    def begin(self, header: RunHeader) -> None:
        """Write the header of a new journal."""
        with self._writing("then try again"):  # there is nothing to resume yet
            self._append([header])

    def read(self) -> Contents:
        """What it holds; go on behind that.

        Raises:
            JournalError: As :func:`read_journal`.
        """
        contents = read_journal(self._backend)
        self._last = contents.last
        return contents

    def read_each(self) -> Iterator[Contents]:
        """What it holds, part by part (see :func:`decode_each`); go on behind that once all was read.

        Raises:
            JournalError: As :func:`read_journal`.
        """
        for contents in decode_each(_parts(self._backend)):
            self._last = contents.last
            self.earlier_seconds = sum(end - begin for begin, end in contents.sessions)
            self.is_longer = bool(contents.unended) or contents.ended is None
            self.code = contents.begun.code if contents.begun is not None else ""
            yield contents

    def note(self, status: RunStatus) -> None:
        """Write that the run was begun, taken up or ended.

        Raises:
            JournalError: It cannot be written, is gone, or another driver has taken over.
        """
        if self._backend.is_away:
            raise JournalError(f"the journal in {self._backend.name} cannot be written; go on with resume=True")
        with self._writing():
            self._backend.renew()
            self._append([status])
            self._backend.renew()  # a driver that stood still in that is not to believe that its word counts

    def append(self, events: Sequence[Event]) -> None:
        """Write events, in one piece; they are safe when this returns.

        Raises:
            StoreError: They cannot be written just now; nothing of them is there, and they may be appended again.
            JournalError: Another driver has taken over.
        """
        if not events:
            return
        try:
            self._append(events)
        except Exception as error:
            self._not_served(error)

    def replace(self, header: RunHeader, events: Sequence[Event]) -> str:
        """Put a repaired journal in the place of a damaged one; where that is kept."""
        records = [header, *events]
        with self._writing():
            kept = self._backend.replace(encode(records, self._last + 1))
        self._last += len(records)
        return kept

    def clear(self) -> None:
        """Remove what it holds; begin it anew then.

        Raises:
            JournalError: It cannot be removed.
        """
        with self._writing("then try again"):
            self._backend.clear()
        self._last = 0

    def written(self) -> float:
        """When it was written to last, before this driver held it: Unix time; 0 where nobody knows."""
        return self._backend.written()

    @property
    def is_away(self) -> bool:
        """Whether its place refused the newest call, and may take seconds to refuse another."""
        return self._backend.is_away

    def renew(self) -> None:
        """Keep holding it; call every few seconds, also when there is nothing to append.

        Raises:
            StoreError: It cannot be written just now.
            JournalError: Another driver has taken over.
        """
        try:
            self._backend.renew()
        except Exception as error:
            self._not_served(error)

    def close(self) -> None:
        """Let other drivers in."""
        self._backend.release()

    def _append(self, records: Sequence[Record]) -> None:
        self._backend.append(encode(records, self._last + 1))
        self._last += len(records)

    def _not_served(self, error: Exception) -> NoReturn:
        """Turn what a file system raises, each its own, into an error after which the same may be tried again."""
        if isinstance(error, JournalError):
            raise error
        raise StoreError(f"the journal in {self._backend.name} cannot be written: {_said(error)}") from error

    @contextmanager
    def _writing(self, remedy: str = "then go on with resume=True") -> Iterator[None]:
        try:
            yield
        except JournalError:
            raise
        except Exception as error:  # each file system has its own
            raise JournalError(
                f"the journal in {self._backend.name} cannot be written: {_said(error)}; make room or fix the access, "
                f"{remedy}"
            ) from error


def read_journal(backend: JournalBackend) -> Contents:
    """Read a journal, as far as it is whole; ``damage`` says what is not.

    Raises:
        JournalError: There is none, it is of another version, its header is damaged, or it cannot be read.
    """
    return decode(_parts(backend))


def read_header(backend: JournalBackend) -> RunHeader:
    """Read a journal's header alone.

    Raises:
        JournalError: As :func:`read_journal`.
    """
    return next(decode_each(_parts(backend))).header


def _parts(backend: JournalBackend) -> Iterator[Part]:
    part = None
    with reading(backend):  # not what is done with a part: that is done outside of this generator
        for part in backend.read():
            yield part
    if part is None:
        raise JournalError(f"there is no journal in {backend.name}; use the folder of a run")


@contextmanager
def reading(backend: JournalBackend) -> Iterator[None]:
    """Turn whatever a file system raises into a :class:`JournalError`."""
    try:
        yield
    except Exception as error:
        raise JournalError(f"the journal in {backend.name} cannot be read: {_said(error)}; fix the access") from error


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
