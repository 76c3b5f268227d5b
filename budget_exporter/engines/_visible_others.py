"""What an engine sees of Gaudi cards, of Neuron's cores and of TPU chips; where no rule is written down it is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from budget_exporter.engines._visible import Hidden, Visible, ranges
from budget_exporter.facts.device import DeviceIdentity

__all__ = ["visible_to_gaudi", "visible_to_neuron", "visible_to_tpu"]

_BY_MODULE = "assumed: each worker takes the module at its own place in the list"
_FREE = "each process takes the first card that is not busy, unless HABANA_VISIBLE_MODULES names one"
_BY_CORE = "assumed: the workers own the cores from the first on, in their order"
_BY_CHIP = "assumed: one process drives all chips, and its ranks are in their order"
_TWO_DEVICES = frozenset({"TPU v2", "TPU v3", "TPU7x"})
"""Chips that are two devices each. Source: PyPI tpu-info 0.14.2, ``device.py``."""


def visible_to_gaudi(environ: Mapping[str, str], cards: Sequence[DeviceIdentity], ranks: int) -> Visible | Hidden | str:
    """
    Return the Gaudi cards an engine's workers take, by module id, or why that cannot be told.

    HABANA_VISIBLE_MODULES lists module ids, and each process takes the one at its local rank's place; HLS_MODULE_ID
    names the module of the one process that has it. HABANA_VISIBLE_DEVICES, which a container's runtime takes, counts
    by an index of the driver's that is neither and may change with a reboot.
    Source: Gaudi documentation, Gaudi-to-process Assignment and Multiple Dockers Each with a Single Workload. That
    vLLM's workers have a local rank in the documentation's sense is assumed.
    """
    by_module = {card.order: card for card in cards if card.order is not None}
    if len(by_module) < len(cards):
        return "the module ids of the cards are not known"
    modules = _modules(environ, ranks)
    if isinstance(modules, str):
        return modules
    if modules:
        found = tuple(by_module.get(module) for module in modules)
        return Visible(found, _BY_MODULE if len(found) > 1 else "", "no more modules are listed")
    if len(cards) == ranks:
        return Visible(tuple(by_module[module] for module in sorted(by_module)), _BY_MODULE if ranks > 1 else "")
    if environ.get("HABANA_VISIBLE_DEVICES", "all") not in ("", "all"):
        return Hidden("HABANA_VISIBLE_DEVICES counts by an index of the driver that is not known", tuple(cards))
    return Hidden(_FREE, tuple(cards))


def _modules(environ: Mapping[str, str], ranks: int) -> list[int] | str:
    """Return the modules the environment names, none where it names none, or what is wrong with them."""
    own, listed = (environ.get(name, "") for name in ("HLS_MODULE_ID", "HABANA_VISIBLE_MODULES"))
    modules = _numbers(listed) if listed not in ("", "all") else []
    if isinstance(modules, str):
        return f"HABANA_VISIBLE_MODULES is {modules}"
    if not own:
        return modules
    one = _numbers(own)
    if ranks > 1 or isinstance(one, str) or len(one) > 1:
        return "HLS_MODULE_ID names one module for all processes"
    return one if not modules or one[0] in modules else "HLS_MODULE_ID is not among HABANA_VISIBLE_MODULES"


def visible_to_neuron(
    environ: Mapping[str, str], banks: Sequence[DeviceIdentity], ranks: int
) -> Visible | Hidden | str:
    """
    Return the bank of each logical core an engine owns, in its order, or why that cannot be told.

    NEURON_VISIBLE_DEVICES (which vLLM's plugin takes, and gives each worker one core of) and NEURON_RT_VISIBLE_CORES
    (the runtime's) list logical cores, also as ranges. Where a device's cores cannot be joined a logical core is a
    physical one and has a bank of its own; elsewhere the runtime numbers them by a table that is not the order of the
    banks, and which it need not follow.
    Source: AWS Neuron SDK 2.32, runtime configuration; aws-neuronx-dkms 2.24.7.0 ``v3/neuron_dhal_v3.c``.
    """
    if len(banks) == ranks == 1:
        return Visible(tuple(banks))
    by_core = {bank.order: bank for bank in banks if bank.order is not None}
    if len(by_core) < len(banks):
        return Hidden("the runtime's own table says which logical core is on which bank", tuple(banks))
    cores = _cores(environ)
    if isinstance(cores, str):
        return cores
    if cores:
        return Visible(tuple(by_core.get(core) for core in cores), "", "no more cores are listed")
    if len(banks) == ranks:
        return Visible(tuple(by_core[core] for core in sorted(by_core)), _BY_CORE)
    return Hidden("the runtime chooses among the cores, unless NEURON_RT_VISIBLE_CORES names them", tuple(banks))


def _cores(environ: Mapping[str, str]) -> list[int] | str:
    """Return the cores the environment names, none where it names none, or what is wrong with them."""
    given = [name for name in ("NEURON_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES") if environ.get(name)]
    if len(given) > 1:
        return " and ".join(given) + " are both given"
    cores = _numbers(environ[given[0]]) if given else []
    return f"{given[0]} is {cores}" if isinstance(cores, str) else cores


def visible_to_tpu(environ: Mapping[str, str], chips: Sequence[DeviceIdentity], ranks: int) -> Visible | str:
    """
    Return the TPU chips an engine uses in their order, or why that cannot be told.

    TPU_VISIBLE_CHIPS, in older releases TPU_VISIBLE_DEVICES, lists the chips of a process. Which device is which rank's
    is the business of the one program that runs on all.
    Source: vLLM tpu-inference, ``platforms/tpu_platform.py``; libtpu's use in public launchers, not its own manual.
    """
    if len(chips) == ranks == 1:
        return Visible(tuple(chips))
    by_number = {chip.order: chip for chip in chips if chip.order is not None}
    if len(by_number) < len(chips):
        return "the numbers of the chips are not known"
    name = "TPU_VISIBLE_CHIPS" if environ.get("TPU_VISIBLE_CHIPS") else "TPU_VISIBLE_DEVICES"
    listed = environ.get(name, "")
    if listed:
        numbers = _numbers(listed)
        if isinstance(numbers, str):
            return f"{name} is {numbers}"
        if any(chip.model in _TWO_DEVICES and not chip.device.startswith("chip") for chip in chips):
            return f"{name} counts chips, and each is two devices here"
        found = tuple(by_number.get(number) for number in numbers)
    else:
        found = tuple(by_number[number] for number in sorted(by_number))
    if len(found) != ranks:
        return f"{ranks} rank(s) on {len(found)} device(s)"
    return Visible(found, _BY_CHIP if ranks > 1 else "")


def _numbers(text: str) -> list[int] | str:
    numbers = ranges(text)
    return "no list of numbers" if numbers is None else numbers
