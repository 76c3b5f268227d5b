"""The compute driver's (KFD) part of the synthetic tree: topology nodes and per-process counters."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path

from budget_exporter.demo._amdgpu_card import Card
from budget_exporter.demo._tree_files import link, rewrite, write
from budget_exporter.units import GIB

__all__ = [
    "add_kfd_process",
    "gpu_id_of",
    "lay_cpu_node",
    "lay_gpu_node",
    "remove_gpu_node",
    "remove_kfd_process",
    "set_evicted",
]

_KFD = "devices/virtual/kfd/kfd"
_NODES = f"{_KFD}/topology/nodes"
_GFX1201 = 120001
# Every property of a node, in the kernel's order (kfd_topology.c, node_show).
_PROPERTIES = (
    "cpu_cores_count",
    "simd_count",
    "mem_banks_count",
    "caches_count",
    "io_links_count",
    "p2p_links_count",
    "cpu_core_id_base",
    "simd_id_base",
    "max_waves_per_simd",
    "lds_size_in_kb",
    "gds_size_in_kb",
    "num_gws",
    "wave_front_size",
    "array_count",
    "simd_arrays_per_engine",
    "cu_per_simd_array",
    "simd_per_cu",
    "max_slots_scratch_cu",
    "gfx_target_version",
    "vendor_id",
    "device_id",
    "location_id",
    "domain",
    "drm_render_minor",
    "hive_id",
    "num_sdma_engines",
    "num_sdma_xgmi_engines",
    "num_sdma_queues_per_engine",
    "num_cp_queues",
    "max_engine_clk_fcompute",
    "local_mem_size",
    "fw_version",
    "capability",
    "capability2",
    "debug_prop",
    "sdma_fw_version",
    "unique_id",
    "num_xcc",
    "max_engine_clk_ccompute",
)


def gpu_id_of(pci: str) -> int:
    """Return the 16-bit id by which KFD names the card at ``pci``: a hash of its place, never 0."""
    return zlib.crc32(pci.encode()) & 0xFFFF or 1


def lay_cpu_node(sysfs: Path) -> None:
    """Write node 0, the processor's, and an empty list of processes."""
    topology = sysfs / _KFD / "topology"
    write(topology / "generation_id", "1")
    write(topology / "system_properties", "platform_oem 35498446626881\nplatform_id 35322352389441\nplatform_rev 2")
    _lay_node(topology / "nodes/0", 0, "", _properties(cpu_cores_count=16, mem_banks_count=1))
    bank = f"heap_type 0\nsize_in_bytes {124 * GIB}\nflags 0\nwidth 64\nmem_clk_max 4800"
    write(topology / "nodes/0/mem_banks/0/properties", bank)
    (topology / "nodes/0/io_links").mkdir(parents=True)
    (sysfs / _KFD / "proc").mkdir(parents=True)
    write(sysfs / _KFD / "dev", "240:0")
    link(sysfs / "class/kfd/kfd", sysfs / _KFD)


def lay_gpu_node(sysfs: Path, card: Card) -> None:
    """Write the KFD node of ``card``, if it has one; a hidden one has its files and no text in them."""
    if card.kfd_node is None:
        return
    node = sysfs / _NODES / str(card.kfd_node)
    name = "gfx1201" if card.gfx_version == _GFX1201 else "raphael"
    _lay_node(node, gpu_id_of(card.pci), name, _gpu_properties(card))
    if card.kfd_hidden:
        for file in ("gpu_id", "name", "properties"):
            write(node / file, b"")
    memory = card.size if card.kfd_memory is None else card.kfd_memory
    write(node / "mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {memory}\nflags 0\nwidth 256\nmem_clk_max 1258")
    write(
        node / "io_links/0/properties",
        f"type 2\nversion_major 0\nversion_minor 0\nnode_from {card.kfd_node}\nnode_to 0\nweight 20\nmin_latency 0\n"
        "max_latency 0\nmin_bandwidth 0\nmax_bandwidth 64000\nrecommended_transfer_size 0\n"
        "recommended_sdma_engine_id_mask 0\nflags 1",
    )
    _count_generation(sysfs)


def remove_gpu_node(sysfs: Path, pci: str) -> None:
    """Remove the node at ``pci``, if there is one that can be read."""
    for node, address in _readable_nodes(sysfs).items():
        if address == pci:
            shutil.rmtree(node)
            _count_generation(sysfs)


