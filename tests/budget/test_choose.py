from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from budget_exporter.budget import compute
from budget_exporter.budget.choose import LAWS, choose, constants_for, flavour_of, parse_version
from budget_exporter.budget.laws import Law
from budget_exporter.errors import LawError
from budget_exporter.facts.boot import BootReport, Plan, RankFacts
from budget_exporter.facts.engine import Shape
from budget_exporter.facts.ledger import Constants, RankInput, RegistryEntry
from budget_exporter.publish.catalogue import closed_list
from budget_exporter.units import GIB
from tests.budget.offload import REGISTRY

FLAVOURS = sorted({law.flavour for law in LAWS})


def of(flavour: str, laws: Sequence[Law] = LAWS) -> list[Law]:
    return [law for law in laws if law.flavour == flavour]


def faults(laws: Sequence[Law]) -> list[str]:
    """Return where the ranges of one flavour overlap, leave a gap, end early or hold no version."""
    found = [f"{law.since} is empty" for law in laws if law.until is not None and law.until <= law.since]
    found += [f"{one.until} against {two.since}" for one, two in pairwise(laws) if one.until != two.since]
    found += [f"{law.since} has no successor" for law in laws[-1:] if law.until is not None]
    return found


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_ranges_of_a_flavour_neither_overlap_nor_leave_gaps(flavour: str) -> None:
    assert faults(of(flavour)) == []


def test_a_gap_an_overlap_and_an_end_would_be_found() -> None:
    laws = of("vllm_gpu")
    assert faults([laws[0], *laws[2:]])
    assert faults([laws[1], laws[0], *laws[2:]])
    assert faults(laws[:-1])
    empty = replace(laws[0], until=laws[0].since)  # type: ignore[type-var]  # a law is a dataclass, its protocol is not
    assert faults([empty])


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_only_the_newest_law_reaches_beyond_what_was_examined(flavour: str) -> None:
    *older, newest = of(flavour)
    assert newest.examined_until is not None
    assert [law.examined_until for law in older] == [None] * len(older)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.28.0", (0, 28, 0)),
        ("v0.9.0.1", (0, 9, 0, 1)),
        ("0.11.1rc2.dev3+g1f2+rocm", (0, 11, 1)),
        ("0.20", (0, 20)),
        ("dev", None),
        ("", None),
        (None, None),
    ],
)
def test_versions(text: str | None, version: tuple[int, ...] | None) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("version", "since", "assumed"),
    [
        ("0.8.5", (0, 8, 5), False),
        ("0.9.0.1", (0, 8, 5), False),
        ("0.9.1", (0, 9, 1), False),
        ("0.10.1.1", (0, 9, 1), False),
        ("0.10.2", (0, 10, 2), False),
        ("0.11.0", (0, 11), False),
        ("0.13.0", (0, 11), False),
        ("0.14.0", (0, 14), False),
        ("0.17.1", (0, 14), False),
        ("0.18.1", (0, 18), False),
        ("0.19.1", (0, 19), False),
        ("0.20.0", (0, 20), False),
        ("0.21.0", (0, 20), False),
        ("0.22.1", (0, 22), False),
        ("0.23.0", (0, 23), False),
        ("0.24.0", (0, 24), False),
        ("0.25.1", (0, 25), False),
        ("0.26.0", (0, 26), False),
        ("0.28.0", (0, 27), False),
        ("0.31.0", (0, 29), False),
        ("0.32.0", (0, 32), False),
        ("0.33.0", (0, 33), False),
        ("0.34.0", (0, 33), True),
        ("1.0", (0, 33), True),
        ("0.7.3", (0, 8, 5), True),
        (None, (0, 33), True),
        ("dev", (0, 33), True),
    ],
)
def test_the_law_of_a_version(version: str | None, since: tuple[int, ...], assumed: bool) -> None:
    choice = choose(Shape(), BootReport(version=version))
    assert (choice.name, choice.law.since, choice.assumed) == ("vllm_gpu", since, assumed)
    assert choice.version == (version or "")


def test_without_a_report_the_newest_law_is_assumed() -> None:
    choice = choose(Shape(), None)
    assert (choice.name, choice.law.until, choice.version, choice.assumed) == ("vllm_gpu", None, "", True)


