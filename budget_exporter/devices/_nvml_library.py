"""NVIDIA's management library: found, loaded and opened only where the driver is there."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from budget_exporter.errors import SourceError
from budget_exporter.roots import Roots

__all__ = ["NoDriverError", "has_driver", "opened", "said"]

_WSL = "usr/lib/wsl/lib"


class NoDriverError(SourceError):
    """The library is there, but no driver behind it."""


def has_driver(roots: Roots) -> bool:
    """Return whether NVIDIA's driver is loaded on the host under ``roots``, or Windows lends it to a WSL guest."""
    return (
        (roots.procfs / "driver/nvidia").is_dir()
        or (roots.sysfs / "module/nvidia").is_dir()
        or (roots.rootfs / _WSL).is_dir()
    )


def opened() -> Any:
    """
    Return nvidia-ml-py's module with the library initialised.

    While it is, the driver cannot be unloaded. Raise NoDriverError where no driver is loaded, and SourceError that says
    what is missing otherwise.
    """
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError as error:
        raise SourceError("nvidia-ml-py is not installed: install budget-exporter[nvidia]") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_DriverNotLoaded as error:
        raise NoDriverError("the driver is not loaded") from error
    except nvml.NVMLError as error:
        raise SourceError(f"libnvidia-ml.so.1: {said(nvml, error)}") from error
    return nvml


def said(nvml: ModuleType, error: Exception) -> str:
    """Return what the library says of an error, in its own words where it has any."""
    known = {
        nvml.NVML_ERROR_GPU_IS_LOST: "the card is lost: it has fallen off the bus or is not accessible",
        nvml.NVML_ERROR_NOT_FOUND: "the card is not found any more",
        nvml.NVML_ERROR_RESET_REQUIRED: "the card must be reset",
        nvml.NVML_ERROR_NO_PERMISSION: "permission denied",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the library and the loaded driver are of different versions",
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "the library is not found, though the driver is loaded",
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the driver is too old for this question",
    }
    code = getattr(error, "value", None)
    return known.get(code) or str(error).rstrip(".").lower() or f"error {code}"
