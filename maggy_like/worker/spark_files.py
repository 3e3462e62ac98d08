"""Files that Spark has shipped (``--files``, ``addFile``), for trials that ask ``pyspark.SparkFiles`` for them.

A trial's process is not started by Spark. Where a trial does not import PySpark, it is not imported for this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

_MODULE = "pyspark.core.files"
_FOLDER = "MAGGY_LIKE_SPARK_FILES"


def pass_on(environment: MutableMapping[str, str]) -> None:
    """Tell the processes that get this environment where the files are, if this is a task of Spark."""
    files = sys.modules.get(_MODULE)
    if files is not None and files.SparkFiles._is_running_on_worker:
        environment[_FOLDER] = os.path.abspath(files.SparkFiles._root_directory)


def take_over() -> None:
    """Have ``SparkFiles`` know it here, if it was passed on and what was imported so far has PySpark."""
    files, folder = sys.modules.get(_MODULE), os.environ.get(_FOLDER)
    if files is not None and folder is not None:
        files.SparkFiles._root_directory, files.SparkFiles._is_running_on_worker = folder, True
