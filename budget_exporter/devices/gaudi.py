"""
Intel Gaudi cards: the driver's figures by libhlml or hl-smi, and the framework's own beside them.

Two figures of use exist and both are true. The driver's (``used``) holds the whole pool from the framework's first
allocation on; what lies inside the pool (``allocator_used``), which the engine's budget and log speak of, is told by a
record that each process writes to ``/dev/shm``. Cards are keyed by PCI address; ``order`` is the module id, which
``HABANA_VISIBLE_MODULES`` and the engine's ranks go by. The indexes of HLML and hl-smi are neither of these.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from budget_exporter.devices import _gaudi_listing, _gaudi_record
from budget_exporter.devices._gaudi_hlml import LIBRARY, Hlml
from budget_exporter.devices._gaudi_listing import GaudiListing
from budget_exporter.devices._gaudi_reading import GaudiReading
from budget_exporter.devices._gaudi_smi import HlSmi
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import DeviceIdentity, DeviceReport, DeviceSample, MemorySample
from budget_exporter.roots import Roots

__all__ = ["GaudiSource", "source"]

# One run of hl-smi takes up to 3 s, and every one asks each card's firmware.
_HL_SMI_INTERVAL = 10.0
# Below the 5 s after which the run of a source counts as one that hangs.
_HL_SMI_LIMIT = 4.0


def source(
    roots: Roots,
    interval: float = 1.0,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    hl_smi: str = "hl-smi",
    forget_after: float = 600.0,
) -> GaudiSource:
    """
    Return the source of the Gaudi cards of this host.

    ``interval`` is the seconds between two reads by libhlml; hl-smi, which is run only without it, has ten at least.
    ``clock`` gives Unix time, ``monotonic`` a time that never jumps, ``hl_smi`` is the command's name or path. A card
    that answered and is gone makes the source fail for ``forget_after`` seconds.
    """
    return GaudiSource(roots, interval, clock, monotonic, hl_smi, forget_after)


class GaudiSource:
    """Sample every Gaudi card; not for use by two threads at once."""

    name = "gaudi"

    def __init__(
        self,
        roots: Roots,
        interval: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        hl_smi: str,
        forget_after: float,
    ) -> None:
        self._roots = roots
        self._wanted = interval
        self._clock = clock
        self._monotonic = monotonic
        self._forget_after = forget_after
        self._hlml = Hlml()
        self._hl_smi = HlSmi(hl_smi, _HL_SMI_LIMIT)
        self._by_child = not Hlml.there()
        self._child_due: float | None = None
        self._child_faults: tuple[str, ...] = ()
        self._seen: dict[str, float] = {}
        """When each card answered last, by the clock that never jumps."""

    @property
    def interval(self) -> float:
        """Return the seconds between two samples, which hl-smi makes longer."""
        return max(self._wanted, _HL_SMI_INTERVAL) if self._by_child else self._wanted

    def read(self, interest: frozenset[int]) -> DeviceReport:
        """
        Return one sample of every card, by PCI address.

        A host without any Gaudi is an empty report and no fault, and nothing is loaded for it. A card that fails alone
        is a fault, and so is one that answered before and no longer does. Between two runs of hl-smi the report is
        empty. Raise SourceError where nothing can be read at all. ``interest`` are the processes in whose own
        ``/dev/shm`` the framework's record may lie.
        """
        cards, faults = _gaudi_listing.listed(self._roots.sysfs)
        now = self._monotonic()
        if not cards and not faults and not self._seen:
            return DeviceReport()
        if self._by_child and self._child_due is not None and now < self._child_due:
            return DeviceReport(faults=self._child_faults)
        try:
            report = self._sampled(cards, faults, interest, now)
        except SourceError as error:
            self._child_faults = (str(error),)
            raise
        self._child_faults = report.faults
        return report

    def close(self) -> None:
        """Let go of the library."""
        self._hlml.close()

    def _sampled(
        self, cards: dict[str, GaudiListing], faults: list[str], interest: frozenset[int], now: float
    ) -> DeviceReport:
        readings, unread = self._read_driver(now)
        faults = [*faults, *unread]
        faults += self._gone({reading.pci for reading in readings}, faults, now)
        if not readings:
            raise SourceError("; ".join(faults) or f"{len(cards)} Gaudi card(s) in sysfs, of which none answers")
        return self._report(readings, cards, interest, faults)

    def _read_driver(self, now: float) -> tuple[list[GaudiReading], list[str]]:
        """Ask libhlml, and hl-smi where that is not there or does not answer at all."""
        self._by_child, why = False, f"{LIBRARY}: no such file"
        if Hlml.there():
            try:
                return self._hlml.read()
            except SourceError as error:
                why = str(error)
        if not self._hl_smi.there():
            raise SourceError(f"{why}; and there is no hl-smi")
        self._by_child, self._child_due = True, now + _HL_SMI_INTERVAL
        return self._hl_smi.read()

    def _gone(self, answered: set[str], faults: list[str], now: float) -> list[str]:
        """Return a sentence for each card that answered lately and is not even among the ``faults`` of this run."""
        self._seen.update(dict.fromkeys(answered, now))
        self._seen = {pci: at for pci, at in self._seen.items() if now - at < self._forget_after}
        missing = sorted(self._seen.keys() - answered)
        return [f"{pci}: no longer answers" for pci in missing if not any(pci in fault for fault in faults)]

    def _report(
        self,
        readings: list[GaudiReading],
        cards: dict[str, GaudiListing],
        interest: frozenset[int],
        faults: list[str],
    ) -> DeviceReport:
        at = self._clock()
        driver = _gaudi_listing.driver_version(self._roots.sysfs)
        places = _gaudi_record.folders(self._roots.rootfs, self._roots.procfs, interest)
        samples = []
        for reading in sorted(readings, key=lambda reading: reading.pci):
            card = cards.get(reading.pci)
            pool = None
            if card is not None:
                try:
                    pool = _gaudi_record.pool_use(places, card.minor, reading.size, at)
                except SourceError as error:
                    faults.append(f"{reading.pci}: {error}")
            memory = MemorySample(at, reading.size, reading.used, allocator_used=pool)
            samples.append(DeviceSample(self._identity(reading, card, driver), memory))
        return DeviceReport(tuple(samples), tuple(faults))

    def _identity(self, reading: GaudiReading, card: GaudiListing | None, driver: str) -> DeviceIdentity:
        module = reading.module if reading.module is not None or card is None else card.module
        return DeviceIdentity(
            device=reading.pci,
            platform="gaudi",
            model=reading.name or (card.kind if card is not None else "Gaudi"),
            driver=driver,
            sampler="hl_smi" if self._by_child else "hlml",
            uuid=reading.uuid or None,
            order=module,
        )
