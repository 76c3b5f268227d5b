"""Hand-built Snapshots of a host with two 31.86 GiB cards: healthy, on a knife edge, in a crash loop, and others."""

from __future__ import annotations

import math
from dataclasses import replace

from budget_exporter.facts.boot import BootReport, Failure, Plan, Printed, RankFacts
from budget_exporter.facts.device import DeviceIdentity, HighWater, MemorySample
from budget_exporter.facts.engine import EngineSighting, Placement, ProcessKey, Shape, Supervision, Worker
from budget_exporter.facts.ledger import Ledger, Limit, RankLedger, Term
from budget_exporter.facts.snapshot import DeviceState, EngineState, ExporterState, FreeAtInit, Snapshot
from budget_exporter.facts.source import SourceHealth
from budget_exporter.facts.verdict import Floors, KnifeEdgeReason, RankVerdict, Verdict
from budget_exporter.units import MIB, printed_bytes

AT = 1_760_000_000.0
SIZE = 34_208_743_424
CARDS = ("0000:03:00.0", "0000:83:00.0")
FLOORS = Floors(critical=128 * MIB, warning=512 * MIB)
SECRET = "sk-do-not-show"  # noqa: S105 - stands for a secret, is none
EXPORTER = ExporterState(
    version="0.1.0",
    revision="abc1234",
    python_version="3.11.7",
    demo=True,
    reload_successful=True,
    reload_at=AT - 7200,
    unparsed_lines={"journal": 2, "file": 0},
)
SOURCES = (
    SourceHealth("amdgpu", 0.1, success=True, duration=0.0004, last_success=AT, runs=36000, failures=0, settled=True),
    SourceHealth("procfs", 5.0, success=True, duration=0.021, last_success=AT - 2, runs=720, failures=1, settled=True),
)


def gib(text: str) -> Printed:
    """Return a figure as printed with two decimals."""
    return Printed(printed_bytes(text), 5_368_709)


def device(card: str, used: int, peak: int, *, epoch: str | None = "vllm-qwen@1759990000") -> DeviceState:
    """Return one card with ``used`` bytes now and ``peak`` at its high-water mark."""
    mark = HighWater(
        device=card,
        uuid="feedbeef00000001",
        epoch=epoch,
        used=peak,
        at=AT - 900,
        since=AT - 10_000,
        all_time=peak + 4096,
        baseline=612_368_384,
        window=((AT - 1, used), (AT - 30, used + 1024)),
    )
    identity = DeviceIdentity(
        device=card,
        platform="amd",
        model="AMD Radeon AI PRO R9700",
        driver="amdgpu 6.14.14",
        sampler="amdgpu_vram",
        uuid="feedbeef00000001",
        order=CARDS.index(card),
    )
    return DeviceState(identity, MemorySample(AT, SIZE, used, 67_108_864_000, 23_068_672), mark)


def offload_ledger(rank: str, utilization: float, graphs: int) -> RankLedger:
    """Return a partition by the expert-offload law: what the charges leave is the arena."""
    requested = math.ceil(SIZE * utilization)
    charges = (
        Term("weights", printed_bytes("6.34"), "log", note="holds the mamba pages, whose size is not known"),
        Term("kv_reserve", 1_992_027_341, "registry"),
        Term("cuda_graphs", graphs, "env", lever="VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB"),
        Term("runtime_overhead", printed_bytes("5.25"), "registry", lever="--expert-precise-memory"),
    )
    arena = requested - sum(term.bytes for term in charges)
    return RankLedger(
        rank=rank,
        size=SIZE,
        requested=requested,
        charges=charges,
        pool=Term("arena", arena, "geometry", lever="--gpu-memory-utilization"),
        kv_pool=Term("kv_pool", 3_166_500_000, "flag", lever="--kv-cache-memory-bytes"),
        arena_slots=arena // 2_457_862,
        within=(Term("resident_experts", printed_bytes("1.87"), "log"),),
        outside=(Term("non_torch", printed_bytes("1.45"), "registry"),),
        limit=Limit(0.982, 0.981, 0.983, "log"),
        bootable=utilization < 1,
        margin=2_791_728_742 if utilization < 1 else -612_368_384,
    )


