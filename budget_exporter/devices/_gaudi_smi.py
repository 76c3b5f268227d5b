"""
Gaudi memory as ``hl-smi`` prints it: a child process with a time limit, for where the library's binding is missing.

Source: Habana's System Management Interface Tool page (1.10 to 1.24) and its CSV as seen in public: cells are parted by
a comma and a blank, the header keeps the unit in brackets, memory is whole MiB, any cell may be ``N/A``. A call takes
2 to 3 s on a node of eight cards. ``index`` is not ``module_id``, and neither is the card's minor number.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import time

from budget_exporter.devices._gaudi_listing import PCI_ADDRESS
from budget_exporter.devices._gaudi_reading import GaudiReading, checked
from budget_exporter.errors import SourceError
from budget_exporter.units import GIB, KIB, MIB

__all__ = ["HlSmi", "parsed"]

_FIELDS = ("bus_id", "memory.total", "memory.used", "module_id", "name", "uuid")
_NEEDED = frozenset(_FIELDS[:3])
_UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_HEADER = re.compile(r"([a-z_.]+)(?: \[([A-Za-z]+)\])?")
_FIGURE = re.compile(r"(-?[0-9]{1,19})(?: ([A-Za-z]+))?")
_LAST_WORD = 0.5
"""Seconds a killed child has to end; one that hangs in the kernel does not."""
_MOST_OUTPUT = 1 << 20
_CHUNK = 1 << 16


class HlSmi:
    """Runs of one command, one at a time, each within ``limit`` seconds; used by the thread of one source."""

    def __init__(self, command: str, limit: float) -> None:
        self._command = command
        self._limit = limit
        self._hung: subprocess.Popen[bytes] | None = None

    def there(self) -> bool:
        """Return whether the command can be found."""
        return shutil.which(self._command) is not None

    def read(self) -> tuple[list[GaudiReading], list[str]]:
        """
        Return a reading of each card in the table and a sentence for each line that is none.

        Raise SourceError where the command cannot be run, fails, prints no table or does not end in time; it is killed
        then, and one that cannot be killed is left alone and not started again before it ended.
        """
        if self._hung is not None and self._hung.poll() is None:
            raise SourceError("hl-smi: the one before hangs and cannot be killed")
        self._hung = None
        return parsed(self._output())

    def _output(self) -> str:
        path = shutil.which(self._command)
        if path is None:
            raise SourceError(f"{self._command}: no such command")
        command = [path, "-Q", ",".join(_FIELDS), "-f", "csv,nounits"]
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise SourceError(f"hl-smi: {error.strerror}") from error
        try:
            output = self._collected(child, time.monotonic() + self._limit)
        except SourceError:
            self._kill(child)
            raise
        if child.returncode != 0:
            raise SourceError(f"hl-smi: exit status {child.returncode}")
        return output.decode("utf-8", "replace")

    def _collected(self, child: subprocess.Popen[bytes], deadline: float) -> bytes:
        """Return what the child prints until its end; raise SourceError where that takes too long or is too much."""
        assert child.stdout is not None  # noqa: S101 - for the type checker: it was asked for
        output = bytearray()
        with selectors.DefaultSelector() as selector, child.stdout as pipe:
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - time.monotonic())):
                chunk = os.read(pipe.fileno(), _CHUNK)
                if not chunk:
                    break
                output += chunk
                if len(output) > _MOST_OUTPUT:
                    raise SourceError(f"hl-smi: more than {_MOST_OUTPUT} bytes")
            else:
                raise SourceError(f"hl-smi: no answer within {self._limit:g} s")
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise SourceError(f"hl-smi: no end within {self._limit:g} s") from None
        return bytes(output)

    def _kill(self, child: subprocess.Popen[bytes]) -> None:
        """Kill the child and whatever it started, which could hold its output open."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        try:
            child.wait(_LAST_WORD)
        except subprocess.TimeoutExpired:
            self._hung = child


def parsed(text: str) -> tuple[list[GaudiReading], list[str]]:
    """
    Return the cards of a table with a header, and a sentence for each line that tells no figure.

    Raise SourceError where there is no such table.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    header = [_HEADER.fullmatch(cell.strip()) for cell in lines[0].split(",")] if lines else []
    columns = {match[1]: at for at, match in enumerate(header) if match is not None}
    if not columns.keys() >= _NEEDED:
        raise SourceError("hl-smi: no table with bus_id, memory.total and memory.used")
    units = [match[2] or "" if match is not None else "" for match in header]
    readings: dict[str, GaudiReading] = {}
    faults: list[str] = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(header):
            faults.append(f"hl-smi: a line of {len(cells)} cells, the header has {len(header)}")
            continue
        try:
            reading = _reading(
                {name: cells[at] for name, at in columns.items()}, {n: units[columns[n]] for n in columns}
            )
            readings.setdefault(reading.pci, reading)
        except SourceError as error:
            faults.append(f"hl-smi: {error}")
    return list(readings.values()), faults


def _reading(cells: dict[str, str], units: dict[str, str]) -> GaudiReading:
    pci = cells["bus_id"].lower()
    if PCI_ADDRESS.fullmatch(pci) is None:
        raise SourceError(f"bus_id: not a PCI address: {pci[:24]!r}")
    size, used = (_bytes(pci, what, cells[what], units[what]) for what in ("memory.total", "memory.used"))
    module = cells.get("module_id", "")
    return checked(
        GaudiReading(
            pci,
            size,
            used,
            module=int(module) if re.fullmatch("[0-9]{1,4}", module) else None,
            name=_said(cells.get("name", "")),
            uuid=_said(cells.get("uuid", "")),
        )
    )


def _bytes(pci: str, what: str, cell: str, unit: str) -> int:
    """Return a figure in bytes; its unit is in the cell, else in the column's header."""
    match = _FIGURE.fullmatch(cell)
    if match is None:
        raise SourceError(f"{pci}: {what}: not a number: {cell[:24]!r}")
    factor = _UNITS.get(match[2] or unit)
    if factor is None:
        raise SourceError(f"{pci}: {what}: unknown unit: {(match[2] or unit)[:24]!r}")
    return int(match[1]) * factor


def _said(cell: str) -> str:
    return "" if cell == "N/A" else cell
