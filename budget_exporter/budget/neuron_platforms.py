"""
The memory of AWS's accelerators: banks, and the logical cores that share one.

Source: AWS Neuron SDK 2.32 ``logical-neuroncore-config.rst`` and the pages of each chip; the banks' exact bytes from
aws-neuronx-dkms 2.24.7.0 ``v2`` and ``v3`` ``address_map.h``; trn3 from the SDK alone. Not read on a device.
"""

from __future__ import annotations

from budget_exporter.facts.neuron import PLATFORMS, Platform

__all__ = ["PLATFORMS", "Platform", "bank_platforms", "cores_on_bank", "whole_device"]


def bank_platforms(size: int) -> list[str]:
    """Return the platforms whose banks have ``size`` bytes."""
    return [name for name, platform in PLATFORMS.items() if platform.bank == size]


def whole_device(size: int) -> list[str]:
    """Return the platforms whose devices, not banks, have ``size`` bytes."""
    return [name for name, platform in PLATFORMS.items() if platform.device == size]


def cores_on_bank(size: int, lnc: int) -> int:
    """
    Return how many logical cores share a bank of ``size`` bytes: 2 where cores could be joined and are not.

    ``lnc`` is the number of physical cores of a logical one, 1 or 2. 1 for a bank of no known platform.
    """
    joined = any(PLATFORMS[name].joins_cores for name in bank_platforms(size))
    return 2 if joined and lnc == 1 else 1
