"""
A synthetic sysfs with amdgpu cards, for the demo host and for tests.

It is a plain directory that needs no privilege: our reader takes it by ``--path.sysfs``, and the real rocm-smi 5.2.3
and pyrsmi 0.2.0 read it when it is bound over ``/sys`` in a private mount namespace. What it cannot show: how a real
kernel times its reads, evictions, and anything behind a device node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from budget_exporter.demo._amdgpu_card import (
    R9700_IDLE_USED,
    R9700_SIZE,
    Card,
    device_path,
    lay_card,
    remove_card_files,
)
from budget_exporter.demo._kfd_tree import (
    add_kfd_process,
    gpu_id_of,
    lay_cpu_node,
    lay_gpu_node,
    remove_gpu_node,
    remove_kfd_process,
    set_evicted,
)
from budget_exporter.demo._tree_files import rewrite, write
from budget_exporter.units import GIB, MIB

__all__ = [
    "R9700_IDLE_USED",
    "R9700_PAIR",
    "R9700_SIZE",
    "TOPOLOGIES",
    "Card",
    "add_card",
    "add_kfd_process",
    "build",
    "card_directory",
    "gpu_id_of",
    "remove_card",
    "remove_kfd_process",
    "set_evicted",
    "set_used",
]

_SECOND_UNIQUE_ID = 0x6B1C001234ABCD01

R9700_PAIR: tuple[Card, Card] = (
    Card(),
    Card(pci="0000:06:00.0", number=2, render_minor=129, kfd_node=2, unique_id=_SECOND_UNIQUE_ID),
)
"""Two idle Radeon AI PRO R9700 at 0000:03:00.0 and 0000:06:00.0, card1 and card2."""

_RAPHAEL = Card(
    pci="0000:7b:00.0",
    number=0,
    render_minor=128,
    used=600 * MIB,
    size=2 * GIB,
    gtt_used=900 * MIB,
    device_id=0x13C0,
    revision=0xC9,
    unique_id=0,
    gfx_version=100306,
    connectors=3,
    kfd_node=1,
)

TOPOLOGIES: Mapping[str, tuple[Card, ...]] = {
    "two cards": R9700_PAIR,
    "iGPU first": (
        _RAPHAEL,
        Card(render_minor=129, kfd_node=2),
        Card(pci="0000:06:00.0", number=2, render_minor=130, kfd_node=3, unique_id=_SECOND_UNIQUE_ID),
    ),
    "KFD reversed": (
        Card(kfd_node=2),
        Card(pci="0000:06:00.0", number=2, render_minor=129, kfd_node=1, unique_id=_SECOND_UNIQUE_ID),
    ),
    "first card hidden": (
        Card(kfd_hidden=True),
        R9700_PAIR[1],
    ),
    "numbered from 5": (
        Card(number=5, connectors=0),
        Card(
            pci="0000:06:00.0",
            number=6,
            render_minor=129,
            kfd_node=2,
            unique_id=_SECOND_UNIQUE_ID,
            connectors=0,
        ),
    ),
}
"""Five hosts on which cardN, KFD, HIP and the SMI tools number the same two cards differently."""


def build(sysfs: Path, cards: Sequence[Card] = R9700_PAIR, module_version: str | None = None) -> None:
    """
    Write a sysfs with ``cards`` into the new or empty directory ``sysfs``.

    ``module_version`` is that of an out-of-tree amdgpu (6.14.14, say); the kernel's own has none. Raise
    FileExistsError where the directory is not empty: a tree is changed in place, not laid over another.
    """
    sysfs.mkdir(parents=True, exist_ok=True)
    if any(sysfs.iterdir()):
        raise FileExistsError(f"{sysfs} is not empty")
    folders = (
        "bus/event_source/devices",
        "class/hwmon",
        "class/misc",
        "class/net",
        "class/pci_bus",
        "dev/char",
        "devices/system/cpu",
        "fs/cgroup",
        "kernel/debug/dri",
    )
    for folder in folders:
        (sysfs / folder).mkdir(parents=True)
    write(sysfs / "class/drm/version", "drm 1.1.0 20060810")
    for name in ("present", "possible", "online"):
        write(sysfs / "devices/system/cpu" / name, "0-1")
    write(sysfs / "devices/system/node/node0/cpulist", "0-1")
    write(sysfs / "module/amdgpu/initstate", "live")
    write(sysfs / "module/amdgpu/refcnt", "3")
    if module_version is not None:
        write(sysfs / "module/amdgpu/version", module_version)
    lay_cpu_node(sysfs)
    for card in cards:
        add_card(sysfs, card)


def add_card(sysfs: Path, card: Card) -> None:
    """Plug ``card`` in: its device, its links, its KFD node."""
    lay_card(sysfs, card)
    lay_gpu_node(sysfs, card)


def remove_card(sysfs: Path, pci: str) -> None:
    """Let the card at ``pci`` vanish, as after a failed reset; descriptors held on its files go on answering."""
    remove_card_files(sysfs, pci)
    remove_gpu_node(sysfs, pci)


def card_directory(sysfs: Path, pci: str) -> Path:
    """Return the directory that holds the ``mem_info_*`` files of the card at ``pci``."""
    return device_path(sysfs, pci)


def set_used(sysfs: Path, pci: str, used: int, gtt_used: int | None = None) -> None:
    """
    Change what the card at ``pci`` says is in use, in bytes of VRAM and, if given, of GTT.

    The files keep their inodes and are at no time empty, as in a real sysfs.
    """
    device = device_path(sysfs, pci)
    rewrite(device / "mem_info_vis_vram_used", str(used))
    rewrite(device / "mem_info_vram_used", str(used))
    if gtt_used is not None:
        rewrite(device / "mem_info_gtt_used", str(gtt_used))