def test_the_flag_or_a_plan_block_makes_it_expert_offload() -> None:
    report = BootReport(version="0.28.0")
    assert choose(Shape(expert_offload=True), report).name == "expert_offload"
    assert choose(Shape(expert_offload=True), None).assumed
    assert choose(Shape(), replace(report, ranks={1: RankFacts(plan=Plan())})).name == "expert_offload"
    assert choose(Shape(), replace(report, common=RankFacts(plan=Plan()))).name == "expert_offload"
    assert choose(Shape(), replace(report, ranks={1: RankFacts()})).name == "vllm_gpu"


@pytest.mark.parametrize(
    ("version", "assumed"), [("0.28.0", False), ("0.29.3", False), ("0.30.0", True), ("0.27", True)]
)
def test_the_fork_is_known_on_two_versions(version: str, assumed: bool) -> None:
    assert choose(Shape(expert_offload=True), BootReport(version=version)).assumed is assumed


def entry(model: str, release: str = "*", tensor_parallel_size: int = 2, source: str = "s") -> RegistryEntry:
    return RegistryEntry((model,), (release,), Constants("a", release, tensor_parallel_size, source))


def test_constants_go_by_model_release_and_tensor_parallel_size() -> None:
    entries = [
        entry("*Flash-FP8*", "28.*", source="fp8 of 28"),
        entry("*Flash-FP8*", source="fp8"),
        entry("*Flash*", source="any"),
        entry("*Flash*", tensor_parallel_size=4, source="four"),
    ]

    def source(shape: Shape, report: BootReport | None = None) -> str | None:
        found = constants_for(entries, shape, report)
        return None if found is None else found.source

    two = Shape(model="/models/Flash-FP8/", tensor_parallel_size=2)
    assert source(two) == "fp8"
    assert source(two, BootReport(release="28.04.9")) == "fp8 of 28"
    assert source(two, BootReport(release="29.07.1")) == "fp8"
    assert source(two, BootReport()) == "fp8"
    assert source(replace(two, model="org/FLASH")) == "any"
    assert source(replace(two, model="/models/x", served_model_name="flash-fp8")) == "fp8"
    assert source(replace(two, model=None), BootReport(model="x/flash-fp8")) == "fp8"
    assert source(replace(two, tensor_parallel_size=4)) == "four"
    assert source(replace(two, tensor_parallel_size=8)) is None
    assert source(replace(two, model="other")) is None
    assert source(Shape(tensor_parallel_size=2)) is None


def test_the_registry_has_no_weights_for_another_checkpoint() -> None:
    fp8 = constants_for(REGISTRY, Shape(model="/m/Qwen3.8-Flash-Next-FP8", tensor_parallel_size=2), None)
    other = constants_for(REGISTRY, Shape(model="/m/Qwen3.8-Flash-Next-MXFP4-FP8-GPTQ", tensor_parallel_size=2), None)
    assert fp8 is not None
    assert other is not None
    assert (fp8.non_expert is None, fp8.expert_bytes is None) == (False, False)
    assert (other.non_expert, other.expert_bytes) == (None, None)
    assert other.kv_bytes_per_token == fp8.kv_bytes_per_token


def test_glm_is_known_for_one_release_only() -> None:
    shape = Shape(model="zai/GLM-5.3-Flash", tensor_parallel_size=4)
    assert constants_for(REGISTRY, shape, BootReport(release="29.07.1")) is not None
    assert constants_for(REGISTRY, shape, None) is None


def on(*platforms: str) -> list[RankInput]:
    return [RankInput(str(number), 32 * GIB, platform=platform) for number, platform in enumerate(platforms)]


@pytest.mark.parametrize(
    ("said", "platforms", "flavour"),
    [
        (None, (), "vllm_gpu"),
        (None, ("", ""), "vllm_gpu"),
        (None, ("amd", "amd"), "vllm_gpu"),
        (None, ("nvidia", ""), "vllm_gpu"),
        (None, ("gaudi",), "gaudi"),
        (None, ("neuron",), "neuron"),
        (None, ("tpu",), "tpu"),
        (None, ("host",), "vllm_cpu"),
        ("cuda", (), "vllm_gpu"),
        ("cuda", ("amd",), "vllm_gpu"),
        ("cpu", ("",), "vllm_cpu"),
        ("cpu", ("host",), "vllm_cpu"),
        ("hpu", (), "gaudi"),
        ("tpu", (), "tpu"),
        ("neuron", ("neuron",), "neuron"),
    ],
)
def test_the_flavour_is_what_the_engine_says_it_runs_on_else_what_its_devices_are(
    said: str | None, platforms: tuple[str, ...], flavour: str
) -> None:
    assert flavour_of(Shape(), BootReport(device_type=said), on(*platforms)) == flavour
    if said is None:
        assert flavour_of(Shape(), None, on(*platforms)) == flavour
    assert flavour_of(Shape(expert_offload=True), BootReport(device_type=said), on(*platforms)) == "expert_offload"


