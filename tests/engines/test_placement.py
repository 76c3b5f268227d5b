"""Rank to device by the runtimes' own rules."""

from __future__ import annotations

from typing import Any

import pytest

from budget_exporter.engines.placement import place
from budget_exporter.facts.device import DeviceIdentity
from budget_exporter.facts.engine import Shape, Worker


def card(device: str, order: int | None, uuid: str | None = None, **more: Any) -> DeviceIdentity:
    named = {"platform": "amd", "model": "R9700", "driver": "6.14", "sampler": "amdgpu_vram", **more}
    return DeviceIdentity(device, order=order, uuid=uuid, **named)


A = card("0000:03:00.0", 0, "9ab03cde5f000001")
B = card("0000:06:00.0", 1, "9ab03cde5f000002")
C = card("0000:43:00.0", 2, "0x7700000000000003")
CARDS = (C, A, B)
APU = card("0000:7b:00.0", 0, integrated=True)


def on(environ: dict[str, str] | None, ranks: int, cards: tuple[DeviceIdentity, ...] = CARDS) -> list[str | None]:
    return [p.device for p in place(Shape(tensor_parallel_size=ranks), environ, (), cards)]


def test_a_card_that_is_not_known_does_not_move_the_ranks_to_its_neighbours() -> None:
    assert on({}, 2, (B, C)) == [None, None]
    assert on({"HIP_VISIBLE_DEVICES": "0,1"}, 2, (A, C)) == [None, None]
    assert on({"HIP_VISIBLE_DEVICES": "0,1"}, 2, (A, B)) == [A.device, B.device]
    assert on(None, 2, (A, C)) == [None, None]


def test_ranks_follow_the_runtime_s_order_not_the_bus_s() -> None:
    turned = (card("0000:03:00.0", 1), card("0000:06:00.0", 0))
    assert on({}, 2, turned) == ["0000:06:00.0", "0000:03:00.0"]
    assert on({}, 2, (APU, card("0000:03:00.0", 1), card("0000:06:00.0", 2))) == ["0000:7b:00.0", "0000:03:00.0"]


@pytest.mark.parametrize(
    ("environ", "want"),
    [
        ({}, [A, B]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, [C, A]),
        ({"CUDA_VISIBLE_DEVICES": "1,2"}, [B, C]),
        ({"HIP_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "0,1"}, [B, C]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "2,1"}, [C, B]),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, [B, C]),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1,0"}, [B, C]),
        ({"ROCR_VISIBLE_DEVICES": "1,2,0", "HIP_VISIBLE_DEVICES": "0,0,2"}, [B, A]),
        ({"ROCR_VISIBLE_DEVICES": "0x2, 01"}, [C, B]),
        ({"ROCR_VISIBLE_DEVICES": "gpu-77,0"}, [C, A]),
        ({"HIP_VISIBLE_DEVICES": "GPU-7700000000000003,0"}, [C, A]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, [None, None]),
        ({"ROCR_VISIBLE_DEVICES": ""}, [None, None]),
        ({"ROCR_VISIBLE_DEVICES": "0,0,1"}, [A, None]),
        ({"ROCR_VISIBLE_DEVICES": "0,9,1"}, [A, None]),
        ({"ROCR_VISIBLE_DEVICES": "0,x"}, [A, None]),
        ({"ROCR_VISIBLE_DEVICES": "0,-1"}, [A, None]),
        ({"ROCR_VISIBLE_DEVICES": "0,08"}, [A, None]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-9ab03cde5f"}, [None, None]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-"}, [None, None]),
        ({"HIP_VISIBLE_DEVICES": "1, 0"}, [B, None]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, [None, None]),
        ({"HIP_VISIBLE_DEVICES": "GPU-none,0"}, [None, None]),
        ({"HIP_VISIBLE_DEVICES": "9"}, [None, None]),
    ],
    ids=str,
)
def test_visible_lists(environ: dict[str, str], want: list[DeviceIdentity | None]) -> None:
    got = place(Shape(tensor_parallel_size=2), environ, (), CARDS)
    assert [p.device for p in got] == [d and d.device for d in want]
    assert all(bool(p.why) == (p.device is None) for p in got)
    if "-1" in str(environ) or "08" in str(environ):
        assert "ends the list" in got[1].why
    assert [p.rank for p in got] == ["0", "1"]


