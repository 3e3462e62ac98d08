"""Where the agents' own output goes: what they and their fork servers say beside the trials, for when one dies."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

from maggy_like.storage.file_systems import put
from maggy_like.storage.folders import Folder, local_path, name_of_folder

COPY_PATIENCE = 10.0
"""Seconds that a store gets to take the files."""


class OutputFolder:
    """A folder of this machine: the run's own ``workers``, or of a run at a URL one whose files go there at the end.

    Args:
        directory: The run's folder.

    Attributes:
        path: Where it is.
    """

    def __init__(self, directory: Folder) -> None:
        own = local_path(directory)
        self._url = f"{directory}/workers" if own is None else ""
        self._is_tried = False
        made = tempfile.mkdtemp(prefix=f"maggy-{name_of_folder(directory)}-") if own is None else ""
        self.path = Path(made) if own is None else own / "workers"

    def move(self, *, is_away: bool = False) -> str:
        """Move the files to the run's folder at a URL; tried once.

        Args:
            is_away: Whether that refuses just now: then they stay.

        Returns:
            A line that says where they are; empty for a run at a path, and where nobody has written anything.
        """
        if not self._url or not self.path.exists() or self._is_tried:
            return ""
        self._is_tried = True
        files = [file for file in self.path.iterdir() if file.stat().st_size]
        arrived: list[Path] = []
        copying = threading.Thread(target=self._copy, args=(files, arrived), name="maggy-output", daemon=True)
        if files and not is_away:
            copying.start()
            copying.join(COPY_PATIENCE)
        if len(arrived) < len(files):
            return f"what the workers themselves said is in {self.path}"
        shutil.rmtree(self.path, ignore_errors=True)
        return f"what the workers themselves said is in {self._url}" if files else ""

    def _copy(self, files: list[Path], arrived: list[Path]) -> None:
        """Copy files as long as the store takes them."""
        for file in files:
            try:
                put(f"{self._url}/{file.name}", file.read_bytes())
            except Exception:  # of whatever file system it is: they stay here, and are named
                return
            arrived.append(file)
