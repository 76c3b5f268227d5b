"""What is added up over time: evicted time never falls."""

from __future__ import annotations

from budget_exporter.facts.device import Holders, ProcessMemory
from budget_exporter.facts.ownership import DeviceOwnership
from budget_exporter.sidecar.totals import Totals

CARD = "0000:03:00.0"


def evicted(totals: Totals, **seconds: float | None) -> float | None:
    processes = tuple(ProcessMemory(int(pid[1:]), 1, evicted_seconds=value) for pid, value in seconds.items())
    known = [value for value in seconds.values() if value is not None]
    devices = {CARD: DeviceOwnership(CARD, evicted_seconds=sum(known) if known else None)}
    return totals.take(devices, {CARD: Holders(CARD, 1.0, processes)})[CARD].evicted_seconds


def test_evicted_time_does_not_fall_when_a_process_ends_nor_count_twice_when_it_is_read_again() -> None:
    totals = Totals()
    assert evicted(totals, p1=None) is None
    assert evicted(totals, p1=0.0) == 0.0
    assert evicted(totals, p1=10.0, p2=3.0) == 13.0
    assert evicted(totals, p2=4.0) == 14.0
    assert evicted(totals, p1=10.0, p2=4.0) == 14.0
    assert evicted(totals, p1=2.0, p2=4.0) == 16.0, "another process has the PID"
    assert evicted(totals) == 16.0
