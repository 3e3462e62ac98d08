"""Where the agents' own output goes: what they and their fork servers say beside the trials, for when one dies."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from maggy_like.folders import Folder, local_path, name_of_folder


class OutputFolder:
    """A folder of this machine: the run's own ``workers``, or of a run at a URL one that goes when the run ends well.

    Args:
        directory: The run's folder.

    Attributes:
        path: Where it is.
    """

    def __init__(self, directory: Folder) -> None:
        own = local_path(directory)
        self._goes = own is None
        made = tempfile.mkdtemp(prefix=f"maggy-{name_of_folder(directory)}-") if own is None else ""
        self.path = Path(made) if own is None else own / "workers"

    def keep(self) -> str:
        """Leave it there if anybody has written something; a line that says where, if it would go otherwise."""
        if self._goes and any(file.stat().st_size for file in self.path.iterdir()):
            self._goes = False
            return f"what the workers themselves said is in {self.path}"
        return ""

    def close(self) -> None:
        """Remove it, if it is to go."""
        if self._goes:
            shutil.rmtree(self.path, ignore_errors=True)