@pytest.mark.parametrize(
    ("said", "mode", "flavour"),
    [
        (None, "1", "neuron"),
        ("neuron", "1", "neuron"),
        ("cpu", "1", "vllm_cpu"),
        (None, "0", "vllm_cpu"),
        (None, None, "vllm_cpu"),
    ],
)
def test_neuron_s_cpu_mode_keeps_to_neuron_s_law(said: str | None, mode: str | None, flavour: str) -> None:
    shape = Shape(environ={} if mode is None else {"VLLM_NEURON_CPU_MODE": mode})
    assert flavour_of(shape, BootReport(device_type=said), on("host")) == flavour


@pytest.mark.parametrize("platform", closed_list("budget_device_info", "platform") or ())
def test_every_kind_of_device_has_a_law(platform: str) -> None:
    assert of(flavour_of(Shape(), None, on(platform)))


@pytest.mark.parametrize("said", ["cuda", "cpu", "hpu", "neuron", "tpu"])
def test_every_kind_of_device_that_an_engine_names_has_a_law(said: str) -> None:
    assert of(flavour_of(Shape(), BootReport(device_type=said)))


@pytest.mark.parametrize(
    ("said", "platforms", "sentence"),
    [
        ("xpu", (), "no budget law for an engine that runs on xpu"),
        ("cpu", ("amd",), "the engine runs on cpu, its ranks are on devices for which these laws hold: vllm_gpu"),
        (None, ("amd", "gaudi"), "its ranks are on devices for which these laws hold: gaudi, vllm_gpu"),
    ],
)
def test_devices_without_a_law_and_of_more_than_one_kind_are_refused(
    said: str | None, platforms: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(LawError, match=sentence):
        compute(Shape(utilization=0.9), on(*platforms), BootReport(version="0.32.0", device_type=said), None)


@pytest.mark.parametrize(
    ("version", "release", "flavour", "since", "assumed"),
    [
        ("0.6.6.post1+Gaudi-1.20.0", None, "gaudi", (1, 19), False),
        ("0.9.0.1+Gaudi-1.22.0", None, "gaudi", (1, 22), False),
        ("0.9.1", "1.23.0", "gaudi", (1, 22), True),
        ("0.4.2", None, "gaudi", (1, 16), True),
        ("0.5.3.post1", None, "gaudi", (1, 17), True),
        ("0.6.4.post2", None, "gaudi", (1, 19), True),
        ("0.7.2", None, "gaudi", (1, 21), True),
        ("0.8.5.post1", None, "gaudi", (1, 21), True),
        ("0.9.0.1", None, "gaudi", (1, 22), True),
        ("0.3.0", None, "gaudi", (1, 16), True),
        ("0.10.0", None, "gaudi_plugin", (0, 10), False),
        ("0.19.1.post1", None, "gaudi_plugin", (0, 18, 1), False),
        ("0.28.0", None, "gaudi_plugin", (0, 20), True),
        (None, None, "gaudi", (1, 22), True),
        ("dev", None, "gaudi", (1, 22), True),
    ],
)
def test_on_gaudi_the_release_of_the_fork_or_the_plugin_counts(
    version: str | None, release: str | None, flavour: str, since: tuple[int, ...], assumed: bool
) -> None:
    choice = choose(Shape(), BootReport(version=version, release=release), on("gaudi"))
    assert (choice.law.flavour, choice.law.since, choice.assumed) == (flavour, since, assumed)
    assert choice.version == (version or "")


def test_on_gaudi_without_a_report_the_newest_law_of_the_fork_is_assumed() -> None:
    choice = choose(Shape(), None, on("gaudi"))
    assert (choice.law.flavour, choice.law.until, choice.assumed) == ("gaudi", None, True)


def test_the_platform_reaches_the_law_through_compute() -> None:
    found = compute(Shape(utilization=0.9), on("gaudi"), BootReport(version="0.19.0"), None)
    assert (found.law, found.version) == ("gaudi_plugin", "0.19.0")
    for known in ("cuda", None):
        ledger = compute(Shape(utilization=0.9), on(""), BootReport(version="0.32.0", device_type=known), None)
        assert ledger.ranks["0"].requested == math.ceil(32 * GIB * 0.9)
