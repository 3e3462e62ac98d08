"""The workers that run one attempt: usually one, several in a multi-worker trial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from maggy_like.driver.state_machine.commands import Commands, Send
from maggy_like.driver.state_machine.stopping import Stopping
from maggy_like.driver.state_machine.workers import Worker, WorkerGroup, is_fault
from maggy_like.protocol.identity import WorkerId
from maggy_like.protocol.messages import (
    Abort,
    Assign,
    Decided,
    Finished,
    Halt,
    Held,
    Meet,
    Opened,
    RankInfo,
    Stop,
    ToWorker,
)
from optimizers.core.trial import Failure


def choose(idle: Iterable[Worker], width: int) -> list[Worker]:
    """Choose ``width`` idle workers on as few hosts as possible, those of one host next to each other.

    Args:
        idle: Idle workers in order of preference, at least ``width``.
    """
    hosts: dict[str, list[Worker]] = {}
    for worker in idle:
        hosts.setdefault(worker.host, []).append(worker)
    fullest = sorted(hosts.values(), key=len, reverse=True)
    chosen = [worker for workers in fullest for worker in sorted(workers, key=lambda worker: worker.id.index)]
    return chosen[:width]


def rank_infos(members: Sequence[Worker]) -> list[RankInfo]:
    """Return the information of each member about its rank, by rank."""
    hosts: dict[str, list[Worker]] = {}
    for member in members:
        hosts.setdefault(member.host, []).append(member)
    groups = list(hosts)
    return [
        RankInfo(
            rank=rank,
            world_size=len(members),
            local_rank=hosts[member.host].index(member),
            local_world_size=len(hosts[member.host]),
            group_rank=groups.index(member.host),
            group_world_size=len(groups),
            devices=_devices(hosts[member.host]),
        )
        for rank, member in enumerate(members)
    ]


def _devices(ranks: Sequence[Worker]) -> tuple[str, ...]:
    """Return the GPUs of a host's ranks: the first of each, in their order, then the others."""
    first = [rank.accelerators[0] for rank in ranks if rank.accelerators]
    others = [address for rank in ranks for address in rank.accelerators[1:]]
    return tuple(dict.fromkeys([*first, *others]))


class WorkerGroups:
    """The running attempts, and the messages that coordinate the ranks of each.

    All ranks of an attempt stop in the same report: the driver halts them, each sends how many reports it has made,
    and they continue to the first report that none of them has passed. A rank that fails ends the attempt for all.
    """

    def __init__(self) -> None:
        self._running: dict[int, WorkerGroup] = {}  # by trial

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[WorkerGroup]:
        return iter(self._running.values())

    def start(self, order: Assign, members: Sequence[Worker], now: float, *, always_ranked: bool) -> Commands:
        """Start an attempt on workers together.

        Args:
            order: Assignment of rank 0; the others receive it too, each with its rank.
            always_ranked: Whether a worker receives its rank even if it is the only one.
        """
        group = self._running[order.trial] = WorkerGroup(order.trial, order.attempt, tuple(members), now)
        commands: Commands = []
        infos = rank_infos(members) if always_ranked or len(members) > 1 else [None]
        for worker, info in zip(members, infos, strict=True):
            worker.take(group)
            commands.append(Send(worker.id, msgspec.structs.replace(order, rank_info=info)))
        return commands

    def release(self, group: WorkerGroup) -> None:
        """Remove an attempt that is over."""
        del self._running[group.trial]

    def overdue(self, timeout: float, now: float) -> list[WorkerGroup]:
        """Return the attempts that have run for longer than ``timeout`` seconds, without waits for the store."""
        return [group for group in self if not group.waits and now - group.since - group.excused > timeout]

    def excuse(self, seconds: float) -> None:
        """Exclude a time in which the driver decided nothing from limits, except during waits for the store."""
        for group in self if seconds else ():
            if not group.waits:
                group.excused += seconds

    def decide(self, group: WorkerGroup, *, stop: bool) -> Commands:
        """Answer a report that waits for a verdict; every rank waits at that step."""
        if stop:
            group.stop(Stopping.RULE)
        return _send(group.running, Decided(group.trial, group.attempt, group.stopping.asks_to_end))

    def stop(self, group: WorkerGroup, why: Stopping, *, failure: Failure | None = None, cause: str = "") -> Commands:
        """Let all ranks of an attempt end at the same next report, unless that was requested already.

        Args:
            failure: How its end is recorded, if it is a fault.
            cause: Why the search is over, if that ends the attempt.
        """
        if not group.stop(why, failure=failure, cause=cause):
            return []
        if len(group.members) == 1:
            return _send(group.running, Stop(group.trial, group.attempt))
        if group.held is not None:
            return []
        group.held = {}
        return _send(group.running, Halt(group.trial, group.attempt))

    def opened(self, group: WorkerGroup, worker: Worker, message: Opened) -> Commands:
        """Send the meeting point to the other ranks."""
        others = [member.id for member in group.members if member is not worker]
        return _send(others, Meet(message.trial, message.attempt, message.host, message.port))

    def held(self, group: WorkerGroup, worker: Worker, message: Held) -> Commands:
        """Record the number of reports of a halted rank."""
        if group.held is None:
            return []
        group.held[group.rank(worker.id)] = message.reports
        return self._go_on(group)

    def ended(self, group: WorkerGroup, worker: Worker, end: Finished | Failure) -> Commands:
        """Record a rank's end; the attempt is over with the last (see :attr:`WorkerGroup.has_ended`)."""
        group.ends[group.rank(worker.id)] = end
        if group.has_ended:
            return []
        if is_fault(end):
            return _send(group.running, Abort(group.trial, group.attempt))
        return self._go_on(group)

    def _go_on(self, group: WorkerGroup) -> Commands:
        """Send at which report to stop, once every rank has sent how many it has made; until then they wait."""
        if (at := group.stop_at) is None:
            return []
        return _send(group.running, Stop(group.trial, group.attempt, at))


def _send(workers: Iterable[WorkerId], message: ToWorker) -> Commands:
    return [Send(worker, message) for worker in workers]
