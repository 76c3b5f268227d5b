"""What a CUDA program sees of NVIDIA's cards: what its container was given, CUDA_VISIBLE_DEVICES, MIG instances."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from budget_exporter.engines._visible import ALL_CARDS, Hidden, Visible, in_order, only
from budget_exporter.facts.device import DeviceIdentity

__all__ = ["visible_to_cuda"]

_INDEX = re.compile(r"[+]?([0-9]{1,5})")
_UUID = re.compile(r"(GPU|MIG)-")
_GIVEN = "NVIDIA_VISIBLE_DEVICES"
_LISTED = "CUDA_VISIBLE_DEVICES"
_MIXED = "cards of several models, whose order is CUDA's own without CUDA_DEVICE_ORDER=PCI_BUS_ID"
_Cards = list[DeviceIdentity]


def visible_to_cuda(
    environ: Mapping[str, str], cards: Sequence[DeviceIdentity], ranks: int, *, contained: bool
) -> Visible | Hidden | str:
    """
    Return the devices a CUDA program sees in its order, or why that cannot be told.

    ``cards`` are the host's; ``order`` is NVML's, that of the PCI addresses. CUDA's own order puts the fastest first,
    which on cards of one model is the same; on others only UUIDs tell, or CUDA_DEVICE_ORDER=PCI_BUS_ID. A UUID may be
    cut short where it stays unique. What follows an invalid entry is invisible, an empty list shows nothing. Repeated
    entries and a mix of both kinds are undefined. Of MIG instances a program sees one.
    Source: CUDA Programming Guide, environment variables; MIG User Guide, device enumeration; NVIDIA container
    toolkit for NVIDIA_VISIBLE_DEVICES, which counts as NVML does and makes the container's own count begin anew.
    """
    given, why, assumed = _given(environ, list(cards), ranks) if contained else (None, "", "")
    if why:
        return Hidden(why, tuple(cards))
    text = environ.get(_LISTED)
    tokens = [] if text is None else [entry.strip() for entry in text.split(",")]
    if tokens and _UUID.match(tokens[0]):
        return _by_uuid(tokens, cards if given is None else given, assumed)
    ordered = _ordered(environ, cards, given)
    if isinstance(ordered, str):
        return ordered
    return Visible(tuple(ordered), assumed) if text is None else _by_index(tokens, ordered, assumed)


def _given(environ: Mapping[str, str], cards: _Cards, ranks: int) -> tuple[_Cards | None, str, str]:
    """Return the cards its container was given where they are named, why they are not known, what is assumed."""
    text = environ.get(_GIVEN, "")
    if text == "all" or len(cards) == ranks:
        return None, "", ""
    if text == "":
        return None, "", ALL_CARDS
    if text == "void":
        # What Docker and Podman set where devices are named by CDI.
        return None, "its container was given devices that nothing in the environment names", ""
    found: _Cards = []
    for token in (entry.strip() for entry in text.split(",")):
        index = _INDEX.fullmatch(token)
        if index is not None:
            card = only([c for c in cards if c.order == int(index[1])])
        else:
            card = only([c for c in cards if c.uuid == token])
        if card is None:
            return None, f"{_GIVEN}: {token[:40]!r} is not known", ""
        if card not in found:
            found.append(card)
    return found, "", ""


def _ordered(environ: Mapping[str, str], cards: Sequence[DeviceIdentity], given: _Cards | None) -> _Cards | str:
    present = cards if given is None else given
    if any(card.order is None for card in present):
        one = only(present)
        return "MIG instances, of which CUDA_VISIBLE_DEVICES names none by its UUID" if one is None else [one]
    # The container's list gives no order: inside, its cards have that of their addresses.
    ordered = in_order(cards) if given is None else sorted(given, key=lambda card: card.order or 0)
    if isinstance(ordered, str):
        return ordered
    mixed = len({card.model for card in ordered}) > 1
    return _MIXED if mixed and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" else ordered


def _by_index(tokens: Sequence[str], cards: _Cards, assumed: str) -> Visible | str:
    found: _Cards = []
    beyond = ""
    for token in tokens:
        index = _INDEX.fullmatch(token)
        if index is None or int(index[1]) >= len(cards):
            beyond = _ends(token)
            break
        found.append(cards[int(index[1])])
    if len(set(found)) < len(found):
        return f"{_LISTED} names a device twice"
    return Visible(tuple(found), assumed, beyond)


def _by_uuid(tokens: Sequence[str], cards: Sequence[DeviceIdentity], assumed: str) -> Visible | str:
    found: _Cards = []
    beyond = ""
    for token in tokens:
        device = only([c for c in cards if c.uuid is not None and c.uuid.startswith(token)])
        if device is None or not _UUID.match(token):
            beyond = _ends(token)
            break
        if device in found:
            return f"{_LISTED} names a device twice"
        found.append(device)
        if token.startswith("MIG-"):
            beyond = "a CUDA program sees one MIG instance"
            break
    return Visible(tuple(found), assumed, beyond)


def _ends(token: str) -> str:
    return f"{_LISTED}: {token[:40]!r} is no device that is known, and ends the list"