def offload_shape(utilization: str, *, windows: str = "3", max_model_len: int = 200_704) -> Shape:
    """Return the flags of the expert-offload engine."""
    return Shape(
        model="/models/Qwen3.8-Flash-Next-FP8",
        served_model_name="qwen3.8-flash-next",
        port=8000,
        utilization=float(utilization),
        kv_cache_memory_bytes=3_166_500_000,
        max_model_len=max_model_len,
        max_num_seqs=int(windows),
        kv_cache_dtype="fp8",
        tensor_parallel_size=2,
        expert_offload=True,
        expert_precise_memory=True,
        given={
            "gpu-memory-utilization": utilization,
            "kv-cache-dtype": "fp8",
            "max-model-len": str(max_model_len),
            "max-num-seqs": windows,
            "tensor-parallel-size": "2",
            "kv-cache-memory-bytes": "3166500000",
        },
    )


def sighting() -> EngineSighting:
    """Return the engine's processes; whatever must not leave the exporter holds SECRET."""
    return EngineSighting(
        source="procfs",
        main=ProcessKey(4711, 123_456, "1f0e"),
        started_at=AT - 10_000,
        argv=("vllm", "serve", "/models/Qwen3.8-Flash-Next-FP8", "--api-key", SECRET),
        environ={"HF_TOKEN": SECRET, "VLLM_CUDAGRAPH_MEM_BASE_MB": "0"},
        workers=(Worker(4720, f"vllm serve --api-key {SECRET}", 0), Worker(4721, "VLLM::Worker_TP1", 1)),
        cwd=f"/srv/{SECRET}",
        unit="vllm-qwen.service",
        supervisor="systemd",
    )


def report() -> BootReport:
    """Return what a healthy boot printed; rank 1 captured less than nothing."""
    plan = Plan(
        budget=gib("31.29"),
        non_expert=gib("6.34"),
        kv_reserve=gib("1.86"),
        kv_bytes_per_token=9190,
        cuda_graphs=gib("0.07"),
        runtime_overhead=gib("5.25"),
        arena=gib("17.77"),
        slots=7762,
    )
    common = RankFacts(free_at_init=gib("31.29"), weights=gib("24.11"), kv_available=gib("2.95"), plan=plan)
    return BootReport(
        version="0.28.0",
        release="28.04.9",
        model="Qwen3.8-Flash-Next-FP8",
        phase="serving",
        phase_at=AT - 9600,
        common=common,
        ranks={
            0: RankFacts(graph_estimate=gib("0.07"), graph_capture=gib("0.05")),
            1: RankFacts(graph_estimate=gib("0.07"), graph_capture=gib("-0.06")),
        },
        kv_tokens=401_408,
        kv_concurrency=2.0,
        max_model_len=200_704,
        graph_charge_applied=True,
    )


