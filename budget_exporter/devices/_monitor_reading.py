"""
What neuron-monitor says of memory, from its JSON or from the page its Prometheus script makes of that.

Both tell what each runtime reports of itself: less than the driver counts, and of logical cores. Source: AWS Neuron
SDK 2.32, user guide of neuron-monitor; names of the script's gauges as public test data of other collectors have them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from budget_exporter.errors import SourceError
from budget_exporter.facts.device import CrossCheck, DeviceReport, Holders, ProcessMemory
from budget_exporter.units import GIB

__all__ = ["Reading", "from_json", "from_page", "report"]

CATEGORIES = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
_PAGE_PREFIX = "neuroncore_memory_usage_"
_LARGEST = 1 << 50
_MOST = 4096
_CORES_IN_BANKS_OF_THEIR_OWN = 2
_BOTH_BANKS = 32 * GIB


@dataclass(slots=True)
class Reading:
    """Bytes by process (None where only a tag of its own is known) and logical core, and how cores lie on devices."""

    at: float
    used: dict[tuple[int | None, int], int] = field(default_factory=lambda: defaultdict(int))
    cores_per_device: int | None = None
    device_size: int | None = None
    """Bytes of a device, None where they are not told."""
    faults: list[str] = field(default_factory=list)


def from_json(line: bytes, at: float) -> Reading:
    """Return what one document of neuron-monitor says at Unix time ``at``; raise SourceError for what is none."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise SourceError("neuron-monitor: not JSON") from None
    runtimes = document.get("neuron_runtime_data") if isinstance(document, dict) else None
    if not isinstance(runtimes, list):
        raise SourceError("neuron-monitor: no neuron_runtime_data")
    reading = Reading(at)
    hardware = _object(document.get("neuron_hardware_info"))
    if hardware.get("error"):
        raise SourceError(f"neuron-monitor: {_shown(hardware['error'])}")
    reading.cores_per_device = _count(hardware.get("neuroncore_per_device_count")) or None
    reading.device_size = _count(hardware.get("neuron_device_memory_size")) or None
    for runtime in runtimes[:_MOST]:
        _take_runtime(reading, _object(runtime))
    return reading


def _take_runtime(reading: Reading, runtime: Mapping[str, Any]) -> None:
    pid = _count(runtime.get("pid"))
    memory = _object(_object(runtime.get("report")).get("memory_used"))
    for error in (runtime.get("error"), memory.get("error")):
        if error:
            reading.faults.append(f"runtime {pid}: {_shown(error)}")
    told = _object(memory.get("neuron_runtime_used_bytes"))
    cores = _object(_object(told.get("usage_breakdown")).get("neuroncore_memory_usage"))
    for name, parts in cores.items():
        counts = [_count(_object(parts).get(category)) for category in CATEGORIES if category in _object(parts)]
        core = _number(name)
        if core is None or not counts or None in counts:
            reading.faults.append(f"runtime {pid}: core {_shown(name)}: not counts")
            continue
        # Several runtimes name one core, those that do not own it with zeros: nothing is overwritten.
        reading.used[pid, core] += sum(count for count in counts if count is not None)


def from_page(text: str, at: float) -> Reading:
    """
    Return what the page of neuron-monitor-prometheus says; raise SourceError for what is none.

    A tag is the PID of its runtime unless somebody chose one.
    """
    # Part of what serves our own page, and needed here only.
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    reading = Reading(at)
    known = False
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                known = known or sample.name.startswith("neuron")
                _take_sample(reading, sample.name, sample.labels, sample.value)
    except ValueError as error:
        raise SourceError(f"neuron-monitor: no page of metrics: {_shown(error)}") from None
    if not known:
        raise SourceError("neuron-monitor: its page has no metric of neuron-monitor")
    return reading


def _take_sample(reading: Reading, name: str, labels: Mapping[str, str], value: float) -> None:
    if name == "neuron_hardware_info":
        reading.cores_per_device = _number(labels.get("neuroncore_per_device_count", "")) or None
        reading.device_size = _number(labels.get("neuron_device_memory_size", "")) or None
    elif name.startswith(_PAGE_PREFIX) and name.removeprefix(_PAGE_PREFIX) in CATEGORIES:
        core, bytes_used = _number(labels.get("neuroncore", "")), _count(value)
        if core is None or bytes_used is None:
            reading.faults.append(f"{name}: core {_shown(labels.get('neuroncore', ''))}: not a count")
        elif len(reading.used) < _MOST:
            reading.used[_number(labels.get("runtime_tag", "")), core] += bytes_used


def report(reading: Reading, *, host_pids: bool) -> DeviceReport:
    """
    Return the processes that hold each device, and the use by bank where that can be held against the driver's.

    With two cores a device each has a bank of its own, and its number is that of its bank. Elsewhere the runtime
    numbers cores by a table that is not known for every machine, and all that is certain is the device. Where the PIDs
    we see are not the host's (``host_pids`` is False) nobody can be named. No runtime is no figure, not zero.
    """
    if reading.cores_per_device is None:
        faults = [*reading.faults, "neuron-monitor: does not say how many cores a device has"] if reading.used else []
        return DeviceReport(faults=tuple(faults or reading.faults))
    single = reading.cores_per_device == _CORES_IN_BANKS_OF_THEIR_OWN and reading.device_size in (None, _BOTH_BANKS)
    by_device: dict[str, dict[int | None, int]] = defaultdict(lambda: defaultdict(int))
    for (pid, core), used in sorted(reading.used.items(), key=lambda item: item[0][1]):
        number, within = divmod(core, reading.cores_per_device)
        by_device[f"nd{number}/hbm{within}" if single else f"nd{number}"][pid] += used
    holders = tuple(
        Holders(device, reading.at, tuple(ProcessMemory(pid, used) for pid, used in held.items() if pid and used))
        for device, held in by_device.items()
    )
    checks = tuple(CrossCheck(device, reading.at, sum(held.values())) for device, held in by_device.items())
    return DeviceReport(
        holders=holders if host_pids else (), cross_checks=checks if single else (), faults=tuple(reading.faults)
    )


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    """Return a number of bytes; None for what none is, also where a figure went below zero and came back enormous."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        return None
    return int(value)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 16 else None  # noqa: PLR2004 - digits


def _shown(text: Any) -> str:
    """Return a short printable text for people."""
    return "".join(letter for letter in str(text)[:80] if letter.isprintable())
