"""What a CUDA program sees of NVIDIA's cards, of MIG instances, and inside a container."""

from __future__ import annotations

from typing import Any

import pytest

from budget_exporter.engines.placement import place
from budget_exporter.facts.device import DeviceIdentity
from budget_exporter.facts.engine import Placement, Shape


def card(device: str, order: int | None, uuid: str | None, model: str = "H100") -> DeviceIdentity:
    return DeviceIdentity(device, "nvidia", model, "580", "nvml_v2", uuid=uuid, order=order)


CARDS = tuple(card(f"0000:0{i}:00.0", i, f"GPU-{uuid}") for i, uuid in enumerate(("8932f937", "89a1c0de", "47112233")))
X, Y, Z = CARDS
OTHER = card("0000:09:00.0", 3, "GPU-b2000001", "B200")
MIG = card("MIG-5c11", None, "MIG-5c11", "H100 3g.40gb")
MIG_2 = card("MIG-5d22", None, "MIG-5d22", "H100 3g.40gb")


def placed(
    environ: dict[str, str], ranks: int, cards: tuple[DeviceIdentity, ...] = CARDS, **more: Any
) -> list[Placement]:
    return list(place(Shape(tensor_parallel_size=ranks), environ, (), cards, **more))


def on(environ: dict[str, str], ranks: int, cards: tuple[DeviceIdentity, ...] = CARDS, **more: Any) -> list[str | None]:
    return [placement.device for placement in placed(environ, ranks, cards, **more)]


@pytest.mark.parametrize(
    ("listed", "want"),
    [
        (None, [X, Y]),
        ("2, 0", [Z, X]),
        ("+2,1", [Z, Y]),
        ("0,2,-1,1", [X, Z]),
        ("0,9,1", [X, None]),
        ("0,x,1", [X, None]),
        ("1,GPU-8932f937", [Y, None]),
        ("GPU-47,GPU-8932", [Z, X]),
        ("GPU-89,GPU-47", [None, None]),
        ("GPU-47,0", [Z, None]),
        ("GPU-47,GPU-none,GPU-8932", [Z, None]),
        ("", [None, None]),
        ("-1", [None, None]),
        ("99999999999999999999,0", [None, None]),
    ],
)
def test_the_list_of_visible_devices(listed: str | None, want: list[DeviceIdentity | None]) -> None:
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    got = placed(environ, 2)
    assert [p.device for p in got] == [c and c.device for c in want]
    assert all(("ends the list" in p.why) == (p.device is None) for p in got)


@pytest.mark.parametrize("listed", ["0,0", "1,0,1", "GPU-47,GPU-4711"])
def test_a_list_that_repeats_a_device_is_undefined(listed: str) -> None:
    assert all("twice" in p.why and p.device is None for p in placed({"CUDA_VISIBLE_DEVICES": listed}, 2))


