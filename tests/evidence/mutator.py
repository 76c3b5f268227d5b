"""Mutate log lines by a seed: what terminals, pagers, hands and faults do to them."""

from __future__ import annotations

import re
from random import Random

__all__ = ["mutated"]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_UNIT = re.compile(r"\b(?:[KMGT]i?B|bytes|GiB|B/token|tokens|G|M)\b")
_STRANGE = (
    *("nan", "NaN", "-nan", "inf", "-inf", "Infinity", "None", "N/A", "1e31", "1E-3", "3.4.5", "1.2.3.4", "1_000"),
    *("1 000", "0x1f", "0b101", "12,34", "1,23,456", ",5", ".5", "5.", "--3", "+3", "+-3", "-", "1/3", "1:30", "5%"),
    *("\u0661\u0662", "\u00bd", "\u00b2", "3\u00b2", "\uff11\uff12", "1\u202f000", "1\u00a0000", "1'000", "\u22123.1"),
    *("00", "007", "-0", "0.0", "1e", "e9", "9e9e9", "1.", "1..2", "1,,2", "1.-2", "1-2", "2024-06-28", "0.28.0"),
)
_INSERTED = (
    *(
        "\x1b[0m",
        "\x1b[31m",
        "\x1b[A",
        "^[[0;36m",
        "^M",
        "\r",
        "\n",
        "\t",
        "\x00",
        "\x07",
        "\u200b",
        "\u00a0",
        "\ufeff",
    ),
    *("**", "`", "_", ".", ",", "-", "\u2212", "\u2013", "\u2010", "+", "e", "E", "x", "0", "9", " ", "  ", "(", ")"),
    *("[", "]", "/", "=", ":", "%", "$", "\u00d7", "\u2026", "GiB", "GB", "Gi", "B", "ki", "100%|", "\udce2"),
)
_SWAPPED = ("B", "KiB", "MiB", "GiB", "TiB", "GB", "MB", "KB", "PiB", "Gi", "gib", "GIB", "GiBs", "Gbit", "bytes", "")
_PREFIXES = (
    *("", "(Worker_TP1 pid=31) INFO 02-03 10:00:30 [x.py:1] ", "(EngineCore pid=12) ", "svc  | ", "> ", "    "),
    *("2026-02-03T10:00:40.123456789Z ", "(Worker pid=9) ERROR 02-03 10:00:30 [x.py:1] ", "[rank0]: "),
)


def mutated(random: Random, corpus: list[str]) -> list[str]:
    """Return one line of ``corpus``, mutated once to three times; more than one where it was wrapped."""
    text = random.choice(corpus)
    for _ in range(random.choice((1, 1, 2, 3))):
        text = random.choice(_KINDS)(random, text, corpus)
    return text.split("\n") if random.random() < 0.9 else [text]


def _cut(random: Random, text: str, _: list[str]) -> str:
    at = random.randrange(len(text) + 1)
    return text[:at] if random.random() < 0.7 else text[at:]


def _dropped(random: Random, text: str, _: list[str]) -> str:
    at = random.randrange(len(text) + 1)
    return text[:at] + text[at + random.randint(1, 8) :]


def _doubled(random: Random, text: str, _: list[str]) -> str:
    at, size = random.randrange(len(text) + 1), random.randint(1, 40)
    return text[: at + size] + text[at:]


def _spliced(random: Random, text: str, corpus: list[str]) -> str:
    other = random.choice(corpus)
    return text[: random.randrange(len(text) + 1)] + other[random.randrange(len(other) + 1) :]


def _glued(random: Random, text: str, corpus: list[str]) -> str:
    return text + random.choice(("", "", " ", "\r", ", ", "|", ">", "\n")) + random.choice(corpus)


def _inserted(random: Random, text: str, _: list[str]) -> str:
    at = random.randrange(len(text) + 1)
    return text[:at] + random.choice(_INSERTED) + text[at:]


def _in_a_number(random: Random, text: str, _: list[str]) -> str:
    """Insert beside or inside a number, where it hurts."""
    found = _some(random, _NUMBER, text)
    if found is None:
        return text
    at = random.randint(found.start(), found.end())
    return text[:at] + random.choice(_INSERTED) + text[at:]


def _renumbered(random: Random, text: str, _: list[str]) -> str:
    found = _some(random, _NUMBER, text)
    if found is None:
        return text
    kind = random.random()
    if kind < 0.5:
        new = random.choice(_STRANGE)
    elif kind < 0.7:
        new = str(random.choice((1, -1)) * 10 ** random.randint(3, 400) + random.randrange(999))
    else:
        tail = random.choice(("", ".", ",", ".5", ",001", "e5"))
        new = f"{random.choice(('', '-', '+'))}{random.randrange(10**6)}{tail}"
    return text[: found.start()] + new + text[found.end() :]


def _swapped_digits(random: Random, text: str, _: list[str]) -> str:
    found = _some(random, _NUMBER, text)
    if found is None:
        return text
    digits = list(found[0])
    random.shuffle(digits)
    return text[: found.start()] + "".join(digits) + text[found.end() :]


def _other_unit(random: Random, text: str, _: list[str]) -> str:
    found = _some(random, _UNIT, text)
    return text if found is None else text[: found.start()] + random.choice(_SWAPPED) + text[found.end() :]


def _other_sign(random: Random, text: str, _: list[str]) -> str:
    return text.replace("-", random.choice(("\u2212", "\u2013", "\u2014", "\u2010", "- ", "", "--")))


def _wrapped(random: Random, text: str, _: list[str]) -> str:
    for _turn in range(random.randint(1, 3)):
        at = random.randrange(len(text) + 1)
        text = text[:at] + "\n" + random.choice(_PREFIXES) + text[at:]
    return text


def _other_space(random: Random, text: str, _: list[str]) -> str:
    return text.replace(" ", random.choice(("", "  ", "\t", "\u00a0", "\u2009", "_", "\n")), random.choice((1, 3, -1)))


def _other_case(random: Random, text: str, _: list[str]) -> str:
    return random.choice((text.upper(), text.lower(), text.swapcase()))


def _enveloped(random: Random, text: str, _: list[str]) -> str:
    return random.choice(_PREFIXES) + text + random.choice(("", "...", " \u2026", ">", "\\n", "\x1b[0m"))


def _some(random: Random, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = list(pattern.finditer(text))
    return random.choice(found) if found else None


_KINDS = (
    *(_cut, _dropped, _doubled, _spliced, _glued, _inserted, _in_a_number, _in_a_number, _renumbered, _renumbered),
    *(_swapped_digits, _other_unit, _other_sign, _wrapped, _other_space, _other_case, _enveloped),
)
