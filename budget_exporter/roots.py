"""Where the host is seen (node_exporter's ``--path.*``), so that a container or a test can point elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Roots"]


@dataclass(frozen=True, slots=True)
class Roots:
    """Mount points of the watched host's sysfs, procfs and root file system."""

    sysfs: Path = Path("/sys")
    procfs: Path = Path("/proc")
    rootfs: Path = Path("/")
