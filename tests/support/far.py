"""Workers in another network namespace."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from maggy_like import LocalEngine
from maggy_like.rpc.endpoint import Endpoint


class FarEngine(LocalEngine):
    """Its workers are where ``sys.executable`` enters, see :func:`enter`."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(gpus=())
        self._endpoint = endpoint

    def endpoint(self) -> Endpoint:
        return self._endpoint


def enter(namespace: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have new Python processes start in a network namespace."""
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nexec ip netns exec {namespace} {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
