"""
Read from ``--compilation-config`` what decides about graphs: the level, the mode, which sizes are captured.

Source: vLLM 0.8.5 to 0.33 ``config/compilation.py`` (before 0.11 ``config.py``, with the level in place of the mode).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from budget_exporter.engines._flag_values import dictionary
from budget_exporter.engines._flag_versions import CHOICES_OF, COMPILATION, LEVEL_FLAG, Version

__all__ = ["Compilation", "compilation"]


@dataclass(frozen=True, slots=True)
class Compilation:
    """What the JSON says; None where it says nothing."""

    level: int | None = None
    mode: str | None = None
    """``cudagraph_mode`` in capitals: NONE, PIECEWISE, FULL, FULL_DECODE_ONLY, FULL_AND_PIECEWISE."""
    sizes: tuple[int, ...] | None = None
    largest: int | None = None


def compilation(text: str, version: Version | None) -> Compilation:
    """Return what ``text`` sets; raise ValueError for what is no JSON object (before 0.12, no level either)."""
    old = version is None or version < LEVEL_FLAG
    if old and text in ("0", "1", "2", "3"):
        return Compilation(level=int(text))
    found = dictionary(text, suffixes=True)
    if not found and text.strip()[:1] != "{":
        raise ValueError("not a JSON object")
    found = found or {}
    for key, words in COMPILATION.items() if version is not None and version[:2] == CHOICES_OF else ():
        word = found.get(key)
        numbered = key == "mode" and isinstance(word, int | float) and word not in range(len(words))
        if numbered or (isinstance(word, str) and word.upper() not in words):
            raise ValueError(f"{key}: not one of its values")
    mode, sizes = found.get("cudagraph_mode"), found.get("cudagraph_capture_sizes")
    numbers = tuple(_number(size) for size in sizes) if isinstance(sizes, list) else None
    return Compilation(
        level=_number(found.get("level")) if old else None,
        mode=mode.upper() if isinstance(mode, str) and mode.isidentifier() else None,
        sizes=None if numbers is None or None in numbers else tuple(n for n in numbers if n is not None),
        largest=_number(found.get("max_cudagraph_capture_size")),
    )


def _number(value: Any) -> int | None:
    """Return a whole number, written as one or as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:  # noqa: PLR2004 - below 2^64
        return int(value)
    return value if type(value) is int else None
