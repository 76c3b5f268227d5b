"""
One synthetic amdgpu card: what the driver lays below its PCI device, and the links that lead there.

The real rocm-smi 5.2.3 and pyrsmi 0.2.0 accept the result. They need: ``class/drm/cardN`` a symlink whose target holds
the PCI address, ``vendor``, ``vbios_version``, a KFD node at the same address, and ``module/amdgpu/initstate``.
"""

from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.demo._tree_files import link, write
from budget_exporter.units import GIB, MIB

__all__ = ["R9700_IDLE_USED", "R9700_SIZE", "Card", "lay_card", "remove_card_files"]

R9700_SIZE = 32624 * MIB
"""34208743424 B, what the driver of a Radeon AI PRO R9700 reports (its firmware's MEMSIZE register)."""
R9700_IDLE_USED = 57 * MIB
"""Use of an idle R9700 in a public report (ROCm issue 5832); firmware and page tables, no client."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card to synthesize; sizes in bytes. The defaults are the first of two Radeon AI PRO R9700."""

    pci: str = "0000:03:00.0"
    number: int = 1
    """N of ``cardN``: need not start at 0, and may move between boots."""
    render_minor: int = 128
    used: int = R9700_IDLE_USED
    size: int = R9700_SIZE
    gtt_used: int | None = 14 * MIB
    """None: no GTT files."""
    gtt_size: int = 62 * GIB
    device_id: int = 0x7551
    revision: int = 0xC0
    unique_id: int = 0x6B1C001234ABCD00
    """0: the driver prints nothing, as for chips that have none."""
    product_name: str = ""
    """Empty: no such file. An R9700 has no EEPROM to take one from."""
    gfx_version: int = 120001
    connectors: int = 4
    kfd_node: int | None = 1
    """Number of its KFD node, which is its place in HIP's order; None: the compute driver does not know it."""
    kfd_hidden: bool = False
    """The node is there and may not be read, as in a container that was given other cards."""
    kfd_memory: int | None = None
    """Size of its KFD memory bank where it is not ``size`` (an APU that allocates from GTT)."""
    cpu_cores: int = 0
    """Above 0: an APU as kernels showed it that paired CPU and GPU in one KFD node."""


def device_path(sysfs: Path, pci: str) -> Path:
    """Return the directory of a PCI device two bridges below a root port."""
    domain, bus, _ = pci.split(":")
    bridges = [f"{domain}:{(int(bus, 16) - n) & 0xFF:02x}:00.0" for n in (2, 1)]
    return sysfs / f"devices/pci{domain}:00" / "0000:00:01.1" / bridges[0] / bridges[1] / pci


def lay_card(sysfs: Path, card: Card) -> None:
    """Write everything of ``card`` but its KFD node."""
    device = device_path(sysfs, card.pci)
    files = _identity(card) | _memory(card) | _power(card)
    for name, text in files.items():
        write(device / name, text)
    for name in ("ras", "fw_version"):
        (device / name).mkdir(exist_ok=True)
    _lay_hwmon(sysfs, device, card)
    _lay_drm_nodes(sysfs, device, card)
    link(sysfs / "bus/pci/devices" / card.pci, device)
    link(sysfs / "bus/pci/drivers/amdgpu" / card.pci, device)
    link(device / "driver", sysfs / "bus/pci/drivers/amdgpu")
    link(device / "subsystem", sysfs / "bus/pci")


def remove_card_files(sysfs: Path, pci: str) -> None:
    """Remove every link that leads to the card, then the card: nothing may dangle."""
    device = device_path(sysfs, pci)
    folders = ("class/drm", "class/hwmon", "dev/char", "bus/pci/devices", "bus/pci/drivers/amdgpu")
    for path in [path for folder in folders for path in (sysfs / folder).iterdir()]:
        if path.is_symlink() and path.resolve().is_relative_to(device.resolve()):
            path.unlink()
    shutil.rmtree(device)


def _identity(card: Card) -> dict[str, str]:
    uevent = (
        f"DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_ID=1002:{card.device_id:04X}\nPCI_SUBSYS_ID=1002:0E3B\n"
        f"PCI_SLOT_NAME={card.pci}\n"
        f"MODALIAS=pci:v00001002d{card.device_id:08X}sv00001002sd00000E3Bbc03sc00i00\n"
    )
    named = {"product_name": card.product_name} if card.product_name else {}
    return named | {
        "uevent": uevent,
        "vendor": "0x1002",
        "device": f"0x{card.device_id:04x}",
        "subsystem_vendor": "0x1002",
        "subsystem_device": "0x0e3b",
        "revision": f"0x{card.revision:02x}",
        "class": "0x030000",
        "boot_vga": "0",
        "numa_node": "-1",
        "enable": "1",
        "unique_id": f"{card.unique_id:016x}" if card.unique_id else "",
        "vbios_version": "113-48XT1GHDH-XXX",
    }


