"""The meeting of the ranks of one attempt: rank 0 opens a store, and the driver sends its address to the others.

Rank 0 binds a free port, so no port is chosen before it is bound, and none can be taken in between. The environment is
torchrun's, so that plain DDP, FSDP, Accelerate or Fabric code finds what it expects.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import torch
from torch.distributed import Store, TCPStore, group, is_initialized

from maggy_like.protocol.messages import RankInfo
from maggy_like.protocol.task import WorkerTask
from maggy_like.protocol.torchrun import defaults_of_libraries, environment
from maggy_like.rpc.endpoint import ANY_PORT, PortRange, first_free, shown

CONNECT_PATIENCE = timedelta(seconds=60)
"""Time in which a rank tries to reach the store."""

LEAVE_PATIENCE = timedelta(minutes=10)
"""Time for which rank 0 keeps the store open for ranks that have not finished."""

NOTICE_PATIENCE = timedelta(seconds=10)
"""Time after which the trial's log mentions that wait."""

MEETING_PATIENCE = timedelta(seconds=60)
"""Time after which the log mentions that a rank waits for the others in a call that all of them must make."""

_SIOCGIFADDR = 0x8915
_JOINED, _LEFT = "maggy/joined", "maggy/left"
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")


class Membership:
    """One rank's part in a multi-worker attempt.

    ``task`` has the address of the driver: the ranks meet in the network through which they reach it. Rank 0 calls
    ``opened`` with the host and port of the store. Other ranks wait in ``meet`` for the host and port that it has
    opened.
    """

    def __init__(
        self,
        info: RankInfo,
        task: WorkerTask,
        opened: Callable[[str, int], None],
        meet: Callable[[], tuple[str, int]],
    ) -> None:
        self._info = info
        self._groups: list[object] = []
        if info.devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(info.devices)
        if info.rank == 0:
            host = local_address(urlsplit(task.address).hostname or "127.0.0.1", ipv6=task.ipv6)
            self._store, port = open_store(host, task.rank_ports or ANY_PORT)
            opened(host, port)
        else:
            host, port = meet()
            self._store = TCPStore(host, port, is_master=False, timeout=CONNECT_PATIENCE)
            self._store.set(f"{_JOINED}/{info.rank}", "")
        os.environ.update(environment(info, host, port))
        if info.world_size > 1:
            for name, value in defaults_of_libraries(info, has_accelerator()).items():
                os.environ.setdefault(name, value)
        if interface := interface_of(local_address(host)):
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
                os.environ.setdefault(name, interface)

    def hold(self) -> None:
        """Keep the process group, if there is one by now, for as long as the process lives; called now and then.

        If a function destroys its group and returns, its DistributedDataParallel would free the group and wait, with
        Python's lock held, for a thread of gloo that may want that lock. About one in ten such functions would hang
        (torch 2.13).
        """
        if is_initialized() and (not self._groups or self._groups[-1] is not group.WORLD):
            self._groups.append(group.WORLD)

    def leave(self) -> None:
        """Let rank 0 keep the store open until the others have finished too, because they may still use it.

        The process group is kept, because the process exits at once (see :meth:`hold`).
        """
        if self._info.world_size == 1:
            return
        with contextlib.suppress(RuntimeError):  # the others' own ends will tell what is wrong with them
            self._store.set(f"{_LEFT}/{self._info.rank}", "")
            if self._info.rank == 0:
                self._wait_for_others()
            elif self._store.add(_LEFT, 1) == self._info.world_size - 1:
                self._store.set(f"{_LEFT}/all", "")

    def leave_stopped(self) -> None:
        """Let rank 0 keep the store open until the others have connected; without it, they retry for two minutes.

        It does not wait for their end: a collective operation that waits for rank 0 fails once rank 0 exits.
        """
        if self._info.rank == 0:
            joined = [f"{_JOINED}/{rank}" for rank in range(1, self._info.world_size)]
            with contextlib.suppress(RuntimeError):
                self._store.wait(joined, CONNECT_PATIENCE)

    def _wait_for_others(self) -> None:
        """Wait until all ranks have returned, and print a line if it takes long: they may wait for this rank.

        RuntimeError is raised if they have not returned in all this time.
        """
        with contextlib.suppress(RuntimeError):
            self._store.wait([f"{_LEFT}/all"], NOTICE_PATIENCE)
            return
        late = sorted({*range(self._info.world_size)}.difference(returned_ranks(self._store, self._info.world_size)))
        print(
            f"rank 0 has returned, and rank {', '.join(map(str, late))} is still running; rank 0 waits for up to "
            f"{LEAVE_PATIENCE.total_seconds() / 60:g} minutes (all ranks must call prepare(), average() and a prepared "
            "model equally often)"
        )
        self._store.wait([f"{_LEFT}/all"], LEAVE_PATIENCE)

    def gone(self) -> str:
        """Return which ranks have ended, in words; empty if none has. Rank 0 keeps the store until it leaves."""
        try:
            ranks = returned_ranks(self._store, self._info.world_size)
        except RuntimeError:
            return "rank 0 had returned, or is gone,"
        return f"rank {', '.join(map(str, ranks))} had returned" if ranks else ""