def test_an_unreadable_environment_is_only_assumed_empty_where_the_count_fits() -> None:
    two = place(Shape(tensor_parallel_size=2), None, (), (A, B, card("0000:44:00.0", None)))
    assert [p.device for p in two] == [A.device, B.device]
    assert all(p.why.startswith("assumed") for p in two)
    assert on(None, 2) == [None, None]


def given(**flags: str) -> Shape:
    return Shape(tensor_parallel_size=2, given={k.replace("_", "-"): v for k, v in flags.items()})


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (given(nnodes="2"), "several hosts"),
        (given(distributed_executor_backend="ray"), "ray"),
        (given(data_parallel_backend="ray"), "ray"),
        (given(device_ids="0,7"), "--device-ids"),
    ],
)
def test_what_is_not_resolved_is_not_guessed(shape: Shape, why: str) -> None:
    got = place(shape, {}, (), CARDS)
    assert [(p.rank, p.device) for p in got] == [("0", None), ("1", None)]
    assert all(why in p.why for p in got)


def test_a_worker_the_flags_do_not_know_makes_every_placement_doubtful() -> None:
    workers = [Worker(11, "VLLM::Worker_TP0", 0), Worker(12, "VLLM::Worker_TP1", 1)]
    assert "VLLM::Worker_TP1" in place(Shape(), {}, workers, CARDS)[0].why
    assert place(Shape(tensor_parallel_size=2), {}, workers, CARDS)[1].device == B.device
    staged = place(Shape(tensor_parallel_size=2, pipeline_parallel_size=2), {}, workers, CARDS)
    assert all("VLLM::Worker_TP0" in p.why for p in staged)
    replica = [Worker(11, "VLLM::EngineCore_DP1")]
    assert "VLLM::EngineCore_DP1" in place(Shape(), {}, replica, CARDS)[0].why
    assert place(Shape(data_parallel_size=2), {}, replica, CARDS)[1].device == B.device


def test_hosts_that_cannot_be_read_as_one_order() -> None:
    nvidia = card("0000:81:00.0", 0, platform="nvidia")
    assert "several platforms" in place(Shape(), {}, (), (A, nvidia))[0].why
    assert "can open" in place(Shape(), {}, (), (card("0000:03:00.0", None),))[0].why
    assert "can open" in place(Shape(), {}, (), ())[0].why
    assert "share a place" in place(Shape(), {}, (), (A, card("0000:09:00.0", 0)))[0].why
    assert "platform xpu" in place(Shape(), {}, (), (card("0000:19:00.0", 0, platform="xpu"),))[0].why
    cut = card("0000:19:00.0", 0, partitions=8)
    assert "partitions" in place(Shape(), {}, (), (cut,))[0].why


def test_a_host_s_memory_is_no_device_of_an_engine_that_is_not_known_to_run_on_the_cpu() -> None:
    memory = card("cpu/node0", 0, platform="host")
    assert on({}, 1, (memory, A)) == [A.device]
    assert on({}, 1, (memory,)) == [None]


def test_a_mistyped_size_makes_no_million_series() -> None:
    assert place(Shape(tensor_parallel_size=10**9), {}, (), CARDS) == ()
    assert place(Shape(data_parallel_size=10**30), {}, (), CARDS) == ()


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ["d0.0", "d1.0", "d2.0", "d3.0"]),
        ({"data-parallel-size-local": "2"}, ["d0.0", "d1.0"]),
        ({"data-parallel-size-local": "2", "data-parallel-start-rank": "2", "headless": "true"}, ["d2.0", "d3.0"]),
        ({"data-parallel-rank": "3"}, ["d3.0"]),
        ({"data-parallel-size-local": "0"}, []),
        ({"data-parallel-size-local": "9" * 5000}, ["d0.0", "d1.0", "d2.0", "d3.0"]),
        ({"data-parallel-size-local": "two"}, ["d0.0", "d1.0", "d2.0", "d3.0"]),
        ({"data-parallel-size-local": "9" * 9}, []),
    ],
)
def test_only_the_replicas_of_this_host_have_ranks(given: dict[str, str], names: list[str]) -> None:
    shape = Shape(data_parallel_size=4, given=given)
    assert [placement.rank for placement in place(shape, {}, (), CARDS)] == names
