"""The compute driver's view of the cards (KFD topology): their order in HIP, and whose memory they use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from budget_exporter.devices._sysfs import read_text
from budget_exporter.errors import SourceError

__all__ = ["KfdNode", "kfd_gpus", "kfd_nodes"]

_TOPOLOGY = "class/kfd/kfd/topology"
_TRIES = 3
# enum of the kernel's kfd_crat.h: frame buffer that the host can reach, and that it cannot.
_FRAME_BUFFER_HEAPS = (1, 2)


@dataclass(frozen=True, slots=True)
class KfdNode:
    """One GPU the compute runtime can open here."""

    pci: str
    order: int
    """Index in HIP before any ``*_VISIBLE_DEVICES``: 0 is the first readable GPU node."""
    holds_cpu: bool
    """CPU cores and SIMDs in one node: how kernels that still paired an APU's halves showed one."""
    memory: int | None
    """Bytes of device memory the runtime is told of (HIP's total); None where it cannot be read."""
    partitions: int = 1
    """Nodes of this card that can be opened: more than one where it is cut into partitions (MI300)."""


def kfd_nodes(sysfs: Path) -> Mapping[str, KfdNode]:
    """
    Return the GPU nodes of ``sysfs`` by PCI address; empty without KFD.

    A node outside the device cgroup reads as EPERM and is left out, as the runtime leaves it out (ROCr; kernel
    ``kfd_topology.c`` ``kfd_devcgroup_check_permission``). Several nodes of one card (MI300 partitions) count as the
    first. A topology that changed while it was read, or that cannot be understood, gives no order at all, since one
    unreadable node would shift the numbers of all that follow: the former returns empty, the latter raises SourceError.
    """
    nodes: dict[str, KfdNode] = {}
    for order, seen in enumerate(_visible_nodes(sysfs) or ()):
        node = KfdNode(_pci(seen), order, _holds_cpu(seen.properties), _memory(seen.path / "mem_banks"))
        first = nodes.setdefault(node.pci, node)
        if first is not node:
            nodes[node.pci] = replace(first, partitions=first.partitions + 1)
    return nodes


def kfd_gpus(sysfs: Path) -> Mapping[int, str]:
    """
    Return the PCI address of each GPU by the id that KFD names it by; empty without KFD.

    Several ids may lead to one card (MI300 partitions). A GPU outside the device cgroup is not among them. Raise
    SourceError where the topology cannot be understood, or changes each time it is read.
    """
    for _ in range(_TRIES):
        seen = _visible_nodes(sysfs)
        if seen is not None:
            return {node.gpu_id: _pci(node) for node in seen}
    raise SourceError("kfd topology: changed while it was read")


@dataclass(frozen=True, slots=True)
class _Visible:
    path: Path
    gpu_id: int
    properties: dict[str, int]


def _visible_nodes(sysfs: Path) -> list[_Visible] | None:
    """Return the GPU nodes that may be read, in KFD's order, none without KFD; None where they changed meanwhile."""
    root = sysfs / _TOPOLOGY
    try:
        before = read_text(root / "generation_id")
        paths = sorted(
            (p for p in (root / "nodes").iterdir() if re.fullmatch("[0-9]+", p.name)), key=lambda p: int(p.name)
        )
        seen = [_visible(path) for path in paths]
        if read_text(root / "generation_id") != before:
            return None
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SourceError(f"kfd topology: {error.strerror}: {error.filename}") from error
    return [node for node in seen if node is not None]


def _visible(path: Path) -> _Visible | None:
    """Return a GPU node; None for a CPU's (id 0), for one hidden from us and for one just removed."""
    try:
        gpu_id = read_text(path / "gpu_id")
        text = read_text(path / "properties")
    except (PermissionError, FileNotFoundError):
        return None
    if gpu_id in {"", "0"}:
        return None
    if not re.fullmatch("[0-9]{1,10}", gpu_id):
        raise SourceError(f"kfd topology: node {path.name}: gpu_id is no number: {gpu_id[:24]!r}")
    return _Visible(path, int(gpu_id), _properties(path, text))


def _properties(path: Path, text: str) -> dict[str, int]:
    pairs = [line.split() for line in text.splitlines()]
    try:
        return {key: int(value) for key, value in pairs}
    except ValueError as error:
        raise SourceError(f"kfd topology: node {path.name}: properties are not key and number") from error


def _pci(node: _Visible) -> str:
    location = node.properties.get("location_id")
    if location is None:
        raise SourceError(f"kfd topology: node {node.path.name}: no location_id")
    # bus, device and function as PCI packs them; bits 28 to 31 number a partition and are not part of the address.
    domain = node.properties.get("domain", 0)
    return f"{domain:04x}:{location >> 8 & 255:02x}:{location >> 3 & 31:02x}.{location & 7}"


def _holds_cpu(properties: Mapping[str, int]) -> bool:
    return properties.get("cpu_cores_count", 0) > 0 and properties.get("simd_count", 0) > 0


def _memory(banks: Path) -> int | None:
    """Return the sum of the frame-buffer banks in bytes, None where none can be read."""
    try:
        properties = [_properties(bank, read_text(bank / "properties")) for bank in banks.iterdir()]
    except (OSError, SourceError):
        return None
    sizes = [p.get("size_in_bytes", 0) for p in properties if p.get("heap_type") in _FRAME_BUFFER_HEAPS]
    return sum(sizes) if sizes else None
