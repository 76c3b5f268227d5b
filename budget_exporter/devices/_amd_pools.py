"""Which of two pools an AMD card's memory is: its own, or that part of the host's which it maps."""

from __future__ import annotations

from pathlib import Path

from budget_exporter.devices._amd_card import is_unified
from budget_exporter.devices._amd_kfd import kfd_nodes
from budget_exporter.devices._amd_listing import Listing, listed
from budget_exporter.devices._sysfs import read_count
from budget_exporter.errors import SourceError

__all__ = ["Pools"]


class Pools:
    """The cards of one moment; what is wrong with their list is said by the source that samples them."""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._known: dict[str, bool] = {}
        try:
            self.cards = listed(sysfs)[0]
        except SourceError:
            self.cards = {}

    def unified(self, device: str) -> bool:
        """Return whether what is called GTT is the memory of the card at this PCI address; looked up when asked."""
        if device not in self._known:
            self._known[device] = device in self.cards and self._look(self.cards[device])
        return self._known[device]

    def _look(self, card: Listing) -> bool:
        try:
            vram = read_count(card.directory / "mem_info_vram_total")
            gtt = read_count(card.directory / "mem_info_gtt_total")
            return is_unified(vram, gtt, kfd_nodes(self._sysfs).get(card.pci))
        except (OSError, ValueError, SourceError):
            return False
