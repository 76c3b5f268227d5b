"""The little behaviour that values have."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest

from budget_exporter import facts as room
from budget_exporter.facts import boot, device, engine, ledger, snapshot, source, verdict
from budget_exporter.facts.boot import CAUSES, PHASES, BootReport, Plan, Printed, RankFacts
from budget_exporter.facts.device import DeviceIdentity, HighWater, MemorySample
from budget_exporter.facts.ledger import COMPONENTS
from budget_exporter.facts.snapshot import DeviceState
from budget_exporter.facts.verdict import FINDINGS, KNIFE_EDGE_REASONS

MODULES = (boot, device, engine, ledger, snapshot, source, verdict)


def values() -> list[type]:
    return [
        found
        for module in MODULES
        for found in vars(module).values()
        if isinstance(found, type) and found.__module__ == module.__name__
    ]


@pytest.mark.parametrize("kind", values(), ids=lambda kind: kind.__name__)
def test_every_value_is_frozen_and_slotted(kind: type) -> None:
    assert room.__doc__
    assert is_dataclass(kind)
    assert "__slots__" in vars(kind)
    instance = object.__new__(kind)
    with pytest.raises((FrozenInstanceError, AttributeError)):
        setattr(instance, fields(kind)[0].name, None)


@pytest.mark.parametrize("closed", [PHASES, CAUSES, COMPONENTS, KNIFE_EDGE_REASONS, FINDINGS, engine.UNIT_STATES])
def test_closed_lists_have_no_member_twice(closed: tuple[str, ...]) -> None:
    assert len(closed) == len(set(closed)) > 0


def test_a_rank_has_its_own_facts_and_the_common_ones_for_the_rest() -> None:
    own = RankFacts(weights=Printed(1), graph_capture=Printed(-5, 2))
    common = RankFacts(weights=Printed(9), free_at_init=Printed(7), plan=Plan(slots=3))
    report = BootReport(common=common, ranks={1: own})
    assert report.of(0) is common
    assert report.of(1) == RankFacts(
        weights=Printed(1), graph_capture=Printed(-5, 2), free_at_init=Printed(7), plan=Plan(slots=3)
    )
    assert report.ranks[1] is own


def test_the_window_s_maximum_is_the_newest_use_where_there_is_no_window() -> None:
    identity = DeviceIdentity("0000:03:00.0", "amd", "R9700", "amdgpu", "amdgpu_vram")
    mark = HighWater(identity.device, None, None, used=9, at=1.0, since=1.0, all_time=9)
    state = DeviceState(identity, MemorySample(2.0, 100, 5), mark)
    assert state.window_max == 5
    kept = HighWater(identity.device, None, None, used=9, at=1.0, since=1.0, all_time=9, window=((1.0, 8), (2.0, 6)))
    assert DeviceState(identity, state.memory, kept).window_max == 8
