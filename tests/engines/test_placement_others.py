"""Gaudi cards by module, Neuron's cores by bank, TPU chips, and AMD's in containers."""

from __future__ import annotations

import pytest

from budget_exporter.engines.placement import place
from budget_exporter.facts.device import DeviceIdentity
from budget_exporter.facts.engine import Placement, Shape


def device(name: str, platform: str, order: int | None, model: str = "") -> DeviceIdentity:
    return DeviceIdentity(name, platform, model, "1", platform, order=order)


GAUDI = tuple(device(f"0000:{19 + i}:00.0", "gaudi", module) for i, module in enumerate((6, 4, 7, 5)))
"""Modules 4 to 7, not in the order of the bus."""
MODULE = {card.order: card.device for card in GAUDI}
TRN1 = tuple(device(f"nd{n}/hbm{b}", "neuron", 2 * n + b, "Trainium1") for n in range(2) for b in range(2))
TRN2 = tuple(device(f"nd0/hbm{b}", "neuron", None, "Trainium2") for b in range(4))
V6E = tuple(device(f"accel{i}", "tpu", i, "TPU v6e") for i in range(4))
V7 = tuple(device(f"accel{i}", "tpu", i, "TPU7x") for i in range(4))


def placed(environ: dict[str, str], ranks: int, devices: tuple[DeviceIdentity, ...]) -> tuple[Placement, ...]:
    return place(Shape(tensor_parallel_size=ranks), environ, (), devices)


@pytest.mark.parametrize(
    ("environ", "modules", "why"),
    [
        ({"HABANA_VISIBLE_MODULES": "5,4"}, [5, 4], "assumed"),
        ({"HABANA_VISIBLE_MODULES": "7"}, [7], ""),
        ({"HABANA_VISIBLE_MODULES": "4-5"}, [4, 5], "assumed"),
        ({"HABANA_VISIBLE_MODULES": "3"}, [None], "not known"),
        ({"HABANA_VISIBLE_MODULES": "4,x"}, [None], "no list of numbers"),
        ({"HABANA_VISIBLE_MODULES": "4,4"}, [None, None], "no list of numbers"),
        ({"HABANA_VISIBLE_MODULES": "5"}, [5, None], "no more modules"),
        ({"HABANA_VISIBLE_MODULES": "all"}, [None], "not busy"),
        ({"HABANA_VISIBLE_DEVICES": "0,1"}, [None, None], "index of the driver"),
        ({"HABANA_VISIBLE_DEVICES": "all"}, [4, 5, 6, 7], "assumed"),
        ({"HLS_MODULE_ID": "6"}, [6], ""),
        ({"HLS_MODULE_ID": "6", "HABANA_VISIBLE_MODULES": "6,7"}, [6], ""),
        ({"HLS_MODULE_ID": "5", "HABANA_VISIBLE_MODULES": "6,7"}, [None], "not among"),
        ({"HLS_MODULE_ID": "6"}, [None, None], "one module for all"),
        ({"HLS_MODULE_ID": "six"}, [None], "one module for all"),
        ({}, [None], "not busy"),
    ],
    ids=str,
)
def test_gaudi_cards_go_by_module(environ: dict[str, str], modules: list[int | None], why: str) -> None:
    got = placed(environ, len(modules), GAUDI)
    assert [p.device for p in got] == [MODULE.get(module) for module in modules]
    assert why in got[-1].why
    assert bool(why) == bool(got[-1].why)


def test_gaudi_cards_without_modules_are_not_told_apart() -> None:
    lone = device("0000:19:00.0", "gaudi", 0)
    assert placed({}, 1, (lone,)) == (Placement("0", lone.device),)
    assert "module ids" in placed({"HABANA_VISIBLE_MODULES": "0"}, 1, (lone, device("x", "gaudi", None)))[0].why


