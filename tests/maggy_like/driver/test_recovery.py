"""What a new journal says of the driver's machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from maggy_like.driver import recovery


def test_the_versions_of_packages_are_read_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first = recovery.environment()
    assert first["numpy"] == np.__version__

    def refuse(package: str) -> Any:
        raise AssertionError(f"the metadata of {package} is read again")

    monkeypatch.setattr(recovery, "version", refuse)
    assert recovery.environment() == first
