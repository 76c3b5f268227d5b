from __future__ import annotations

from dataclasses import replace

import pytest

from budget_exporter import budget
from budget_exporter.budget import host
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import RankInput
from budget_exporter.units import GIB

SIZE = 32 * GIB


def given(**flags: str) -> Shape:
    return Shape(given={name.replace("_", "-"): text for name, text in flags.items()}, tensor_parallel_size=2)


def test_kv_offload_is_the_total_of_all_ranks_of_a_replica() -> None:
    term = host.kv_offload(given(kv_offloading_size="16"))
    assert term is not None
    assert (term.name, term.bytes, term.source, term.lever) == ("kv_offload", 16 * GIB, "flag", "--kv-offloading-size")
    assert "replicas" not in term.note
    twice = host.kv_offload(replace(given(kv_offloading_size="16"), data_parallel_size=2))
    assert twice is not None
    assert (twice.bytes, "2 replicas" in twice.note) == (32 * GIB, True)
    here = host.kv_offload(replace(given(kv_offloading_size="16", data_parallel_size_local="1"), data_parallel_size=4))
    assert here is not None
    assert here.bytes == 16 * GIB


@pytest.mark.parametrize("flags", [{}, {"kv_offloading_size": "0"}, {"kv_offloading_size": "8", "backend": "lmcache"}])
def test_no_offload_is_no_term(flags: dict[str, str]) -> None:
    shape = given(**{name.replace("backend", "kv_offloading_backend"): text for name, text in flags.items()})
    assert host.kv_offload(shape) is None
    assert any("lmcache" in note for note in host.notes(shape, "V1")) is ("backend" in flags)


@pytest.mark.parametrize("text", ["0", "-1", "two", "9" * 9])
def test_a_number_of_replicas_that_cannot_be_is_named(text: str) -> None:
    with pytest.raises(LawError, match=r"^--data-parallel-size-local must "):
        host.kv_offload(given(kv_offloading_size="16", data_parallel_size_local=text))


def test_swap_is_4_gib_a_rank_unless_the_flag_says_otherwise() -> None:
    assert [(t.bytes, t.source) for t in (host.swap(given(), 2), host.swap(given(swap_space="1.5"), 2))] == [
        (8 * GIB, "default"),
        (3 * GIB, "flag"),
    ]
    assert host.swap(given(swap_space="0"), 2).bytes == 0


def test_swap_that_nobody_pins_is_said() -> None:
    assert host.notes(given(swap_space="4"), "V1") == ["--swap-space pins nothing: only the V0 engine swaps"]
    assert host.notes(given(), "V1") == host.notes(given(swap_space="4"), "V0") == []
    assert host.notes(given(swap_space="4"), None) == [
        "the log does not tell V0 from V1: whether the swap space is pinned is not known"
    ]


def test_weights_in_host_memory_are_said() -> None:
    assert host.notes(given(cpu_offload_gb="10"), "V1") == [
        "--cpu-offload-gb: 10.00 GiB of each rank's weights are in host memory"
    ]
    assert host.notes(given(cpu_offload_gb="0"), "V1") == []


def test_a_ledger_carries_both() -> None:
    shape = given(swap_space="2", kv_offloading_size="16")
    found = budget.compute(
        shape, [RankInput("0", SIZE), RankInput("1", SIZE)], BootReport(version="0.9.2", core="V0"), None
    )
    assert {term.name: term.bytes for term in found.host} == {"swap": 4 * GIB, "kv_offload": 16 * GIB}
