"""
What the graphics driver says of one open descriptor of a card (``/proc/PID/fdinfo``, kernel drm-usage-stats).

Memory of the compute driver is among it: its buffers are mapped into the address space of the process's render
descriptor (kernel ``amdgpu_vm.c``, ACQUIRE_VM). The descriptor itself is never opened, only what is said of it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from budget_exporter.devices._sysfs import read_text

__all__ = ["DrmClient", "drm_clients", "holds_card", "parse_fdinfo"]

_NODE = re.compile("/dri/(?:renderD|card)[0-9]+")
_FIGURE = re.compile("([0-9]{1,19})(?: (KiB|MiB))?")
_UNITS = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20}
_PCI = re.compile("[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}[.][0-7]")
_GONE = frozenset({errno.ENOENT, errno.ESRCH})


@dataclass(frozen=True, slots=True)
class DrmClient:
    """One opening of one card, whichever descriptors share it; bytes, None where the driver does not say."""

    pci: str
    client: int
    vram: int | None
    """Resident in the card's memory."""
    gtt: int | None
    """Resident in system memory that the card maps."""
    evicted: int | None
    """Meant for the card's memory, and moved out of it."""


def parse_fdinfo(text: str) -> DrmClient | None:
    """
    Return what one fdinfo file says, None where its descriptor is no amdgpu card's.

    Kernels since 6.13 print ``drm-resident-*`` and, as an alias of it, the older ``drm-memory-*``: the one or the
    other counts, never both. ``amd-evicted-vram`` is a key of the driver's own. Figures are in bytes, KiB or MiB. Raise
    ValueError that names the key which makes no sense.
    """
    pairs = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    if pairs.get("drm-driver") != "amdgpu":
        return None
    pci, client = pairs.get("drm-pdev", "").lower(), pairs.get("drm-client-id", "")
    if not _PCI.fullmatch(pci):
        raise ValueError(f"drm-pdev: {pci[:24]!r}")
    if not re.fullmatch("[0-9]{1,19}", client):
        raise ValueError(f"drm-client-id: {client[:24]!r}")
    return DrmClient(
        pci,
        int(client),
        _bytes(pairs, "drm-resident-vram", "drm-memory-vram"),
        _bytes(pairs, "drm-resident-gtt", "drm-memory-gtt"),
        _bytes(pairs, "amd-evicted-vram"),
    )


def _bytes(pairs: Mapping[str, str], *keys: str) -> int | None:
    """Return the bytes of the first of ``keys`` that is there."""
    key = next((key for key in keys if key in pairs), None)
    if key is None:
        return None
    figure = _FIGURE.fullmatch(pairs[key])
    if figure is None:
        raise ValueError(f"{key}: {pairs[key][:24]!r}")
    return int(figure[1]) * _UNITS[figure[2]]


def drm_clients(procfs: Path, pid: int) -> tuple[list[DrmClient], list[str]]:
    """
    Return what process ``pid`` has open of amdgpu cards, and a sentence for each descriptor that makes no sense.

    A process or descriptor that vanishes meanwhile has nothing open. Raise PermissionError where the process may not
    be looked at (another user's, without CAP_SYS_PTRACE).
    """
    found: dict[tuple[str, int], DrmClient] = {}
    faults: list[str] = []
    for number in _card_descriptors(procfs, pid):
        try:
            client = parse_fdinfo(read_text(procfs / str(pid) / "fdinfo" / number))
        except PermissionError:
            raise
        except OSError as error:
            if error.errno not in _GONE:
                faults.append(f"fdinfo of process {pid}: {error.strerror}")
        except ValueError as error:
            faults.append(f"fdinfo of process {pid}: {error}")
        else:
            if client is not None:
                found[client.pci, client.client] = client
    return list(found.values()), faults


def holds_card(procfs: Path, pid: int) -> bool:
    """Return whether process ``pid`` has a card of any driver open; one that may not be looked at has none."""
    try:
        return next(_card_descriptors(procfs, pid), None) is not None
    except PermissionError:
        return False


def _card_descriptors(procfs: Path, pid: int) -> Iterator[str]:
    """Yield the numbers of the descriptors that lead to a graphics node; raise PermissionError, nothing else."""
    folder = f"{procfs}/{pid}/fd"
    try:
        numbers = os.listdir(folder)  # noqa: PTH208 - thousands of descriptors; a Path for each would cost more than all else
    except PermissionError:
        raise
    except OSError:
        return
    for number in numbers:
        try:
            target = os.readlink(f"{folder}/{number}")  # noqa: PTH115 - as above
        except OSError:
            continue
        if _NODE.search(target):
            yield number
