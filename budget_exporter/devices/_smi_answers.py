"""
Read what rocm-smi, amd-smi and pyrsmi say of the memory of each card: bytes in use by PCI address.

Each release has a shape of its own. rocm-smi (5.2.3, 6.1.2, 6.4.1): an object by ``cardN``, every value a string.
amd-smi: a list of objects by ``gpu`` (6.1.2), the same list under ``gpu_data`` (10.1), figures with a unit, where
``MB`` is MiB. Warnings may stand before the JSON. No index of theirs is a name: they number the same cards differently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Figures", "of_amd_smi", "of_pyrsmi", "of_rocm_smi"]

_PCI = re.compile("[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}[.][0-7]")
_NUMBER = re.compile("[0-9]{1,19}")
# amd-smi counts in MiB and calls them MB (a 32624 MiB card has "32624 MB").
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_POOLS = ("VRAM", "GTT")
_OPENING = re.compile(r"[\[{]")
_TRIES = 50
"""Brackets that are tried as the beginning of JSON: a warning has a few, and each try may read the whole text."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one tool says is in use, in bytes by PCI address and pool, and a sentence for each card it fails on."""

    used: Mapping[tuple[str, str], int]
    cards: int
    faults: tuple[str, ...] = ()


def of_rocm_smi(text: str) -> Figures:
    """
    Return the figures of ``rocm-smi --showbus --showmeminfo vram gtt --json``.

    Raise ValueError where there is no such object in ``text``.
    """
    answer = next((found for found in _json(text) if isinstance(found, dict)), None)
    if answer is None:
        raise ValueError(_nothing(text))
    reader = _Reader()
    for name, card in answer.items():
        if not name.startswith("card") or not isinstance(card, dict):
            continue
        pci = reader.address(name, card.get("PCI Bus"))
        for pool in _POOLS if pci else ():
            reader.take(pci, pool, card.get(f"{pool} Total Used Memory (B)"))
    return reader.figures


def of_amd_smi(cards: str, memory: str) -> Figures:
    """
    Return the figures of ``amd-smi metric --mem-usage --json`` by the addresses of ``amd-smi list --json``.

    Raise ValueError where either is no list of cards.
    """
    reader = _Reader()
    addresses = {
        number: reader.address(f"gpu {number}", card.get("bdf")) for number, card in _amd_smi_cards(cards).items()
    }
    for number, card in _amd_smi_cards(memory).items():
        pci, usage = addresses.get(number, ""), card.get("mem_usage")
        if pci and isinstance(usage, dict):
            for pool in _POOLS:
                reader.take(pci, pool, usage.get(f"used_{pool.lower()}"))
    return reader.figures


def of_pyrsmi(text: str) -> Figures:
    """Return the figures that our child process has from pyrsmi; raise ValueError where it had none to give."""
    answer = next((found for found in _json(text) if isinstance(found, dict)), None)
    if answer is None or not isinstance(answer.get("cards"), list):
        raise ValueError(_nothing(text))
    reader = _Reader()
    for number, card in enumerate(answer["cards"]):
        address, *figures = card if isinstance(card, list) and card else [None]
        pci = reader.address(f"card {number}", address)
        for pool, figure in zip(_POOLS if pci else (), figures, strict=False):
            reader.take(pci, pool, figure)
    return reader.figures


class _Reader:
    """Collect the figures of one answer."""

    def __init__(self) -> None:
        self._used: dict[tuple[str, str], int] = {}
        self._faults: list[str] = []
        self._cards = 0

    @property
    def figures(self) -> Figures:
        return Figures(self._used, self._cards, tuple(self._faults))

    def address(self, name: str, told: Any) -> str:
        """Return the PCI address of a card, empty where it has none that is one."""
        self._cards += 1
        pci = str(told).lower()
        if _PCI.fullmatch(pci):
            return pci
        self._faults.append(f"{name}: no PCI address: {str(told)[:24]!r}")
        return ""

    def take(self, pci: str, pool: str, told: Any) -> None:
        """Take a figure in; all three tools say 0 for a counter they could not read, and no running card holds 0."""
        try:
            used = _bytes(told)
        except ValueError as error:
            self._faults.append(f"{pci}: {pool} {error}")
            return
        if used == 0 and pool == "VRAM":
            self._faults.append(f"{pci}: {pool} 0, which no running card holds")
        elif used:
            self._used[pci, pool] = used


def _bytes(told: Any) -> int | None:
    """Return a figure in bytes, None where there is none; raise ValueError for what is no size."""
    unit = "B"
    if isinstance(told, dict):
        told, unit = told.get("value"), str(told.get("unit"))
    if told is None or told == "N/A":
        return None
    if isinstance(told, bool) or not _NUMBER.fullmatch(str(told)) or unit not in _UNITS:
        raise ValueError(f"is no size: {str(told)[:24]!r} {unit[:8]}".rstrip(" B"))
    return int(told) * _UNITS[unit]


def _amd_smi_cards(text: str) -> dict[int, dict[str, Any]]:
    for found in _json(text):
        entries = found.get("gpu_data") if isinstance(found, dict) else found
        if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries):
            cards = {entry["gpu"]: entry for entry in entries if isinstance(entry.get("gpu"), int)}
            if cards:
                return cards
    raise ValueError(_nothing(text))


def _json(text: str) -> Iterator[Any]:
    """Yield each object and list that stands in ``text``, whatever is around them."""
    decoder, start = json.JSONDecoder(), 0
    for _ in range(_TRIES):
        match = _OPENING.search(text, start)
        if match is None:
            return
        try:
            found, start = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            start = match.start() + 1
        else:
            yield found


def _nothing(text: str) -> str:
    lines = text.strip().splitlines()
    return f"no cards in what it says: {lines[0][:80]!r}" if lines else "says nothing"
