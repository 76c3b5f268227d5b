"""The laws of AWS Neuron: the golden vectors, the three modes, the guard, shared banks, and older workers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from budget_exporter.budget import neuron_kv
from budget_exporter.budget.laws.neuron import LAWS, Neuron
from budget_exporter.budget.neuron_platforms import PLATFORMS, cores_on_bank
from budget_exporter.budget.neuron_settings import NeuronSettings, described, settings
from budget_exporter.engines.arguments import ENVIRON_ALLOWED
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport, Printed, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import COMPONENTS, Ledger, RankInput, RankLedger
from budget_exporter.facts.neuron import NeuronFacts
from budget_exporter.units import GIB, printed_bytes, rounding_of

GOLDEN: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "goldens" / "neuron.yaml").read_text("utf-8"))
TRN2 = 25_769_803_776
CAP = "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION"
MINIMUM = "VLLM_NEURON_MIN_KV_BUDGET_GIB"
COMPILE = "VLLM_NEURON_CPU_COMPILE"
CPU = "VLLM_NEURON_CPU_MODE"
TARGET = "NEURON_PLATFORM_TARGET_OVERRIDE"
LNC = "NEURON_LOGICAL_NC_CONFIG"
SHAPE = Shape(utilization=0.9, tensor_parallel_size=4, max_model_len=4096)
RANK = RankInput("0", TRN2, platform="neuron")


def law(*version: int) -> Neuron:
    return next(each for each in LAWS if each.since <= version and (each.until is None or version < each.until))


V24, V29 = law(0, 24), law(0, 29)


def printed(text: str) -> Printed:
    return Printed(printed_bytes(text), rounding_of(text))


def said(weights: str | None, **facts: Any) -> BootReport:
    return BootReport(
        version="0.24.0", common=RankFacts(weights=None if weights is None else printed(weights), **facts)
    )


def ledger(weights: str | None = "8.00", shape: Shape = SHAPE, rank: RankInput = RANK, row: Neuron = V24) -> Ledger:
    return row.ledger(shape, [rank], said(weights), None)


def only(weights: str | None = "8.00", shape: Shape = SHAPE, rank: RankInput = RANK, row: Neuron = V24) -> RankLedger:
    return ledger(weights, shape, rank, row).ranks["0"]


def env(**environ: str) -> Shape:
    return replace(SHAPE, environ=environ)


def charges(rank: RankLedger) -> dict[str, int]:
    return {term.name: term.bytes for term in rank.charges}


def two(size: int) -> float:
    return round(size / GIB, 2)


# The golden figures


@pytest.mark.parametrize("vector", GOLDEN["vectors"], ids=lambda vector: f"{vector['total']}-{vector['used']}")
def test_a_vector_comes_out_of_the_formula(vector: dict[str, Any]) -> None:
    split = neuron_kv.budget(round(vector["total"] * GIB), round(vector["used"] * GIB), vector["gmu"], vector["cap"])
    figures = (two(split.requested), two(split.user), two(split.cap))
    assert figures == (vector["budget"], vector["user"], vector["cap_gib"])


@pytest.mark.parametrize("vector", GOLDEN["vectors"], ids=lambda vector: f"{vector['total']}-{vector['used']}")
def test_a_vector_comes_out_of_the_ledger(vector: dict[str, Any]) -> None:
    shape = replace(SHAPE, utilization=vector["gmu"], environ={CAP: str(vector["cap"])})
    found = ledger(f"{vector['used']:.2f}", shape, replace(RANK, size=vector["total"] * GIB))
    rank = found.ranks["0"]
    assert (two(rank.requested), two(rank.kv_cap or 0)) == (vector["budget"], vector["cap_gib"])
    assert found.kv_min_bytes == round(GOLDEN["defaults"]["min_kv_gib"] * GIB)
    assert rank.kv_pool is not None
    if vector["available"] == "refused":
        assert rank.bootable is False
        assert (
            'rank 0: "Computed KV cache budget is below minimum threshold": effective 0.60 GiB,'
            " VLLM_NEURON_MIN_KV_BUDGET_GIB 1.00 GiB"
        ) in found.notes
    else:
        assert rank.bootable is True
        assert two(rank.kv_pool.bytes) == vector["available"]
        assert not any("below minimum" in note for note in found.notes)


@pytest.mark.parametrize("name", GOLDEN["hbm_per_logical_core_gib"])
def test_only_compiling_takes_the_platform_s_memory(name: str) -> None:
    size = GOLDEN["hbm_per_logical_core_gib"][name] * GIB
    found = ledger("2.00", env(**{COMPILE: "1", TARGET: name}), replace(RANK, size=512 * GIB))
    rank = found.ranks["0"]
    assert (rank.size, rank.requested) == (size, int(size * 0.9))
    assert PLATFORMS[name].bank == size
    assert f"{COMPILE}: compiles for {name} by {TARGET}, {size >> 30} GiB a core, on no device" in found.notes


def test_the_host_s_cpu_gives_a_share_of_what_is_available_and_the_cap_of_it() -> None:
    golden = GOLDEN["cpu_mode"]
    host = RankInput("0", 256 * GIB, round(golden["host"] * GIB))
    found = ledger("13.51", replace(env(**{CPU: "1"}), utilization=golden["gmu"]), host)
    rank = found.ranks["0"]
    assert rank.kv_pool is not None
    # 120.50 / 4 is 30.125: the log cut it to 30.12.
    assert neuron_kv.fair_share(round(golden["host"] * GIB), golden["workers"]) / GIB == 30.125
    assert (two(rank.requested), two(rank.kv_pool.bytes)) == (golden["budget"], golden["available"])
    assert charges(rank) == {"headroom": rank.requested - rank.kv_pool.bytes}
    assert (found.kv_min_bytes, rank.kv_cap) == (None, rank.kv_pool.bytes)
    assert "runs on the host's CPU: the KV pool is host memory" in found.notes
    assert "rank 0: 30.12 GiB is the worker's share of what the host had available" in found.notes


def test_what_the_host_had_available_is_also_what_the_worker_printed() -> None:
    shape = replace(env(**{CPU: "1"}), utilization=0.9)
    report = said("13.51", free_at_init=printed("120.50"))
    rank = V24.ledger(shape, [RankInput("0", 256 * GIB)], report, None).ranks["0"]
    assert rank.pool is not None
    assert two(rank.requested) == 27.11
    assert (rank.pool.source, rank.pool.rounding) == ("log", rounding_of("120.50"))
    assert rank.requested_rounding == rounding_of("120.50")


def test_defaults_are_said_to_be_defaults() -> None:
    assert settings({}) == NeuronSettings()
    assert settings({}).cap_fraction == GOLDEN["defaults"]["kv_cap_fraction"]
    assert "the cap on KV is 0.3 of the request, the worker's default" in ledger().notes
    pool = only().kv_pool
    assert pool is not None
    assert (pool.source, pool.lever) == ("default", CAP)
    found = ledger("8.00", replace(SHAPE, utilization=None))
    assert found.utilization is not None
    assert (found.utilization.source, found.utilization_ratio) == ("default", 0.92)
    given_ = ledger("8.00", env(**{CAP: "0.5"}))
    assert not any("default" in note for note in given_.notes)
    assert given_.ranks["0"].kv_cap == int(int(TRN2 * 0.9) * 0.5)


# Settings


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({CAP: "0"}, f"{CAP} must be above 0 and at most 1, not 0"),
        ({CAP: "1.5"}, f"{CAP} must be above 0 and at most 1, not 1.5"),
        ({CAP: "-0.1"}, f"{CAP} must be above 0 and at most 1, not -0.1"),
        ({CAP: "nan"}, f"{CAP} must be a finite number, not nan"),
        ({CAP: ""}, f"{CAP} must be a number, not ''"),
        ({CAP: "30%"}, f"{CAP} must be a number, not '30%'"),
        ({MINIMUM: "inf"}, f"{MINIMUM} must be a finite number, not inf"),
        ({MINIMUM: "1e300"}, f"{MINIMUM} must be at most .*, not 1e\\+300"),
        ({COMPILE: "1", CPU: "1", TARGET: "trn2"}, f"{COMPILE} and {CPU} must not both be set"),
        ({COMPILE: "true"}, f"{COMPILE} must be a whole number, not 'true'"),
        ({CPU: ""}, f"{CPU} must be a whole number, not ''"),
        ({COMPILE: "1"}, f"{COMPILE} needs {TARGET} to be one of inf2, trn1, trn1n, trn2, trn3, not unset"),
        ({COMPILE: "1", TARGET: "trnX"}, f"{TARGET} to be one of .*, not trnX"),
        ({LNC: "3"}, f"{LNC} must be 1 or 2, not '3'"),
        ({"NEURON_RT_VIRTUAL_CORE_SIZE": "0"}, "NEURON_RT_VIRTUAL_CORE_SIZE must be 1 or 2, not '0'"),
    ],
)
def test_what_the_worker_refuses_is_named(environ: dict[str, str], message: str) -> None:
    with pytest.raises(LawError, match=message):
        ledger("8.00", env(**environ))


@pytest.mark.parametrize("name", [CAP, MINIMUM, COMPILE, CPU, TARGET, LNC, "NEURON_RT_VIRTUAL_CORE_SIZE"])
def test_every_setting_reaches_the_law(name: str) -> None:
    assert name in ENVIRON_ALLOWED


def test_a_switch_that_is_off_is_off_and_needs_no_target() -> None:
    assert settings({COMPILE: "0", CPU: "0"}).mode == "device"
    assert settings({CPU: "1"}).mode == "cpu"
    assert settings({COMPILE: "1", TARGET: "trn3"}) == NeuronSettings(mode="compile", target="trn3")


@pytest.mark.parametrize("text", ["0", "-1"])
def test_a_minimum_that_is_not_above_zero_is_off(text: str) -> None:
    found = ledger("21.00", env(**{MINIMUM: text}))
    assert found.kv_min_bytes is None
    assert found.ranks["0"].bootable is True


def test_without_the_guard_the_engine_still_refuses_to_have_no_kv() -> None:
    found = ledger("22.00", env(**{MINIMUM: "0"}))
    assert found.ranks["0"].bootable is False
    assert "rank 0: no memory is left for KV: the engine refuses to start" in found.notes


def test_a_minimum_of_its_own_is_the_guard() -> None:
    assert ledger("18.12", env(**{MINIMUM: "3.5"})).ranks["0"].bootable is False
    assert ledger("18.12", env(**{MINIMUM: "3.4"})).kv_min_bytes == int(3.4 * GIB)


def test_weights_above_the_request_show_how_much_is_missing() -> None:
    found = ledger("22.00")
    rank = found.ranks["0"]
    assert rank.pool is not None
    assert rank.pool.bytes == rank.requested - 22 * GIB < 0
    assert rank.bootable is False
    assert any("effective 0.00 GiB" in note for note in found.notes)


# The partition


def test_what_the_cap_leaves_is_headroom_for_the_programs() -> None:
    rank = only("8.00")
    assert list(charges(rank)) == ["weights", "headroom"]
    assert two(charges(rank)["headroom"]) == round(13.60 - 6.48, 2)
    assert list(charges(only("18.12"))) == ["weights"]
    assert rank.margin is None


def test_a_pool_near_the_cap_or_the_minimum_keeps_the_rounding_of_the_weights() -> None:
    cap = only().kv_cap
    assert cap is not None
    near = only(f"{(int(TRN2 * 0.9) - cap) / GIB:.2f}")
    assert near.pool is not None
    assert near.pool.rounding == rounding_of("8.00")
    assert only("8.00").pool == replace(near.pool, bytes=cap, source="default", lever=CAP, note="the cap", rounding=0)
    assert only("20.60").bootable is None


def test_without_weights_the_partition_is_open_and_the_cap_still_known() -> None:
    found = ledger(None)
    rank = found.ranks["0"]
    assert (rank.pool, rank.kv_pool, rank.charges, rank.bootable) == (None, None, (), None)
    assert rank.kv_cap == int(int(TRN2 * 0.9) * 0.3)
    assert "rank 0: the log does not tell weights: the partition is open, KV is at most 6.48 GiB" in found.notes


def test_an_override_of_the_blocks_leaves_the_pool_unknown() -> None:
    found = ledger("8.00", replace(SHAPE, num_gpu_blocks_override=512))
    rank = found.ranks["0"]
    assert (rank.pool, rank.kv_pool, list(charges(rank))) == (None, None, ["weights"])
    assert any("--num-gpu-blocks-override" in note for note in found.notes)


def test_drafting_weights_are_part_of_the_weights() -> None:
    assert neuron_kv.bytes_used(8 * GIB, GIB, 2 * GIB) == 11 * GIB
    assert neuron_kv.bytes_used(8 * GIB, GIB) == 9 * GIB
    drafting = replace(SHAPE, speculative=True, speculative_method="eagle3")
    assert only("8.00", drafting).charges[0].note == "with those of the drafting model"
    assert only("8.00", replace(drafting, speculative_method="ngram")).charges[0].note == ""


def test_an_explicit_kv_size_is_said_to_count_for_nothing() -> None:
    found = ledger("8.00", replace(SHAPE, kv_cache_memory_bytes=2 * GIB))
    assert found.ranks["0"].kv_pool == only("8.00").kv_pool
    assert "the Neuron worker takes no notice of --kv-cache-memory-bytes" in found.notes


# The runtime's figures, the device


@pytest.mark.parametrize(("used", "free"), [(-1, -1), (-1, 5), (5, 0), (5, -1)])
def test_unusable_figures_of_the_runtime_are_refused(used: int, free: int) -> None:
    with pytest.raises(LawError, match=f"used {used}, free {free}"):
        neuron_kv.hbm_total(used, free)
    assert neuron_kv.hbm_total(13 * GIB, 11 * GIB) == 24 * GIB


@pytest.mark.parametrize("weights", [None, "8.00"])
def test_a_core_without_free_memory_does_not_start(weights: str | None) -> None:
    report = said(weights, free_at_init=Printed(0))
    found = V24.ledger(SHAPE, [RANK], report, None)
    assert found.ranks["0"].bootable is False
    assert "rank 0: the runtime reports no free memory: the worker refuses to start" in found.notes
    compiling = V24.ledger(env(**{COMPILE: "1", TARGET: "trn2"}), [RANK], report, None)
    assert compiling.ranks["0"].bootable is not False


def test_a_whole_device_is_no_core_s_bank() -> None:
    found = ledger("8.00", rank=replace(RANK, size=96 * GIB))
    assert not found.ranks
    assert found.utilization is None
    assert "rank 0: 96.00 GiB is a whole trn2 device, of which a core's bank is 24.00 GiB" in found.notes


def test_a_size_of_no_known_bank_is_taken_and_said() -> None:
    found = ledger("8.00", rank=replace(RANK, size=20 * GIB))
    assert found.ranks["0"].requested == 18 * GIB
    assert "rank 0: 20.00 GiB is no bank of a known platform" in found.notes


def test_another_size_than_the_engine_saw_is_said() -> None:
    found = V24.ledger(SHAPE, [RANK], said("8.00", size_at_init=printed("23.50")), None)
    assert "rank 0: the engine saw 23.50 GiB, the driver says 24.00 GiB" in found.notes


def test_two_cores_on_a_bank_each_count_all_of_it_before_0_29_and_half_from_it() -> None:
    one = env(**{LNC: "1"})
    found = ledger("4.00", one)
    assert found.ranks["0"].requested == int(TRN2 * 0.9)
    assert any(note.endswith("two ranks on one bank request 43.20 GiB") for note in found.notes)
    halved = ledger("4.00", one, row=V29)
    assert halved.ranks["0"].requested == int(TRN2 // 2 * 0.9)
    assert halved.ranks["0"].size == TRN2 // 2
    assert any("each counts half of it" in note for note in halved.notes)
    assert "a headroom that is set in place of the cap is not known here" in halved.notes
    assert ledger("4.00", SHAPE, row=V29).ranks["0"].requested == int(TRN2 * 0.9)


def test_banks_are_shared_only_where_cores_could_be_joined() -> None:
    assert [cores_on_bank(size * GIB, lnc) for size in (16, 24, 36, 20) for lnc in (1, 2)] == [1, 1, 2, 1, 2, 1, 1, 1]


# The host's CPU


def test_without_the_host_s_available_memory_there_is_no_ledger_of_the_rank() -> None:
    found = ledger("8.00", env(**{CPU: "1"}))
    assert not found.ranks
    assert "rank 0: what the host had available is not known, and all else is a share of it" in found.notes


@pytest.mark.parametrize(("nnodes", "share"), [("1", 30), ("2", 60), ("8", 120)])
def test_the_workers_of_one_node_share_its_host(nnodes: str, share: int) -> None:
    shape = replace(env(**{CPU: "1"}), given={"nnodes": nnodes}, utilization=1.0)
    assert only("8.00", shape, RankInput("0", 256 * GIB, 120 * GIB)).requested == share * GIB


@pytest.mark.parametrize("text", ["two", "-1", "\N{SUPERSCRIPT TWO}", "0", "9" * 5000])
def test_a_wrong_number_of_nodes_is_named(text: str) -> None:
    with pytest.raises(LawError, match="--nnodes must be"):
        only("8.00", replace(env(**{CPU: "1"}), given={"nnodes": text}), RankInput("0", 256 * GIB, 120 * GIB))


def test_a_host_with_nothing_available_is_refused() -> None:
    with pytest.raises(LawError, match="available memory must be above 0, not 0"):
        neuron_kv.fair_share(0, 4)
    assert neuron_kv.fair_share(10, 0) == 10


# Older workers


def test_vllm_s_own_worker_takes_a_block_for_each_sequence() -> None:
    row = law(0, 9, 2)
    found = row.ledger(Shape(max_num_seqs=8, max_model_len=1024), [RANK], BootReport(), None)
    assert (found.kv_pool_tokens, dict(found.ranks)) == (9 * 1024, {})
    assert found.notes[0].startswith("no memory is requested")
    said_ = BootReport(max_model_len=2048)
    assert row.ledger(Shape(max_num_seqs=1), [RANK], said_, None).kv_pool_tokens == 2 * 2048
    assert row.ledger(Shape(max_num_seqs=1), [RANK], BootReport(), None).kv_pool_tokens is None


def test_the_first_plugin_takes_a_gibibyte() -> None:
    found = law(0, 10, 2).ledger(SHAPE, [RANK], said("8.00"), None)
    rank = found.ranks["0"]
    assert rank.pool is not None
    assert (rank.pool.bytes, rank.pool.source, rank.requested, rank.charges) == (GIB, "default", GIB, ())
    assert rank.outside[0].name == "weights"
    assert found.utilization is None


FREE = Printed(16_106_127_360)


def older(report: BootReport, shape: Shape = SHAPE, ranks: int = 1, version: tuple[int, ...] = (0, 11)) -> Ledger:
    return law(*version).ledger(shape, [RankInput(str(n), TRN2) for n in range(ranks)], report, None)


def test_the_next_take_all_that_is_free() -> None:
    rank = older(said(None, free_at_init=FREE)).ranks["0"]
    assert rank.pool is not None
    assert (rank.pool.bytes, rank.pool.source, rank.requested) == (15 * GIB, "log", 15 * GIB)


def test_or_20_gib_where_the_runtime_could_not_be_asked() -> None:
    found = older(said(None, free_at_init=Printed(-1)))
    pool = found.ranks["0"].pool
    assert pool is not None
    assert (pool.bytes, pool.source) == (20 * GIB, "default")
    assert "the runtime could not be asked: a constant of the worker" in found.notes
    printed_ = older(said(None, kv_available=printed("20.00")))
    assert printed_.notes[0] == "20.00 GiB is what the worker takes where the runtime could not be asked"
    usual = older(said(None, kv_available=printed("15.00"), free_at_init=Printed(-1)))
    assert usual.notes == ()
    assert usual.ranks["0"].kv_pool is not None
    assert usual.ranks["0"].kv_pool.rounding == rounding_of("15.00")


def test_what_is_not_known_of_an_older_worker_is_not_made_up() -> None:
    found = older(BootReport())
    assert (dict(found.ranks), found.notes[0]) == (
        {},
        "what the runtime says is free is not known; where it says nothing the worker takes 20.00 GiB",
    )
    assert law(0, 11).ledger(SHAPE, [], BootReport(), None).notes == ()


def test_one_process_holds_all_cores_and_its_pool_is_no_pool_of_each() -> None:
    found = older(said(None, free_at_init=FREE), ranks=4)
    assert list(found.ranks) == ["0"]
    assert "one worker process holds all 4 ranks: its KV pool is shown for rank 0" in found.notes


def test_from_0_12_the_layout_decides() -> None:
    report = said(None, free_at_init=FREE)
    assert not older(report, version=(0, 13)).ranks
    pieces = replace(SHAPE, neuron=NeuronFacts(is_block_kv_layout=False))
    assert not older(report, pieces, version=(0, 16)).ranks
    blocks = replace(SHAPE, neuron=NeuronFacts(is_block_kv_layout=True))
    assert older(report, blocks, version=(0, 16)).ranks["0"].requested == 15 * GIB


def test_sequences_in_one_piece_are_computed_from_the_model() -> None:
    """Llama-3-8B over 8 cores: one KV head a core, 4 sequences of 4096 tokens and one more: 2.5 GiB."""
    assert neuron_kv.contiguous(32, 4096, 128, 2, 8, 4) == 5 * 4096 * 131_072


def test_an_older_worker_s_blocks_may_be_overridden() -> None:
    found = older(said(None, free_at_init=FREE), replace(SHAPE, num_gpu_blocks_override=512))
    assert not found.ranks
    assert "--num-gpu-blocks-override stands in place of the KV pool, whose bytes are not known" in found.notes


# What is compiled


def test_what_is_compiled_is_shown() -> None:
    facts = NeuronFacts(
        buckets={"num_seqs_buckets": (1, 2, 4), "NEURON_TOKEN_GEN_BUCKETS": (128, 512)},
        enable_bucketing=False,
        pa_num_blocks=64,
        pa_block_size=32,
        quantization="mxfp8",
        framework="transformers-neuronx",
        backend="neuron_native",
        compiled_artifacts="/srv/compiled",
    )
    sentences = [
        (
            "5 buckets, each one more program in the device's memory: NEURON_TOKEN_GEN_BUCKETS 128, 512;"
            " num_seqs_buckets 1, 2, 4"
        ),
        "bucketing is off: one program for the whole length",
        "pa_num_blocks 64: the KV cache's blocks, one more is added for padding",
        "pa_block_size 32",
        "quantization: mxfp8",
        "framework: transformers-neuronx",
        "backend: neuron_native",
        "compiled artifacts: /srv/compiled",
    ]
    assert described(facts) == sentences
    shown = replace(SHAPE, neuron=facts)
    for row in LAWS:
        assert list(row.ledger(shown, [RANK], said("8.00"), None).notes[-8:]) == sentences


# Properties

weights = st.integers(0, 3000).map(lambda hundredths: f"{hundredths / 100:.2f}")


@given(weights, st.floats(0.01, 1.0), st.floats(0.01, 1.0), st.sampled_from([16, 24, 36]), st.sampled_from("12"))
def test_charges_and_pool_are_the_request_and_have_known_names(
    used: str, utilization: float, fraction: float, size: int, lnc: str
) -> None:
    shape = replace(SHAPE, utilization=utilization, environ={CAP: repr(fraction), LNC: lnc})
    for row in (V24, V29):
        rank = only(used, shape, replace(RANK, size=size * GIB), row)
        assert rank.pool is not None
        assert rank.kv_cap is not None
        assert sum(term.bytes for term in rank.charges) + rank.pool.bytes == rank.requested
        assert rank.pool.bytes <= rank.kv_cap
        assert {term.name for term in rank.charges} <= set(COMPONENTS)


@given(weights, weights, st.floats(0.01, 1.0))
def test_the_pool_never_rises_when_weights_do(one: str, other: str, utilization: float) -> None:
    low, high = sorted((one, other), key=float)
    pools = [only(each, replace(SHAPE, utilization=utilization)).pool for each in (low, high)]
    assert pools[0] is not None
    assert pools[1] is not None
    assert pools[1].bytes <= pools[0].bytes


def test_the_rows_share_out_all_versions() -> None:
    for before, after in pairwise(LAWS):
        assert before.until == after.since
    assert (LAWS[0].since, LAWS[-1].until, LAWS[-1].examined_until) == ((0, 8, 5), None, (0, 29))
    assert {(law.name, law.flavour) for law in LAWS} == {("neuron", "neuron")}
