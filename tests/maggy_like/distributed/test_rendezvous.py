"""How the ranks of an attempt meet, and part."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore

from maggy_like.distributed import rendezvous
from maggy_like.distributed.rendezvous import Membership, interface_of, local_address, open_store
from maggy_like.protocol.messages import RankInfo
from maggy_like.protocol.task import WorkerTask


def task(address: str, **options: Any) -> WorkerTask:
    return WorkerTask(address, b"", "run", b"", (), (), (), "file:///store", "logs", **options)


def test_ranks_that_have_returned_are_known_to_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))  # each sets torchrun's variables
    where: list[tuple[str, int]] = []
    first, second, third = (
        Membership(
            RankInfo(rank, 3, rank, 3, 0, 1),
            task("tcp://127.0.0.1:9"),
            lambda host, port: where.append((host, port)),
            lambda: where[0],
        )
        for rank in range(3)
    )
    assert [member.gone() for member in (first, second, third)] == ["", "", ""]
    second.leave()
    assert [member.gone() for member in (first, third)] == ["rank 1 had returned"] * 2
    monkeypatch.setattr(rendezvous, "NOTICE_PATIENCE", timedelta(milliseconds=50))
    monkeypatch.setattr(rendezvous, "LEAVE_PATIENCE", timedelta(milliseconds=60))
    first.leave()
    assert (
        "rank 0 has returned, and rank 2 is still running; rank 0 waits for up to 0.001 minutes"
        in capsys.readouterr().out
    )
    third.leave()
    first.leave()
    assert not capsys.readouterr().out
    assert second.gone() == "rank 0, 1, 2 had returned"
    del first._store
    assert second.gone() == "rank 0 had returned, or is gone,"  # it kept the store until then


def test_a_rank_0_that_is_stopped_waits_until_the_others_have_reached_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    where: list[tuple[str, int]] = []
    at = task("tcp://127.0.0.1:9")

    def join(rank: int) -> Membership:
        return Membership(RankInfo(rank, 2, rank, 2, 0, 1), at, lambda *it: where.append(it), lambda: where[0])

    first = join(0)
    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(first.leave_stopped)
        with pytest.raises(TimeoutError):
            leaving.result(0.05)
        second = join(1)
        leaving.result(50)  # before it gives up
    second.leave_stopped()  # at once


def test_rank_0_takes_the_first_free_port_of_a_range() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        low = taken.getsockname()[1]
        ports = (low, low + 20)
        store, port = open_store("127.0.0.1", ports)
        assert low < port <= low + 20
        again, other = open_store("127.0.0.1", ports)
        assert other not in (low, port)
        TCPStore("127.0.0.1", port, is_master=False).set("here", "1")
        assert (store.get("here"), again.check(["here"])) == (b"1", False)
        with pytest.raises(RuntimeError, match=f"rank_ports must have a free port, got {low} at 127.0.0.1 on "):
            open_store("127.0.0.1", (low, low))


@pytest.mark.parametrize(("driver", "ipv6", "host"), [("[::1]", False, "::1"), ("127.0.0.1", True, "127.0.0.1")])
def test_ranks_meet_at_the_address_that_leads_to_the_driver(
    monkeypatch: pytest.MonkeyPatch, driver: str, ipv6: bool, host: str
) -> None:
    """Also over IPv6, and where a driver that listens at ``::`` is reached over IPv4."""
    monkeypatch.setattr(os, "environ", {})
    told: list[tuple[str, int]] = []
    at = task(f"tcp://{driver}:9", ipv6=ipv6)
    first = Membership(RankInfo(0, 2, 0, 2, 0, 1), at, lambda *where: told.append(where), lambda: told[0])
    second = Membership(RankInfo(1, 2, 1, 2, 0, 1), at, lambda *where: None, lambda: told[0])
    assert (os.environ["MASTER_ADDR"], os.environ["GLOO_SOCKET_IFNAME"]) == (host, "lo")
    assert first.gone() == second.gone() == ""


def test_an_address_has_its_interface(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed = tmp_path / "if_inet6"
    listed.write_text("fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n" + "0" * 31 + "1 01 80 10 80       lo\n")
    monkeypatch.setattr(rendezvous, "_IPV6_ADDRESSES", listed)
    assert [interface_of(address) for address in ("::1", "fe80::fc:ff:fe00:1", "fd00::9")] == ["lo", "eth0", ""]
    monkeypatch.setattr(rendezvous, "_IPV6_ADDRESSES", tmp_path / "none")
    assert interface_of("::1") == ""
    assert interface_of("127.0.0.1") == "lo"
    assert local_address("localhost", ipv6=True) in ("::1", "127.0.0.1")
