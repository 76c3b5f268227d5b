"""The lists of visible devices, read by the runtimes' own rules: a bad entry ends a list, it does not fail."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from budget_exporter.facts.device import DeviceIdentity

__all__ = ["visible_to_cuda", "visible_to_hip"]

_C_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|\d+)")
_SHORTEST, _LONGEST = 5, 20
"""Length of a UUID (``GPU-`` and up to 16 hex digits) that ROCr looks at."""


def visible_to_hip(environ: Mapping[str, str], devices: Sequence[DeviceIdentity]) -> list[DeviceIdentity]:
    """
    Return the devices a HIP program sees, in its order.

    ``devices`` in the order of ROCr. ROCR_VISIBLE_DEVICES is applied below HIP: HIP_VISIBLE_DEVICES, and where that is
    empty CUDA_VISIBLE_DEVICES, count what it left.
    Source: ROCR-Runtime ``core/runtime/amd_filter_device.cpp``, clr ``rocclr/device/rocm/rocdevice.cpp``.
    """
    below = list(devices)
    if (text := environ.get("ROCR_VISIBLE_DEVICES")) is not None:
        below = _rocr(text, below)
    listed = environ.get("HIP_VISIBLE_DEVICES") or environ.get("CUDA_VISIBLE_DEVICES")
    return _hip(listed, below) if listed else below


def visible_to_cuda(environ: Mapping[str, str], devices: Sequence[DeviceIdentity]) -> list[DeviceIdentity] | None:
    """
    Return the devices a CUDA program sees, in its order; None where the list repeats one, which CUDA leaves undefined.

    ``devices`` in CUDA's order. Source: CUDA C++ Programming Guide, environment variables: what follows an invalid
    entry is invisible, an empty list shows nothing.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(devices)
    found: list[DeviceIdentity] = []
    for token in (entry.strip() for entry in text.split(",")):
        if token.isdecimal():
            device = devices[int(token)] if int(token) < len(devices) else None
        else:
            device = _only([d for d in devices if token and d.uuid is not None and d.uuid.startswith(token)])
        if device is None:
            break
        found.append(device)
    return found if len({d.device for d in found}) == len(found) else None


def _rocr(text: str, devices: list[DeviceIdentity]) -> list[DeviceIdentity]:
    """An index as C reads it, or the beginning of a UUID; the first bad or repeated entry ends the list."""
    found: list[DeviceIdentity] = []
    # Entries beyond the number of devices are not looked at; an empty variable shows nothing.
    for entry in text.split(",")[: len(devices)]:
        token = entry.strip().upper()
        device: DeviceIdentity | None = None
        if token.startswith("G"):
            if _SHORTEST <= len(token) <= _LONGEST:
                device = _only([d for d in devices if _rocm_uuid(d).upper().startswith(token)])
        elif (index := _c_integer(token)) is not None and 0 <= index < len(devices):
            device = devices[index]
        if device is None or device in found:
            break
        found.append(device)
    return found


def _hip(text: str, devices: list[DeviceIdentity]) -> list[DeviceIdentity]:
    """A plain index, or a part of a UUID; a bad entry ends the list, a repeated one is skipped."""
    found: list[DeviceIdentity] = []
    for token in text.split(","):
        if "GPU-" in token:
            device = next((d for d in devices if token in _rocm_uuid(d)), None)
        else:
            plain = token.isdecimal() and token == str(int(token)) and int(token) < len(devices)
            device = devices[int(token)] if plain else None
        if device is None:
            break
        if device not in found:
            found.append(device)
    return found


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


def _only(devices: Sequence[DeviceIdentity]) -> DeviceIdentity | None:
    return devices[0] if len(devices) == 1 else None
