"""Names and places of ranks with tensor, pipeline, context and data parallelism, and which process is which."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given as over, strategies as st

from budget_exporter.engines.placement import place, rank_name, ranks_by_memory
from budget_exporter.facts.device import DeviceIdentity
from budget_exporter.facts.engine import Placement, Shape, Worker
from budget_exporter.units import GIB, MIB


def card(at: int, **more: Any) -> DeviceIdentity:
    return DeviceIdentity(f"0000:{at:02x}:00.0", "amd", "R9700", "7.2", "amdgpu_vram", order=at, **more)


CARDS = tuple(card(at) for at in range(8))
NAMES = [each.device for each in CARDS]


def shape(tp: int = 1, pp: int = 1, dp: int = 1, **given: str) -> Shape:
    named = {name.replace("_", "-"): text for name, text in given.items()}
    return Shape(tensor_parallel_size=tp, pipeline_parallel_size=pp, data_parallel_size=dp, given=named)


@pytest.mark.parametrize(
    ("what", "want"),
    [
        (shape(tp=2, pp=2), ["0", "1", "2", "3"]),
        (shape(tp=2, prefill_context_parallel_size="2"), ["0", "1", "2", "3"]),
        (shape(tp=2, decode_context_parallel_size="2"), ["0", "1"]),
        (shape(dp=3), ["d0.0", "d1.0", "d2.0"]),
        (shape(tp=2, dp=2), ["d0.0", "d0.1", "d1.0", "d1.1"]),
        (shape(tp=2, dp=4, data_parallel_rank="3"), ["d3.0", "d3.1"]),
        (
            shape(tp=2, dp=8, data_parallel_size_local="2", data_parallel_start_rank="4"),
            ["d4.0", "d4.1", "d5.0", "d5.1"],
        ),
    ],
    ids=str,
)
def test_a_rank_s_place_is_its_number_on_this_host(what: Shape, want: list[str]) -> None:
    got = place(what, {}, (), CARDS)
    assert got == tuple(Placement(name, device) for name, device in zip(want, NAMES, strict=False))


def test_two_engines_may_name_the_same_card() -> None:
    first = place(shape(), {"HIP_VISIBLE_DEVICES": "3"}, (), CARDS)
    assert first == place(shape(), {"HIP_VISIBLE_DEVICES": "3,4"}, (), CARDS) == (Placement("0", NAMES[3]),)


@pytest.mark.parametrize(
    ("title", "what", "name"),
    [
        ("VLLM::Worker_TP1", shape(tp=2), "1"),
        ("VLLM::Worker_PP1_TP1", shape(tp=2, pp=2), "3"),
        ("VLLM::Worker_PP1_PCP1_TP0", shape(tp=2, pp=2, prefill_context_parallel_size="2"), "6"),
        ("VLLM::Worker_TP1_DCP1_EP1", shape(tp=2), "1"),
        ("VLLM::Worker_DP1_TP1_EP3", shape(tp=2, dp=2), "d1.1"),
        ("VLLM::EngineCore_DP1", shape(dp=2), "d1.0"),
        ("VLLM::EngineCore_DP1", shape(tp=2, dp=2), None),
        ("VLLM::Worker_TP1", shape(tp=2, dp=2), None),
        ("VLLM::Worker_TP1", shape(tp=2, dp=4, data_parallel_rank="2"), "d2.1"),
        ("VLLM::Worker_DP5_TP1", shape(tp=2, dp=2), None),
        ("VLLM::Worker_TP1", shape(tp=2, pp=2), None),
        ("VLLM::Worker_TP2", shape(tp=2), None),
        ("VLLM::Worker_DP0_TP1", shape(tp=2), None),
        ("VLLM::Worker", shape(), None),
        ("VLLM::Worker", shape(dp=2), None),
        ("VLLM::EngineCore", shape(tp=2), None),
        ("python3", shape(), None),
    ],
)
def test_a_title_names_a_rank(title: str, what: Shape, name: str | None) -> None:
    assert rank_name(Worker(1, title), what) == name


TP2 = shape(tp=2)
PAIR = (Worker(11, "VLLM::Worker_TP0", 0), Worker(12, "VLLM::Worker_TP1", 1))


def told(held: dict[int, dict[int, int]], what: Shape = TP2, workers: tuple[Worker, ...] = PAIR) -> dict[str, str]:
    by_name = {pid: {NAMES[at]: used for at, used in cards.items()} for pid, cards in held.items()}
    return ranks_by_memory(what, workers, by_name, CARDS)


def test_a_worker_is_where_most_of_its_memory_is() -> None:
    # Each holds a little on every card it can see.
    held = {11: {5: 29 * GIB, 6: 400 * MIB}, 12: {5: 400 * MIB, 6: 29 * GIB}}
    assert told(held) == {"0": NAMES[5], "1": NAMES[6]}


@pytest.mark.parametrize(
    "cards", [{}, {5: 400 * MIB}, {5: GIB - 1}, {5: 2 * GIB, 6: 2 * GIB}, {5: 2 * GIB, 6: GIB, 7: GIB}]
)
def test_what_is_not_clear_shows_nothing(cards: dict[int, int]) -> None:
    assert told({11: cards}) == {}


def test_two_ranks_on_one_card_are_no_evidence_unless_it_is_cut() -> None:
    assert told({11: {5: 9 * GIB}, 12: {5: 9 * GIB}}) == {}
    cut = (card(5, partitions=2),)
    held = {11: {NAMES[5]: 9 * GIB}, 12: {NAMES[5]: 9 * GIB}}
    shown = ranks_by_memory(TP2, PAIR, held, cut)
    assert shown == {"0": NAMES[5], "1": NAMES[5]}
    assert [p.device for p in place(TP2, {}, PAIR, cut, told=shown)] == [NAMES[5], NAMES[5]]


def test_all_processes_of_an_engine_of_one_rank_are_that_rank_s() -> None:
    assert told({10: {3: 300 * MIB}, 11: {3: 20 * GIB}}, shape(), (Worker(11, "VLLM::EngineCore"),)) == {"0": NAMES[3]}


def test_processes_of_no_rank_and_memory_of_the_host_show_nothing() -> None:
    assert told({10: {3: 30 * GIB}}) == {}
    node = DeviceIdentity("cpu/node0", "host", "EPYC", "linux", "meminfo", order=0)
    assert ranks_by_memory(shape(), (), {10: {"cpu/node0": 30 * GIB}}, (node,)) == {}


def test_processes_go_before_the_environment() -> None:
    shown = {"0": NAMES[1], "1": NAMES[0]}
    got = place(TP2, {}, PAIR, CARDS, told=shown)
    assert [p.device for p in got] == [NAMES[1], NAMES[0]]
    assert [p.contradicted for p in got] == [NAMES[0], NAMES[1]]
    assert NAMES[0] in got[0].why
    assert place(TP2, {}, PAIR, CARDS, told={"0": NAMES[0]}) == (Placement("0", NAMES[0]), Placement("1", NAMES[1]))


def test_a_rank_nothing_is_told_of_does_not_share_a_card_with_one_that_showed_it() -> None:
    got = place(TP2, {}, PAIR, CARDS, told={"0": NAMES[1]})
    assert [p.device for p in got] == [NAMES[1], None]
    assert "another rank's process" in got[1].why


def test_processes_tell_where_flags_and_environment_do_not() -> None:
    ray = shape(tp=2, distributed_executor_backend="ray")
    assert place(ray, {}, PAIR, CARDS, told={"1": NAMES[4]})[1] == Placement("1", NAMES[4])
    assert place(shape(), None, (), CARDS, told={"0": NAMES[4]}) == (Placement("0", NAMES[4]),)
    gone = place(shape(), {}, (), CARDS[:2], told={"0": NAMES[7]})
    assert gone == (Placement("0", NAMES[0]),)
    certain = place(shape(), {}, (), CARDS, told={"0": NAMES[0]}, contained=True)
    assert certain == (Placement("0", NAMES[0]),)


TOKENS = st.sampled_from(["0", "1", "2", "3", "7", "8", "-1", "x", "", "GPU-1", "0x2", " 3"])
LISTS = st.lists(TOKENS, max_size=6).map(",".join)
SIZES = st.integers(1, 3)


@over(
    SIZES,
    SIZES,
    SIZES,
    st.dictionaries(st.sampled_from(["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]), LISTS),
    st.one_of(st.none(), LISTS),
    st.dictionaries(st.sampled_from(["0", "1", "2", "d1.0"]), st.sampled_from(NAMES), max_size=3),
    st.sampled_from(["amd", "nvidia"]),
    st.randoms(use_true_random=False),
)
def test_no_card_has_two_ranks_and_the_order_of_the_report_does_not_matter(
    tp: int,
    pp: int,
    dp: int,
    environ: dict[str, str],
    ids: str | None,
    shown: dict[str, str],
    platform: str,
    random: Any,
) -> None:
    one_each = {rank: device for rank, device in shown.items() if list(shown.values()).count(device) == 1}
    what = shape(tp, pp, dp) if ids is None else shape(tp, pp, dp, device_ids=ids)
    cards = [
        DeviceIdentity(name, platform, "X", "1", platform, uuid=f"GPU-{at}a", order=at) for at, name in enumerate(NAMES)
    ]
    got = place(what, environ, (), cards, told=one_each)
    random.shuffle(cards)
    assert place(what, environ, (), cards, told=one_each) == got
    devices = [p.device for p in got if p.device is not None]
    assert len(set(devices)) == len(devices)
    assert len(got) == tp * pp * dp
    assert all(p.why for p in got if p.device is None)
    assert all(p.device == one_each[p.rank] for p in got if p.rank in one_each)


@over(
    st.dictionaries(
        st.integers(10, 13), st.dictionaries(st.integers(0, 7), st.integers(0, 40 * GIB), max_size=4), max_size=4
    )
)
def test_memory_shows_at_most_one_rank_a_card_and_only_by_more_than_half(held: dict[int, dict[int, int]]) -> None:
    shown = told(held)
    assert len(set(shown.values())) == len(shown)
    for rank, device in shown.items():
        cards = held[11 + int(rank)]
        assert 2 * cards[NAMES.index(device)] > sum(cards.values())


def test_a_title_is_read_also_where_the_flags_ask_for_more_replicas_than_can_be_counted() -> None:
    assert (
        rank_name(Worker(1, "VLLM::Worker_DP3_TP1"), Shape(tensor_parallel_size=2, data_parallel_size=10**30)) == "d3.1"
    )
    assert rank_name(Worker(1, "VLLM::Worker_TP1"), Shape(tensor_parallel_size=2, data_parallel_size=10**30)) is None
