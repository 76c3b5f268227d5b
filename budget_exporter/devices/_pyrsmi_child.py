"""
Ask pyrsmi for every card, as ``python -m budget_exporter.devices._pyrsmi_child``: one JSON object to standard output.

A process of its own: the library below keeps state for as long as its process lives, opens device nodes in its newer
releases, and has been seen to crash.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

# The name of the library in pyrsmi 0.2.0; 1.0 and later load libamd_smi.so.
_OLD_LIBRARY = "librocm_smi64.so"


def main() -> None:
    """Print ``{"cards": [[PCI address, bytes of VRAM used, bytes of GTT used], ...]}``, figures as pyrsmi has them."""
    # pyrsmi, and what it starts, print to standard output what nothing here needs.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        rocml: Any = importlib.import_module("pyrsmi.rocml")
        rocml.smi_initialize()
        cards = [
            [
                _address(rocml, rocml.smi_get_device_pci_id(number)),
                rocml.smi_get_device_memory_used(number, "VRAM"),
                rocml.smi_get_device_memory_used(number, "GTT"),
            ]
            for number in range(rocml.smi_get_device_count())
        ]
        json.dump({"cards": cards}, answer)


def _address(rocml: Any, packed: int) -> str:
    """
    Return the PCI address in a packed one.

    All put the bus above eight bits of device and function. The domain begins at bit 32 in librocm_smi64 and where
    1.x asks through the amdsmi package; where 1.x asks libamd_smi itself it begins at bit 16 (its ``amdsmi_bdf_t``).
    """
    direct = rocml.LIBROCM_NAME != _OLD_LIBRARY and not getattr(rocml, "_using_amdsmi_package", False)
    domain = packed >> (16 if direct else 32)
    return f"{domain:04x}:{packed >> 8 & 255:02x}:{packed >> 3 & 31:02x}.{packed & 7}" if packed >= 0 else ""


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # noqa: BLE001 - whatever a library of others raises is one line for its parent
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 - to its parent
        raise SystemExit(1) from None
