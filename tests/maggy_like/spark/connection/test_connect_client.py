"""What a Spark Connect session's client tells of its server."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from maggy_like.errors import EngineError
from maggy_like.spark.connection import address_towards, driver_address, server_endpoint

pytest.importorskip("grpc")


def session_of(builder: Any) -> Any:
    return SimpleNamespace(client=SimpleNamespace(_builder=builder))


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("sc://far", ("far", 15002)),
        ("sc://far:443/;use_ssl=true;token=a%2Fb;x-databricks-cluster-id=0123", ("far", 443)),
        ("sc://[::1]:7077/;user_id=me", ("::1", 7077)),
        ("sc://[fe80::2]", ("fe80::2", 15002)),
    ],
)
def test_the_endpoint_is_that_of_the_url(url: str, endpoint: tuple[str, int]) -> None:
    from pyspark.sql.connect.client import DefaultChannelBuilder

    assert server_endpoint(session_of(DefaultChannelBuilder(url))) == endpoint


def test_a_builder_of_ones_own_has_a_host_or_says_which_argument_helps() -> None:
    from pyspark.sql.connect.client import ChannelBuilder

    class Proxied(ChannelBuilder):
        host = "far.example"

    class Silent(ChannelBuilder):
        pass

    assert server_endpoint(session_of(Proxied())) == ("far.example", 15002)
    with pytest.raises(EngineError, match=r"because the Silent of this Spark Connect .*SparkEngine\(host=\.\.\.\)"):
        server_endpoint(session_of(Silent()))


def test_workers_are_given_the_address_that_leads_to_the_server() -> None:
    from pyspark.sql.connect.client import DefaultChannelBuilder

    assert driver_address(session_of(DefaultChannelBuilder("sc://127.0.0.3:1/;token=t"))) == "127.0.0.1"
    if socket.has_ipv6:
        assert address_towards("::1", 15002) == "::1"


def test_ipv4_is_preferred_and_no_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [
        (socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("::1", 1, 0, 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("127.0.0.1", 1)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: both)
    assert address_towards("both", 1) == "127.0.0.1"

    def unknown(*args: Any, **more: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(EngineError, match=r"host 'nowhere' \(Name or service not known\); use engine=SparkEngine"):
        address_towards("nowhere", 1)
