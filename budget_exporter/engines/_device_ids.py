"""``--device-ids``: the devices an engine picks among those its environment lets it see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from budget_exporter.engines._visible import Visible, only
from budget_exporter.facts.device import DeviceIdentity

__all__ = ["picked"]


def picked(
    text: str, visible: Visible, environ: Mapping[str, str], cards: Sequence[DeviceIdentity], platform: str
) -> Visible | str:
    """
    Return what ``--device-ids`` makes of the ``visible`` devices, or why that cannot be told.

    Whole numbers count the visible devices where a list of those is given, else all there are, which is the same;
    UUIDs, on NVIDIA's cards only, must be whole. ``cards`` are the host's. An engine that was given a list which it
    refuses (a repeated entry, both kinds, one that is not visible) does not start.
    Source: vLLM 0.24 to 0.32, ``engine/arg_utils.py`` ``_resolve_device_ids``, ``platforms/interface.py``
    ``logical_device_id_to_visible_device_id``.
    """
    if platform not in ("amd", "nvidia"):
        return f"--device-ids is not resolved on platform {platform}"
    tokens = [token.strip() for token in text.split(",")]
    numbers = [token for token in tokens if token.isascii() and token.isdecimal()]
    if len(set(tokens)) < len(tokens) or (numbers and len(numbers) < len(tokens)):
        return "--device-ids is one that the engine refuses"
    found: list[DeviceIdentity | None] = []
    if numbers:
        seen = visible.devices
        found = [seen[int(token)] if len(token) < 6 and int(token) < len(seen) else None for token in tokens]  # noqa: PLR2004 - digits
    elif platform == "nvidia":
        named = [only([card for card in cards if card.uuid == token]) for token in tokens]
        if environ.get("CUDA_VISIBLE_DEVICES"):
            named = [card if card in visible.devices else None for card in named]
        found = named
    if None in found or not found:
        return "--device-ids names a device that the engine does not see"
    return Visible(tuple(found), visible.assumed, "--device-ids names no more")
