"""Which engines run on the CPU, and the NUMA node of each of their ranks."""

from __future__ import annotations

import pytest

from budget_exporter.engines.placement import place
from budget_exporter.facts.boot import BootReport, RankFacts
from budget_exporter.facts.device import DeviceIdentity
from budget_exporter.facts.engine import Placement, Shape

SAID = BootReport(device_type="cpu")


def node(number: int, cpus: str = "") -> DeviceIdentity:
    return DeviceIdentity(
        f"cpu/node{number}",
        "host",
        "EPYC",
        "6.12",
        "node_meminfo",
        order=number,
        cpus=cpus or f"{number * 4}-{number * 4 + 3}",
    )


ONE = (node(0, "0-7"),)
TWO = (node(0, "0-3,8-11"), node(1, "4-7,12-15"))
CARD = DeviceIdentity("0000:03:00.0", "amd", "R9700", "6.14", "amdgpu_vram", order=0)


def on(
    environ: dict[str, str] | None,
    ranks: int = 2,
    nodes: tuple[DeviceIdentity, ...] = TWO,
    report: BootReport = SAID,
    **given: str,
) -> tuple[Placement, ...]:
    shape = Shape(tensor_parallel_size=ranks, given={name.replace("_", "-"): text for name, text in given.items()})
    return place(shape, environ, (), nodes, report)


def numbers(placements: tuple[Placement, ...]) -> list[int | None]:
    return [None if each.device is None else int(each.device.removeprefix("cpu/node")) for each in placements]


@pytest.mark.parametrize(
    ("shape", "said", "cpu"),
    [
        (Shape(), "cpu", True),
        (Shape(version="0.32.0+cpu"), None, True),
        (Shape(version="0.32.0+cpu.avx2"), None, True),
        (Shape(version="0.32.0+cpu"), "cuda", False),
        (Shape(version="0.32.0+cpux"), None, False),
        (Shape(version="0.32.0"), None, False),
        (Shape(version="0.32.0+rocm624"), None, False),
        (Shape(), None, False),
        (Shape(given={"device": "cpu"}), None, True),
        (Shape(given={"device": "cuda"}), None, False),
        (Shape(environ={"VLLM_NEURON_CPU_MODE": "1"}), "neuron", True),
        (Shape(environ={"VLLM_NEURON_CPU_MODE": "1"}), None, True),
        (Shape(environ={"VLLM_NEURON_CPU_MODE": "0"}), "neuron", False),
        (Shape(environ={"VLLM_NEURON_CPU_MODE": "1"}), "cuda", False),
    ],
    ids=str,
)
def test_only_engines_on_the_cpu_are_on_the_host_s_memory(shape: Shape, said: str | None, cpu: bool) -> None:
    (placed,) = place(shape, {}, (), (*ONE, CARD), BootReport(device_type=said))
    assert placed.device == ("cpu/node0" if cpu else CARD.device)
    if said is None:
        assert place(shape, {}, (), (*ONE, CARD)) == (placed,)


def test_on_one_node_all_ranks_are_there_whatever_the_environment() -> None:
    for environ in (None, {}, {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}, {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}):
        assert numbers(on(environ, nodes=ONE)) == [0, 0]
        assert all(not each.why for each in on(environ, nodes=ONE))
    replicas = place(Shape(data_parallel_size=2), {}, (), ONE, SAID)
    assert [(each.rank, each.device) for each in replicas] == [("d0.0", "cpu/node0"), ("d1.0", "cpu/node0")]


@pytest.mark.parametrize(
    ("environ", "want"),
    [
        ({}, [0, 1]),
        ({"VLLM_CPU_OMP_THREADS_BIND": "auto"}, [0, 1]),
        ({"VLLM_CPU_OMP_THREADS_BIND": "4-7|0-3"}, [1, 0]),
        # A worker is bound to all of its CPUs, and the first of them decides.
        ({"VLLM_CPU_OMP_THREADS_BIND": "12,2|13-15,5"}, [0, 1]),
        ({"VLLM_CPU_OMP_THREADS_BIND": "0-1|2-3"}, [0, 0]),
        ({"VLLM_CPU_OMP_THREADS_BIND": "0|99"}, [0, None]),
        ({"VLLM_CPU_OMP_THREADS_BIND": "0-3"}, [None, None]),
        ({"VLLM_CPU_OMP_THREADS_BIND": "0|x"}, [0, None]),
        ({"VLLM_CPU_OMP_THREADS_BIND": "0|"}, [0, None]),
        ({"VLLM_CPU_OMP_THREADS_BIND": "nobind"}, [None, None]),
        ({"VLLM_CPU_SIM_MULTI_NUMA": "1"}, [None, None]),
        ({"CPU_VISIBLE_MEMORY_NODES": "1,0"}, [1, 0]),
        ({"CPU_VISIBLE_MEMORY_NODES": "1"}, [1, None]),
        ({"CPU_VISIBLE_MEMORY_NODES": "7,1"}, [1, None]),
        ({"CPU_VISIBLE_MEMORY_NODES": "x"}, [None, None]),
        (None, [None, None]),
    ],
    ids=str,
)
def test_ranks_on_several_nodes(environ: dict[str, str] | None, want: list[int | None]) -> None:
    got = on(environ)
    assert numbers(got) == want
    assert [each.rank for each in got] == ["0", "1"]
    assert all(each.why for each in got if each.device is None)


def test_what_is_bound_by_itself_is_assumed_and_what_is_told_is_not() -> None:
    assert {each.why for each in on({})} == {"assumed: no cpuset keeps the engine from a NUMA node"}
    assert {each.why for each in on({"VLLM_CPU_OMP_THREADS_BIND": "0|4"})} == {""}


def test_the_node_the_engine_names_decides() -> None:
    told = BootReport(device_type="cpu", ranks={0: RankFacts(node=1), 1: RankFacts(node=9)})
    got = on({"VLLM_CPU_OMP_THREADS_BIND": "0|4"}, report=told)
    assert numbers(got) == [1, None]
    assert got[1].why == "the engine names node 9, which is not known"


def test_ranks_on_other_hosts_and_hosts_whose_memory_is_not_known() -> None:
    assert {each.why for each in on({}, nnodes="2")} == {"the engine runs on several hosts"}
    assert numbers(on({}, nnodes="1")) == [0, 1]
    assert {each.why for each in on({}, nodes=(CARD,))} == {"no memory of the host is known"}
