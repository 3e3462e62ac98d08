"""A driver whose workers reach it at an address that it cannot listen at, as behind NAT or in a container."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from far import FarEngine, enter
from wire import proxy

from maggy_like import Float, lagom
from maggy_like.errors import EngineError
from maggy_like.rpc.endpoint import Endpoint
from optimizers.core.trial import TrialState

pytestmark = pytest.mark.e2e


def test_workers_connect_through_a_forwarded_port(
    namespace: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search listens at 127.0.0.1, which no other network reaches; the workers' address is forwarded to it."""
    name, _, outside = namespace
    enter(name, tmp_path, monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    engine = FarEngine(Endpoint(outside, bind="127.0.0.1", ports=(port, port)))
    with proxy(port, (outside, port)) as relay:
        result = lagom(
            lambda x: x, {"x": Float(0, 1)}, optimizer="random", n_trials=4, workers=2, engine=engine,
            directory=tmp_path / "runs", progress=False,
        )  # fmt: skip
    assert result.counts == {TrialState.COMPLETED: 4}
    assert relay.connections >= 2


def test_an_address_that_cannot_be_bound_is_an_error_and_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"the driver cannot listen at '198\.51\.100\.7'"):
        lagom(
            lambda x: x, {"x": Float(0, 1)}, n_trials=4, workers=2, engine=FarEngine(Endpoint("198.51.100.7")),
            directory=tmp_path / "runs", progress=False,
        )  # fmt: skip
    assert list(tmp_path.iterdir()) == []
