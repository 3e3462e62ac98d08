"""What a search found: tables, pictures, exports, and the reading of runs."""

from __future__ import annotations
