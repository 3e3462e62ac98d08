"""Import this first, before numpy, for one numeric thread: more of them cost a small matrix ten times the CPU time.

A value that the caller has set in the environment stays.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ.setdefault(_name, "1")
