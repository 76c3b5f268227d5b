"""Divide what a device holds among the ranks of engines, foreign processes and what no process accounts for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from budget_exporter.facts.device import Holders, ProcessMemory
from budget_exporter.facts.engine import Placement
from budget_exporter.facts.ownership import DeviceOwnership, Owner, Ownership, RankMemory

__all__ = ["divide"]


def divide(
    holders: Mapping[str, Holders],
    used: Mapping[str, int],
    owners: Mapping[int, Owner],
    placements: Mapping[str, Iterable[Placement]],
) -> Ownership:
    """
    Return whose memory is on each device.

    ``holders`` are the processes by device, ``used`` the bytes in use by device, ``owners`` the engine of each PID,
    ``placements`` the ranks of each engine. A process of no engine is foreign only where the driver lists every
    process; what no process accounts for is signed, since drivers count what was asked for and what is resident apart.
    A rank holds what its engine's processes hold on its device, without those that are known to be another rank's;
    where two ranks of one engine share a device, only processes whose rank is known count. So it is with a rank whose
    device is not known: it holds what its own processes hold anywhere.
    """
    devices = {name: _device(each, used.get(name), owners) for name, each in holders.items()}
    ranks: dict[tuple[str, str], RankMemory] = {}
    for engine, placed in placements.items():
        where = [(p.rank, p.device) for p in placed]
        for rank, device in where:
            shared = device is None or sum(other == device for _, other in where) > 1
            possible = holders.values() if device is None else [holders[device]] if device in holders else []
            held = _held(possible, owners, engine, rank, shared=shared)
            if held is not None:
                ranks[engine, rank] = held
    return Ownership(devices, ranks)


def _device(holders: Holders, used: int | None, owners: Mapping[int, Owner]) -> DeviceOwnership:
    processes = holders.processes
    attributed = _all(p.used for p in processes)
    result = DeviceOwnership(
        device=holders.device,
        attributed=attributed,
        evicted=_total(p.evicted for p in processes),
        evicted_seconds=_seconds(p.evicted_seconds for p in processes),
        leftover=tuple(
            (owners[p.pid].engine, p) for p in processes if p.pid in owners and owners[p.pid].ended and p.used
        ),
    )
    if not holders.complete:
        return result
    # A process of which the driver does not tell how much it holds leaves open what is foreign, and what is nobody's.
    strangers = [p for p in processes if p.pid not in owners]
    foreign_bytes = _all(p.used for p in strangers)
    foreign = sorted((p for p in strangers if p.used), key=lambda p: (-(p.used or 0), p.pid))
    return replace(
        result,
        foreign=None if foreign_bytes is None else tuple(foreign),
        foreign_bytes=foreign_bytes,
        unattributed=None if used is None or attributed is None else used - attributed,
    )


def _held(
    holders: Iterable[Holders], owners: Mapping[int, Owner], engine: str, rank: str, *, shared: bool
) -> RankMemory | None:
    own: list[ProcessMemory] = []
    for process in (process for each in holders for process in each.processes):
        owner = owners.get(process.pid)
        if owner is None or owner.engine != engine or owner.ended:
            continue
        if owner.rank == rank or (owner.rank is None and not shared):
            own.append(process)
    return RankMemory(_all(p.used for p in own), _all(p.gtt_used for p in own)) if own else None


def _all(values: Iterable[int | None]) -> int | None:
    """Return the sum of the bytes, None where one of them is not known: a part must not pass for the whole."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _total(values: Iterable[int | None]) -> int | None:
    """Return the sum of the bytes that are known, None where none are."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _seconds(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