def healthy() -> Snapshot:
    """Return shape G serving: two ranks, every part known, nothing wrong."""
    used, peak = SIZE - printed_bytes("0.93"), SIZE - printed_bytes("0.89")
    ranks = {rank: offload_ledger(rank, 0.982, 75_497_472) for rank in ("0", "1")}
    ledger = Ledger(
        law="expert_offload",
        version="28.04.9",
        assumed=False,
        ranks=ranks,
        kv_pool_tokens=401_408,
        kv_bytes_per_token={"registry": 9190, "measured": 7888},
        kv_min_tokens=200_704,
        utilization=Term("utilization", ranks["0"].requested, "flag", lever="--gpu-memory-utilization"),
        utilization_ratio=0.982,
        host=(Term("host_experts", printed_bytes("25.10"), "log"), Term("ple", printed_bytes("38.74"), "log")),
    )
    verdict = Verdict(
        ranks={
            "0": RankVerdict("0", SIZE - used, SIZE - peak, gib("-0.02").bytes, 320_000_000),
            "1": RankVerdict("1", SIZE - used, SIZE - peak, gib("-0.13").bytes, -1_000_000),
        },
        knife_edge={
            "predicted_margin": False,
            "measured_margin": False,
            "utilization_limit": False,
            "kv_below_contract": False,
            "capture_over_charge": False,
        },
        findings={"graph_charge_over": False, "knife_edge": False, "law_assumed": False},
        contract_tokens=200_704,
        graph_charge_suggested=gib("0.05").bytes,
    )
    engine = EngineState(
        name="vllm-qwen",
        expected=True,
        up=True,
        supervisor="systemd",
        unit="vllm-qwen.service",
        phase="serving",
        phase_since=AT - 9600,
        restarts=1,
        failures={},
        floors=FLOORS,
        sighting=sighting(),
        shape=offload_shape("0.982"),
        placements=(Placement("0", CARDS[0]), Placement("1", CARDS[1])),
        supervision=Supervision("systemd", "vllm-qwen.service", "active", 0),
        report=report(),
        free_at_init={rank: FreeAtInit(printed_bytes("31.29"), 5_368_709, "log") for rank in ("0", "1")},
        ledger=ledger,
        verdict=verdict,
    )
    devices = tuple(device(card, used, peak) for card in CARDS)
    return Snapshot(AT, ready=True, devices=devices, engines=(engine,), sources=SOURCES, exporter=EXPORTER)


def knife_edge() -> Snapshot:
    """Return five windows of 262144 tokens: it serves, with nothing left on rank 0."""
    before = healthy()
    (engine,) = before.engines
    left = {"0": 0, "1": printed_bytes("0.13")}
    reasons: dict[KnifeEdgeReason, bool] = {
        "measured_margin": True,
        "capture_over_charge": True,
        "utilization_limit": False,
        "kv_below_contract": False,
    }
    sentences = (
        "Rank 0 has 0.00 GiB left at its high-water mark, below the critical floor of 0.12 GiB.",
        "Graph capture took 0.31 GiB on rank 0, 0.24 GiB more than the 0.07 GiB charged.",
    )
    verdict = Verdict(
        ranks={
            "0": RankVerdict("0", 0, 0, gib("0.24").bytes, why={"measured_margin": sentences[0]}),
            "1": RankVerdict("1", left["1"], left["1"], gib("0.10").bytes),
        },
        knife_edge=reasons,
        findings={"knife_edge": True, "graph_charge_under": True},
        contract_tokens=262_144,
        graph_charge_suggested=gib("0.31").bytes,
        sentences=sentences,
    )
    failure = Failure(AT - 86_400, "serving", "runtime_oom", 0, Printed(50 * MIB), Printed(0))
    edge = replace(
        engine,
        shape=offload_shape("0.982", windows="5", max_model_len=262_144),
        verdict=verdict,
        restarts=3,
        failures={"runtime_oom": 2, "first_request_oom": 1},
        last_failure=failure,
    )
    devices = tuple(device(card, SIZE - left[str(rank)], SIZE - left[str(rank)]) for rank, card in enumerate(CARDS))
    return replace(before, devices=devices, engines=(edge,))


