"""One compiled pattern for the bytes of a line: does any table have something to say about it?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

__all__ = ["needles", "prefilter"]

_ANCHOR = re.compile(r"\^(?:\\W\{0,20\})?|\\b")
_META = frozenset("\\.^$*+?{}[]|()")
_SHORTEST = 4
_TELLING = 7
"""Bytes of a needle's tail that still mean something; shorter tails leave more choice and find more that is none."""
_FREQUENT = b" e10orinp2:a/t.csd4_lPTOmuvhI=S()3E-7gN\"5,AFkUDyK6HbBCG[]L'98fWMRwVxq"
"""Bytes by how frequent they were in boot and access logs of vLLM 0.19, most frequent first; others are rare."""
_FALL = 0.95
"""By which each is about rarer than the one before it."""
_QUANTIFIERS = frozenset("*+?{")


def prefilter(leads: Iterable[str]) -> re.Pattern[bytes]:
    """
    Return a pattern that finds the literal beginning of any of ``leads``.

    Raise ValueError for a lead that does not begin with a literal.

    Only literals, each from one of its rare bytes on and grouped by it: ``re`` then skips from candidate to candidate
    by a table of first bytes, and the fewer and rarer these are, the faster.
    """
    wanted: set[bytes] = set()
    for lead in leads:
        for needle in needles(lead):
            if len(needle) < _SHORTEST:
                raise ValueError(f"lead {lead!r} begins with no literal a pre-filter could look for")
            wanted.add(needle.encode())
    first = _first_bytes(wanted)
    groups: dict[bytes, set[bytes]] = {}
    for needle_bytes in wanted:
        tail = _tail(needle_bytes, first)
        groups.setdefault(tail[:1], set()).add(tail[1:])
    return re.compile(b"|".join(re.escape(byte) + _group(rest) for byte, rest in sorted(groups.items())))


def _tail(needle: bytes, first: set[int]) -> bytes:
    """Return the part of a needle that begins with the rarest of the bytes ``first`` in it."""
    start = min((at for at in _starts(needle) if needle[at] in first), key=lambda at: _cost(needle[at]))
    return needle[start:]


def _starts(needle: bytes) -> range:
    """Return where the part of a needle that is looked for may begin; not at a blank if there is another way."""
    last = max(0, len(needle) - _TELLING)
    return range(1, max(last, 1) + 1) if needle[:1] == b" " and len(needle) > _SHORTEST else range(last + 1)


def _cost(byte: int) -> float:
    """Return about how often a byte is met in vain."""
    rank = _FREQUENT.find(bytes((byte,)))
    return _FALL ** (rank if rank >= 0 else len(_FREQUENT))


def _first_bytes(needles_wanted: Iterable[bytes]) -> set[int]:
    """Return few and rare bytes of which every needle has one: the scan stops at each of them."""
    choices = {frozenset(needle[at] for at in _starts(needle)) for needle in needles_wanted}
    first: set[int] = set()
    left = choices
    while left:
        had = Counter(byte for choice in left for byte in choice)
        first.add(max(sorted(had), key=lambda byte: had[byte] / _cost(byte)))
        left = {choice for choice in left if not choice & first}
    for byte in sorted(first, key=_cost, reverse=True):
        if all(choice & (first - {byte}) for choice in choices):
            first.discard(byte)
    return first


def _group(rest: set[bytes]) -> bytes:
    return b"(?:" + b"|".join(re.escape(each) for each in sorted(rest)) + b")"


def needles(lead: str) -> list[str]:
    """Return the literal each alternative of ``lead`` begins with; a text without one of them cannot match it."""
    found = []
    for alternative in _alternatives(lead):
        literal, position = "", _ANCHOR.match(alternative)
        rest = alternative[position.end() :] if position else alternative
        while rest:
            size = 2 if rest[0] == "\\" and rest[1:2] and not rest[1].isalnum() else 1
            if (size == 1 and rest[0] in _META) or rest[size : size + 1] in _QUANTIFIERS:
                break
            literal, rest = literal + rest[size - 1], rest[size:]
        found.append(literal)
    return found


def _alternatives(lead: str) -> list[str]:
    """Split at the bars outside of every group."""
    parts, depth, start = [], 0, 0
    for position, char in enumerate(lead):
        escaped = lead[position - 1 : position] == "\\"
        if not escaped and char in "()":
            depth += 1 if char == "(" else -1
        elif not escaped and char == "|" and depth == 0:
            parts.append(lead[start:position])
            start = position + 1
    return [*parts, lead[start:]]
