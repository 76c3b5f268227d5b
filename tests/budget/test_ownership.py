"""Whose memory is on a device: ranks, foreign processes, leftovers, and what nobody accounts for."""

from __future__ import annotations

from hypothesis import given, strategies as st

from budget_exporter.budget.ownership import divide
from budget_exporter.facts.device import Holders, ProcessMemory
from budget_exporter.facts.engine import Placement
from budget_exporter.facts.ownership import Owner, RankMemory

CARD, OTHER = "0000:03:00.0", "0000:06:00.0"
TWO = {"qwen": (Placement("0", CARD), Placement("1", OTHER))}


def holders(*processes: ProcessMemory, device: str = CARD, complete: bool = True) -> dict[str, Holders]:
    return {device: Holders(device, 1.0, processes, complete)}


def test_a_rank_holds_what_its_engine_holds_on_its_card_without_its_peers_share() -> None:
    owners = {10: Owner("qwen"), 11: Owner("qwen", "0"), 12: Owner("qwen", "1")}
    listed = holders(ProcessMemory(10, 1, gtt_used=0), ProcessMemory(11, 100, gtt_used=7), ProcessMemory(12, 20))
    owned = divide(listed, {CARD: 130}, owners, TWO)
    assert owned.ranks == {("qwen", "0"): RankMemory(101, 7)}
    card = owned.devices[CARD]
    assert (card.attributed, card.foreign_bytes, card.foreign, card.unattributed) == (121, 0, (), 9)


def test_two_ranks_on_one_card_hold_only_what_is_known_to_be_theirs() -> None:
    shared = {"qwen": (Placement("0", CARD), Placement("1", CARD), Placement("2", None))}
    owners = {10: Owner("qwen"), 11: Owner("qwen", "0")}
    owned = divide(holders(ProcessMemory(10, 5), ProcessMemory(11, 100)), {}, owners, shared)
    assert owned.ranks == {("qwen", "0"): RankMemory(100)}
    assert owned.devices[CARD].unattributed is None


def test_a_rank_whose_device_is_not_known_holds_what_its_own_processes_hold_anywhere() -> None:
    """As on Neuron, where it is known which device a process is on but not which of its banks."""
    nowhere = {"qwen": (Placement("0", None), Placement("1", None), Placement("2", None))}
    owners = {10: Owner("qwen"), 11: Owner("qwen", "0"), 12: Owner("qwen", "1"), 13: Owner("other", "0")}
    listed = {
        **holders(ProcessMemory(10, 5), ProcessMemory(11, 100), ProcessMemory(12, 7), ProcessMemory(13, 9)),
        **holders(ProcessMemory(11, 20), device=OTHER),
    }
    owned = divide(listed, {}, owners, nowhere)
    assert owned.ranks == {("qwen", "0"): RankMemory(120), ("qwen", "1"): RankMemory(7)}


def test_what_belongs_to_no_engine_is_foreign_largest_first() -> None:
    listed = holders(ProcessMemory(7, 3, evicted=2, evicted_seconds=0.5), ProcessMemory(8, 9), ProcessMemory(9, 0))
    card = divide(listed, {CARD: 10}, {}, {}).devices[CARD]
    assert [p.pid for p in card.foreign or ()] == [8, 7]
    assert (card.foreign_bytes, card.unattributed, card.evicted, card.evicted_seconds) == (12, -2, 2, 0.5)


def test_a_process_of_which_nobody_tells_what_it_holds_leaves_open_what_is_foreign_and_what_is_nobody_s() -> None:
    listed = holders(ProcessMemory(11, 100), ProcessMemory(7, None), ProcessMemory(8, 9))
    card = divide(listed, {CARD: 130}, {11: Owner("qwen", "0")}, TWO).devices[CARD]
    assert (card.foreign, card.foreign_bytes, card.unattributed, card.attributed) == (None, None, None, None)
    listed = holders(ProcessMemory(11, None), ProcessMemory(8, 9))
    owned = divide(listed, {CARD: 130}, {11: Owner("qwen", "0")}, TWO)
    card = owned.devices[CARD]
    assert (card.foreign_bytes, card.unattributed, owned.ranks["qwen", "0"].used) == (9, None, None)


def test_a_part_of_a_rank_does_not_pass_for_all_of_it() -> None:
    listed = holders(ProcessMemory(11, 100, gtt_used=5), ProcessMemory(12, None), ProcessMemory(13, 0))
    owners = {11: Owner("qwen", "0"), 12: Owner("qwen", "0"), 13: Owner("qwen", "1")}
    assert divide(listed, {}, owners, TWO).ranks == {("qwen", "0"): RankMemory(None, None)}


def test_where_not_every_process_is_listed_nothing_is_foreign_and_nothing_unattributed() -> None:
    card = divide(holders(ProcessMemory(7, 3), complete=False), {CARD: 10}, {}, {}).devices[CARD]
    assert (card.attributed, card.foreign_bytes, card.foreign, card.unattributed) == (3, None, None, None)


def test_what_an_ended_engine_left_behind_is_its_own_and_nobody_elses() -> None:
    owners = {11: Owner("qwen", "0", ended=True), 12: Owner("qwen", "0")}
    left = ProcessMemory(11, 50)
    owned = divide(holders(left, ProcessMemory(12, None)), {CARD: 60}, owners, TWO)
    assert owned.devices[CARD].leftover == (("qwen", left),)
    assert owned.devices[CARD].foreign == ()
    assert owned.ranks == {("qwen", "0"): RankMemory(None, None)}


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 2**36)), unique_by=lambda p: p[0]),
    st.sets(st.integers(1, 30)),
    st.integers(0, 2**37),
)
def test_the_parts_sum_to_what_is_used(listed: list[tuple[int, int]], own: set[int], used: int) -> None:
    processes = [ProcessMemory(pid, held) for pid, held in listed]
    card = divide(holders(*processes), {CARD: used}, {pid: Owner("e") for pid in own}, {}).devices[CARD]
    ours = sum(held for pid, held in listed if pid in own)
    assert ours + (card.foreign_bytes or 0) + (card.unattributed or 0) == used