def test_the_order_of_cards_of_several_models_is_cuda_s_own() -> None:
    mixed = (*CARDS, OTHER)
    assert all("PCI_BUS_ID" in p.why and p.device is None for p in placed({}, 2, mixed))
    assert on({"CUDA_VISIBLE_DEVICES": "1,0"}, 2, mixed) == [None, None]
    assert on({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, 1, mixed) == [None]
    assert on({"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "3,1"}, 2, mixed) == [OTHER.device, Y.device]
    assert on({"CUDA_VISIBLE_DEVICES": "GPU-b2,GPU-47"}, 2, mixed) == [OTHER.device, Z.device]
    assert on({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 2) == on({}, 2) == [X.device, Y.device]


def test_a_card_that_cannot_be_read_moves_no_index_but_no_uuid_either() -> None:
    assert on({}, 2, (X, Z)) == [None, None]
    assert on({"CUDA_VISIBLE_DEVICES": "GPU-47"}, 1, (X, Z)) == [Z.device]


def test_an_empty_entry_is_no_beginning_of_a_uuid() -> None:
    assert on({"CUDA_VISIBLE_DEVICES": "GPU-47,"}, 2, (Z,)) == [Z.device, None]
    assert on({"CUDA_VISIBLE_DEVICES": "GPU-47,GPU"}, 2, (Z,)) == [Z.device, None]


def test_an_instance_is_named_by_its_uuid_and_a_program_sees_one() -> None:
    assert on({"CUDA_VISIBLE_DEVICES": "MIG-5d22"}, 1, (MIG, MIG_2)) == [MIG_2.device]
    assert on({"CUDA_VISIBLE_DEVICES": "MIG-5c"}, 1, (X, MIG, MIG_2)) == [MIG.device]
    two = placed({"CUDA_VISIBLE_DEVICES": "MIG-5d22,MIG-5c11"}, 2, (MIG, MIG_2))
    assert [p.device for p in two] == [MIG_2.device, None]
    assert "one MIG instance" in two[1].why
    assert "MIG" in placed({"CUDA_VISIBLE_DEVICES": "0"}, 1, (MIG, MIG_2))[0].why
    assert "MIG" in placed({}, 1, (X, MIG))[0].why
    assert on({}, 1, (MIG,)) == [MIG.device]
    old = {"CUDA_VISIBLE_DEVICES": "MIG-GPU-8932f937/1/0"}
    assert "no device that is known" in placed(old, 1, (MIG, MIG_2))[0].why


@pytest.mark.parametrize(
    ("environ", "want", "why"),
    [
        ({"NVIDIA_VISIBLE_DEVICES": "2,1"}, [Y, Z], ""),
        ({"NVIDIA_VISIBLE_DEVICES": "2,1,2,GPU-47112233", "CUDA_VISIBLE_DEVICES": "1,2"}, [Z, None], "ends the list"),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-47112233,GPU-8932f937"}, [X, Z], ""),
        ({"NVIDIA_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "1,0"}, [Z, Y], ""),
        ({"NVIDIA_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "1,2"}, [Z, None], "ends the list"),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, [X, Y], ""),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, [None, None], "nothing in the environment names"),
        ({"NVIDIA_VISIBLE_DEVICES": "0:1"}, [None, None], "'0:1' is not known"),
        ({}, [X, Y], "assumed"),
    ],
)
def test_a_container_counts_the_cards_it_was_given(
    environ: dict[str, str], want: list[DeviceIdentity | None], why: str
) -> None:
    got = placed(environ, 2, contained=True)
    assert [p.device for p in got] == [c and c.device for c in want]
    assert why in got[1].why
    assert bool(why) == bool(got[1].why)


def test_one_of_the_host_s_cards_is_its_container_s() -> None:
    (hidden,) = placed({"NVIDIA_VISIBLE_DEVICES": "void"}, 1, contained=True)
    assert hidden.among == (X.device, Y.device, Z.device)
    (missing,) = placed({"CUDA_VISIBLE_DEVICES": "x"}, 1)
    assert missing.among == ()


def test_what_a_container_s_runtime_takes_means_nothing_outside_and_nothing_where_all_are_used() -> None:
    assert on({"NVIDIA_VISIBLE_DEVICES": "2"}, 1) == [X.device]
    for environ in ({"NVIDIA_VISIBLE_DEVICES": "void"}, {}):
        every = placed(environ, 3, contained=True)
        assert [(p.device, p.why) for p in every] == [(c.device, "") for c in CARDS]


@pytest.mark.parametrize(
    ("ids", "environ", "want"),
    [
        ("2,0", {}, [Z, X]),
        (" 1 , 2 ", {}, [Y, Z]),
        ("1,0", {"CUDA_VISIBLE_DEVICES": "2,0"}, [X, Z]),
        ("GPU-47112233,GPU-8932f937", {}, [Z, X]),
        ("GPU-47112233,GPU-8932f937", {"CUDA_VISIBLE_DEVICES": "0,2"}, [Z, X]),
        ("GPU-47112233,GPU-89a1c0de", {"CUDA_VISIBLE_DEVICES": "0,2"}, [None, None]),
        ("GPU-47,GPU-8932f937", {}, [None, None]),
        ("2,1", {"CUDA_VISIBLE_DEVICES": "2,0"}, [None, None]),
        ("0,0", {}, [None, None]),
        ("0,GPU-47112233", {}, [None, None]),
        ("0,1", {"CUDA_VISIBLE_DEVICES": "0,0"}, [None, None]),
        ("0", {}, [X, None]),
        ("0,", {}, [None, None]),
    ],
)
def test_the_engine_picks_among_what_it_sees(
    ids: str, environ: dict[str, str], want: list[DeviceIdentity | None]
) -> None:
    got = place(Shape(tensor_parallel_size=2, given={"device-ids": ids}), environ, (), CARDS)
    assert [p.device for p in got] == [c and c.device for c in want]
    assert all(bool(p.why) == (p.device is None) for p in got)


def test_picked_devices_need_the_environment_and_a_rule() -> None:
    shape = Shape(tensor_parallel_size=3, given={"device-ids": "2,1,0"})
    assert all("environment" in p.why and p.device is None for p in place(shape, None, (), CARDS))
    gaudi = DeviceIdentity("0000:19:00.0", "gaudi", "HL-225", "1.20", "hlml", order=0)
    lone = Shape(given={"device-ids": "0"})
    assert "platform gaudi" in place(lone, {}, (), (gaudi,))[0].why
