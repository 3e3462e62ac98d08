"""The files that a trial has written, in the run's directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path

from maggy_like.errors import UserError
from maggy_like.storage.file_systems import open_url
from maggy_like.storage.trial_files import KeptFile, list_name, make_place, read_lists, readable_size
from optimizers.checks import did_you_mean


class TrialFiles(Mapping[str, str]):
    """The files that a trial wrote, as a mapping from their paths to their URLs in the run's directory.

    A path begins at ``reporter.directory``, or at the trial's working directory for a file that was written there.
    Printed, it has one line per file with its size.

    Attributes:
        trial: Number of the trial.
        attempt: Number of the attempt after which the files were kept. 0 if there are none.
        left_out: Files that were not kept, each with the reason.

    Example:
        >>> def train(lr, reporter):
        ...     (reporter.directory / "notes.txt").write_text(f"lr {lr}")
        ...     return lr
        >>> files = lagom(train, {"lr": [0.1, 0.2]}, optimizer="grid", direction="min").files(1)
        >>> files
        notes.txt  6 bytes
        >>> files.read("notes.txt")
        b'lr 0.2'
    """

    def __init__(self, directory: str, trial: int) -> None:
        self.trial = trial
        self.attempt = 0
        self.left_out: tuple[str, ...] = ()
        self._files: dict[str, tuple[str, KeptFile]] = {}
        try:
            lists = read_lists(directory, trial)
        except Exception as error:  # each file system raises its own
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise UserError(f"the files of trial {trial} cannot be listed ({said}); try again") from error
        for host, listed in enumerate(lists):
            if listed is None:
                continue
            self.attempt = max(self.attempt, listed.attempt)
            self.left_out += listed.left_out
            for name, file in listed.files.items():
                self._files.setdefault(name, (f"{directory}/{list_name(trial, host)}/{name}", file))

    def __getitem__(self, name: str) -> str:
        if name not in self._files:
            raise KeyError(f"trial {self.trial} has no file {name!r}{did_you_mean(name, self._files)}")
        return self._files[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def __len__(self) -> int:
        return len(self._files)

    def size(self, name: str) -> int:
        """Return the size of a file in bytes.

        Args:
            name: Path of the file.

        Returns:
            The size.
        """
        return self._files[name][1].size

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Args:
            name: Path of the file.

        Returns:
            The content.

        Raises:
            KeyError: The trial has no such file.
        """
        fs, path = open_url(self[name])
        return bytes(fs.cat_file(path))

    def fetch(self, directory: str | PathLike[str], *names: str) -> list[Path]:
        """Copy files to a directory on this machine, with their directories. Existing files are replaced.

        Args:
            directory: The directory.
            *names: Paths of the files. Default: all.

        Returns:
            The paths of the copies.

        Raises:
            KeyError: The trial has no such file.

        Example:
            >>> result.files(result.best_trial).fetch("best")  # doctest: +SKIP
            [PosixPath('best/model.pt')]
        """
        urls = {name: self[name] for name in names or self}
        copies = []
        for name, url in urls.items():
            fs, path = open_url(url)
            copies.append(Path(make_place(os.fspath(directory), name)))
            fs.get_file(path, str(copies[-1]))
        return copies

    def __repr__(self) -> str:
        width = max(map(len, self._files), default=0)
        lines = [f"{name:{width}}  {readable_size(self.size(name))}" for name in self]
        lines += [f"not kept: {left_out}" for left_out in self.left_out]
        return "\n".join(lines) or "no files"
