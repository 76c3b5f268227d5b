"""Bytes, GiB and the integers vLLM's command line accepts: the only place where units are converted."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal

__all__ = ["GIB", "KIB", "MIB", "gib_text", "human_int", "parse_duration", "parse_size", "printed_bytes", "rounding_of"]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
_BINARY = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1 << 40}
_DECIMAL = {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_HUMAN_FACTOR = {
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "K": KIB,
    "M": MIB,
    "G": GIB,
    "T": 1 << 40,
}


def printed_bytes(text: str, unit: str = "GiB") -> int:
    """
    Return the bytes a printed figure stands for: ``round(x * 2**30)``, half to even.

    ``text`` is the number as printed (``31.29``, ``-0.06``, ``1,024``), ``unit`` B, KiB, MiB, GiB or TiB.
    Raise ValueError for anything else.
    """
    value = Decimal(text.replace(",", "").replace("\N{MINUS SIGN}", "-")) * _unit(unit)
    return int(value.to_integral_value(ROUND_HALF_EVEN))


def rounding_of(text: str, unit: str = "GiB") -> int:
    """Return the half-width in bytes of a printed figure: ``31.29`` GiB stands for 31.285 to 31.295."""
    decimals = len(text.partition(".")[2])
    return int((_unit(unit) * Decimal(10) ** -decimals / 2).to_integral_value(ROUND_HALF_EVEN)) if unit != "B" else 0


def _unit(unit: str) -> int:
    if unit not in _BINARY:
        raise ValueError(f"unknown unit {unit!r}")
    return _BINARY[unit]


def gib_text(size: int) -> str:
    """Return ``size`` bytes as people read it: two decimals of GiB, as vLLM prints."""
    return f"{size / GIB:.2f} GiB"


def parse_size(text: str) -> int:
    """
    Return the bytes of a configured size such as ``256MiB`` or ``1.5 GB``.

    Raise ValueError where the unit is missing or unknown: a bare number would be a guess.
    """
    match = _SIZE.fullmatch(text)
    factor = (_BINARY | _DECIMAL).get(match[2]) if match else None
    if match is None or factor is None:
        raise ValueError(f"not a size with a unit (such as 256MiB or 1.5GB): {text!r}")
    return int((Decimal(match[1]) * factor).to_integral_value(ROUND_HALF_EVEN))


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as ``100ms``, ``5s`` or ``1h``; raise ValueError without a unit."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"not a duration with a unit (such as 100ms, 5s or 1h): {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def human_int(text: str) -> int:
    """
    Return the integer vLLM reads from ``text``: lower-case suffixes are decimal, upper-case ones binary.

    ``25.6k`` is 25600, ``64M`` 67108864; decimals go only with the decimal suffixes. Raise ValueError for ``1.5G``,
    ``1Mi``, ``1e9`` and the like. Source: vLLM 0.32 ``engine/arg_utils.py`` ``human_readable_int``.
    """
    match = _HUMAN.fullmatch(text.strip())
    if match is None:
        return int(text)
    number, suffix = match.groups()
    if "." in number and suffix.isupper():
        raise ValueError(f"decimals are not allowed with the binary suffix {suffix!r}: {text!r}")
    if suffix.isupper():
        return int(number) * _HUMAN_FACTOR[suffix]
    # vLLM multiplies floats and cuts off: 1.001k is 1000 there, not 1001.
    try:
        return int(float(number) * _HUMAN_FACTOR[suffix])
    except OverflowError as error:
        raise ValueError(f"too large: {text[:40]!r}") from error
