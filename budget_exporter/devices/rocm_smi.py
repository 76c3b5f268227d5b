"""
AMD's own tools as a cross-check of what the driver's files say: pyrsmi, rocm-smi, amd-smi, the first that answers.

This is the one exception to never touching ``/dev/kfd``: newer releases of these tools open it, and ``/dev/dri`` too.
They do so in a child process that is ended after a few seconds, and only where an operator has turned this source on
(``--source.rocm_smi``, or ``enabled: true``): it is off by default, and nothing depends on it. Their figures are never
mixed with ours; how far they differ is a metric. The library keeps locks in /dev/shm that every process on the host
meets, and a holder that is killed stalls the others for seconds (rocm_smi_lib issue 88): RSMI_MUTEX_THREAD_ONLY=1 has
it take none.

The tools read the real ``/sys``, whatever ``--path.sysfs`` says.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from budget_exporter.devices._amd_pools import Pools
from budget_exporter.devices._child import Answer, ask
from budget_exporter.devices._smi_answers import Figures, of_amd_smi, of_pyrsmi, of_rocm_smi
from budget_exporter.errors import SourceError
from budget_exporter.facts.device import CrossCheck, DeviceReport
from budget_exporter.roots import Roots

__all__ = ["RocmSmi", "source"]

_LIMIT = 4.0
"""Seconds a tool may take: they need 0.1 to 0.2 s, and 6.1.2 was seen to hang without a card it can name."""
_ENVIRON = {"RSMI_MUTEX_THREAD_ONLY": "1", "LC_ALL": "C"}
_CHILD = "budget_exporter.devices._pyrsmi_child"


def source(
    roots: Roots,
    interval: float = 60.0,
    clock: Callable[[], float] = time.time,
    limit: float = _LIMIT,
) -> RocmSmi:
    """
    Return the cross-check of the amdgpu cards under ``roots.sysfs``.

    ``interval`` is the seconds between two reads, ``clock`` gives Unix time, ``limit`` is the seconds one call of a
    tool may take.
    """
    return RocmSmi(roots, interval, clock, limit)


@dataclass(frozen=True, slots=True)
class _Tool:
    """One way to ask: ``there`` returns its command where it is installed, ``figures`` asks it."""

    name: str
    there: Callable[[], Sequence[str] | None]
    figures: Callable[[Sequence[str], float], Figures]


class RocmSmi:
    """Ask the first tool that answers; not for use by two threads at once."""

    name = "rocm_smi"

    def __init__(self, roots: Roots, interval: float, clock: Callable[[], float], limit: float) -> None:
        self.interval = interval
        self._sysfs = roots.sysfs
        self._clock = clock
        self._limit = limit

    def read(self, interest: frozenset[int]) -> DeviceReport:  # noqa: ARG002 - the tools are asked for cards
        """
        Return what a tool says is in use of each card it lists, by PCI address.

        A host without an amdgpu card is an empty report, and no tool is started. Raise SourceError where no tool is
        installed or none has a figure to give.
        """
        pools = Pools(self._sysfs)
        if not pools.cards:
            return DeviceReport()
        tried: list[str] = []
        for tool in _TOOLS:
            command = tool.there()
            if command is None:
                continue
            began = self._clock()
            try:
                figures = tool.figures(command, self._limit)
            except (SourceError, ValueError) as error:
                tried.append(f"{tool.name}: {error}".replace(f"{tool.name}: {tool.name}: ", f"{tool.name}: "))
                continue
            # The figure was read while the tool ran.
            checks = _checks(figures, pools, (began + self._clock()) / 2)
            faults = tuple(f"{tool.name}: {fault}" for fault in figures.faults)
            if checks:
                return DeviceReport(faults=faults, cross_checks=checks)
            tried += faults or [f"{tool.name}: lists no card"]
        raise SourceError("; ".join(tried) or "none of pyrsmi, rocm-smi and amd-smi is installed")

    def close(self) -> None:
        """Nothing stays open between two reads."""


def _checks(figures: Figures, pools: Pools, at: float) -> tuple[CrossCheck, ...]:
    """Return the figure of each card in the pool that is its memory."""
    return tuple(
        CrossCheck(pci, at, used)
        for (pci, pool), used in sorted(figures.used.items())
        if pool == ("GTT" if pools.unified(pci) else "VRAM")
    )


def _pyrsmi_there() -> Sequence[str] | None:
    return (sys.executable, "-m", _CHILD) if importlib.util.find_spec("pyrsmi") else None


def _program_there(name: str) -> Callable[[], Sequence[str] | None]:
    def there() -> Sequence[str] | None:
        rocm = os.environ.get("ROCM_PATH", "/opt/rocm")
        path = shutil.which(name) or shutil.which(name, path=f"{rocm}/bin")
        return None if path is None else (path,)

    return there


def _pyrsmi(command: Sequence[str], limit: float) -> Figures:
    # What it says is complete or it has failed: unlike the programs it has no exit code for less.
    answer = ask(command, _ENVIRON, limit)
    if answer.code:
        raise SourceError(answer.why)
    return of_pyrsmi(answer.out)


def _rocm_smi(command: Sequence[str], limit: float) -> Figures:
    return _parsed(ask((*command, "--showbus", "--showmeminfo", "vram", "gtt", "--json"), _ENVIRON, limit), of_rocm_smi)


def _amd_smi(command: Sequence[str], limit: float) -> Figures:
    """Ask for addresses, figures and addresses again: its numbers name a card only as long as no card goes."""
    before, memory, after = (
        ask((*command, *words, "--json"), _ENVIRON, limit) for words in (["list"], ["metric", "--mem-usage"], ["list"])
    )
    if before.out != after.out:
        raise SourceError("amd-smi: its list of cards changed")
    return _parsed(memory, lambda text: of_amd_smi(before.out, text))


def _parsed(answer: Answer, read: Callable[[str], Figures]) -> Figures:
    """Read the answer whatever the exit code: 0 comes with nothing said, and others come with good figures."""
    try:
        return read(answer.out)
    except ValueError as error:
        raise SourceError(answer.why or str(error)) from error


_TOOLS = (
    _Tool("pyrsmi", _pyrsmi_there, _pyrsmi),
    _Tool("rocm-smi", _program_there("rocm-smi"), _rocm_smi),
    _Tool("amd-smi", _program_there("amd-smi"), _amd_smi),
)
"""In this order: pyrsmi and rocm-smi count bytes, amd-smi whole MiB."""
