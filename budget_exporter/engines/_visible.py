"""What an engine sees of the host's devices, in its own order; each platform has rules of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from budget_exporter.facts.device import DeviceIdentity

__all__ = ["ALL_CARDS", "Hidden", "Visible", "in_order", "only", "ranges"]

ALL_CARDS = "assumed: its container has every card"
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_MOST = 4096


@dataclass(frozen=True, slots=True)
class Visible:
    """
    The devices an engine sees, in its order; None in a place whose device is not known.

    ``assumed`` says what that rests on where it is not certain, ``beyond`` why there are no more.
    """

    devices: tuple[DeviceIdentity | None, ...]
    assumed: str = ""
    beyond: str = ""


@dataclass(frozen=True, slots=True)
class Hidden:
    """``why`` it cannot be told which devices an engine has: each of its ranks has one of ``among``."""

    why: str
    among: tuple[DeviceIdentity, ...]


def in_order(cards: Iterable[DeviceIdentity]) -> list[DeviceIdentity] | str:
    """Return the devices the engine's runtime can open in its order, or why there is no such order."""
    places = [(card.order, card) for card in cards if card.order is not None]
    if not places:
        return "no device that the engine's runtime can open"
    if len({order for order, _ in places}) < len(places):
        return "several devices share a place in the runtime's order"
    if any(card.partitions > 1 for _, card in places):
        return "a card is cut into partitions, of which the runtime counts each"
    if max(order for order, _ in places) >= len(places):
        # A card that cannot be read has its place all the same: without it every index behind would mean another card.
        return "a device before these in the runtime's order is not known"
    return [card for _, card in sorted(places, key=lambda place: place[0])]


def only(cards: Sequence[DeviceIdentity]) -> DeviceIdentity | None:
    """Return the one there is; None for none and for several."""
    return cards[0] if len(cards) == 1 else None


def ranges(text: str) -> list[int] | None:
    """Return the numbers of a list such as ``0-3,6`` in its order; None where it is none, or repeats one."""
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return None
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low or len(found) + high - low >= _MOST:
            return None
        found += range(low, high + 1)
    return found if len(set(found)) == len(found) else None
