"""Memory of a NUMA node or of the whole host, as its meminfo file says it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from budget_exporter.errors import SourceError
from budget_exporter.units import KIB

__all__ = ["NodeMemory", "memory_of_host", "memory_of_node"]

_LINE = re.compile(r"(?:Node [0-9]+ )?([A-Za-z0-9_()]+): *(\S+) kB")
# A node has no MemAvailable: these are what can be had of it without taking it from a program.
_FREE_OF_NODE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
_LARGEST = 1 << 53
"""KiB; more than any counter of a machine holds."""


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """What there is, and what of it programs and the kernel hold, in bytes."""

    size: int
    used: int


def memory_of_node(text: str) -> NodeMemory | None:
    """
    Return what ``nodeN/meminfo`` says, None for a node without memory of its own (a socket whose slots are empty).

    Used is MemTotal without MemFree, page cache (``Active(file)``, ``Inactive(file)``) and ``SReclaimable``: what vLLM
    0.20 to 0.33 takes as available, ``utils/cpu_resource_utils.py`` ``get_memory_node_info``. Mapped files are page
    cache too; shared memory and huge pages set aside count as used. Raise SourceError that names the missing or wrong
    line.
    """
    figures = _figures(text, ("MemTotal", *_FREE_OF_NODE))
    return _memory(figures["MemTotal"], sum(figures[name] for name in _FREE_OF_NODE))


def memory_of_host(text: str) -> NodeMemory | None:
    """
    Return what ``/proc/meminfo`` says of the whole host: used is MemTotal without MemAvailable.

    That is what vLLM takes where the kernel has no NUMA nodes (psutil's ``virtual_memory``). Raise SourceError that
    names the missing or wrong line.
    """
    figures = _figures(text, ("MemTotal", "MemAvailable"))
    return _memory(figures["MemTotal"], figures["MemAvailable"])


def _memory(size: int, free: int) -> NodeMemory | None:
    if size == 0:
        return None
    if free > size:
        raise SourceError(f"{free} bytes are free or can be freed, of {size}")
    return NodeMemory(size, size - free)


def _figures(text: str, names: Iterable[str]) -> dict[str, int]:
    """Return the figures of these names in bytes; a line that was cut short is none."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is not None:
            found.setdefault(match[1], match[2])
    figures = {}
    for name in names:
        figure = found.get(name)
        if figure is None:
            raise SourceError(f"no line {name}" if text else "empty")
        if not (figure.isascii() and figure.isdecimal() and len(figure) <= len(str(_LARGEST))):
            raise SourceError(f"{name}: not a number of kB: {figure[:24]!r}")
        figures[name] = int(figure) * KIB
    return figures