def add_kfd_process(sysfs: Path, pid: int, used: Mapping[str, int], pasid: int = 32770) -> None:
    """
    Say that process ``pid`` (of the host) holds ``used`` bytes by PCI address; a second call changes the figures.

    As the driver does, every card gets its files, whether the process opened it or not; no reader sees half of them.
    """
    process = sysfs / _KFD / "proc" / str(pid)
    if process.exists():
        for pci in _readable_nodes(sysfs).values():
            rewrite(process / f"vram_{gpu_id_of(pci)}", str(used.get(pci, 0)))
        return
    new = process.with_name(f".new-{pid}")
    write(new / "pasid", str(pasid))
    (new / "queues").mkdir()
    for number, pci in enumerate(_readable_nodes(sysfs).values()):
        gpu_id = gpu_id_of(pci)
        write(new / f"vram_{gpu_id}", str(used.get(pci, 0)))
        for name in ("sdma_{}", "stats_{}/evicted_ms", "stats_{}/cu_occupancy", "counters_{}/faults"):
            write(new / name.format(gpu_id), "0")
        if used.get(pci):
            for name, text in (("gpuid", str(gpu_id)), ("size", "8388608"), ("type", "0")):
                write(new / "queues" / str(number) / name, text)
    new.rename(process)


def remove_kfd_process(sysfs: Path, pid: int) -> None:
    """Let the process end: from one moment to the next it is no longer listed."""
    process = sysfs / _KFD / "proc" / str(pid)
    shutil.rmtree(process.rename(process.with_name(f".old-{pid}")))


def set_evicted(sysfs: Path, pid: int, pci: str, milliseconds: int) -> None:
    """Say for how long the queues of process ``pid`` on the card at ``pci`` were stopped."""
    rewrite(sysfs / _KFD / "proc" / str(pid) / f"stats_{gpu_id_of(pci)}/evicted_ms", str(milliseconds))


def _readable_nodes(sysfs: Path) -> dict[Path, str]:
    """Return the GPU nodes that are not hidden, in KFD's order, and their PCI addresses."""
    nodes = {}
    for path in sorted((sysfs / _NODES).iterdir(), key=lambda p: int(p.name)):
        properties = dict(line.split() for line in (path / "properties").read_text().splitlines())
        if properties.get("simd_count", "0") != "0":
            location = int(properties["location_id"])
            bus, slot = location >> 8, location & 0xFF
            nodes[path] = f"{int(properties['domain']):04x}:{bus:02x}:{slot >> 3:02x}.{slot & 7}"
    return nodes


def _count_generation(sysfs: Path) -> None:
    path = sysfs / _KFD / "topology/generation_id"
    rewrite(path, str(int(path.read_text()) + 1))


def _lay_node(node: Path, gpu_id: int, name: str, properties: Mapping[str, int]) -> None:
    write(node / "gpu_id", str(gpu_id))
    write(node / "name", name)
    write(node / "properties", "".join(f"{key} {value}\n" for key, value in properties.items()))


def _gpu_properties(card: Card) -> dict[str, int]:
    domain, bus, rest = card.pci.split(":")
    slot, function = rest.split(".")
    return _properties(
        cpu_cores_count=card.cpu_cores,
        simd_count=128,
        mem_banks_count=1,
        io_links_count=1,
        simd_id_base=2147487744,
        max_waves_per_simd=16,
        lds_size_in_kb=64,
        num_gws=64,
        wave_front_size=32,
        array_count=8,
        simd_arrays_per_engine=2,
        cu_per_simd_array=8,
        simd_per_cu=2,
        max_slots_scratch_cu=32,
        gfx_target_version=card.gfx_version,
        vendor_id=0x1002,
        device_id=card.device_id,
        location_id=int(bus, 16) << 8 | int(slot, 16) << 3 | int(function, 16),
        domain=int(domain, 16),
        drm_render_minor=card.render_minor,
        num_sdma_engines=2,
        num_sdma_queues_per_engine=8,
        num_cp_queues=8,
        max_engine_clk_fcompute=2920,
        fw_version=2970,
        capability=2821488256,
        debug_prop=1511,
        sdma_fw_version=848,
        unique_id=card.unique_id,
        num_xcc=1,
    )


def _properties(**given: int) -> dict[str, int]:
    """Return all properties of a node, 0 where not ``given``."""
    return {name: given.get(name, 0) for name in _PROPERTIES}
