"""The journal, which appends and replays a run's events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

from maggy_like.errors import JournalError, StoreError
from maggy_like.storage.journal.backends import JournalBackend
from maggy_like.storage.journal.records import (
    FORMAT_VERSION,
    Contents,
    Part,
    Record,
    RunHeader,
    RunStatus,
    decode,
    decode_each,
    encode,
    open_line,
)
from optimizers.core.events import Event


class Journal:
    """A journal that is open for appending; only one driver at a time may hold it.

    Example:
        >>> journal = Journal(backend_of("s3://bucket/runs/first"))
        >>> journal.begin(header)
        >>> journal.append([TrialCreated(0, {"lr": 0.1})])
        >>> journal.close()
    """

    def __init__(self, backend: JournalBackend, run: str = "") -> None:
        self._backend = backend
        self.last = 0  # the number of the last record
        # of earlier drivers, once it was read: their seconds, whether they had it for longer, and the last one's code
        self.earlier_seconds, self.is_longer, self.code = 0.0, False, ""
        with self._writing("then try again"):
            backend.hold(run)

    def begin(self, header: RunHeader) -> None:
        """Write the header of a new journal."""
        with self._writing("then try again"):  # nothing can be resumed yet
            self._append([header])

    def read(self) -> Contents:
        """Return its contents; later records are appended after them."""
        contents = read_journal(self._backend)
        self.last = contents.last
        return contents

    def read_each(self) -> Iterator[Contents]:
        """Yield its contents part by part (see :func:`decode_each`); read all parts before appending records."""
        for contents in decode_each(_parts(self._backend)):
            self.last = contents.last
            self.earlier_seconds = sum(end - begin for begin, end in contents.sessions)
            self.is_longer = bool(contents.unended) or contents.ended is None
            self.code = contents.begun.code if contents.begun is not None else ""
            yield contents

    def note(self, status: RunStatus) -> None:
        """Write that the run was begun, resumed or ended."""
        if self._backend.is_away:
            raise JournalError(f"the journal in {self._backend.name} cannot be written; continue with resume=True")
        with self._writing():
            self._backend.renew()
            self._append([status])
            self._backend.renew()  # a driver that was frozen meanwhile must not assume that its record counts

    def append(self, events: Sequence[Event]) -> None:
        """Write events, all or none; they are safe when this returns."""
        if not events:
            return
        try:
            self._append(events)
        except Exception as error:
            self._not_served(error)

    def replace(self, header: RunHeader, events: Sequence[Event]) -> str:
        """Replace a damaged journal by a repaired one; return the place of the damaged one."""
        records = [header, *events]
        with self._writing():
            kept = self._backend.replace(encode(records, self.last + 1))
        self.last += len(records)
        return kept

    def clear(self) -> None:
        """Remove its contents; call :meth:`begin` afterwards."""
        with self._writing("then try again"):
            self._backend.clear()
        self.last = 0

    @property
    def folder(self) -> str:
        """Path or URL of its folder."""
        return self._backend.name

    def written(self) -> float:
        """Return the Unix time of the last write before this driver held it; 0 if it is not known."""
        return self._backend.written()

    @property
    def is_away(self) -> bool:
        """Whether the last call failed in a store in which each further call may take seconds to fail."""
        return self._backend.is_away

    def renew(self) -> None:
        """Keep holding it; call every few seconds, also when there is nothing to append."""
        try:
            self._backend.renew()
        except Exception as error:
            self._not_served(error)

    def close(self) -> None:
        """Let other drivers in."""
        self._backend.release()

    def _append(self, records: Sequence[Record]) -> None:
        self._backend.append(encode(records, self.last + 1))
        self.last += len(records)

    def _not_served(self, error: Exception) -> NoReturn:
        """Turn an error of any file system into one that allows a retry."""
        if isinstance(error, JournalError):
            raise error
        raise StoreError(f"the journal in {self._backend.name} cannot be written: {_said(error)}") from error

    @contextmanager
    def _writing(self, remedy: str = "then continue with resume=True") -> Iterator[None]:
        try:
            yield
        except JournalError:
            raise
        except Exception as error:  # each file system raises its own
            raise JournalError(
                f"the journal in {self._backend.name} cannot be written: {_said(error)}; free space or fix the access, "
                f"{remedy}"
            ) from error


def read_journal(backend: JournalBackend) -> Contents:
    """Read the undamaged records of a journal; ``damage`` of the result describes the others."""
    return decode(_parts(backend))


def read_header(backend: JournalBackend) -> RunHeader:
    """Read only a journal's header."""
    return next(decode_each(_parts(backend))).header


class Ends(NamedTuple):
    """The first record of a journal and its last one, if it is the end of the run."""

    header: RunHeader | None  # None if the first record is damaged, too long, or of another version
    ended: RunStatus | None  # None if the run has not ended, or the last record is damaged or too long


def read_ends(backend: JournalBackend) -> Ends | None:
    """Read only both ends of a journal; None if there is none."""
    with reading(backend):
        first, last = backend.ends()
    if not first:
        return None
    header, ended = (
        None if found is None else found[1]
        for found in (open_line(first.partition(b"\n")[0]), open_line(last[:-1].rpartition(b"\n")[2]))
    )
    return Ends(
        header if isinstance(header, RunHeader) and header.version == FORMAT_VERSION else None,
        ended if isinstance(ended, RunStatus) and ended.status.is_over and last.endswith(b"\n") else None,
    )


def _parts(backend: JournalBackend) -> Iterator[Part]:
    part = None
    with reading(backend):  # errors of the caller, which handles each part, stay as they are
        for part in backend.read():
            yield part
    if part is None:
        raise JournalError(f"there is no journal in {backend.name}; use the folder of a run")


@contextmanager
def reading(backend: JournalBackend) -> Iterator[None]:
    """Turn any error of a file system into a :class:`JournalError`."""
    try:
        yield
    except Exception as error:
        raise JournalError(f"the journal in {backend.name} cannot be read: {_said(error)}; fix the access") from error


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
