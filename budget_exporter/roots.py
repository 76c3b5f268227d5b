"""Where the host is seen (node_exporter's ``--path.*``), so that a container or a test can point elsewhere."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Roots"]

_SOCKETS = (
    "run/podman/podman.sock",
    "run/docker.sock",
    # Where /var/run is no link to /run.
    "var/run/docker.sock",
    "run/user/*/podman/podman.sock",
    "run/user/*/docker.sock",
)
"""Below the root file system: where the packages of podman and docker have their sockets, with root and without."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Mount points of the watched host's sysfs, procfs and root file system."""

    sysfs: Path = Path("/sys")
    procfs: Path = Path("/proc")
    rootfs: Path = Path("/")
    container_sockets: tuple[Path, ...] = ()
    """Sockets of podman or docker in other than the usual places, as paths of ours."""
    neuron_hook: Path | None = None
    """The folder that hooks in engines on Neuron write to, as a path of ours; else engines' environments tell."""

    def sockets(self) -> list[Path]:
        """
        Return the sockets of container daemons that are there now, rootless ones too, each once; blocking.

        A socket that was named is returned whether it is there or not. Where a usual place holds a link to another
        (podman's stand-in for docker), the first of them is returned.
        """
        found: dict[object, Path] = {_which(path) or path: path for path in self.container_sockets}
        for path in (path for pattern in _SOCKETS for path in sorted(self.rootfs.glob(pattern))):
            which = _which(path)
            if which is not None:
                found.setdefault(which, path)
        return list(found.values())


def _which(path: Path) -> tuple[int, int] | None:
    """Return what tells a socket from all others, None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISSOCK(status.st_mode) else None
