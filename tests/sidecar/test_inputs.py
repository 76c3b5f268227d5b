"""What the law is told of ranks, of which some have one of several devices."""

from __future__ import annotations

from budget_exporter.facts.device import DeviceIdentity, HighWater, MemorySample
from budget_exporter.facts.engine import Placement
from budget_exporter.facts.ledger import RankInput
from budget_exporter.facts.snapshot import DeviceState, FreeAtInit
from budget_exporter.sidecar.inputs import rank_inputs
from budget_exporter.units import GIB


def state(device: str, size: int = 24 * GIB, model: str = "Trainium2") -> DeviceState:
    identity = DeviceIdentity(device, "neuron", model, "2.24", "neuron_device_mem")
    return DeviceState(identity, MemorySample(1.0, size, GIB), HighWater(device, None, None, GIB, 1.0, 1.0, GIB))


BANKS = {f"nd0/hbm{bank}": state(f"nd0/hbm{bank}") for bank in range(4)}
EITHER = Placement("1", None, "the runtime's own table", among=tuple(BANKS))


def test_a_rank_with_one_of_several_devices_of_a_kind_has_a_budget() -> None:
    free = {"0": FreeAtInit(20 * GIB, 3, "log")}
    got = rank_inputs((Placement("0", "nd0/hbm2"), EITHER), BANKS, free, 7)
    known = RankInput("0", 24 * GIB, 20 * GIB, 3, "log", "neuron", model="Trainium2", container_limit=7)
    assert got == [known, RankInput("1", 24 * GIB, platform="neuron", model="Trainium2", container_limit=7)]


def test_a_device_that_is_not_known_or_could_be_of_several_kinds_has_none() -> None:
    assert rank_inputs((Placement("0", None, "somewhere"), Placement("1", "gone")), BANKS, {}) == []
    one_more = BANKS | {"nd1/hbm0": state("nd1/hbm0", 36 * GIB)}
    other = BANKS | {"nd1/hbm0": state("nd1/hbm0", model="Trainium3")}
    among = Placement("0", None, "", among=(*BANKS, "nd1/hbm0"))
    for devices in (BANKS, one_more, other):
        assert rank_inputs((among,), devices, {}) == []
    assert len(rank_inputs((among,), BANKS | {"nd1/hbm0": state("nd1/hbm0")}, {})) == 1
