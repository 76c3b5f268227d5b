"""Where an engine's own processes hold their memory: what the drivers say of them goes before what is set for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from budget_exporter.engines._ranks import LocalRank, local_ranks, rank_name
from budget_exporter.facts.device import DeviceIdentity
from budget_exporter.facts.engine import Placement, Shape, Worker

__all__ = ["ranks_by_memory", "settle"]

_CLEAR = 1 << 30
"""
Bytes on one device that make it a rank's own.

A runtime's context is some hundred MiB, and one may lie on a card that is only looked at; weights and a pool are more.
"""


def ranks_by_memory(
    shape: Shape, workers: Sequence[Worker], held: Mapping[int, Mapping[str, int]], devices: Collection[DeviceIdentity]
) -> dict[str, str]:
    """
    Return the device of each rank whose process shows it: more than half of all it holds, and 1 GiB at least.

    ``held`` are the bytes of each of the engine's processes by device; only ``devices`` count, without the host's
    memory. A process is a rank by its title; all processes of an engine of one rank are that rank's. Two ranks that
    show the same device are both left out, unless it is cut into partitions. Every worker holds a little on each card
    it can see.
    """
    cards = {device.device: device for device in devices if device.platform != "host"}
    ranks = local_ranks(shape)
    sums: dict[str, Counter[str]] = {}
    for pid, by_device in held.items():
        name = _name(pid, shape, workers, ranks)
        if name is not None:
            sums.setdefault(name, Counter()).update({d: used for d, used in by_device.items() if d in cards})
    told: dict[str, str] = {}
    for name, used in sums.items():
        device, most = max(used.items(), key=lambda item: item[1], default=("", 0))
        if most >= _CLEAR and 2 * most > used.total():
            told[name] = device
    times = Counter(told.values())
    return {name: device for name, device in told.items() if times[device] == 1 or cards[device].partitions > 1}


def settle(placements: Sequence[Placement], told: Mapping[str, str], whole: Collection[str]) -> tuple[Placement, ...]:
    """
    Return ``placements`` as far as ``told``, the device of ranks by their processes, does not know better.

    A rank nothing is told of cannot be on a device of ``whole``, those of one rank each, that is another rank's.
    """
    taken = {device for device in told.values() if device in whole}
    result = []
    for placement in placements:
        device = told.get(placement.rank)
        if device is None:
            result.append(_beside(placement) if placement.device in taken else placement)
        elif placement.device in (None, device):
            result.append(Placement(placement.rank, device))
        else:
            where = f"its process holds its memory here, not on {placement.device} where its environment puts it"
            result.append(Placement(placement.rank, device, where, contradicted=placement.device))
    return tuple(result)


def _beside(placement: Placement) -> Placement:
    why = f"its environment puts it on {placement.device}, where another rank's process holds its memory"
    return replace(placement, device=None, why=why)


def _name(pid: int, shape: Shape, workers: Sequence[Worker], ranks: Sequence[LocalRank]) -> str | None:
    if len(ranks) == 1:
        return ranks[0].name
    worker = next((each for each in workers if each.pid == pid), None)
    name = rank_name(worker, shape) if worker is not None else None
    return name if any(rank.name == name for rank in ranks) else None
