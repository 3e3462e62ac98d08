"""The child: the process that runs the training function, and the reporter that it is given."""

from __future__ import annotations
