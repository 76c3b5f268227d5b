"""A synthetic host with Gaudi cards: sysfs of habanalabs, records in /dev/shm, an hl-smi that is a script."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.demo._tree_files import write
from budget_exporter.roots import Roots
from budget_exporter.units import MIB

__all__ = ["FIRST", "NOW", "PAIR", "SECOND", "GaudiCard", "GaudiHost"]

FIRST, SECOND = "0000:33:00.0", "0000:b3:00.0"
NOW = 1.8e9


@dataclass(frozen=True, slots=True)
class GaudiCard:
    """``minor`` is N of accel<N>, ``module`` the place the runtime gives it: they differ."""

    pci: str
    minor: int
    module: int
    size: int = 98304 * MIB
    used: int = 768 * MIB


PAIR = (GaudiCard(FIRST, minor=0, module=3), GaudiCard(SECOND, minor=1, module=2))


class GaudiHost:
    """The trees below ``root``; every path is what the source is pointed at."""

    def __init__(self, root: Path, cards: tuple[GaudiCard, ...] = PAIR) -> None:
        self.root = root
        self.roots = Roots(sysfs=root / "sys", procfs=root / "proc", rootfs=root / "host")
        self.hl_smi = root / "bin/hl-smi"
        for folder in (self.roots.sysfs, self.roots.procfs, self.roots.rootfs / "dev/shm"):
            folder.mkdir(parents=True)
        for card in cards:
            self.lay(card)

    def lay(self, card: GaudiCard) -> None:
        device = self.roots.sysfs / f"class/accel/accel{card.minor}/device"
        write(device / "device_type", "GAUDI2")
        write(device / "pci_addr", card.pci)
        write(device / "module_id", str(card.module))

    def record(
        self, minor: int, used: int, *, at: float = NOW, version: int = 1, pid: int | None = None, data: bytes = b""
    ) -> None:
        """Write what the framework of a process does; with ``pid`` into that process's own /dev/shm."""
        root = self.roots.rootfs if pid is None else self.roots.procfs / f"{pid}/root"
        write(root / f"dev/shm/mem_usage_accel{minor}", data or struct.pack("<QQQ", version, int(at), used))

    def script(self, body: str) -> None:
        write(self.hl_smi, f"#!/bin/sh\n{body}\n")
        self.hl_smi.chmod(0o755)

    def table(self, text: str) -> None:
        """Make hl-smi print ``text``, whatever it is asked."""
        write(self.root / "table", text)
        self.script(f"cat {self.root / 'table'}")

    def cards(self, *cards: GaudiCard) -> None:
        """Make hl-smi print these cards; its index is neither minor nor module."""
        rows = [
            f"{card.pci}, {card.size // MIB}, {card.used // MIB}, {card.module}, HL-225, uuid-{card.module}"
            for card in cards
        ]
        self.table("\n".join(["bus_id, memory.total [MiB], memory.used [MiB], module_id, name, uuid", *rows]))