def _memory(card: Card) -> dict[str, str]:
    gtt = {} if card.gtt_used is None else {"gtt_total": card.gtt_size, "gtt_used": card.gtt_used}
    counters = gtt | {
        "vram_total": card.size,
        "vram_used": card.used,
        "vis_vram_total": card.size,
        "vis_vram_used": card.used,
        "preempt_used": 0,
    }
    return {f"mem_info_{name}": str(value) for name, value in counters.items()} | {"mem_info_vram_vendor": "samsung"}


def _power(card: Card) -> dict[str, str | bytes]:
    """Return what a rocm-smi without arguments prints besides memory: an idle card."""
    return {
        "gpu_busy_percent": "0",
        "mem_busy_percent": "0",
        "power_dpm_force_performance_level": "auto",
        "power_dpm_state": "performance",
        "pp_dpm_sclk": "0: 500Mhz *\n1: 0Mhz \n2: 2920Mhz \n",
        "pp_dpm_mclk": "0: 96Mhz *\n1: 456Mhz \n2: 1258Mhz \n",
        "pp_dpm_socclk": "0: 500Mhz *\n1: 1200Mhz \n",
        "pp_dpm_fclk": "0: 500Mhz *\n1: 2000Mhz \n",
        "pp_dpm_pcie": "0: 2.5GT/s, x1 619Mhz \n1: 32.0GT/s, x16 619Mhz *\n",
        "pp_power_profile_mode": " 0 BOOTUP_DEFAULT*:\n 1 3D_FULL_SCREEN :\n 5 COMPUTE :\n",
        "pcie_bw": "0 0 256",
        "pcie_replay_count": "0",
        "current_link_speed": "32.0 GT/s PCIe",
        "current_link_width": "16",
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
        "gpu_metrics": _gpu_metrics(),
        "thermal_throttling_logging": f"{card.pci}: thermal throttling logging enabled, with interval 60 seconds",
        "power/runtime_status": "active",
        "power/control": "auto",
    }


def _gpu_metrics(celsius: int = 45, watts: int = 30) -> bytes:
    """Return a ``struct gpu_metrics_v1_3`` (kernel ``kgd_pp_interface.h``, 120 bytes); all ones mean "not known"."""
    data = bytearray(b"\xff" * 120)
    struct.pack_into("<HBB", data, 0, 120, 1, 3)
    struct.pack_into("<6H", data, 4, celsius, celsius + 5, celsius + 3, celsius, celsius, celsius)
    struct.pack_into("<3H", data, 16, 0, 0, 0)
    struct.pack_into("<H", data, 22, watts)
    struct.pack_into("<Q", data, 24, 0)
    return bytes(data)


def _lay_hwmon(sysfs: Path, device: Path, card: Card) -> None:
    name = f"hwmon{card.number + 3}"
    files = {
        "name": "amdgpu",
        "power1_average": "24000000",
        "power1_label": "PPT",
        "power1_cap": "300000000",
        "power1_cap_max": "300000000",
        "power1_cap_min": "210000000",
        "power1_cap_default": "300000000",
        "fan1_input": "0",
        "pwm1": "0",
        "pwm1_max": "255",
        "in0_input": "768",
        "in0_label": "vddgfx",
        "freq1_input": "500000000",
        "freq1_label": "sclk",
    }
    for index, (label, millidegrees) in enumerate((("edge", 41000), ("junction", 46000), ("mem", 52000)), start=1):
        files |= {
            f"temp{index}_label": label,
            f"temp{index}_input": str(millidegrees),
            f"temp{index}_crit": "110000",
            f"temp{index}_emergency": "115000",
            f"temp{index}_crit_hyst": "-273150",
        }
    for file, text in files.items():
        write(device / "hwmon" / name / file, text)
    link(device / "hwmon" / name / "device", device)
    link(sysfs / "class/hwmon" / name, device / "hwmon" / name)


def _lay_drm_nodes(sysfs: Path, device: Path, card: Card) -> None:
    for name, minor in ((f"card{card.number}", card.number), (f"renderD{card.render_minor}", card.render_minor)):
        node = device / "drm" / name
        write(node / "dev", f"226:{minor}")
        write(node / "uevent", f"MAJOR=226\nMINOR={minor}\nDEVNAME=dri/{name}\nDEVTYPE=drm_minor")
        link(node / "device", device)
        link(sysfs / "class/drm" / name, node)
        link(sysfs / "dev/char" / f"226:{minor}", node)
    for port in range(1, card.connectors + 1):
        connector = device / "drm" / f"card{card.number}" / f"card{card.number}-DP-{port}"
        write(connector / "status", "disconnected")
        link(sysfs / "class/drm" / connector.name, connector)
