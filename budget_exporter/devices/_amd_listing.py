"""Which amdgpu cards there are: the entries of ``class/drm``, by PCI address."""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.devices._sysfs import read_text
from budget_exporter.errors import SourceDenied, SourceError

__all__ = ["Listing", "listed"]


@dataclass(frozen=True, slots=True)
class Listing:
    """A card as ``class/drm`` lists it now: PCI address, PCI id, the directory of its counters."""

    pci: str
    pci_id: str
    directory: Path


def listed(sysfs: Path) -> tuple[dict[str, Listing], list[str]]:
    """
    Return the amdgpu cards of ``class/drm`` by PCI address, and a sentence for each entry that would not tell.

    A host without DRM has none. Raise SourceError where there is no ``sysfs`` or the list cannot be read.
    """
    found: dict[str, Listing] = {}
    faults: list[str] = []
    for entry in _entries(sysfs):
        directory = entry / "device"
        try:
            uevent = read_text(directory / "uevent")
        except OSError as error:
            # Gone between listing and reading, or no device behind it (a render-less virtual card).
            if error.errno not in {errno.ENOENT, errno.ENODEV, errno.ENOTDIR}:
                faults.append(f"{entry.name}: uevent: {error.strerror}")
            continue
        facts = dict(line.split("=", 1) for line in uevent.splitlines() if "=" in line)
        if facts.get("DRIVER") == "amdgpu" and facts.get("PCI_SLOT_NAME"):
            pci = facts["PCI_SLOT_NAME"].lower()
            found.setdefault(pci, Listing(pci, facts.get("PCI_ID", "unknown"), directory))
    return found, faults


def _entries(sysfs: Path) -> list[Path]:
    """Return ``card0``, ``card1``, ... and none of their connectors (``card0-DP-1``); none on a host without DRM."""
    path = sysfs / "class/drm"
    try:
        return sorted(entry for entry in path.iterdir() if re.fullmatch("card[0-9]+", entry.name))
    except FileNotFoundError:
        if not sysfs.is_dir():
            raise SourceError(f"{sysfs}: no such directory") from None
        return []
    except PermissionError as error:
        raise SourceDenied(f"{path}: permission denied (CAP_DAC_READ_SEARCH grants it)") from error
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