def has_accelerator() -> bool:
    """Return whether this process sees a device on which ranks can train together; Apple's (MPS) is not one."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return device is not None and device.type != "mps"


@contextlib.contextmanager
def meeting(call: str) -> Iterator[None]:
    """Print a line if the ranks take long to meet in the body, because some may never make the call."""
    line = (
        f"this rank has waited for the others in {call} for {MEETING_PATIENCE.total_seconds():g} s; all ranks must "
        "call prepare(), average() and a prepared model equally often"
    )
    notice = threading.Timer(MEETING_PATIENCE.total_seconds(), print, [line])
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()
        notice.join()  # a thread must not be ending while a loader forks its workers


def returned_ranks(store: Store, world_size: int) -> list[int]:
    """Return the ranks whose function has returned."""
    return [rank for rank in range(world_size) if store.check([f"{_LEFT}/{rank}"])]


def open_store(host: str, ports: PortRange) -> tuple[TCPStore, int]:
    """Open a store that listens only at one address of this machine, and return it with its port, a free one.

    The store serves as long as it is referred to. If no port of the range is free, RuntimeError is raised.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = first_free(ports, lambda port: socket.create_server((host, port), family=family, backlog=1024))
    if listener is None:
        raise RuntimeError(
            f"rank_ports must have a free port, got {shown(ports)} at {host} on {socket.gethostname()}; use a wider "
            "range, with one port for each multi-worker trial that may run on a machine at the same time"
        )
    port = int(listener.getsockname()[1])
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    return store, port


def local_address(peer: str, *, ipv6: bool = False) -> str:
    """Return the address of this machine from which a name or address is reached (no packet is sent)."""
    family = socket.AF_INET6 if ipv6 or ":" in peer else socket.AF_INET
    found = socket.getaddrinfo(peer, 9, family, socket.SOCK_DGRAM, flags=socket.AI_V4MAPPED)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(found[0][4])
        return str(probe.getsockname()[0]).removeprefix("::ffff:")  # of an address that is IPv4 after all


def interface_of(address: str) -> str:
    """Return the network interface of an address; empty if it cannot be found.

    Otherwise gloo resolves the machine's own name, often to an address that others cannot reach.
    """
    if ":" in address:
        return ipv6_interface_of(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = array.array("B", struct.pack("256s", name.encode()[:15]))
            try:
                fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # it has no IPv4 address, or this system no such call
                continue
            if socket.inet_ntoa(request.tobytes()[20:24]) == address:
                return name
    return ""


def ipv6_interface_of(address: str) -> str:
    """Return the network interface of an IPv6 address; empty if this system does not provide it."""
    wanted = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
    with contextlib.suppress(OSError):
        for line in _IPV6_ADDRESSES.read_text().splitlines():
            if line.startswith(wanted):
                return line.split()[-1]
    return ""