def crash_loop() -> Snapshot:
    """Return an engine between two starts at utilization 1.0: no process, no report, only what was remembered."""
    before = healthy()
    (engine,) = before.engines
    down = EngineState(
        name=engine.name,
        expected=True,
        up=False,
        supervisor="systemd",
        unit=engine.unit,
        phase="failing",
        phase_since=AT - 12,
        restarts=41,
        failures={"budget_above_free": 40},
        floors=FLOORS,
        supervision=Supervision("systemd", engine.unit, "auto_restart", 40, exit_code=1, result="exit-code"),
        verdict=Verdict(findings={"crash_loop": True}),
        last_failure=Failure(AT - 12, "starting", "budget_above_free", None, None, gib("31.29")),
    )
    devices = tuple(device(card, 612_368_384, 612_368_384, epoch=None) for card in CARDS)
    failed = replace(SOURCES[1], success=False, error="/proc/4711/environ: permission denied, needs CAP_SYS_PTRACE")
    return replace(before, devices=devices, engines=(down,), sources=(SOURCES[0], failed))


def empty() -> Snapshot:
    """Return the first moment: no source has ended a run."""
    starting = tuple(
        SourceHealth(name, interval, success=False, duration=0, last_success=None, runs=0, failures=0)
        for name, interval in (("amdgpu", 0.1), ("procfs", 5.0))
    )
    exporter = replace(EXPORTER, demo=False, unparsed_lines={})
    return Snapshot(AT, ready=False, devices=(), engines=(), sources=starting, exporter=exporter)


def plain() -> Snapshot:
    """Return an engine without expert offload on one card: what the charges leave is the KV pool; it may be down."""
    before = healthy()
    requested = math.ceil(SIZE * 0.9)
    charges = (
        Term("weights", printed_bytes("15.27"), "log"),
        Term("activation", printed_bytes("1.41"), "log"),
        Term("non_torch", printed_bytes("0.31"), "log"),
        Term("cuda_graphs", printed_bytes("0.52"), "log"),
    )
    pool = requested - sum(term.bytes for term in charges)
    rest = Term("kv_pool", pool, "geometry")
    rank = RankLedger("0", SIZE, requested, charges, rest, kv_pool=rest, margin=-5)
    facts = RankFacts(
        weights=gib("15.27"),
        activation=gib("1.41"),
        non_torch=gib("0.31"),
        graph_estimate=gib("0.52"),
        graph_capture=gib("0.55"),
        kv_reserved=gib("11.00"),
    )
    engine = EngineState(
        name="8001",
        expected=False,
        up=True,
        supervisor="none",
        unit="",
        phase="unknown",
        phase_since=None,
        restarts=0,
        failures={},
        floors=FLOORS,
        shape=Shape(model="org/model", utilization=0.9),
        placements=(Placement("0", None, "two devices are visible and no log line names one"),),
        report=BootReport(common=facts, graph_charge_applied=True, max_model_len=32_768),
        ledger=Ledger("vllm_gpu", "", assumed=True, ranks={"0": rank}, notes=("no version was printed",)),
    )
    return replace(before, engines=(engine,), devices=before.devices[:1])


def neuron() -> Snapshot:
    """Return an engine on a logical core of AWS Neuron: the cap on KV leaves headroom for the compiled programs."""
    before = plain()
    bank = 24 << 30
    requested, weights = int(bank * 0.9), printed_bytes("13.51")
    cap = int(requested * 0.3)
    charges = (
        Term("weights", weights, "log"),
        Term("headroom", requested - weights - cap, "default", note="what the cap leaves for the compiled programs"),
    )
    pool = Term("kv_pool", cap, "default", lever="VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION", note="the cap")
    rank = RankLedger("0", bank, requested, charges, pool, kv_pool=pool, bootable=True, kv_cap=cap)
    engine = replace(
        before.engines[0],
        report=BootReport(version="0.24.0", common=RankFacts(weights=gib("13.51"))),
        ledger=Ledger("neuron", "0.24.0", assumed=False, ranks={"0": rank}, kv_min_bytes=1 << 30),
    )
    return replace(before, engines=(engine,), devices=())


ALL = {
    "healthy": healthy,
    "knife_edge": knife_edge,
    "crash_loop": crash_loop,
    "empty": empty,
    "plain": plain,
    "neuron": neuron,
}
"""Every Snapshot that has a golden exposition, by its name."""