@pytest.mark.parametrize(
    ("environ", "orders", "why"),
    [
        ({"NEURON_RT_VISIBLE_CORES": "2-3"}, [2, 3], ""),
        ({"NEURON_VISIBLE_DEVICES": "1,3"}, [1, 3], ""),
        ({"NEURON_VISIBLE_DEVICES": "0-1,3"}, [0, 1, 3], ""),
        ({"NEURON_RT_VISIBLE_CORES": "3"}, [3, None], "no more cores"),
        ({"NEURON_RT_VISIBLE_CORES": "8"}, [None], "not known"),
        ({"NEURON_RT_VISIBLE_CORES": "3-1"}, [None], "NEURON_RT_VISIBLE_CORES is no list"),
        ({"NEURON_RT_VISIBLE_CORES": "0-99999"}, [None], "no list"),
        ({"NEURON_RT_VISIBLE_CORES": "1-2,2"}, [None], "no list"),
        ({"NEURON_RT_VISIBLE_CORES": "1", "NEURON_VISIBLE_DEVICES": "1"}, [None], "both"),
        ({"NEURON_RT_NUM_CORES": "2"}, [None, None], "chooses"),
        ({}, [0, 1, 2, 3], "assumed"),
    ],
    ids=str,
)
def test_a_logical_core_of_trn1_has_a_bank_of_its_own(
    environ: dict[str, str], orders: list[int | None], why: str
) -> None:
    got = placed(environ, len(orders), TRN1)
    assert [p.device for p in got] == [None if order is None else TRN1[order].device for order in orders]
    assert why in got[-1].why
    assert bool(why) == bool(got[-1].why)


def test_where_cores_can_be_joined_the_bank_is_the_runtime_s_business() -> None:
    got = placed({"NEURON_RT_VISIBLE_CORES": "0-3"}, 4, TRN2)
    assert all(p.device is None and "table" in p.why for p in got)
    assert {p.among for p in got} == {tuple(bank.device for bank in TRN2)}
    assert placed({}, 1, TRN1[:1])[0].device == "nd0/hbm0"


@pytest.mark.parametrize(
    ("environ", "chips", "orders", "why"),
    [
        ({"TPU_VISIBLE_CHIPS": "2,3"}, V6E, [2, 3], "assumed"),
        ({"TPU_VISIBLE_DEVICES": "3"}, V6E, [3], ""),
        ({"TPU_VISIBLE_CHIPS": "1", "TPU_VISIBLE_DEVICES": "3"}, V6E, [1], ""),
        ({"TPU_VISIBLE_CHIPS": "2,3"}, V6E, [None], "1 rank(s) on 2"),
        ({"TPU_VISIBLE_CHIPS": "two"}, V6E, [None], "TPU_VISIBLE_CHIPS is no list"),
        ({"TPU_VISIBLE_CHIPS": "9"}, V6E, [None], "not known"),
        ({"TPU_VISIBLE_CHIPS": "1"}, V7, [None, None], "two devices"),
        ({}, V6E, [0, 1, 2, 3], "assumed"),
        ({}, V6E, [None, None], "2 rank(s) on 4"),
        ({}, V6E[:1], [0], ""),
        ({}, (device("a", "tpu", None), device("b", "tpu", None)), [None, None], "numbers"),
    ],
    ids=str,
)
def test_tpu_chips_go_by_number(
    environ: dict[str, str], chips: tuple[DeviceIdentity, ...], orders: list[int | None], why: str
) -> None:
    got = placed(environ, len(orders), chips)
    assert [p.device for p in got] == [None if order is None else f"accel{order}" for order in orders]
    assert why in got[-1].why
    assert bool(why) == bool(got[-1].why)


def test_a_container_may_have_some_of_amd_s_cards_only() -> None:
    cards = tuple(device(f"0000:0{i}:00.0", "amd", i) for i in range(2))
    one, two = Shape(), Shape(tensor_parallel_size=2)
    assert place(one, {}, (), cards)[0].why == ""
    inside = place(one, {}, (), cards, contained=True)[0]
    assert (inside.device, inside.why) == (cards[0].device, "assumed: its container has every card")
    assert all(p.why == "" for p in place(two, {}, (), cards, contained=True))
    some = place(one, {"AMD_VISIBLE_DEVICES": "1"}, (), cards, contained=True)[0]
    assert some.device is None
    assert "AMD_VISIBLE_DEVICES" in some.why
    assert place(one, {"AMD_VISIBLE_DEVICES": "1"}, (), cards)[0].device == cards[0].device
    assert place(one, {"AMD_VISIBLE_DEVICES": "all"}, (), cards, contained=True)[0].why == ""


@pytest.mark.parametrize(
    ("ids", "environ", "want"),
    [("1,0", {}, [1, 0]), ("1,0", {"HIP_VISIBLE_DEVICES": "2,1"}, [1, 2]), ("GPU-1,GPU-0", {}, [None, None])],
)
def test_picked_cards_of_amd_go_by_number(ids: str, environ: dict[str, str], want: list[int | None]) -> None:
    cards = tuple(device(f"0000:0{i}:00.0", "amd", i) for i in range(3))
    got = place(Shape(tensor_parallel_size=2, given={"device-ids": ids}), environ, (), cards)
    assert [p.device for p in got] == [None if at is None else cards[at].device for at in want]
