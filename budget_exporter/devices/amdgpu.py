"""
AMD cards through the amdgpu driver's sysfs files: no library, no device node, no permission needed.

Facts of the driver this rests on, from the kernel's ``amdgpu_vram_mgr.c`` and ``amdgpu_gtt_mgr.c`` (6.12 and 7.2):
``mem_info_*`` are decimal bytes with a newline, printed from a counter in memory, so that reading them neither wakes
a suspended card nor waits for it. ``mem_info_vram_used`` counts every client: compute, graphics, page tables, firmware.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from budget_exporter.devices._amd_card import AmdCard
from budget_exporter.devices._amd_kfd import KfdNode, kfd_nodes
from budget_exporter.devices._amd_listing import listed
from budget_exporter.devices._sysfs import read_text
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceReport, DeviceSample
from budget_exporter.roots import Roots

__all__ = ["AmdgpuSource", "source"]

# A kept descriptor on a removed file goes on answering, so this is how long a vanished card can be believed in.
_RESTAT_SECONDS = 1.0


def source(
    roots: Roots,
    interval: float = 0.1,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    forget_after: float = 600.0,
) -> AmdgpuSource:
    """
    Return the source of the amdgpu cards under ``roots.sysfs``.

    ``interval`` is the seconds between two reads, ``clock`` gives Unix time and ``monotonic`` a time that never jumps.
    A card that was seen and is gone makes the source fail for ``forget_after`` seconds: long enough for a page, and
    then an operator who took a card out for good has no source that fails for ever.
    """
    return AmdgpuSource(roots, interval, clock, monotonic, forget_after)


class AmdgpuSource:
    """Sample every amdgpu card; not for use by two threads at once."""

    name = "amdgpu"

    def __init__(
        self,
        roots: Roots,
        interval: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        forget_after: float,
    ) -> None:
        self.interval = interval
        self._sysfs = roots.sysfs
        self._clock = clock
        self._monotonic = monotonic
        self._forget_after = forget_after
        self._cards: dict[str, AmdCard] = {}
        self._faults: list[str] = []
        self._refreshed: float | None = None

    def read(self, interest: frozenset[int]) -> DeviceReport:  # noqa: ARG002 - sysfs counts the card, not processes
        """
        Return one sample of every card, by PCI address.

        A host without any amdgpu card is an empty report and no fault. A card that fails alone is a fault, and so is
        one that vanished while others answer. Raise SourceError where every card that was seen is gone, or the list
        of cards cannot be read.
        """
        now = self._monotonic()
        if self._refreshed is None or now - self._refreshed >= _RESTAT_SECONDS:
            self._refresh(now)
            self._refreshed = now
        at = self._clock()
        faults = list(self._faults)
        samples: list[DeviceSample] = []
        for card in self._cards.values():
            if card.gone_since is not None:
                faults.append(f"{card.pci}: no longer listed in class/drm")
            elif (sample := card.sample(at, faults)) is not None:
                samples.append(sample)
        if self._cards and all(card.gone_since is not None for card in self._cards.values()):
            raise SourceError("; ".join(faults))
        return DeviceReport(tuple(samples), tuple(faults))

    def close(self) -> None:
        """Release every descriptor."""
        for card in self._cards.values():
            card.close()
        self._cards.clear()

    def _refresh(self, now: float) -> None:
        """Look which cards there are, and whether the kept descriptors still lead to their files."""
        found, self._faults = listed(self._sysfs)
        nodes = self._nodes() if found else {}
        driver = self._driver() if found else ""
        for pci, listing in found.items():
            if pci not in self._cards:
                self._cards[pci] = AmdCard(listing)
            self._cards[pci].refresh(listing, nodes.get(pci), driver)
        for pci in self._cards.keys() - found.keys():
            self._cards[pci].lose(now)
        kept = sorted(card.pci for card in self._cards.values() if not self._is_forgotten(card, now))
        self._cards = {pci: self._cards[pci] for pci in kept}

    def _is_forgotten(self, card: AmdCard, now: float) -> bool:
        return card.gone_since is not None and now - card.gone_since >= self._forget_after

    def _nodes(self) -> Mapping[str, KfdNode]:
        try:
            return kfd_nodes(self._sysfs)
        except SourceError as error:
            self._faults.append(str(error))
            return {}

    def _driver(self) -> str:
        """Return the module's version (only out-of-tree builds have one), else its name."""
        try:
            return read_text(self._sysfs / "module/amdgpu/version") or "amdgpu"
        except OSError:
            return "amdgpu"
