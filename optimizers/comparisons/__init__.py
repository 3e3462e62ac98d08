"""Repeated trials of variants, and the tests that compare them."""

from __future__ import annotations
