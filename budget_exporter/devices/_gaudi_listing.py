"""
Which Gaudi cards there are, from sysfs: address, minor number, module and kind; memory has no attribute there.

Source: the kernel's ``Documentation/ABI/testing/sysfs-driver-habanalabs`` and ``habanalabs/common/sysfs.c``. The
driver's attributes are below ``class/accel/accel<N>/device`` (older drivers: ``class/habanalabs/hl<N>``);
``device_type`` is GAUDI, GAUDI2, GAUDI3 or one of these with a suffix. ``class/accel`` also lists what is no Gaudi.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.devices._sysfs import read_text
from budget_exporter.errors import SourceDenied, SourceError

__all__ = ["PCI_ADDRESS", "GaudiListing", "driver_version", "listed"]

PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CLASSES = (("class/accel", re.compile(r"accel([0-9]{1,4})")), ("class/habanalabs", re.compile(r"hl([0-9]{1,4})")))
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})


@dataclass(frozen=True, slots=True)
class GaudiListing:
    """A card as the driver lists it: ``minor`` is N of ``accel<N>``, ``module`` its place in the runtime's order."""

    pci: str
    minor: int
    module: int | None
    kind: str


def listed(sysfs: Path) -> tuple[dict[str, GaudiListing], list[str]]:
    """
    Return the Gaudi cards below ``sysfs`` by PCI address, and a sentence for each entry that would not tell.

    A host without any is an empty answer. Raise SourceError where there is no ``sysfs`` or a class cannot be listed.
    """
    found: dict[str, GaudiListing] = {}
    faults: list[str] = []
    for minor, entry in _entries(sysfs):
        try:
            card = _card(minor, entry)
        except (OSError, ValueError) as error:
            if not isinstance(error, OSError) or error.errno not in _GONE:
                why = error.strerror if isinstance(error, OSError) else str(error)
                faults.append(f"{entry.name}: {why}")
            continue
        if card is not None:
            found.setdefault(card.pci, card)
    return found, faults


def driver_version(sysfs: Path) -> str:
    """Return the version of the habanalabs module (out-of-tree builds have one), else its name."""
    try:
        return read_text(sysfs / "module/habanalabs/version") or "habanalabs"
    except OSError:
        return "habanalabs"


def _entries(sysfs: Path) -> Iterator[tuple[int, Path]]:
    for folder, pattern in _CLASSES:
        path = sysfs / folder
        try:
            names = sorted(entry.name for entry in path.iterdir())
        except FileNotFoundError:
            if not sysfs.is_dir():
                raise SourceError(f"{sysfs}: no such directory") from None
            continue
        except PermissionError as error:
            raise SourceDenied(f"{path}: permission denied (CAP_DAC_READ_SEARCH grants it)") from error
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}") from error
        for name in names:
            match = pattern.fullmatch(name)
            if match is not None:
                yield int(match[1]), path / name


def _card(minor: int, entry: Path) -> GaudiListing | None:
    """Return the card, None where the entry is another driver's; raise OSError or ValueError where it is unreadable."""
    directory = entry / "device" if (entry / "device/device_type").exists() else entry
    kind = read_text(directory / "device_type")
    if not kind.startswith("GAUDI"):
        return None
    pci = read_text(directory / "pci_addr").lower()
    if PCI_ADDRESS.fullmatch(pci) is None:
        raise ValueError(f"pci_addr: not a PCI address: {pci[:24]!r}")
    return GaudiListing(pci, minor, _module(directory), kind)


def _module(directory: Path) -> int | None:
    """Return the module id; drivers before Linux 6.8 have no such file, and then the library tells it."""
    try:
        text = read_text(directory / "module_id")
    except OSError:
        return None
    return int(text) if re.fullmatch("[0-9]{1,4}", text) else None
