"""What the law is told of each rank's device, also where any of several would have it say the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from budget_exporter.facts.engine import Placement
from budget_exporter.facts.ledger import RankInput
from budget_exporter.facts.snapshot import DeviceState, FreeAtInit

__all__ = ["rank_inputs"]


def rank_inputs(
    placements: Iterable[Placement],
    devices: Mapping[str, DeviceState],
    free: Mapping[str, FreeAtInit],
    limit: int | None = None,
) -> list[RankInput]:
    """
    Return what the law is told of the device of each rank; a rank whose device is not known is left out.

    ``devices`` are the states by device, ``free`` the free memory at init by rank, ``limit`` the bytes of host memory
    that the engine's container may have. A rank that has one of several devices, all of one model and size, is told
    that much: the budget does not depend on which it is.
    """
    inputs = []
    for placement in placements:
        state = _device(placement, devices)
        if state is not None:
            inputs.append(_input(placement.rank, state, free.get(placement.rank), limit))
    return inputs


def _device(placement: Placement, devices: Mapping[str, DeviceState]) -> DeviceState | None:
    if placement.device is not None:
        return devices.get(placement.device)
    among = [devices.get(device) for device in placement.among]
    known = [state for state in among if state is not None]
    kinds = {(s.identity.platform, s.identity.model, s.identity.integrated, s.memory.size) for s in known}
    # One that does not answer may be of another size.
    return known[0] if len(kinds) == 1 and len(known) == len(among) else None


def _input(rank: str, state: DeviceState, free: FreeAtInit | None, limit: int | None) -> RankInput:
    identity = state.identity
    return RankInput(
        rank,
        state.memory.size,
        free_at_init=None if free is None else free.bytes,
        free_at_init_rounding=0 if free is None else free.rounding,
        free_at_init_source="measured" if free is None else free.source,
        platform=identity.platform,
        integrated=identity.integrated,
        model=identity.model,
        container_limit=limit,
    )
