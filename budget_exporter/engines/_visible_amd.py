"""What a HIP program sees of AMD's cards: ROCR_VISIBLE_DEVICES below, HIP_VISIBLE_DEVICES on top."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from budget_exporter.engines._visible import ALL_CARDS, Visible, in_order, only
from budget_exporter.facts.device import DeviceIdentity

__all__ = ["visible_to_hip"]

_C_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)", re.ASCII)
_SHORTEST, _LONGEST = 5, 20
"""Length of a UUID (``GPU-`` and up to 16 hex digits) that ROCr looks at."""
_Cards = list[DeviceIdentity]


def visible_to_hip(
    environ: Mapping[str, str], cards: Sequence[DeviceIdentity], ranks: int, *, contained: bool
) -> Visible | str:
    """
    Return the devices a HIP program sees in its order, or why that cannot be told.

    ``cards`` are the host's, of which those without ``order`` cannot be opened. ROCR_VISIBLE_DEVICES is applied below
    HIP: HIP_VISIBLE_DEVICES, and where that is empty CUDA_VISIBLE_DEVICES, count what it left. The cards a container
    was given count as if there were no others; where nothing tells which those are, all are assumed.
    Source: ROCR-Runtime ``core/runtime/amd_filter_device.cpp``, clr ``rocclr/device/rocm/rocdevice.cpp``; vLLM 0.8.5
    to 0.32 ``platforms/rocm.py`` copies HIP_VISIBLE_DEVICES to CUDA_VISIBLE_DEVICES.
    """
    ordered = in_order(cards)
    if isinstance(ordered, str):
        return ordered
    if contained and environ.get("AMD_VISIBLE_DEVICES", "all").lower() != "all":
        return "AMD_VISIBLE_DEVICES gives its container some of the cards, by numbers of its own"
    below, why = ordered, ""
    if (text := environ.get("ROCR_VISIBLE_DEVICES")) is not None:
        below, why = _rocr(text, ordered)
    found = below
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if listed := environ.get(name):
            found, why = _hip(name, listed, below)
            break
    # With as many ranks as cards none can be missing.
    assumed = ALL_CARDS if contained and ranks < len(ordered) and "AMD_VISIBLE_DEVICES" not in environ else ""
    return Visible(tuple(found), assumed, why)


def _rocr(text: str, devices: _Cards) -> tuple[_Cards, str]:
    """An index as C reads it, or the beginning of a UUID; the first bad or repeated entry ends the list."""
    found: _Cards = []
    # Entries beyond the number of devices are not looked at; an empty variable shows nothing.
    for entry in text.split(",")[: len(devices)]:
        token = entry.strip().upper()
        device: DeviceIdentity | None = None
        if token.startswith("G"):
            if _SHORTEST <= len(token) <= _LONGEST:
                device = only([d for d in devices if _rocm_uuid(d).upper().startswith(token)])
        elif (index := _c_integer(token)) is not None and 0 <= index < len(devices):
            device = devices[index]
        if device is None or device in found:
            return found, _ends("ROCR_VISIBLE_DEVICES", entry)
        found.append(device)
    return found, ""


def _hip(name: str, text: str, devices: _Cards) -> tuple[_Cards, str]:
    """A plain index, or a part of a UUID; a bad entry ends the list, a repeated one is skipped."""
    found: _Cards = []
    for token in text.split(","):
        if "GPU-" in token:
            device = next((d for d in devices if token in _rocm_uuid(d)), None)
        else:
            plain = token.isascii() and token.isdecimal() and len(token) < _SHORTEST and token == str(int(token))
            device = devices[int(token)] if plain and int(token) < len(devices) else None
        if device is None:
            return found, _ends(name, token)
        if device not in found:
            found.append(device)
    return found, ""


def _ends(name: str, token: str) -> str:
    return f"{name}: {token[:40]!r} is no device that is known, and ends the list"


def _rocm_uuid(device: DeviceIdentity) -> str:
    """Return ``GPU-`` and 16 hex digits, as ROCm writes a card's unique id; nothing for a card without one."""
    digits = (device.uuid or "").removeprefix("GPU-").removeprefix("0x")
    return f"GPU-{digits.rjust(16, '0')}" if digits.strip("0") else ""


def _c_integer(token: str) -> int | None:
    """Return what ``strtol`` with base 0 makes of a whole token."""
    if not _C_INTEGER.fullmatch(token):
        return None
    digits = token.lstrip("+-").lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") and len(digits) > 1 else 10
    try:
        return int(digits, base) * (-1 if token.startswith("-") else 1)
    except ValueError:
        return None
