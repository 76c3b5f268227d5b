"""What the driver says of one Gaudi card, by whatever way it was asked, and when that cannot be true."""

from __future__ import annotations

from dataclasses import dataclass

from budget_exporter.errors import SourceError

__all__ = ["GaudiReading", "checked"]

_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class GaudiReading:
    """One card by PCI address: ``size`` and ``used`` in bytes; what was not told is None or empty."""

    pci: str
    size: int
    used: int
    module: int | None = None
    name: str = ""
    uuid: str = ""


def checked(reading: GaudiReading) -> GaudiReading:
    """
    Return ``reading``; raise SourceError that names the figure which no running card has.

    An idle card holds 512 to 768 MiB for its firmware, so that a use of 0 is one that was not counted: Intel's own
    exporter prints 0 where the library failed. A use above the size is told as it is.
    """
    for what, figure in (("size", reading.size), ("used", reading.used)):
        if figure == 0:
            raise SourceError(f"{reading.pci}: {what}: 0, which no running card reports")
        if not 0 < figure <= _LARGEST:
            raise SourceError(f"{reading.pci}: {what}: out of range: {figure}")
    return reading
