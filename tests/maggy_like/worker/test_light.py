"""A worker starts light."""

from __future__ import annotations

import subprocess
import sys


def test_the_agent_loads_neither_numpy_nor_pyspark_nor_torch() -> None:
    code = "import sys, maggy_like.worker.agent.agent; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "maggy_like.worker.agent.agent" in loaded
    assert not {"numpy", "pyspark", "torch", "scipy", "pandas", "optimizers.core.base"} & set(loaded)
