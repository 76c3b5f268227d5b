"""
Gaudi memory through Habana's management library, by its Python binding habana-pyhlml (1.16 to 1.24).

``hlmlDeviceGetMemoryInfo`` gives free, total and used bytes of the card as the driver counts them: the framework takes
its whole pool at first use, so that ``used`` is near the size from then on. The binding loads the library by one fixed
path and prints to standard output where that fails, so it is loaded here first.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from pathlib import Path
from typing import Any

from budget_exporter.devices._gaudi_listing import PCI_ADDRESS
from budget_exporter.devices._gaudi_reading import GaudiReading, checked
from budget_exporter.errors import SourceError

__all__ = ["LIBRARY", "Hlml"]

LIBRARY = Path("/usr/lib/habanalabs/libhlml.so")
"""Where habana-pyhlml looks for the library, and nowhere else."""
_MOST_CARDS = 1024
"""No host has as many: a count above is garbage, and no reason for as many calls."""


class Hlml:
    """The library, held open from the first read on; all calls are made by the thread of one source."""

    def __init__(self) -> None:
        self._binding: Any = None

    @staticmethod
    def there() -> bool:
        """Return whether the library is installed; only then is anything loaded."""
        return LIBRARY.is_file()

    def read(self) -> tuple[list[GaudiReading], list[str]]:
        """
        Return a reading of each card that answered and a sentence for each that did not.

        Raise SourceError where the library or its binding cannot be loaded or answers nothing at all; the next read
        then starts it anew, as after a reload of the driver.
        """
        binding = self._started()
        try:
            count = binding.hlmlDeviceGetCount()
        except Exception as error:
            self.close()
            raise SourceError(f"hlmlDeviceGetCount: {_words(error)}") from error
        if count > _MOST_CARDS:
            raise SourceError(f"hlmlDeviceGetCount: {count} cards, which no host has")
        readings: dict[str, GaudiReading] = {}
        faults: list[str] = []
        for index in range(count):
            try:
                reading = _reading(binding, binding.hlmlDeviceGetHandleByIndex(index))
                readings.setdefault(reading.pci, reading)
            except SourceError as error:
                faults.append(str(error))
            except Exception as error:  # noqa: BLE001 - the binding's errors are made at run time and have no base of their own
                faults.append(f"HLML index {index}: {_words(error)}")
        return list(readings.values()), faults

    def close(self) -> None:
        """Let go of the library."""
        binding, self._binding = self._binding, None
        if binding is not None:
            # It may be gone with the driver, and nothing is asked of it any more.
            with contextlib.suppress(Exception):
                binding.hlmlShutdown()

    def _started(self) -> Any:
        if self._binding is None:
            try:
                ctypes.CDLL(str(LIBRARY))
            except OSError as error:
                raise SourceError(f"{LIBRARY}: {error}") from error
            try:
                binding = importlib.import_module("pyhlml")
            except ImportError as error:
                raise SourceError("habana-pyhlml is not installed (extra gaudi)") from error
            try:
                binding.hlmlInit()
            except Exception as error:
                raise SourceError(f"hlmlInit: {_words(error)}") from error
            self._binding = binding
        return self._binding


def _reading(binding: Any, handle: Any) -> GaudiReading:
    pci = _text(binding.hlmlDeviceGetPCIInfo(handle).bus_id).lower()
    if PCI_ADDRESS.fullmatch(pci) is None:
        raise SourceError(f"hlmlDeviceGetPCIInfo: not a PCI address: {pci[:24]!r}")
    try:
        memory = binding.hlmlDeviceGetMemoryInfo(handle)
    except Exception as error:
        raise SourceError(f"{pci}: hlmlDeviceGetMemoryInfo: {_words(error)}") from error
    optional = _optional(binding, handle)
    return checked(
        GaudiReading(
            pci,
            size=int(memory.total),
            used=int(memory.used),
            module=optional.get("module"),
            name=_text(optional.get("name", b"")),
            uuid=_text(optional.get("uuid", b"")),
        )
    )


def _optional(binding: Any, handle: Any) -> dict[str, Any]:
    """Return what is good to have; a library that lacks one of these calls costs no figure."""
    found: dict[str, Any] = {}
    for name, call in (("module", "ModuleID"), ("name", "Name"), ("uuid", "UUID")):
        with contextlib.suppress(Exception):
            found[name] = getattr(binding, f"hlmlDeviceGet{call}")(handle)
    return found


def _text(data: bytes) -> str:
    return data.decode("ascii", "replace").strip()


# habana-pyhlml's errors say only a number. Source: hlml.h (HabanaAI/gohlml), hlml_return_t.
_ERRORS = {
    1: "not initialized",
    2: "invalid argument",
    3: "not supported",
    5: "already initialized",
    6: "not found",
    7: "insufficient size",
    9: "the driver is not loaded",
    10: "timeout",
    15: "the card is lost",
    20: "memory error",
    21: "no data",
    49: "unknown error",
}


def _words(error: Exception) -> str:
    code = getattr(error, "value", None)
    return f"HLML error {code} ({_ERRORS.get(code, 'unknown code')})" if isinstance(code, int) else repr(error)
