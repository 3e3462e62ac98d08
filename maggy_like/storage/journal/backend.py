"""What a journal asks of the folder that keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from maggy_like.storage.journal.records import Part


class Mark(NamedTuple):
    """How far a journal was read: which of its files (its name or number), and how many bytes of that."""

    file: int | str = 0
    size: int = 0


class JournalBackend(Protocol):
    """A folder that holds one run's journal. :meth:`hold` comes before whatever writes.

    Two kinds serve: :class:`~maggy_like.storage.journal.local.LocalBackend` and
    :class:`~maggy_like.storage.journal.object_store.ObjectStoreBackend`. Errors of the file system
    come through as they are.
    """

    name: str
    """The folder, for people."""

    @property
    def is_away(self) -> bool:
        """Whether the newest call was refused in a place that may take seconds to refuse each further one."""
        ...

    def exists(self) -> bool:
        """Whether there is a journal."""
        ...

    def read(self) -> Iterator[Part]:
        """The journal in order, in parts of some MiB; none if there is no journal.

        Read it to the end before :meth:`append`.
        """
        ...

    def added(self, mark: Mark) -> tuple[bytes, Mark] | None:
        """The whole lines behind ``mark``, and where they end; None if the journal was replaced since."""
        ...

    def is_held(self) -> bool:
        """Whether a driver holds it, wherever that is; nothing is written to find out."""
        ...

    def hold(self, run: str = "") -> None:
        """Make the folder, and keep other drivers away until :meth:`release`.

        Args:
            run: The call of ``lagom`` for which it is held. Where there are no locks, a driver that was started in the
                place of a dead one of the same call takes it over at once.

        Raises:
            JournalError: Another driver holds it; the message says which.
        """
        ...

    def written(self) -> float:
        """When it was written to last, before this driver held it: Unix time; 0 where nobody knows."""
        ...

    def renew(self) -> None:
        """Keep holding it; call every few seconds.

        Raises:
            JournalError: Another driver has taken it over.
        """
        ...

    def append(self, data: bytes) -> None:
        """Add whole lines; when this returns, they outlive the driver."""
        ...

    def replace(self, data: bytes) -> str:
        """Make ``data`` the whole journal, and keep the former one.

        Whenever the driver dies, the one or the other is there whole.

        Returns:
            Where the former one is.
        """
        ...

    def clear(self) -> None:
        """Remove the journal, and damaged ones that were kept; hold it before."""
        ...

    def release(self) -> None:
        """Let other drivers in."""
        ...
