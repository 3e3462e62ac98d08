"""Files that Spark has distributed (``--files``, ``addFile``), for trials that use ``pyspark.SparkFiles``.

A trial's process is not started by Spark. PySpark is not imported for this if the trial does not import it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

_MODULE = "pyspark.core.files"
_FOLDER = "MAGGY_LIKE_SPARK_FILES"


def pass_on(environment: MutableMapping[str, str]) -> None:
    """Pass the location of the files to processes with this environment, if this is a Spark task."""
    files = sys.modules.get(_MODULE)
    if files is not None and files.SparkFiles._is_running_on_worker:
        environment[_FOLDER] = os.path.abspath(files.SparkFiles._root_directory)


def take_over() -> None:
    """Set the location in ``SparkFiles``, if it was passed on and PySpark is imported."""
    files, folder = sys.modules.get(_MODULE), os.environ.get(_FOLDER)
    if files is not None and folder is not None:
        files.SparkFiles._root_directory, files.SparkFiles._is_running_on_worker = folder, True
