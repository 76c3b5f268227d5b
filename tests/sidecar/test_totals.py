"""What is kept over time of whose memory it is: the largest use of a rank, evicted time that never falls."""

from __future__ import annotations

from budget_exporter.facts.device import Holders, ProcessMemory
from budget_exporter.facts.engine import ProcessKey
from budget_exporter.facts.ownership import DeviceOwnership, Ownership, RankMemory
from budget_exporter.sidecar.totals import Totals

CARD = "0000:03:00.0"
FIRST, SECOND = ProcessKey(10, 1, "boot"), ProcessKey(10, 2, "boot")


def peak(totals: Totals, used: int | None, life: ProcessKey | None) -> int | None:
    division = Ownership(ranks={("qwen", "0"): RankMemory(used)})
    return totals.take(division, {}, {} if life is None else {"qwen": life}).ranks["qwen", "0"].used_high_water


def test_the_largest_use_of_a_rank_is_kept_for_its_engines_life() -> None:
    totals = Totals()
    assert [peak(totals, used, FIRST) for used in (5, 9, 7, None, 8)] == [5, 9, 9, None, 9]
    assert [peak(totals, used, SECOND) for used in (2, 1)] == [2, 2], "another process is another life"
    assert peak(totals, 3, None) is None, "nobody watched it from its start"
    assert peak(totals, 1, SECOND) == 1, "and it is not taken up again"


def evicted(totals: Totals, **seconds: float | None) -> float | None:
    processes = tuple(ProcessMemory(int(pid[1:]), 1, evicted_seconds=value) for pid, value in seconds.items())
    known = [value for value in seconds.values() if value is not None]
    division = Ownership({CARD: DeviceOwnership(CARD, evicted_seconds=sum(known) if known else None)})
    return totals.take(division, {CARD: Holders(CARD, 1.0, processes)}, {}).devices[CARD].evicted_seconds


def test_evicted_time_does_not_fall_when_a_process_ends_nor_count_twice_when_it_is_read_again() -> None:
    totals = Totals()
    assert evicted(totals, p1=None) is None
    assert evicted(totals, p1=0.0) == 0.0
    assert evicted(totals, p1=10.0, p2=3.0) == 13.0
    assert evicted(totals, p2=4.0) == 14.0
    assert evicted(totals, p1=10.0, p2=4.0) == 14.0
    assert evicted(totals, p1=2.0, p2=4.0) == 16.0, "another process has the PID"
    assert evicted(totals) == 16.0
